//! The tables and indexes that are opened by their oids.
//!
//! Responsible for the list of them, each with what it is for, and for finding their oids by their names. Not
//! responsible for when they are found anew (`catalog`).
//!
//! Invariant: a table or an index stands in the list once.

use pgrx::pg_sys::Oid;

use crate::catalog::tables;
use crate::error::Result;
use crate::pg::shape::Shape;

/// What a relation is to this library.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// A table into which rows are inserted other than by SQL.
    Log,
    /// A table that is written by SQL; or one with rules of its own, such as history.
    Table,
    Index,
    Sequence,
}

/// A relation of the list.
pub struct Known {
    pub oid: Oid,
    pub role: Role,
    /// The columns that a table should have, if they are read directly.
    pub shape: Option<Shape>,
}

/// Makes a struct with an oid for each line: field, role, name, and the module of `tables` with the columns. An N in a
/// name stands for the number of a segment or a half.
macro_rules! relations {
    ($(#[$about:meta])* $owner:ident {
        $($(#[$doc:meta])* $field:ident: $role:ident $name:literal $($table:ident)?;)*
    }) => {
        $(#[$about])*
        #[derive(Clone, Copy)]
        pub struct $owner {
            $($(#[$doc])* pub $field: Oid,)*
        }

        impl $owner {
            /// Finds them. `oid` gets a name.
            pub fn find(n: usize, mut oid: impl FnMut(String) -> Result<Oid>) -> Result<Self> {
                Ok(Self { $($field: oid($name.replace('N', &n.to_string()))?,)* })
            }

            /// Returns them in the order of the list.
            pub fn all(&self) -> impl Iterator<Item = Known> {
                [$(Known {
                    oid: self.$field,
                    role: Role::$role,
                    shape: [$(tables::$table::SHAPE)?].first().copied(),
                }),*].into_iter()
            }
        }
    };
}

relations! {
    /// One of each.
    Single {
        queue: Table "queue" queue;
        queue_name: Index "queue_queue_name_key";
        queue_pkey: Index "queue_pkey";
        /// The weights of groups.
        weight: Table "weight" weight;
        weight_pkey: Index "weight_pkey";
        lane: Table "lane" lane;
        lane_pkey: Index "lane_pkey";
        /// By queue.
        lane_queue: Index "lane_queue_id_idx";
        permission: Table "permission";
        permission_pkey: Index "permission_pkey";
        /// The sequence that ids are counted by.
        id_seq: Sequence "id_seq";
        /// The timelines on which ids were handed out.
        timeline: Log "timeline" timeline;
        timeline_idx: Index "timeline_timeline_idx";
        /// The log of the segments' states.
        segment_log: Log "segment_log" segment_log;
        segment_log_pkey: Index "segment_log_pkey";
        /// The ended attempts that were retried by hand.
        successor: Log "successor" successor;
        successor_pkey: Index "successor_pkey";
        /// The parent of the tables that keep ended attempts.
        history: Table "history" history;
        /// The minutes of reclaimed segments.
        rollup: Log "rollup" rollup;
        rollup_minute: Index "rollup_minute_idx";
        /// The sums of reclaimed segments.
        total: Log "total" total;
        total_lane: Index "total_lane_idx";
        schedule: Table "schedule" schedule;
        schedule_pkey: Index "schedule_pkey";
        schedule_name: Index "schedule_schedule_name_key";
        schedule_queue: Index "schedule_queue_id_idx";
        /// The processes that restore.
        restoring: Log "restoring" restoring;
        restoring_idx: Index "restoring_written_at_idx";
    }
}

relations! {
    /// Two of each, which are filled in turn.
    Half {
        /// What is recorded of unique keys.
        key: Log "key_N" key;
        key_index: Index "key_N_key_idx";
        /// The log of firings.
        firing: Log "firing_N" firing;
        firing_pkey: Index "firing_N_pkey";
    }
}

relations! {
    /// The tables and indexes of one segment.
    Segment {
        attempt: Log "attempt_N" attempt;
        attempt_pkey: Index "attempt_N_pkey";
        attempt_lane: Index "attempt_N_lane_idx";
        attempt_run_at: Index "attempt_N_run_at_idx";
        attempt_job: Index "attempt_N_job_idx";
        attempt_holder: Index "attempt_N_holder_idx";
        attempt_unique: Index "attempt_N_unique_idx";
        /// By flow.
        attempt_flow: Index "attempt_N_flow_idx";
        /// By the time by which they must start.
        attempt_start_by: Index "attempt_N_start_by_idx";
        claim: Log "claim_N" claim;
        claim_pkey: Index "claim_N_pkey";
        outcome: Log "outcome_N" outcome;
        outcome_pkey: Index "outcome_N_pkey";
        outcome_dead: Index "outcome_N_dead_idx";
        note: Log "note_N" note;
        note_id: Index "note_N_id_idx";
        note_rerun: Index "note_N_rerun_idx";
        /// By predecessor.
        note_job: Index "note_N_job_idx";
        /// The empty table that the index of groups belongs to.
        parked: Table "parked_N" parked;
        /// See `log::parked`.
        parked_index: Index "parked_N_idx";
    }
}

impl Segment {
    /// Returns all tables, in the order in which they are emptied: later versions may only add to the end.
    pub fn tables(&self) -> impl Iterator<Item = Oid> {
        self.all().filter(|known| matches!(known.role, Role::Log | Role::Table)).map(|known| known.oid)
    }
}
