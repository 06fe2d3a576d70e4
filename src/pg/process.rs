//! This process and others: sleeping, latches, signals, starting and ending, and their state in pg_stat_activity.
//!
//! Responsible for calls that concern a process as a whole. Not responsible for the latches in the extension's shared
//! memory (`shmem::latch`), for locks (`lock`, `shmem::lock`), nor for settings (`session`).
//!
//! Invariant: a sleep ends when the postmaster dies.

use std::ffi::{CStr, c_int};

use pgrx::pg_sys;

pub use crate::pg::raw::Handler;
use crate::pg::{client, memory, session, time, unbound};

/// Switches backtraces off in this library, regardless of the environment, and leaves the environment unchanged.
/// Otherwise an error of Postgres that passes through Rust would carry a backtrace, with paths of the build, in the
/// DETAIL that clients get.
pub fn switch_backtraces_off() {
    const SWITCH: &str = "RUST_LIB_BACKTRACE";
    let before = std::env::var_os(SWITCH);
    // SAFETY: the process is the postmaster or a session, and this is its only thread.
    unsafe { std::env::set_var(SWITCH, "0") };
    // The first capture reads the environment. All later captures keep its answer.
    drop(std::backtrace::Backtrace::capture());
    // SAFETY: as above.
    unsafe {
        match before {
            Some(before) => std::env::set_var(SWITCH, before),
            None => std::env::remove_var(SWITCH),
        }
    }
}

/// Sends a signal to this process.
#[cfg(feature = "faults")]
pub fn signal_self(signal: c_int) {
    // SAFETY: a plain system call.
    unsafe { libc::kill(libc::getpid(), signal) };
}

/// Sends a signal to the postmaster.
#[cfg(feature = "faults")]
pub fn signal_parent(signal: c_int) {
    // SAFETY: a plain system call.
    unsafe { libc::kill(libc::getppid(), signal) };
}

/// Raises an error if this session was cancelled (57014) or terminated (57P01), or has not enough memory to go on
/// (53200). Loops over what a user has given call it, so that many small allocations do not use up the reserve.
pub fn check_for_interrupts() {
    memory::check();
    pgrx::check_for_interrupts!();
}

/// Sleeps until this session's latch is set or the time, in milliseconds, is over. Then resets the latch. Cancel and
/// termination end the sleep by an error. The postmaster's death ends the process.
pub fn sleep(milliseconds: i64) {
    let events = (pg_sys::WL_LATCH_SET | pg_sys::WL_TIMEOUT | pg_sys::WL_EXIT_ON_PM_DEATH) as c_int;
    // SAFETY: MyLatch is this backend's own latch, always valid while it runs.
    unsafe {
        pg_sys::WaitLatch(pg_sys::MyLatch, events, milliseconds.max(0), pg_sys::PG_WAIT_EXTENSION);
        pg_sys::ResetLatch(pg_sys::MyLatch);
    }
    check_for_interrupts();
}

/// As [`sleep`], but the client's end of the connection ends the sleep, too. Returns false then. It costs nothing while
/// the client is there.
pub fn sleep_for_client(milliseconds: i64) -> bool {
    if !has_client() {
        sleep(milliseconds);
        return true;
    }
    let mut event = pg_sys::WaitEvent::default();
    // SAFETY: a session with a client has this set of the client's socket, the session's latch and the postmaster's
    // death. Postgres changes what it waits for on the socket before each of its own waits.
    let count = unsafe {
        let set = unbound::FeBeWaitSet;
        let socket = unbound::FE_BE_WAIT_SET_SOCKET_POS;
        pg_sys::ModifyWaitEvent(set, socket, pg_sys::WL_SOCKET_CLOSED, std::ptr::null_mut());
        let count = pg_sys::WaitEventSetWait(set, milliseconds.max(0), &mut event, 1, pg_sys::PG_WAIT_EXTENSION);
        pg_sys::ResetLatch(pg_sys::MyLatch);
        count
    };
    if count > 0 && event.events & pg_sys::WL_POSTMASTER_DEATH != 0 {
        // SAFETY: Postgres ends a process so when its postmaster has died.
        unsafe { pg_sys::proc_exit(1) };
    }
    check_for_interrupts();
    count == 0 || event.events & pg_sys::WL_SOCKET_CLOSED == 0
}

/// False in a background process, also if it has a stand-in for a client.
fn has_client() -> bool {
    // SAFETY: a plain global.
    !client::is_stand_in() && unsafe { !pg_sys::MyProcPort.is_null() }
}

/// True if the client has closed its connection, as far as the operating system knows. Data that it sent before remains
/// unread. False in a process without a client. Postgres checks this itself only if `client_connection_check_interval`
/// is set.
pub fn is_client_gone() -> bool {
    // SAFETY: a process with a client has a port. The call polls without waiting. An error becomes an unwinding at the
    // guard.
    has_client() && unsafe { !pg_sys::ffi::pg_guard_ffi_boundary(|| unbound::pq_check_connection()) }
}

