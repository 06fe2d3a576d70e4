//! Functions of higher floors that are called when the open transaction or the process ends. They are plain function
//! pointers, so that this floor calls upwards without knowing the floors above it.
//!
//! Responsible for calling each registered function at its moment, once per registration. Not responsible for what the
//! functions do.
//!
//! Invariant: nothing here allocates or raises, except that a hook before a commit may refuse the commit. Registrations
//! for a transaction last until it ends, those for each transaction as long as the process; a rollback to a savepoint
//! calls the `on_rollback` hooks and keeps them.

use std::cell::Cell;

use pgrx::pg_sys;

use crate::error::Result;
use pg_queue_core::awaited::Awaited;

use crate::shmem::Instance;

/// The room of a list. It is larger than the number of functions that any transaction registers.
const MAX_HOOKS: usize = 4;

type List<F> = Cell<[Option<F>; MAX_HOOKS]>;

/// A hook called at the process's exit, under the frontier's lock. It returns the latch of a worker that has to take
/// over, or `None`.
type AtExit = fn(&mut [Instance], &mut [Awaited]) -> Option<*mut pg_sys::Latch>;

thread_local! {
    static BEFORE_EACH_COMMIT: List<fn() -> Result<()>> = const { Cell::new([None; MAX_HOOKS]) };
    static BEFORE_COMMIT: List<fn() -> Result<()>> = const { Cell::new([None; MAX_HOOKS]) };
    static ON_ROLLBACK: List<fn()> = const { Cell::new([None; MAX_HOOKS]) };
    static AT_END: List<fn()> = const { Cell::new([None; MAX_HOOKS]) };
    static AT_EXIT: List<AtExit> = const { Cell::new([None; MAX_HOOKS]) };
}

/// Adds a function to a list, unless the list has it.
macro_rules! add {
    ($list:ident, $hook:expr) => {{
        let mut list = $list.get();
        let is_it = |place: &Option<_>| place.is_none_or(|known| std::ptr::fn_addr_eq(known, $hook));
        if let Some(place) = list.iter_mut().find(|place| is_it(place)) {
            *place = Some($hook);
            $list.set(list);
        } else {
            debug_assert!(false, "more hooks than places");
        }
    }};
}

/// Registers `hook` to run before each transaction commits or is prepared, before the hooks of that transaction. Called
/// when the library is loaded.
pub fn before_each_commit(hook: fn() -> Result<()>) {
    add!(BEFORE_EACH_COMMIT, hook);
}

/// Registers `hook` to run before this transaction commits or is prepared, while that can still be refused.
pub fn before_commit(hook: fn() -> Result<()>) {
    add!(BEFORE_COMMIT, hook);
}

/// Registers `hook` to run when this transaction is rolled back, or a part of it to a savepoint.
pub fn on_rollback(hook: fn()) {
    add!(ON_ROLLBACK, hook);
}

/// Registers `hook` to run when this transaction has ended, by a commit or by a rollback.
pub fn at_end(hook: fn()) {
    add!(AT_END, hook);
}

/// Registers `hook` to run when this process exits.
pub fn at_exit(hook: AtExit) {
    add!(AT_EXIT, hook);
}

/// Calls the hooks that run before a commit.
///
/// Errors: those of the hooks, which refuse the commit.
pub(super) fn run_before_commit() -> Result<()> {
    let each = BEFORE_EACH_COMMIT.get().into_iter().flatten();
    each.chain(BEFORE_COMMIT.get().into_iter().flatten()).try_for_each(|hook| hook())
}

/// Calls the hooks of a rollback.
pub(super) fn rolled_back() {
    ON_ROLLBACK.get().into_iter().flatten().for_each(|hook| hook());
}

/// Calls the hooks for the end of the transaction, and those of a rollback if it was not committed. Then forgets all
/// hooks that were registered for it.
pub(super) fn ended(committed: bool) {
    if !committed {
        rolled_back();
    }
    AT_END.take().into_iter().flatten().for_each(|hook| hook());
    BEFORE_COMMIT.set([None; MAX_HOOKS]);
    ON_ROLLBACK.set([None; MAX_HOOKS]);
}

/// Calls the hooks of the process's exit, under the frontier's lock. Returns the last latch that a hook wants set, if
/// any.
pub(super) fn exit(instances: &mut [Instance], awaited: &mut [Awaited]) -> Option<*mut pg_sys::Latch> {
    AT_EXIT.get().into_iter().flatten().filter_map(|hook| hook(instances, awaited)).last()
}
