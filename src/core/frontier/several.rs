//! Lets a claim take from several lanes of one queue as if they were one: in the order of rank over all of them.
//!
//! The order is exact if nothing is pushed meanwhile and memory has room for all the lanes. A lane that another session
//! is reading comes last. If there are more lanes than slots, the lanes evict each other, and the order holds only
//! within each lane.

use super::answers::Next;
use super::limits::GATE_LANES;
use super::memory::Frontier;
use super::rank::Rank;

/// The lanes in which a claim may still find attempts.
pub struct Lanes {
    ids: [i32; GATE_LANES],
    len: usize,
    /// How many more times a lane may be read before attempts are taken from others.
    reads: usize,
}

impl Lanes {
    /// Begins with these lanes, at most [`GATE_LANES`].
    pub fn new(lanes: &[i32]) -> Self {
        let mut ids = [0; GATE_LANES];
        let len = lanes.len().min(GATE_LANES);
        ids[..len].copy_from_slice(&lanes[..len]);
        Self { ids, len, reads: 4 * len }
    }

    /// True if only one lane is left.
    pub fn is_one(&self) -> bool {
        self.len == 1
    }

    /// Removes a lane that has no attempts.
    pub fn done(&mut self, lane: i32) {
        if let Some(at) = self.ids[..self.len].iter().position(|&id| id == lane) {
            self.len -= 1;
            self.ids[at] = self.ids[self.len];
        }
    }

    /// Returns the lane to take from, and the rank up to which to take ([`Frontier::take_to`]): behind it another lane
    /// comes first. `None`: no lane is left.
    pub fn next(&mut self, frontier: &mut Frontier<'_>, instance: u32) -> Option<(i32, Rank)> {
        if let &[lane] = &self.ids[..self.len] {
            return Some((lane, Rank::MAX));
        }
        let mut best: Option<(i32, Rank)> = None;
        let mut up_to = Rank::MAX;
        for &lane in &self.ids[..self.len] {
            let rank = match frontier.next_in(instance, lane) {
                Next::Ready(rank) => rank,
                Next::Unread if self.reads > 0 => {
                    self.reads -= 1;
                    return Some((lane, Rank::MIN));
                }
                Next::Unread | Next::Nothing => Rank::MAX,
            };
            match best {
                Some((_, first)) if first <= rank => up_to = up_to.min(rank),
                _ => {
                    up_to = best.map_or(Rank::MAX, |(_, second)| second);
                    best = Some((lane, rank));
                }
            }
        }
        best.map(|(lane, _)| (lane, up_to))
    }
}
