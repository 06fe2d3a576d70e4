//! How much of each part of shared memory is in use, for the doctor and the metrics.
//!
//! Responsible for counting. Not responsible for shares and limits (`pg_queue_core::share`), nor for judging the counts
//! (`doctor`).
//!
//! Invariant: no two locks are held together, so the counts are of slightly different moments.

use pgrx::pg_sys;

use crate::shmem::{keys, lock};

/// The use of the memory whose size a setting determines.
pub struct Use {
    /// The name of the setting.
    pub setting: &'static str,
    /// How many places are in use.
    pub used: usize,
    /// How many places there are.
    pub size: usize,
    /// The database that uses the most places, and how many. `None`: databases have no shares of this memory.
    pub most: Option<(pg_sys::Oid, u32)>,
}

/// Returns how much of each kind of memory that can run full is in use, over all databases. Ready attempts are not
/// included: an attempt that does not fit there stays in its table. Takes the locks of keys and of the frontier, one
/// after the other.
pub fn in_use() -> [Use; 5] {
    let keys = keys::with_holders(|holders| (holders.head.held as usize, holders.most));
    let mut uses = lock::with(|shared| {
        let databases = shared.instances.iter().filter(|i| i.number != 0).count();
        let of = |setting, (used, size)| Use { setting, used, size, most: None };
        [
            of("pg_queue.max_databases", (databases, shared.instances.len())),
            of("pg_queue.max_lanes", shared.frontier.backlog.lanes.in_use()),
            of("pg_queue.max_running", shared.frontier.running.in_use()),
            of("pg_queue.max_keys", keys),
            of("pg_queue.max_rated_groups", shared.frontier.backlog.starts.in_use()),
        ]
    });
    let numbers: Vec<_> = lock::with(|shared| shared.instances.iter().map(|i| (i.database, i.number)).collect());
    let most = |held: &dyn Fn(u32) -> u32| {
        let held =
            numbers.iter().filter(|(_, number)| *number != 0).map(|&(database, number)| (database, held(number)));
        held.max_by_key(|&(_, held)| held)
    };
    uses[2].most = most(&|number| lock::with(|shared| shared.frontier.running.held(number, 0).1));
    uses[3].most = most(&|number| keys::with_holders(|holders| holders.held_by(number)));
    uses
}
