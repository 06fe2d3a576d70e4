//! Missed requests: another run of a job, or its cancellation, that came too late for the end of the attempt in
//! question. They are notes, which from then on only the background worker reads (`duty::serve_reruns`,
//! `duty::serve_cancels`).
//!
//! Responsible for a short list of the attempts. Not responsible for the notes (`log::note`), nor for serving them
//! (`duty::missed`, `job::rerun`).
//!
//! Invariant: if an attempt was ended without regard to a committed note, it is in the `MissedRequests` of that kind of
//! note, or all notes have to be looked through.

/// The attempts about which there may be notes of missed requests of one kind: to cancel, or to run again.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct MissedRequests {
    /// The attempts; the first `count` places are in use.
    ids: [i64; 64],
    count: u32,
    /// Whether there may be more than `ids` has, so that all notes have to be looked through.
    must_scan: bool,
    /// The monotonic time before which there is nothing to do.
    look_at: i64,
}

impl MissedRequests {
    /// The value after a start: nothing is known, so all notes have to be looked through.
    pub const NEW: MissedRequests = MissedRequests { ids: [0; 64], count: 0, must_scan: true, look_at: i64::MIN };

    /// Returns when the background worker should look, in monotonic microseconds. `i64::MAX` if there is nothing to do.
    pub fn look_at(&self) -> i64 {
        if self.must_scan || self.count > 0 { self.look_at } else { i64::MAX }
    }

    /// Returns the attempts.
    pub fn ids(&self) -> &[i64] {
        &self.ids[..self.count as usize]
    }

    /// Returns whether all notes have to be looked through, and clears the flag: a request to scan that comes from now
    /// on counts again.
    pub fn take_scan(&mut self) -> bool {
        std::mem::take(&mut self.must_scan)
    }

    /// Asks that all notes be looked through, at once.
    pub fn scan(&mut self) {
        self.must_scan = true;
        self.look_at = i64::MIN;
    }

    /// Puts the work off to this monotonic time, since another transaction is in the way.
    pub fn put_off(&mut self, look_at: i64) {
        self.look_at = look_at;
    }

    /// Adds an attempt after which there may be something to do, at once. If there is no room, asks for a scan of all
    /// notes.
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

    /// Removes an attempt after which nothing is left to do.
    pub fn remove(&mut self, id: i64) {
        if let Some(at) = self.ids().iter().position(|&known| known == id) {
            self.count -= 1;
            self.ids[at] = self.ids[self.count as usize];
        }
    }
}
