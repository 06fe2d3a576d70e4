//! A client: its connection, its deals, and its part of the ledger. An unexpected error is a finding.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

use postgres::error::DbError;
use postgres::types::ToSql;
use postgres::{Client, Row};
use queue_tests::random::Random;

use crate::errors::{self, Failure};
use crate::ledger::{Deal, Fact, Fate, What, now};
use crate::place::CLIENT;
use crate::shared::Torture;

pub type Done<T = ()> = Result<T, Failure>;

/// Isolation levels. The default occurs more often than the others.
const LEVELS: [&str; 4] = ["READ COMMITTED", "READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"];

pub struct Session<'a> {
    pub torture: &'a Torture,
    pub number: usize,
    pub random: Random,
    client: Option<Client>,
    /// The open deal, if there is one, and the places where its savepoints begin.
    deal: Option<Deal>,
    savepoints: Vec<usize>,
    /// The beginning of the call whose error ended the open deal or its last savepoint. The server rolls back at the
    /// error, before the client asks for it.
    failed_from: Option<i64>,
    /// True if a verb of the open deal has read tables by SQL.
    has_read: bool,
    pub deals: Vec<Deal>,
    /// The number of answers of each kind to each verb.
    pub counts: BTreeMap<(String, String), u64>,
    /// The number of this connection. State that ends with the connection has this number.
    pub connections: u64,
    /// True if the server warned that a commit may not have reached the standby: a cancel ended the wait for the
    /// standby, and not the commit.
    is_local: Arc<AtomicBool>,
}

static NEXT_DEAL: AtomicI64 = AtomicI64::new(1);

impl<'a> Session<'a> {
    pub fn new(torture: &'a Torture, number: usize) -> Self {
        let random = Random::new(torture.options.seed().wrapping_mul(1000).wrapping_add(number as u64));
        Self {
            torture,
            number,
            random,
            client: None,
            deal: None,
            savepoints: Vec::new(),
            failed_from: None,
            has_read: false,
            deals: Vec::new(),
            counts: BTreeMap::new(),
            connections: 0,
            is_local: Arc::default(),
        }
    }

    /// Calls `step` repeatedly until `is_over`, with a new connection after each lost one.
    pub fn go_on(&mut self, is_over: impl Fn() -> bool, mut step: impl FnMut(&mut Self) -> Done) {
        while !is_over() {
            if self.client.as_ref().is_none_or(Client::is_closed) {
                self.client = None;
                let is_local = Arc::clone(&self.is_local);
                let hear = move |notice: DbError| {
                    if notice.message().starts_with("canceling wait for synchronous replication") {
                        is_local.store(true, Ordering::Relaxed);
                    }
                };
                match self.torture.place.connect_and_hear(CLIENT, hear) {
                    Some(client) => self.client = Some(client),
                    None => {
                        std::thread::sleep(std::time::Duration::from_millis(20));
                        continue;
                    }
                }
                self.connections += 1;
            }
            if let Err(failure) = step(self) {
                self.abandon(&failure);
            }
            assert!(self.deal.is_none(), "a step leaves no deal open");
            if !self.torture.is_calm() && self.random.below(400) == 0 {
                self.client = None;
            }
        }
    }

    /// Rolls back after a failure.
    fn abandon(&mut self, failure: &Failure) {
        if failure.is_lost {
            self.client = None;
        }
        if self.deal.is_some() {
            if self.client.is_some() {
                let _ = self.rollback();
            } else {
                self.close(Fate::RolledBack, true, now());
            }
        }
    }

    fn close(&mut self, fate: Fate, is_cut: bool, end_from: i64) {
        let mut deal = self.deal.take().expect("an open deal");
        let is_local = self.is_local.swap(false, Ordering::Relaxed);
        let fate = if fate == Fate::Committed && is_local { Fate::Unknown } else { fate };
        (deal.fate, deal.is_cut, deal.end_from, deal.end_to) = (fate, is_cut, end_from, now());
        self.savepoints.clear();
        self.failed_from = None;
        self.has_read = false;
        self.deals.push(deal);
    }