// ----- background processes

/// Installs a signal handler.
pub fn handle_signal(signal: c_int, handler: Handler) {
    // SAFETY: the handler belongs to Postgres or to this library, and only sets flags and latches.
    #[cfg(not(feature = "from18"))]
    unsafe {
        pg_sys::pqsignal(signal, Some(handler))
    };
    // SAFETY: as above; the function has another name here.
    #[cfg(feature = "from18")]
    unsafe {
        pg_sys::pqsignal_be(signal, Some(handler))
    };
}

/// True if the server is being stopped. Its postmaster writes this to its file before it tells any process.
pub fn is_server_stopping() -> bool {
    // The data directory is every server process's working directory.
    std::fs::read_to_string("postmaster.pid").is_ok_and(|file| {
        file.lines().nth(unbound::LOCK_FILE_LINE_PM_STATUS - 1).is_some_and(|status| status.trim() == "stopping")
    })
}

/// Unblocks signals. A background process starts with signals blocked.
pub fn unblock_signals() {
    // SAFETY: the handlers are installed.
    unsafe { pg_sys::BackgroundWorkerUnblockSignals() };
}

/// Registers `f` to run when this process exits in any way but a crash. It runs after the abort of the process's
/// transaction. If the process connects after this call, `f` also runs after the process was removed from the list of
/// connections.
pub fn at_exit(f: unsafe extern "C-unwind" fn(c_int, pg_sys::Datum)) {
    // SAFETY: a function of this library, which is never unloaded.
    unsafe { pg_sys::on_shmem_exit(Some(f), pg_sys::Datum::from(0)) };
}

/// Connects a background process to a database as the cluster's owner. `None`: only to the shared catalogs. If it
/// cannot connect, the process ends.
pub fn connect(database: Option<pg_sys::Oid>) {
    // SAFETY: called once per process, from its main function, after signals were unblocked.
    unsafe {
        match database {
            Some(oid) => pg_sys::BackgroundWorkerInitializeConnectionByOid(oid, pg_sys::Oid::INVALID, 0),
            None => pg_sys::BackgroundWorkerInitializeConnection(std::ptr::null(), std::ptr::null(), 0),
        }
    }
}

/// Connects a background process to a database as a role, which becomes its session's user. If it cannot connect, the
/// process ends.
pub fn connect_as(database: pg_sys::Oid, role: pg_sys::Oid) {
    #[cfg(feature = "from17")]
    const FLAGS: u32 = pg_sys::BGWORKER_BYPASS_ROLELOGINCHECK;
    #[cfg(not(feature = "from17"))]
    const FLAGS: u32 = 0;
    // SAFETY: called once per process, from its main function, after signals were unblocked.
    unsafe { pg_sys::BackgroundWorkerInitializeConnectionByOid(database, role, FLAGS) };
}

/// Ends this process with an exit code.
#[allow(unreachable_code, reason = "the bindings of 15 to 17 know that it does not return")]
pub fn exit(code: c_int) -> ! {
    // SAFETY: ends the process in order. Nothing here runs afterwards.
    unsafe { pg_sys::proc_exit(code) };
    unreachable!("proc_exit does not return")
}

/// Returns this process's latch, which lies in shared memory.
pub fn my_latch() -> *mut pg_sys::Latch {
    // SAFETY: a plain global of this backend.
    unsafe { pg_sys::MyLatch }
}

/// Resets this process's latch. A later wake-up is kept for `wait_latch`.
pub fn reset_latch() {
    // SAFETY: MyLatch is this backend's own latch, always valid while it runs.
    unsafe { pg_sys::ResetLatch(pg_sys::MyLatch) };
}

/// Sleeps until this process's latch is set or the time, in milliseconds, is over. `None`: until the latch is set.
/// Handles no interrupts and does not reset the latch. The postmaster's death ends the process.
pub fn wait_latch(milliseconds: Option<i64>) {
    let timeout = if milliseconds.is_some() { pg_sys::WL_TIMEOUT } else { 0 };
    let events = (pg_sys::WL_LATCH_SET | timeout | pg_sys::WL_EXIT_ON_PM_DEATH) as c_int;
    // A sleep lasts one day at most, which fits the type that Postgres takes. Waking once a day without need costs
    // nothing.
    let milliseconds = milliseconds.unwrap_or(0).clamp(0, 86_400_000);
    // SAFETY: MyLatch is this backend's own latch, always valid while it runs.
    unsafe { pg_sys::WaitLatch(pg_sys::MyLatch, events, milliseconds, pg_sys::PG_WAIT_EXTENSION) };
}

/// Discards a cancel request that this process has not yet acted on.
pub fn forget_cancel() {
    // SAFETY: a flag that a signal handler of this process sets.
    unsafe { pg_sys::QueryCancelPending = 0 };
}

