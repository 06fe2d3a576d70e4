//! Several lanes of one queue, from which a claim takes as if they were one: in the order of rank over all of them.
//!
//! The order is exact as long as nothing is pushed meanwhile and memory has room for all the lanes. A lane that another
//! session reads comes last. If there are more lanes than slots, they evict each other, and each has only its own
//! order.

use super::answers::Next;
use super::limits::GATE_LANES;
use super::memory::Frontier;
use super::rank::Rank;

/// The lanes in which a claim has not yet seen the end.
pub struct Lanes {
    ids: [i32; GATE_LANES],
    len: usize,
    /// How many times a lane may still be read before attempts are taken from others.
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

    /// Whether only one lane is left.
    pub fn is_one(&self) -> bool {
        self.len == 1
    }

    /// Leaves out a lane in which there is nothing.
    pub fn done(&mut self, lane: i32) {
        if let Some(at) = self.ids[..self.len].iter().position(|&id| id == lane) {
            self.len -= 1;
            self.ids[at] = self.ids[self.len];
        }
    }

    /// Returns the lane to take from, and the rank up to which to take ([`Frontier::take_to`]), behind which another
    /// lane comes first. `None` if no lane is left.
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
