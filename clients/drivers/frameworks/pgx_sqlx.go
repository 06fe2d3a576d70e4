// pgx and sqlx: the code of docs/frameworks.md.
package main

import (
	"context"
	"encoding/json"
	"log"
	"os"

	"github.com/jackc/pgx/v4"
	"github.com/jackc/pgx/v4/pgxpool"
	"github.com/jmoiron/sqlx"
	_ "github.com/lib/pq"
)

//@ the page

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func main() {
	ctx := context.Background()
	pool, err := pgxpool.Connect(ctx, "")
	must(err)
	db, err := sqlx.Connect("postgres", "sslmode=disable host="+os.Getenv("PGHOST"))
	must(err)
	db.MustExec("CREATE TABLE account (email text PRIMARY KEY)")
	db.MustExec("SELECT queue.create('emails')")
	first, err := register(ctx, pool, "ada@example.org")
	must(err)
	second, err := registerBySqlx(db, "grace@example.org")
	must(err)
	refused := func(why string) {
		if _, err := register(ctx, pool, "joan@example.org"); err == nil {
			log.Fatalf("pgx: it should be refused: %s", why)
		}
		if _, err := registerBySqlx(db, "joan@example.org"); err == nil {
			log.Fatalf("sqlx: it should be refused: %s", why)
		}
	}
	// The commit refuses the account, so it has to refuse the job, too.
	db.MustExec("CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE unique_violation; END $$")
	db.MustExec(`CREATE CONSTRAINT TRIGGER refuse AFTER INSERT ON account DEFERRABLE INITIALLY DEFERRED
		FOR EACH ROW EXECUTE FUNCTION refuse()`)
	refused("the account")
	db.MustExec("DROP TRIGGER refuse ON account")
	// The queue is full, so the transaction with the account has to roll back.
	db.MustExec("SELECT queue.alter('emails', max_waiting => 2)")
	refused("the job")
	var jobs []int64
	must(db.Select(&jobs, "SELECT job_id FROM queue.jobs WHERE queue_name = 'emails' ORDER BY job_id"))
	if len(jobs) != 2 || jobs[0] != first || jobs[1] != second {
		log.Fatalf("the jobs are %v, not %d and %d", jobs, first, second)
	}
	var accounts int
	must(db.Get(&accounts, "SELECT count(*) FROM account"))
	if accounts != 2 {
		log.Fatalf("there are %d accounts", accounts)
	}
	var payload string
	must(db.Get(&payload, "SELECT payload->>'to' FROM queue.job($1)", second))
	if payload != "grace@example.org" {
		log.Fatalf("the payload is %s", payload)
	}
}
