// pgx: the statements of docs/clients.md. Version 4, which Debian has.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/jackc/pgconn"
	"github.com/jackc/pgx/v4"
)

func must[T any](found T, err error) T {
	if err != nil {
		panic(err)
	}
	return found
}

func is(found, wanted any, what string) {
	if fmt.Sprint(found) != fmt.Sprint(wanted) {
		panic(fmt.Sprintf("%s: %v is not %v", what, found, wanted))
	}
}

func main() {
	all := context.Background()
	// Behind a pooler in transaction mode each transaction may have another connection, so nothing is prepared.
	config := must(pgx.ParseConfig("sslmode=disable" + os.Getenv("BEHIND_A_POOLER")))
	db, other := must(pgx.ConnectConfig(all, config)), must(pgx.ConnectConfig(all, config))

	// pgx sends a map as JSON, a Duration as an interval, a slice as an array. JSON in an array is text.
	var job int64
	payload := map[string]any{"n": 1}
	if err := db.QueryRow(all, "SELECT queue.enqueue($1, $2, delay => $3)", "jobs", payload, time.Duration(0)).Scan(&job); err != nil {
		panic(err)
	}
	must(db.Exec(all, "SELECT queue.enqueue_many($1, $2::text[]::jsonb[])", "jobs", []string{`{"n": 2}`, `{"n": 3}`}))
	rows := must(db.Query(all, "SELECT id, job_id, payload FROM queue.claim('jobs', 3, wait => $1)", time.Second))
	var ids, jobs []int64
	for rows.Next() {
		var id, job int64
		var payload map[string]any
		if err := rows.Scan(&id, &job, &payload); err != nil {
			panic(err)
		}
		ids, jobs = append(ids, id), append(jobs, job)
		is(payload["n"], len(ids), "payload")
	}
	is(len(ids), 3, "claimed")
	is(jobs[0], job, "job")
	var outcome string
	if err := db.QueryRow(all, "SELECT outcome FROM queue.complete_many($1)", ids[:1]).Scan(&outcome); err != nil {
		panic(err)
	}
	is(outcome, "completed", "complete_many")
	must(db.Exec(all, "SELECT queue.fail($1, $2, retry_in => $3)", ids[1], "no", time.Hour))
	must(db.Exec(all, "SELECT queue.complete($1, $2)", ids[2], map[string]any{"ok": true}))
	_, err := db.Exec(all, "SELECT queue.complete($1)", ids[2])
	var lost *pgconn.PgError
	is(errors.As(err, &lost), true, "an error of the server")
	is(lost.Code, "QJ001", "lost lease")
	claim := "SELECT headers ->> 'outcome' FROM queue.claim('jobs', completed => $1) WHERE job_id IS NULL"
	if err := db.QueryRow(all, claim, ids[2:]).Scan(&outcome); err != nil {
		panic(err)
	}
	is(outcome, "lost", "the answer for completed")
	var result map[string]any
	if err := db.QueryRow(all, "SELECT result FROM queue.jobs WHERE job_id = $1", jobs[2]).Scan(&result); err != nil {
		panic(err)
	}
	is(result["ok"], true, "result")

	if os.Getenv("BEHIND_A_POOLER") != "" {
		return // PgBouncer 1.18 can fall over a request for a cancel that does not wait for the answer
	}
	// When the context ends, pgx closes the connection. The claim needs a cancel request of its own.
	go func() {
		asleep := "SELECT count(*) FROM pg_stat_activity WHERE query ~ 'claim.*wait' AND wait_event IS NOT NULL AND state = 'active'" +
			" AND datname = current_database() AND pid <> pg_backend_pid()"
		for count := 0; count == 0; time.Sleep(20 * time.Millisecond) {
			if err := other.QueryRow(all, asleep).Scan(&count); err != nil {
				panic(err)
			}
		}
		if err := db.PgConn().CancelRequest(all); err != nil {
			panic(err)
		}
	}()
	begun := time.Now()
	_, err = db.Exec(all, "SELECT id FROM queue.claim('jobs', wait => '10 seconds')")
	is(errors.As(err, &lost), true, "cancelled")
	is(lost.Code, "57014", "cancelled")
	is(time.Since(begun) < 8*time.Second, true, "the cancel works immediately")
}
