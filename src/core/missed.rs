//! Missed requests: requests to run a job again or to cancel it that came too late for its attempt's end. They are
//! notes, and after the end only the background worker reads them (`duty::serve_reruns`, `duty::serve_cancels`).
//!
//! Responsible for a short list of these attempts. Not responsible for the notes (`log::note`), nor for serving them
//! (`duty::missed`, `job::rerun`).
//!
//! Invariant: if an attempt ended without regard to a committed note, it is in the `MissedRequests` of that kind of
//! note, or a scan of all notes is ordered. An attempt that is added while a process looks at it stays in the list.

/// The attempts that may have missed requests of one kind: to cancel, or to run again.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct MissedRequests {
    /// The attempts; the first `count` places are in use.
    ids: [i64; 64],
    count: u32,
    /// For each of `ids` the number of the call that added it last.
    calls: [u32; 64],
    /// The number of the last call.
    call: u32,
    /// Whether a scan of all notes is ordered, because `ids` may be incomplete.
    must_scan: bool,
    /// The monotonic time before which there is nothing to do.
    look_at: i64,
}

impl MissedRequests {
    /// The value after a start: nothing is known, so a scan of all notes is ordered.
    pub const NEW: MissedRequests =
        MissedRequests { ids: [0; 64], count: 0, calls: [0; 64], call: 0, must_scan: true, look_at: i64::MIN };

    /// Returns when the background worker should look, in monotonic microseconds. `i64::MAX`: there is nothing to do.
    pub fn look_at(&self) -> i64 {
        if self.must_scan || self.count > 0 { self.look_at } else { i64::MAX }
    }

    fn ids(&self) -> &[i64] {
        &self.ids[..self.count as usize]
    }

    /// Returns the attempts to look at, each with the number that `remove` asks for.
    pub fn to_look_at(&self) -> Vec<(i64, u32)> {
        self.ids().iter().copied().zip(self.calls).collect()
    }

    /// Returns whether a scan of all notes is ordered, and clears the order. A later order counts again.
    pub fn take_scan(&mut self) -> bool {
        std::mem::take(&mut self.must_scan)
    }

    /// Orders an immediate scan of all notes.
    pub fn scan(&mut self) {
        self.must_scan = true;
        self.look_at = i64::MIN;
    }

    /// Puts the work off until this monotonic time, because another transaction is in the way.
    pub fn put_off(&mut self, look_at: i64) {
        self.look_at = look_at;
    }

    /// Adds an attempt that may have a missed request, to be looked at immediately. If the list is full, orders a scan
    /// of all notes.
    pub fn add(&mut self, id: i64) {
        self.look_at = i64::MIN;
        let known = self.ids().iter().position(|&known| known == id);
        let at = known.unwrap_or(self.count as usize);
        if at == self.ids.len() {
            self.must_scan = true;
            return;
        }
        self.call = self.call.wrapping_add(1);
        (self.ids[at], self.calls[at]) = (id, self.call);
        self.count += u32::from(known.is_none());
    }

    /// Removes an attempt that has no missed request any more, unless it was added again since `to_look_at` returned
    /// this number.
    pub fn remove(&mut self, id: i64, call: u32) {
        let is_it = |at: &usize| self.ids[*at] == id && self.calls[*at] == call;
        if let Some(at) = (0..self.count as usize).find(is_it) {
            self.count -= 1;
            let last = self.count as usize;
            (self.ids[at], self.calls[at]) = (self.ids[last], self.calls[last]);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_comes_during_a_look_outlasts_it() {
        let mut requests = MissedRequests { must_scan: false, ..MissedRequests::NEW };
        requests.add(1);
        requests.add(2);
        let found = requests.to_look_at();
        requests.add(2);
        for (id, call) in found {
            requests.remove(id, call);
        }
        assert_eq!(requests.ids(), [2]);
        for (id, call) in requests.to_look_at() {
            requests.remove(id, call);
        }
        assert_eq!(requests.look_at(), i64::MAX);
    }

    proptest! {
        #![proptest_config(crate::cases(256))]

        /// Compares with a map, while two processes look. An attempt is removed only if it was not added since the look
        /// began.
        #[test]
        fn nothing_that_came_is_forgotten(steps in prop::collection::vec((0u8..6, 0i64..80), crate::length(300))) {
            let mut requests = MissedRequests { must_scan: false, ..MissedRequests::NEW };
            // How often each attempt was added.
            let mut known: BTreeMap<i64, usize> = BTreeMap::new();
            let mut looks: [Vec<(i64, u32, usize)>; 2] = [Vec::new(), Vec::new()];
            for (n, (verb, id)) in steps.into_iter().enumerate() {
                match verb {
                    0 | 1 => {
                        requests.add(id);
                        if requests.take_scan() {
                            prop_assert_eq!(known.len(), 64);
                        } else {
                            known.insert(id, n);
                        }
                    }
                    2 | 3 => {
                        let look = &mut looks[usize::from(verb) - 2];
                        *look = requests.to_look_at().into_iter().map(|(id, call)| (id, call, known[&id])).collect();
                        prop_assert_eq!(look.len(), known.len());
                    }
                    _ => {
                        if let Some((id, call, came)) = looks[usize::from(verb) - 4].pop() {
                            requests.remove(id, call);
                            if known.get(&id) == Some(&came) {
                                known.remove(&id);
                            }
                        }
                    }
                }
                let ids: BTreeSet<_> = requests.ids().iter().copied().collect();
                prop_assert_eq!(ids, known.keys().copied().collect());
            }
        }
    }
}
