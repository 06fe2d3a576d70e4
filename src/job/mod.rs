//! Every change of a job's state, one file for each. Knows no SQL function.
//!
//! Invariant: a step is recorded before the frontier is changed, and a row is inserted only by the session that holds
//! its attempt.

pub mod advance;
pub mod after;
pub mod await_end;
pub mod cancel;
pub mod claim;
pub mod complete;
pub mod dead_letter;
pub mod debounce;
pub mod end_flow;
pub mod enqueue;
pub mod extend;
pub mod fail;
pub mod find;
pub mod flow;
pub mod forget;
pub mod given;
pub mod group_turn;
pub mod headers;
pub mod held;
pub mod held_by_dead;
pub mod hold;
pub mod keys;
pub mod limits;
pub mod living;
pub mod next_attempt;
pub mod notice;
pub mod options;
pub mod outcomes;
pub mod progress;
pub mod publish;
pub mod recover;
pub mod refill;
pub mod release;
pub mod rerun;
pub mod retry;
pub mod schedule;
pub mod start_by;
pub mod steps;
pub mod suspend;
pub mod take;
pub mod timing;
pub mod unique;
pub mod wait;
