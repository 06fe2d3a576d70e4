//! Words of an instance that sessions read without a lock: states of segments, open segments, halves, drops, and
//! whether the instance is awake.
//!
//! Responsible for reading them. Not responsible for writing: `SharedWord::set` writes a word, and `awake` and
//! `transaction::steps` write the mirror, all under the frontier's lock.
//!
//! Invariant: a word is read and written as an atomic.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::shmem::here::{self, Here};
use crate::shmem::instance::Instance;
use crate::shmem::layout::{BASE, LAYOUT};
use crate::shmem::shared_word::SharedWord;

/// Reads a word of the instance that this process works for, without the lock. Returns 0 if its slot belongs to another
/// one now.
fn read_word(word: impl FnOnce(*mut Instance) -> *mut SharedWord) -> u64 {
    let Here { number, slot } = here::here();
    // SAFETY: the slot lies in the array, which is never freed. Words are aligned, and while other processes may read
    // them they are accessed only as atomics. The number is read after the word, because the words of a dropped
    // instance mean nothing.
    unsafe {
        let Some(layout) = LAYOUT else { return 0 };
        assert!(slot < layout.instances.1, "slot out of range");
        let instance = BASE.add(layout.instances.0).cast::<Instance>().add(slot);
        let value = AtomicU64::from_ptr(word(instance).cast()).load(Ordering::SeqCst);
        if (&raw const (*instance).number).read_volatile() == number { value } else { 0 }
    }
}

/// Returns the word of a segment, read without the lock. 0 (`Free`): the instance was dropped.
pub fn segment_word(segment: usize) -> u64 {
    // SAFETY: an address within the instance.
    read_word(|instance| unsafe { &raw mut (*instance).storage.words[segment] })
}

/// Returns which segments are open (`Storage::open`), read without the lock. 0: the instance was dropped.
pub fn open_word() -> u64 {
    // SAFETY: an address within the instance.
    read_word(|instance| unsafe { &raw mut (*instance).storage.open })
}

/// Returns the number of the open half of the keys' tables (`KeyHalves::open`), read without the lock. 0 also if the
/// instance was dropped.
pub fn key_half() -> u64 {
    // SAFETY: an address within the instance.
    read_word(|instance| unsafe { &raw mut (*instance).keys.open })
}

/// Returns how many drops of queues have begun (`Drops::begun`), read without the lock. 0: the instance was dropped.
pub fn drops_word() -> u64 {
    // SAFETY: an address within the instance.
    read_word(|instance| unsafe { &raw mut (*instance).drops.begun })
}

/// Returns how many changes of rights have begun to commit (`RightsChanges::begun`), read without the lock. 0: the
/// instance was dropped.
pub fn rights_begun() -> u64 {
    // SAFETY: an address within the instance.
    read_word(|instance| unsafe { &raw mut (*instance).rights.begun })
}

/// Returns how many changes of rights all sessions were told of (`RightsChanges::told`), read without the lock. 0:
/// the instance was dropped.
pub fn rights_told() -> u64 {
    // SAFETY: an address within the instance.
    read_word(|instance| unsafe { &raw mut (*instance).rights.told })
}

/// Returns the mirror of this slot: the number of the instance if it is awake, else 0. Callers need not hold the lock.
/// See the module `awake`.
pub fn awake(slot: usize) -> &'static AtomicU32 {
    // SAFETY: every verb checks `layout::is_there` before its first call. The array of atomics lies at its place in
    // zeroed memory, which is never freed and never borrowed in another way.
    unsafe {
        let Some(layout) = LAYOUT else { unreachable!("shared memory is used before it is there") };
        assert!(slot < layout.awake.1, "slot out of range");
        &*BASE.add(layout.awake.0).cast::<AtomicU32>().add(slot)
    }
}