    fn count(&mut self, verb: &str, answer: &str) {
        *self.counts.entry((verb.to_owned(), answer.to_owned())).or_default() += 1;
    }

    /// Counts a failed call, and reports unexpected errors. `from`: the time at which the call began.
    fn failed(&mut self, verb: &str, e: &postgres::Error, is_coming: bool, from: i64) -> Failure {
        self.failed_from = self.deal.as_ref().map(|_| from);
        let client = self.client.as_ref().expect("a connection");
        let failure = Failure::of(client, e);
        self.count(verb, if failure.is_lost { "lost" } else { &failure.code });
        if !errors::is_expected(verb, &failure, is_coming, self.has_read) {
            self.torture.find(format!("{verb} was answered {}: {} ({e:?})", failure.code, failure.message));
        }
        failure
    }

    /// Runs a statement in the open deal. Returns its rows, and the times before and after it.
    pub fn call(&mut self, verb: &str, sql: &str, params: &[&(dyn ToSql + Sync)]) -> Done<(Vec<Row>, i64, i64)> {
        self.call_of(verb, sql, params, false)
    }

    /// Does what `call` does, for a queue that may be being dropped.
    pub fn call_of(
        &mut self,
        verb: &str,
        sql: &str,
        params: &[&(dyn ToSql + Sync)],
        is_coming: bool,
    ) -> Done<(Vec<Row>, i64, i64)> {
        let from = now();
        self.has_read |= self.deal.is_some() && errors::reads_by_sql(verb);
        match self.client.as_mut().expect("a connection").query(sql, params) {
            Ok(rows) => {
                self.count(verb, "ok");
                Ok((rows, from, now()))
            }
            Err(e) => Err(self.failed(verb, &e, is_coming, from)),
        }
    }

    fn plain(&mut self, verb: &str, sql: &str) -> Done {
        let from = now();
        match self.client.as_mut().expect("a connection").batch_execute(sql) {
            Ok(()) => {
                self.count(verb, "ok");
                Ok(())
            }
            // A dropped queue may be noticed only at the end of a deal.
            Err(e) => Err(self.failed(verb, &e, true, from)),
        }
    }

    /// Runs the last statement of a transaction. If it is cancelled before it begins, the transaction stays open, so
    /// the connection is closed.
    fn last(&mut self, verb: &str, sql: &str) -> Done {
        let done = self.plain(verb, sql);
        if done.as_ref().is_err_and(|failure| failure.code == "57014") {
            self.client = None;
        }
        done
    }

    /// Writes a fact into the open deal.
    pub fn note(&mut self, what: What, from: i64, to: i64) {
        self.deal.as_mut().expect("an open deal").facts.push(Fact { what, from, to, undone: None });
    }

    /// Returns the jobs that the open deal has enqueued.
    pub fn enqueued(&self) -> impl Iterator<Item = i64> {
        let facts = self.deal.iter().flat_map(Deal::kept);
        facts.filter_map(|fact| if let What::Enqueued(job) = &fact.what { Some(job.id) } else { None })
    }

    /// Opens a deal without a transaction block. Its only statement must write the returned witness.
    pub fn begin_alone(&mut self) -> i64 {
        let number = NEXT_DEAL.fetch_add(1, Ordering::Relaxed);
        self.deal = Some(Deal::new(number));
        number
    }

    /// Ends a deal without a transaction block, according to the result of its statement.
    pub fn end_alone(&mut self, done: &Done, from: i64) {
        let (fate, is_cut) = match done {
            Ok(()) => (Fate::Committed, false),
            Err(failure) if failure.is_lost => (Fate::Unknown, true),
            Err(_) => (Fate::RolledBack, false),
        };
        self.close(fate, is_cut, from);
    }

    /// Begins a transaction of any isolation level. Returns true if it has one snapshot.
    pub fn begin(&mut self) -> Done<bool> {
        let level = self.random.one_of(&LEVELS);
        self.begin_at(level)
    }

