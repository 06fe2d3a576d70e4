//! Sends NOTIFY for queues that ask for it: on channel `pg_queue`, with the queue's name, for any number
//! of commits since the last time. Here and not in the producer's commit, because NOTIFY takes a lock that
//! all such commits share.

use std::ffi::CString;

use crate::duty::Duty;
use crate::transaction::{self, Step};
use crate::{instance, queue, shmem, sys};

/// The duty.
pub const DUTY: Duty = Duty { name: "notify", is_due, run };

fn is_due(number: u32) -> bool {
    shmem::with_instance(number, |_, instance| instance.notify.iter().any(|&lane| lane != 0)).unwrap_or(false)
}

fn run(number: u32) -> i64 {
    let Some(catalog) = instance::of_duty(number) else { return 0 };
    transaction::register();
    let lanes = shmem::with_instance(number, |_, instance| instance.notify).unwrap_or_default();
    let mut sent = 0;
    for lane in lanes.into_iter().filter(|&lane| lane != 0) {
        transaction::reserve(1);
        shmem::with_instance(number, |_, instance| {
            instance.notify.iter_mut().filter(|l| **l == lane).for_each(|l| *l = 0);
        });
        transaction::remember(number, Step::Notified { lane });
        let Ok(Some(queue)) = queue::by_lane(&catalog, lane) else { continue };
        let Ok(name) = CString::new(queue.name.as_str()) else { continue };
        sys::notify(c"pg_queue", &name);
        sent += 1;
    }
    sent
}
