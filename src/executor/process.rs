//! The process that runs jobs: its start, its loop and its end.
//!
//! Not responsible for when a process is needed (`duty::dispatch`), for the slots (`table`), for signals and errors
//! (`signals`), nor for a single job (`job`).
//!
//! Invariant: no job leaves anything in the session for the next one. If the session cannot be cleaned, the process
//! ends.

use std::cell::Cell;
use std::ffi::c_int;

use pgrx::pg_guard;
use pgrx::pg_sys::{self, Datum};

use crate::catalog;
use crate::executor::commits;
use crate::executor::job::{self, Ran};
use crate::executor::signals::{on_cancel, on_terminate, was_terminated};
use crate::executor::table::{self, Order, Place};
use crate::pg::fault::fault;
use crate::pg::{background, client, portal, process, raw, role, session, syscache, time};
use crate::{pg, transaction};

/// A process waits this long for its next job, in microseconds.
const MAX_IDLE_US: i64 = 10_000_000;
/// A process leaves after this many jobs, after this many microseconds, or if its memory has grown by this many bytes.
const MAX_JOBS: u32 = 1_000;
const MAX_LIFE_US: i64 = 3_600_000_000;
const MAX_GROWTH_BYTES: usize = 64 << 20;

/// Asks the postmaster for a process in a slot. False: the server has no free background worker slot.
pub fn start(slot: usize, start: u32) -> bool {
    let name = format!("pg_queue executor {slot}");
    let mut worker = background::describe(&name, c"pg_queue executor", c"pg_queue_executor_main");
    for (to, from) in worker.bgw_extra.iter_mut().zip(start.to_ne_bytes()) {
        *to = from.cast_signed();
    }
    background::start(worker, Datum::from(slot)).is_some()
}

thread_local! {
    /// The slot of this process, and the number of its start.
    static SLOT: Cell<(usize, u32)> = const { Cell::new((0, 0)) };
}

/// The main function of the process, called by the postmaster.
#[pg_guard]
#[unsafe(no_mangle)]
pub extern "C-unwind" fn pg_queue_executor_main(arg: Datum) {
    let slot = arg.value();
    // SAFETY: the entry by which this process was started; `start` has written the number.
    let start = unsafe {
        let extra = &(*pg_sys::MyBgworkerEntry).bgw_extra;
        u32::from_ne_bytes(std::array::from_fn(|n| extra[n].cast_unsigned()))
    };
    SLOT.set((slot, start));
    fault!("executor.started");
    process::handle_signal(libc::SIGTERM, on_terminate);
    process::handle_signal(libc::SIGINT, on_cancel);
    process::handle_signal(libc::SIGHUP, raw::SignalHandlerForConfigReload);
    // This comes before the connection. So the exit callback runs when the process no longer counts as a connection.
    process::at_exit(on_exit);
    let Some(place) = table::came(slot, start, process::my_latch()) else { return };
    table::INSTANCE.set(place.instance);
    process::unblock_signals();
    fault!("executor.came");
    process::connect_as(place.database, place.role);
    let (database, user) =
        pg::transaction::in_transaction(|| (syscache::database_name(session::database()), role::session_role()));
    client::stand_in(&database, &user);
    portal::prepare();
    if pg::transaction::in_transaction(catalog::attach) != Some(place.instance) {
        return;
    }
    transaction::register();
    commits::watch();
    table::connected(slot);
    Executor { slot, place, jobs: 0, born_at: time::monotonic_us(), memory: portal::allocated() }.run();
}

#[pg_guard]
unsafe extern "C-unwind" fn on_exit(_code: c_int, _arg: Datum) {
    let (slot, start) = SLOT.get();
    table::give_up_slot(slot, start);
    process::broadcast(crate::shmem::latch::worker_left());
}

struct Executor {
    slot: usize,
    place: Place,
    jobs: u32,
    born_at: i64,
    /// Bytes of memory at the start.
    memory: usize,
}

impl Executor {
    /// Runs jobs until the process is told to leave, or is idle for too long.
    fn run(&mut self) {
        let mut idle_since = time::monotonic_us();
        loop {
            process::reset_latch();
            if was_terminated() {
                return;
            }
            attend_to_server();
            match table::order(self.slot) {
                Order::Leave => return,
                Order::Look(lane) => {
                    if !self.serve(lane) {
                        return;
                    }
                    process::flush_statistics();
                    process::report_activity(None);
                    table::idle(self.slot);
                    idle_since = time::monotonic_us();
                }
                Order::Wait => {
                    let left = idle_since + MAX_IDLE_US - time::monotonic_us();
                    if left <= 0 {
                        return;
                    }
                    process::wait_latch(Some(time::milliseconds(left)));
                }
            }
        }
    }

    /// Runs jobs of a queue until it finds none. False: the process has to leave.
    fn serve(&mut self, lane: i32) -> bool {
        loop {
            if was_terminated() || self.is_old() {
                return false;
            }
            match job::run_next(self.slot, self.place, lane) {
                Ran::Nothing => return true,
                Ran::Job => self.jobs += 1,
                Ran::Broken => return false,
            }
            attend_to_server();
            if !table::may_go_on(self.slot) {
                return true;
            }
        }
    }

    fn is_old(&self) -> bool {
        self.jobs >= MAX_JOBS
            || time::monotonic_us() - self.born_at > MAX_LIFE_US
            || self.jobs.is_multiple_of(64) && portal::allocated() > self.memory + MAX_GROWTH_BYTES
    }
}

/// Between two transactions, takes new settings and handles the server's other requests to the process.
fn attend_to_server() {
    if !was_terminated() {
        process::forget_cancel();
        process::check_for_interrupts();
        process::catch_up();
    }
    session::reload_settings();
}