    pub fn begin_at(&mut self, level: &str) -> Done<bool> {
        self.plain("begin", &format!("BEGIN ISOLATION LEVEL {level}"))?;
        let number = NEXT_DEAL.fetch_add(1, Ordering::Relaxed);
        self.deal = Some(Deal::new(number));
        Ok(level != "READ COMMITTED")
    }

    pub fn savepoint(&mut self) -> Done {
        self.plain("savepoint", "SAVEPOINT s")?;
        let facts = self.deal.as_ref().expect("an open deal").facts.len();
        self.savepoints.push(facts);
        Ok(())
    }

    pub fn release_savepoint(&mut self) -> Done {
        self.plain("release savepoint", "RELEASE s")?;
        self.savepoints.pop();
        Ok(())
    }

    pub fn rollback_to_savepoint(&mut self) -> Done {
        let from = self.failed_from.take().unwrap_or_else(now);
        self.plain("rollback to savepoint", "ROLLBACK TO s; RELEASE s")?;
        let first = self.savepoints.pop().expect("a savepoint");
        for fact in &mut self.deal.as_mut().expect("an open deal").facts[first..] {
            fact.undone.get_or_insert(from);
        }
        Ok(())
    }

    /// Runs `work` in a savepoint, which is rolled back on failure, and otherwise with this probability in percent.
    pub fn within_savepoint(&mut self, percent: u64, work: impl FnOnce(&mut Self) -> Done) -> Done {
        self.savepoint()?;
        match work(self) {
            Err(failure) if failure.is_lost => Err(failure),
            Err(_) => self.rollback_to_savepoint(),
            Ok(()) if self.random.percent(percent) => self.rollback_to_savepoint(),
            Ok(()) => self.release_savepoint(),
        }
    }

    fn leave_witness(&mut self) -> Done {
        let number = self.deal.as_ref().expect("an open deal").number;
        self.call("witness", "INSERT INTO witness VALUES ($1)", &[&number]).map(drop)
    }

    /// Commits the deal. An error also closes the deal: its fate is known, or will be known.
    pub fn commit(&mut self) -> Done {
        self.leave_witness()?;
        let from = now();
        let done = self.last("commit", "COMMIT");
        match &done {
            Ok(()) => self.close(Fate::Committed, false, from),
            Err(failure) => self.close(if failure.is_lost { Fate::Unknown } else { Fate::RolledBack }, true, from),
        }
        done
    }

    pub fn rollback(&mut self) -> Done {
        let from = self.failed_from.take().unwrap_or_else(now);
        let done = self.last("rollback", "ROLLBACK");
        self.close(Fate::RolledBack, done.is_err(), from);
        done
    }

    /// Commits, or rolls back with this probability in percent. Returns true if it has committed.
    pub fn end(&mut self, percent: u64) -> Done<bool> {
        if !self.torture.is_calm() && self.random.percent(percent) {
            return self.rollback().map(|()| false);
        }
        self.commit().map(|()| true)
    }

    /// Prepares the deal, and commits it or rolls it back after a while, on another connection if necessary.
    pub fn end_in_two_phases(&mut self) -> Done {
        self.leave_witness()?;
        let gid = format!("deal {}", self.deal.as_ref().expect("an open deal").number);
        let from = now();
        self.deal.as_mut().expect("an open deal").prepared = true;
        let done = self.last("prepare", &format!("PREPARE TRANSACTION '{gid}'"));
        // The fate of the deal is unknown until another session has ended it.
        match &done {
            Ok(()) => self.close(Fate::Unknown, false, from),
            Err(failure) => self.close(if failure.is_lost { Fate::Unknown } else { Fate::RolledBack }, true, from),
        }
        done
    }

    /// Runs a statement outside of any deal. It leaves no fact.
    pub fn aside(&mut self, verb: &str, sql: &str) -> Done<Vec<Row>> {
        self.call_of(verb, sql, &[], false).map(|(rows, ..)| rows)
    }
}
