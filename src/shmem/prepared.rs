//! The transactions that were prepared since the server's start, each with whether it did anything of the extension's.
//!
//! Responsible for the table and its changes. Not responsible for what the end of such a transaction changes
//! (`transaction::prepared_ended`), nor for when it is called (`worker::hooks`, `worker::pending`).
//!
//! Invariant: a transaction that is prepared and is not in the table was prepared before the start, or the table is
//! full. Nothing is known of it, so its end counts as one of ours. No role can bring about more such ends than there
//! were prepared transactions at the start.

use std::ffi::CStr;

use crate::shmem::layout::{BASE, Header, LAYOUT};
use crate::shmem::lock::LockGuard;

/// GIDSIZE of xact.h, the same in 14 to 18: the most bytes of a name, with the zero byte at its end.
const GID_BYTES: usize = 200;

/// The name of a prepared transaction.
pub type Gid = [u8; GID_BYTES];

/// A prepared transaction. Zero bytes are a free place.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Prepared {
    /// The number of the entry, which is never used twice; 0: the place is free.
    serial: u64,
    /// Whether it did anything of the extension's.
    is_ours: bool,
    gid: Gid,
}

/// Returns the name as an entry has it. `None`: it is too long to be one.
pub fn gid(name: &CStr) -> Option<Gid> {
    let bytes = name.to_bytes();
    let mut gid = [0; GID_BYTES];
    gid.get_mut(..bytes.len()).filter(|_| bytes.len() < GID_BYTES)?.copy_from_slice(bytes);
    Some(gid)
}

/// Notes a transaction that was prepared. An older entry of this name is of one that has ended. Takes the launcher's
/// lock. Cannot fail.
pub fn add(gid: &Gid, is_ours: bool) {
    with(|serials, entries| {
        let known = entries.iter().position(|entry| entry.serial != 0 && entry.gid == *gid);
        if let Some(at) = known.or_else(|| entries.iter().position(|entry| entry.serial == 0)) {
            *serials += 1;
            entries[at] = Prepared { serial: *serials, is_ours, gid: *gid };
        }
    });
}

/// Returns the number of the entry of this name. 0: there is none. Takes the launcher's lock.
pub fn find(gid: &Gid) -> u64 {
    with(|_, entries| {
        entries.iter().find(|entry| entry.serial != 0 && entry.gid == *gid).map_or(0, |entry| entry.serial)
    })
}

/// Removes the entry of a transaction that has ended, by its number before the end. Returns whether the transaction did,
/// or may have done, anything of the extension's. Takes the launcher's lock.
pub fn ended(serial: u64) -> bool {
    with(|_, entries| {
        let entry = entries.iter_mut().find(|entry| serial != 0 && entry.serial == serial);
        entry.is_none_or(|entry| {
            entry.serial = 0;
            entry.is_ours
        })
    })
}

/// Runs `f` with the number that was last given and the table, under the launcher's lock: it is taken seldom.
fn with<R>(f: impl FnOnce(&mut u64, &mut [Prepared]) -> R) -> R {
    // SAFETY: as in `lock::with`, for the fields that this lock protects.
    unsafe {
        let base = BASE;
        let Some(layout) = LAYOUT else { unreachable!("shared memory is used before it is there") };
        let header = base.cast::<Header>();
        let _guard = LockGuard::take((*header).launcher_lock);
        let (at, count) = layout.prepared;
        f(&mut (*header).prepared_serial, std::slice::from_raw_parts_mut(base.add(at).cast::<Prepared>(), count))
    }
}
