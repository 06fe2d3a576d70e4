// JDBC: the statements of docs/clients.md.

import java.sql.*;
import java.util.*;

class Jdbc {
    static Connection db;

    static void is(Object found, Object wanted, String what) {
        if (!Objects.equals(found, wanted)) throw new AssertionError(what + ": " + found + " is not " + wanted);
    }

    static PreparedStatement statement(String sql, Object... values) throws SQLException {
        PreparedStatement statement = db.prepareStatement(sql);
        for (int n = 0; n < values.length; n++) statement.setObject(n + 1, values[n]);
        return statement;
    }

    static List<Object[]> ask(String sql, Object... values) throws SQLException {
        try (PreparedStatement statement = statement(sql, values); ResultSet found = statement.executeQuery()) {
            List<Object[]> rows = new ArrayList<>();
            int columns = found.getMetaData().getColumnCount();
            while (found.next()) {
                Object[] row = new Object[columns];
                for (int n = 0; n < columns; n++) row[n] = found.getObject(n + 1);
                rows.add(row);
            }
            return rows;
        }
    }

    public static void main(String[] arguments) throws Exception {
        Map<String, String> env = System.getenv();
        // PgBouncer has to ignore extra_float_digits, which JDBC sets at the start of a session.
        String url = "jdbc:postgresql://" + env.get("PGHOST") + ":" + env.get("PGPORT") + "/" + env.get("PGDATABASE") + "?prepareThreshold=0";
        db = DriverManager.getConnection(url, env.get("PGUSER"), "");

        // Strings have type varchar, so they need casts. `?` is a parameter, so the operator of jsonb is written `??`.
        Object job = ask("SELECT queue.enqueue(?, ?::jsonb, delay => ?::interval)", "jobs", "{\"n\": 1}", "0 seconds").get(0)[0];
        Array payloads = db.createArrayOf("text", new String[] { "{\"n\": 2}", "{\"n\": 3}" });
        is(ask("SELECT queue.enqueue_many(?, ?::jsonb[])", "jobs", payloads).size(), 2, "enqueue_many");
        List<Object[]> rows = ask("SELECT id, job_id, payload ->> 'n' FROM queue.claim('jobs', 3, wait => ?::interval)", "1 second");
        is(List.of(rows.get(0)[2], rows.get(1)[2], rows.get(2)[2]), List.of("1", "2", "3"), "payloads");
        is(rows.get(0)[1], job, "job");
        Object[] ids = rows.stream().map(row -> row[0]).toArray();
        Array first = db.createArrayOf("bigint", new Object[] { ids[0] });
        is(ask("SELECT outcome FROM queue.complete_many(?)", first).get(0)[0], "completed", "complete_many");
        ask("SELECT queue.fail(?, ?, retry_in => ?::interval)", ids[1], "no", "1 hour");
        ask("SELECT queue.complete(?, ?::jsonb)", ids[2], "{\"ok\": true}");
        try {
            ask("SELECT queue.complete(?)", ids[2]);
            throw new AssertionError("it should be lost");
        } catch (SQLException error) {
            is(error.getSQLState(), "QJ001", "lost lease");
        }
        Array last = db.createArrayOf("bigint", new Object[] { ids[2] });
        String next = "SELECT headers ->> 'outcome' FROM queue.claim('jobs', completed => ?) WHERE job_id IS NULL";
        is(ask(next, last).get(0)[0], "lost", "the answer for completed");
        String result = ask("SELECT result::text FROM queue.jobs WHERE job_id = ?", rows.get(2)[1]).get(0)[0].toString();
        is(result, "{\"ok\": true}", "result");

        Connection other = DriverManager.getConnection(url, env.get("PGUSER"), "");
        PreparedStatement claim = statement("SELECT id FROM queue.claim('jobs', wait => '10 seconds')");
        Thread canceller = new Thread(() -> {
            try {
                String asleep = "SELECT FROM pg_stat_activity WHERE query ~ 'claim.*wait' AND wait_event IS NOT NULL AND state = 'active'"
                    + " AND datname = current_database() AND pid <> pg_backend_pid()";
                while (!other.createStatement().executeQuery(asleep).next()) Thread.sleep(20);
                claim.cancel();
            } catch (Exception error) {
                error.printStackTrace();
            }
        });
        canceller.start();
        long begun = System.nanoTime();
        try {
            claim.executeQuery();
            throw new AssertionError("it should be cancelled");
        } catch (SQLException error) {
            is(error.getSQLState(), "57014", "cancelled");
        }
        is(System.nanoTime() - begun < 8_000_000_000L, true, "the cancel works immediately");
        canceller.join();
    }
}
