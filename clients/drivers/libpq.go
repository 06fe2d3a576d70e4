// lib/pq with database/sql: the statements of docs/clients.md.
package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/lib/pq"
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
	// Behind a pooler in transaction mode each transaction may have another connection, so nothing is prepared.
	connector := must(pq.NewConnector("sslmode=disable" + os.Getenv("BEHIND_A_POOLER")))
	pool := sql.OpenDB(connector)
	pool.SetMaxOpenConns(1)
	other := sql.OpenDB(connector)

	// JSON is sent as text, an array by pq.Array.
	var job int64
	if err := pool.QueryRow("SELECT queue.enqueue($1, $2, delay => $3)", "jobs", `{"n": 1}`, "0 seconds").Scan(&job); err != nil {
		panic(err)
	}
	must(pool.Exec("SELECT queue.enqueue_many($1, $2)", "jobs", pq.Array([]string{`{"n": 2}`, `{"n": 3}`})))
	rows := must(pool.Query("SELECT id, job_id, payload ->> 'n' FROM queue.claim('jobs', 3, wait => $1)", "1 second"))
	var ids, jobs []int64
	for rows.Next() {
		var id, job int64
		var n string
		if err := rows.Scan(&id, &job, &n); err != nil {
			panic(err)
		}
		ids, jobs = append(ids, id), append(jobs, job)
		is(n, len(ids), "payload")
	}
	is(len(ids), 3, "claimed")
	is(jobs[0], job, "job")
	var outcome string
	if err := pool.QueryRow("SELECT outcome FROM queue.complete_many($1)", pq.Array(ids[:1])).Scan(&outcome); err != nil {
		panic(err)
	}
	is(outcome, "completed", "complete_many")
	must(pool.Exec("SELECT queue.fail($1, $2, retry_in => $3)", ids[1], "no", "1 hour"))
	must(pool.Exec("SELECT queue.complete($1, $2)", ids[2], `{"ok": true}`))
	_, err := pool.Exec("SELECT queue.complete($1)", ids[2])
	var lost *pq.Error
	is(errors.As(err, &lost), true, "an error of the server")
	is(lost.Code, "QJ001", "lost lease")
	claim := "SELECT headers ->> 'outcome' FROM queue.claim('jobs', completed => $1) WHERE job_id IS NULL"
	if err := pool.QueryRow(claim, pq.Array(ids[2:])).Scan(&outcome); err != nil {
		panic(err)
	}
	is(outcome, "lost", "the answer for completed")
	var result string
	if err := pool.QueryRow("SELECT result FROM queue.jobs WHERE job_id = $1", jobs[2]).Scan(&result); err != nil {
		panic(err)
	}
	is(result, `{"ok": true}`, "result")

	if os.Getenv("BEHIND_A_POOLER") != "" {
		return // PgBouncer 1.18 can fall over a request for a cancel that does not wait for the answer
	}
	waits, cancel := context.WithCancel(context.Background())
	go func() {
		asleep := "SELECT count(*) FROM pg_stat_activity WHERE query ~ 'claim.*wait' AND wait_event IS NOT NULL AND state = 'active'" +
			" AND datname = current_database() AND pid <> pg_backend_pid()"
		for count := 0; count == 0; time.Sleep(20 * time.Millisecond) {
			if err := other.QueryRow(asleep).Scan(&count); err != nil {
				panic(err)
			}
		}
		cancel()
	}()
	begun := time.Now()
	_, err = pool.ExecContext(waits, "SELECT id FROM queue.claim('jobs', wait => '10 seconds')")
	is(err != nil, true, "cancelled")
	is(time.Since(begun) < 8*time.Second, true, "the cancel works immediately")
}
