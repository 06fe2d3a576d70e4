//! The next attempts of one lane, sorted by rank, in a ring of fixed size.
//!
//! New jobs nearly always rank last, and the first job is taken first, so changes at both ends must be cheap. A change
//! in the middle moves the shorter side. A ring is better than a two-ended heap here: it removes by key, finds
//! duplicates by binary search, and takes a batch in order.
//!
//! Invariant: ranks strictly ascend from `head`, so no rank is there twice.

use super::rank::{Place, Rank};

/// An attempt that may be taken.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ready {
    /// Its rank among the lane's attempts.
    pub rank: Rank,
    /// The attempt's id.
    pub id: i64,
    /// Where its row lies. This is a hint: the reader checks it.
    pub place: Place,
    /// The hash of its group. 0: it has none.
    pub group: i64,
}

/// One lane's ring: its part of the shared array, with the lane's `head` and `len`.
pub struct Ring<'a> {
    pub(super) slots: &'a mut [Ready],
    pub(super) head: &'a mut u32,
    pub(super) len: &'a mut u32,
}

impl Ring<'_> {
    fn at(&self, nth: usize) -> usize {
        let at = *self.head as usize + nth;
        if at >= self.slots.len() { at - self.slots.len() } else { at }
    }

    pub fn len(&self) -> usize {
        *self.len as usize
    }

    pub fn capacity(&self) -> usize {
        self.slots.len()
    }

    pub fn is_full(&self) -> bool {
        self.len() == self.capacity()
    }

    pub fn get(&self, nth: usize) -> Ready {
        self.slots[self.at(nth)]
    }

    pub fn get_mut(&mut self, nth: usize) -> &mut Ready {
        let at = self.at(nth);
        &mut self.slots[at]
    }

    pub fn first(&self) -> Option<Ready> {
        (self.len() > 0).then(|| self.get(0))
    }

    pub fn last(&self) -> Option<Ready> {
        (self.len() > 0).then(|| self.get(self.len() - 1))
    }

    /// Returns where this rank is (`Ok`) or would be (`Err`).
    pub fn search(&self, rank: Rank) -> Result<usize, usize> {
        // Most searches end at the last entry.
        match self.last() {
            None => return Err(0),
            Some(last) if last.rank < rank => return Err(self.len()),
            Some(_) => {}
        }
        let (mut low, mut high) = (0, self.len());
        while low < high {
            let middle = (low + high) / 2;
            match self.get(middle).rank.cmp(&rank) {
                std::cmp::Ordering::Less => low = middle + 1,
                std::cmp::Ordering::Greater => high = middle,
                std::cmp::Ordering::Equal => return Ok(middle),
            }
        }
        Err(low)
    }

    /// Puts an entry at the place that `search` returned. The ring must not be full.
    pub fn insert(&mut self, nth: usize, entry: Ready) {
        self.open_gap(nth, 1);
        *self.get_mut(nth) = entry;
    }

    /// Puts the first of these entries, whose ranks ascend, into one gap, and returns how many: as many as have room
    /// and rank before the ring's next entry. 0: the ring is full, or has the rank of the first one.
    pub fn insert_run(&mut self, entries: &[Ready]) -> usize {
        let Some(Err(nth)) = entries.first().map(|first| self.search(first.rank)) else { return 0 };
        let next = (nth < self.len()).then(|| self.get(nth).rank);
        let fits = |entry: &&Ready| next.is_none_or(|next| entry.rank < next);
        let count = entries.iter().take(self.capacity() - self.len()).take_while(fits).count();
        self.open_gap(nth, count);
        entries[..count].iter().zip(nth..).for_each(|(&entry, at)| *self.get_mut(at) = entry);
        count
    }

    /// Moves the entries on the shorter side of a place, so that `count` others have room there.
    fn open_gap(&mut self, nth: usize, count: usize) {
        let len = self.len();
        if nth < len / 2 {
            let head = *self.head as usize;
            *self.head = if head < count { head + self.capacity() - count } else { head - count } as u32;
            for i in 0..nth {
                let (to, from) = (self.at(i), self.at(i + count));
                self.slots[to] = self.slots[from];
            }
        } else {
            for i in (nth..len).rev() {
                let (to, from) = (self.at(i + count), self.at(i));
                self.slots[to] = self.slots[from];
            }
        }
        *self.len += count as u32;
    }

    pub fn remove(&mut self, nth: usize) -> Ready {
        let entry = self.get(nth);
        let len = self.len();
        if nth < len / 2 {
            for i in (0..nth).rev() {
                let (to, from) = (self.at(i + 1), self.at(i));
                self.slots[to] = self.slots[from];
            }
            *self.head = self.at(1) as u32;
        } else {
            for i in nth..len - 1 {
                let (to, from) = (self.at(i), self.at(i + 1));
                self.slots[to] = self.slots[from];
            }
        }
        *self.len -= 1;
        entry
    }

    pub fn pop(&mut self) -> Option<Ready> {
        (self.len() > 0).then(|| self.remove(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(crate::cases(256))]

        #[test]
        fn behaves_like_a_sorted_vector(steps in prop::collection::vec((0u8..5, 0i64..40), crate::length(400))) {
            let (mut slots, mut head, mut len) = (vec![Ready::default(); 17], 5, 0);
            let mut model: Vec<i64> = Vec::new();
            for (what, n) in steps {
                let mut ring = Ring { slots: &mut slots, head: &mut head, len: &mut len };
                let rank = Rank { priority: 0, job_id: n };
                match what {
                    0 | 1 => match ring.search(rank) {
                        Err(at) if !ring.is_full() => {
                            ring.insert(at, Ready { rank, id: n, ..Ready::default() });
                            model.push(n);
                            model.sort_unstable();
                        }
                        found => prop_assert_eq!(found.is_ok(), model.contains(&n)),
                    },
                    2 => if let Ok(at) = ring.search(rank) {
                        prop_assert_eq!(ring.remove(at).id, n);
                        model.retain(|m| *m != n);
                    },
                    // Every third number, so that entries of the ring lie between some of them.
                    3 => {
                        let run: Vec<Ready> = (n..n + 15).step_by(3).map(|n| Ready {
                            rank: Rank { priority: 0, job_id: n }, id: n, ..Ready::default()
                        }).collect();
                        let count = ring.insert_run(&run);
                        let is_one_gap = |&to: &i64| !model.iter().any(|m| (n..=to).contains(m));
                        let fits = run.iter().map(|entry| entry.id).take_while(is_one_gap).count();
                        prop_assert_eq!(count, fits.min(17 - model.len()));
                        model.extend(run[..count].iter().map(|entry| entry.id));
                        model.sort_unstable();
                    }
                    _ => {
                        let first = (!model.is_empty()).then(|| model.remove(0));
                        prop_assert_eq!(ring.pop().map(|e| e.id), first);
                    }
                }
                prop_assert_eq!((0..ring.len()).map(|i| ring.get(i).id).collect::<Vec<_>>(), model.clone());
            }
        }
    }
}
