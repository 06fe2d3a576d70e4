//! Wishes that come too late for whoever ends the attempt which they are about: another run of its job (see `rerun`),
//! or that it be cancelled. They are notes, which nobody reads then but the background worker (`duty::serve_reruns`,
//! `duty::serve_cancels`).
//!
//! Invariant: an attempt that was ended without regard to a committed note is in the `Late` of that kind of notes, or all
//! of them are to be looked through.

use pg_queue_core::frontier::Frontier;
use pgrx::pg_sys;

use crate::shmem::Instance;

/// Attempts about which there may be such notes.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Late {
    ids: [i64; 64],
    count: u32,
    /// There may be more: all notes are to be looked through.
    must_scan: bool,
    /// Not before this monotonic time is there anything to be done.
    look_at: i64,
}

impl Late {
    /// After a start nothing is known.
    pub const NEW: Late = Late { ids: [0; 64], count: 0, must_scan: true, look_at: i64::MIN };

    /// When the background worker should look, monotonic time.
    pub fn look_at(&self) -> i64 {
        if self.must_scan || self.count > 0 { self.look_at } else { i64::MAX }
    }

    /// The attempts.
    pub fn ids(&self) -> &[i64] {
        &self.ids[..self.count as usize]
    }

    /// Whether all notes are to be looked through; from now on whoever asks for that is heard.
    pub fn take_scan(&mut self) -> bool {
        std::mem::take(&mut self.must_scan)
    }

    /// All notes are to be looked through.
    pub fn scan(&mut self) {
        self.must_scan = true;
        self.look_at = i64::MIN;
    }

    /// Somebody is in the way: not before this monotonic time.
    pub fn put_off(&mut self, look_at: i64) {
        self.look_at = look_at;
    }

    /// There may be something to be done after this attempt.
    pub fn add(&mut self, id: i64) {
        self.look_at = i64::MIN;
        if self.ids().contains(&id) {
            return;
        }
        match self.ids.get_mut(self.count as usize) {
            Some(free) => {
                *free = id;
                self.count += 1;
            }
            None => self.must_scan = true,
        }
    }

    /// Nothing is left to be done after this attempt.
    pub fn remove(&mut self, id: i64) {
        if let Some(at) = self.ids().iter().position(|&known| known == id) {
            self.count -= 1;
            self.ids[at] = self.ids[self.count as usize];
        }
    }
}

/// The background worker shall look for another run after this attempt. Returns its latch, for after the lock. Under the
/// frontier's lock.
pub fn rerun(instance: &mut Instance, id: i64) -> *mut pg_sys::Latch {
    instance.reruns.add(id);
    instance.worker_latch
}

/// The background worker shall cancel what goes on after this attempt, as above.
pub fn cancel(instance: &mut Instance, id: i64) -> *mut pg_sys::Latch {
    instance.cancels.add(id);
    instance.worker_latch
}

/// All notes are to be looked through.
pub fn scan(instance: &mut Instance) {
    instance.reruns.scan();
    instance.cancels.scan();
}

/// An entry of `running` goes by another way than an end that knows of the wishes. Under the frontier's lock, before it
/// goes.
pub fn leave(frontier: &Frontier<'_>, instance: &mut Instance, id: i64) -> Option<*mut pg_sys::Latch> {
    let entry = frontier.entry(instance.number, id)?;
    let rerun = (entry.rerun != 0).then(|| rerun(instance, id));
    let cancel = (entry.cancel != 0).then(|| cancel(instance, id));
    rerun.or(cancel)
}
