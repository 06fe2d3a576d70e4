//! The transactions that were prepared since the server's start, each with whether it used the extension.
//!
//! Responsible for the table and its changes. Not responsible for its lock (`launcher`), for what the end of such a
//! transaction changes (`transaction::prepared_ended`), nor for the moment of the calls (`worker::hooks`,
//! `worker::pending`).
//!
//! Invariant: if a prepared transaction is not in the table, it was prepared before the start, or the table is full.
//! Its content is unknown, so its end counts as one that used the extension. A role cannot cause more such ends than
//! there were prepared transactions at the start.

use std::ffi::CStr;

/// The maximal bytes of a name, including the zero byte at its end.
const GID_BYTES: usize = pgrx::pg_sys::GIDSIZE as usize;

/// The name of a prepared transaction.
pub type Gid = [u8; GID_BYTES];

/// A prepared transaction. Zero bytes: a free place.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Prepared {
    /// The number of the entry, never reused. 0: the place is free.
    serial: u64,
    /// True if it used the extension.
    is_ours: bool,
    gid: Gid,
}

/// Returns the name in the form of an entry. `None`: it is too long for a name.
pub fn gid(name: &CStr) -> Option<Gid> {
    let bytes = name.to_bytes();
    let mut gid = [0; GID_BYTES];
    gid.get_mut(..bytes.len()).filter(|_| bytes.len() < GID_BYTES)?.copy_from_slice(bytes);
    Some(gid)
}

/// The prepared transactions, lent under the launcher's lock.
pub struct Table<'a> {
    /// The last number given to an entry.
    pub last_serial: &'a mut u64,
    pub entries: &'a mut [Prepared],
}

impl Table<'_> {
    /// Notes a transaction that was prepared. An older entry of this name belongs to a transaction that has ended.
    pub fn add(&mut self, gid: &Gid, is_ours: bool) {
        let at = self.of(gid).or_else(|| self.entries.iter().position(|entry| entry.serial == 0));
        if let Some(at) = at {
            *self.last_serial += 1;
            self.entries[at] = Prepared { serial: *self.last_serial, is_ours, gid: *gid };
        }
    }

    /// Returns the number of the entry of this name. 0: there is none.
    pub fn find(&self, gid: &Gid) -> u64 {
        self.of(gid).map_or(0, |at| self.entries[at].serial)
    }

    /// Removes the entry of a transaction that has ended, by its number before the end. Returns true if the transaction
    /// has used the extension, or may have.
    pub fn ended(&mut self, serial: u64) -> bool {
        let entry = self.entries.iter_mut().find(|entry| serial != 0 && entry.serial == serial);
        entry.is_none_or(|entry| {
            entry.serial = 0;
            entry.is_ours
        })
    }

    fn of(&self, gid: &Gid) -> Option<usize> {
        self.entries.iter().position(|entry| entry.serial != 0 && entry.gid == *gid)
    }
}