/// Discards a termination request that this process has not yet acted on, because the process ends by itself.
pub fn forget_termination() {
    // SAFETY: a flag that a signal handler of this process sets.
    unsafe { pg_sys::ProcDiePending = 0 };
}

/// Reads the catalog changes that this process must read so that other sessions can continue, as an idle session does.
pub fn catch_up() {
    // SAFETY: does nothing unless requested. Called between two transactions.
    unsafe { pg_sys::ProcessCatchupInterrupt() };
}

/// Sets this session's `application_name`, which pg_stat_activity shows. A name with a zero byte is ignored.
pub fn set_application_name(name: &str) {
    if let Ok(name) = std::ffi::CString::new(name) {
        session::set_option(c"application_name", &name);
    }
}

/// Reports in pg_stat_activity what this process does. `None`: it is idle.
pub fn report_activity(what: Option<&CStr>) {
    use pg_sys::BackendState::{STATE_IDLE, STATE_RUNNING};
    let (state, text) = what.map_or((STATE_IDLE, std::ptr::null()), |text| (STATE_RUNNING, text.as_ptr()));
    // SAFETY: the text is copied.
    unsafe { pg_sys::pgstat_report_activity(state, text) };
}

/// Reports a Rust text, as `report_activity` does. A text with a zero byte counts as `None`.
pub fn report_activity_text(what: &str) {
    report_activity(std::ffi::CString::new(what).ok().as_deref());
}

/// Sends this process's counters to the server's statistics.
pub fn flush_statistics() {
    // SAFETY: between two transactions.
    unsafe { pg_sys::pgstat_report_stat(true) };
}

/// Runs `f`, in which Postgres allocates memory that lasts as long as this process.
pub fn in_lasting_memory<R>(f: impl FnOnce() -> R) -> R {
    // SAFETY: TopMemoryContext is never deleted. The previous context is restored. After an error the code that catches
    // it sets its own.
    unsafe {
        let before = pg_sys::CurrentMemoryContext;
        pg_sys::CurrentMemoryContext = pg_sys::TopMemoryContext;
        let result = f();
        pg_sys::CurrentMemoryContext = before;
        result
    }
}

/// True if a background process that this process asked for has ended. A process that the server could not start has
/// ended, too.
pub fn has_ended(handle: *mut pg_sys::BackgroundWorkerHandle) -> bool {
    let mut pid = 0;
    // SAFETY: Postgres returned this handle, and it is not freed yet.
    let status = unsafe { pg_sys::GetBackgroundWorkerPid(handle, &raw mut pid) };
    status == pg_sys::BgwHandleStatus::BGWH_STOPPED
}

/// Frees memory that Postgres has allocated.
///
/// # Safety
/// The caller owns the memory and does not use it afterwards.
pub unsafe fn free<T>(pointer: *mut T) {
    // SAFETY: the caller's promise.
    unsafe { pg_sys::pfree(pointer.cast()) };
}

/// Asks a process of this server to end (SIGTERM). Does not wait.
pub fn terminate(pid: i32) {
    // SAFETY: a plain system call. Callers know that the process id belongs to a process of this server.
    unsafe { libc::kill(pid, libc::SIGTERM) };
}

/// Sends a signal to a process of this server. Does not wait.
pub fn signal(pid: i32, signal: c_int) {
    // SAFETY: a plain system call. Callers know that the process id belongs to a process of this server.
    unsafe { libc::kill(pid, signal) };
}

/// Wakes all processes that sleep in `wait_on` for this variable.
pub fn broadcast(variable: *mut pg_sys::ConditionVariable) {
    // SAFETY: a condition variable in shared memory, initialized at start.
    unsafe { pg_sys::ConditionVariableBroadcast(variable) };
}

/// Sleeps until `is_done` returns true, at most `microseconds`. The process that makes it true calls `broadcast`.
/// Cancel and termination end the sleep by an error.
pub fn wait_on(variable: *mut pg_sys::ConditionVariable, microseconds: i64, is_done: impl Fn() -> bool) {
    let until = time::monotonic_us() + microseconds;
    // SAFETY: a condition variable in shared memory, initialized at start. After an error the abort of the transaction
    // removes this session from it.
    unsafe {
        pg_sys::ConditionVariablePrepareToSleep(variable);
        while !is_done() {
            let left = until - time::monotonic_us();
            if left <= 0 {
                break;
            }
            pg_sys::ConditionVariableTimedSleep(variable, time::milliseconds(left), pg_sys::PG_WAIT_EXTENSION);
        }
        pg_sys::ConditionVariableCancelSleep();
    }
}

/// Returns how many background processes the server can have, `max_worker_processes`.
pub fn max_background() -> usize {
    // SAFETY: the setting is fixed at the start.
    usize::try_from(unsafe { pg_sys::max_worker_processes }).unwrap_or(0)
}
