//! Groups whose jobs run a few at a time.
//!
//! A group that has something running, or that was served a moment ago, has a slot here and is **managed**:
//! its waiting attempts are not kept in `ready`. Who meets one there, or pushes one, *parks* it by moving the
//! group's own position before it, so that one group with a hundred thousand jobs neither fills `ready` nor
//! delays others. A managed group that may start something stands in its lane's list of *turns*; a claimer takes
//! the first, reads the group's own index behind its position, and hands over what he found: by turns all
//! groups get the same. Between turns the other ready attempts get every other job.
//!
//! The group's index has only what was parked: most groups never have more than may run, and pay for nothing. Whoever
//! is about to park an attempt that is not there yet, [a claimer](Frontier::index_begin) or
//! [a refill](Frontier::needs_index), writes its entry first, outside the lock; the lane's flag keeps a second one away.
//!
//! Invariant: every committed waiting attempt that is due, of a managed group, is where it would be without
//! groups (`ready`, `running`, behind P), or ranks behind the group's position and is in the group's index. A group that has room and
//! something behind its position stands in the list of turns, or somebody serves it, or it is *held*: the
//! attempt that has to run first is not due. No lane, no list: then everything lies behind P.
//!
//! When memory is full the position of a group that has nothing running becomes P's: nothing is lost by
//! forgetting it.

use super::running::Running;
use super::{Frontier, Rank, Ready, index};

/// A group that was served so many hand-outs ago is treated like one that never was.
const RECENT: u64 = 64;

/// In which of its lane's lists a group stands.
#[repr(u8)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum List {
    /// In none.
    #[default]
    None,
    /// It may start something.
    Turns,
    /// It has nothing, and is remembered for a while, so that others come first.
    Idle,
}

/// A group; all zero is free.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Group {
    key: i64,
    pub(super) instance: u32,
    pub(super) lane: i32,
    pub(super) hash: i64,
    /// Its gate's slot plus one; 0: the slot is free.
    pub(super) gate: u32,
    pub(super) running: u32,
    /// Waiting attempts rank behind this.
    pub(super) position: Rank,
    /// While it is served: the smallest position that was asked for meanwhile.
    spill: Rank,
    /// The session that serves it, plus one.
    pub(super) server: u32,
    /// The lane's count of hand-outs when it was served last.
    served_at: u64,
    pub(super) list: List,
    /// 1: who has to run first is not due.
    pub(super) held: u8,
    /// 1: since somebody began to serve it, something has come or gone.
    has_news: u8,
    /// 1: who has to run first has the priority `urgency`, whatever lies behind the position.
    is_known: u8,
    urgency: i32,
    next: u32,
    prev: u32,
}

impl Group {
    /// What was known of who has to run first may not be true any more.
    fn stir(&mut self) {
        (self.held, self.is_known, self.has_news) = (0, 0, 1);
    }

    /// What waits of it does not rank before this.
    fn foremost(&self) -> Rank {
        if self.is_known != 0 { Rank { priority: self.urgency, ..self.position } } else { self.position }
    }
}

/// The ends of a lane's two lists, slots plus one.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Lists {
    pub(super) turns: (u32, u32),
    idle: (u32, u32),
    /// Groups that somebody serves.
    pub(super) serving: u32,
    /// Hand-outs of this lane so far.
    served: u64,
    /// 1: the next one is a group's, if there is one.
    is_groups_turn: u8,
    /// 1: since the last hand-out a group had to be forgotten for another's sake.
    is_short: u8,
}

/// A group to be served: its index is to be read behind the position, with a snapshot taken later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// The group.
    pub group: i64,
    /// What ranks up to here was read.
    pub after: Rank,
}

/// What was found for a group's turn.
#[derive(Clone, Copy, Debug)]
pub struct Served<'a> {
    /// Waiting attempts, in order.
    pub found: &'a [Ready],
    /// Everything up to here was looked at; [`Rank::MAX`]: all.
    pub read_to: Rank,
    /// An attempt that is not due has to run before all others.
    pub is_held: bool,
}

/// What is to be handed out next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Choice {
    /// This entry of `ready`.
    Ready(Ready),
    /// Something of this group.
    Turn(u32),
    /// Nothing that is known.
    Nothing,
    /// Something, but there is no slot for its group.
    Full,
    /// The head of `ready` is to be parked, and is not in its group's index yet.
    Index,
}

/// Groups are found by their gate and this: a group of a queue with stages is one in each of its lanes.
fn key_of(lane: i32, hash: i64) -> i64 {
    hash ^ i64::from(lane).wrapping_mul(0x2545_f491_4f6c_dd1d)
}

impl Frontier<'_> {
    // ---- slots and lists

    pub(super) fn group_slot(&self, instance: u32, lane: i32, hash: i64) -> Option<u32> {
        if self.head.groups == 0 {
            return None;
        }
        let gate = match self.lane_slot(instance, lane).and_then(|slot| self.lanes[slot as usize].gate.checked_sub(1)) {
            Some(gate) => gate,
            None => self.gate_of(instance, lane)?,
        };
        let slot = index::find(self.group_index, gate, key_of(lane, hash))?;
        let group = &self.groups[slot as usize];
        (group.lane == lane && group.hash == hash).then_some(slot)
    }

    fn lists(&mut self, group: u32) -> Option<&mut Lists> {
        let (instance, lane) = (self.groups[group as usize].instance, self.groups[group as usize].lane);
        let slot = self.lane_slot(instance, lane)?;
        Some(&mut self.lanes[slot as usize].groups)
    }

    fn unlist(&mut self, slot: u32) {
        let group = self.groups[slot as usize];
        if group.list == List::None {
            return;
        }
        let (mut first, mut last) = (group.next, group.prev);
        if group.prev != 0 {
            self.groups[group.prev as usize - 1].next = group.next;
        }
        if group.next != 0 {
            self.groups[group.next as usize - 1].prev = group.prev;
        }
        if let Some(lists) = self.lists(slot) {
            let ends = if group.list == List::Turns { &mut lists.turns } else { &mut lists.idle };
            // The neighbours become the ends where there is none further out.
            first = if group.prev == 0 { first } else { ends.0 };
            last = if group.next == 0 { last } else { ends.1 };
            *ends = (first, last);
        }
        let group = &mut self.groups[slot as usize];
        (group.list, group.next, group.prev) = (List::None, 0, 0);
    }

    /// To the end of one of its lane's lists. False: the lane has no slot.
    fn enlist_group(&mut self, slot: u32, list: List) -> bool {
        self.unlist(slot);
        let Some(lists) = self.lists(slot) else { return false };
        // A lane that has lost its slot meanwhile counts anew.
        let served = lists.served;
        let ends = if list == List::Turns { &mut lists.turns } else { &mut lists.idle };
        let last = std::mem::replace(&mut ends.1, slot + 1);
        if ends.0 == 0 {
            ends.0 = slot + 1;
        }
        if last != 0 {
            self.groups[last as usize - 1].next = slot + 1;
        }
        let group = &mut self.groups[slot as usize];
        (group.list, group.prev, group.next) = (list, last, 0);
        group.served_at = group.served_at.min(served);
        true
    }

    pub(super) fn group_or_create(&mut self, instance: u32, lane: i32, gate: u32, hash: i64) -> Option<u32> {
        if let Some(slot) = self.group_slot(instance, lane, hash) {
            return Some(slot);
        }
        self.forget_idle(instance, lane);
        let key = key_of(lane, hash);
        if index::find(self.group_index, gate, key).is_some() {
            // It looks like a group of another stage; so rare that it may wait for that.
            return None;
        }
        let slot = self.free_group(instance, lane)?;
        self.groups[slot as usize] =
            Group { key, instance, lane, hash, gate: gate + 1, position: Rank::MAX, ..Group::default() };
        index::insert(self.group_index, gate, key, slot);
        self.head.groups += 1;
        self.gates[gate as usize].groups += 1;
        Some(slot)
    }

    fn free_group(&mut self, instance: u32, lane: i32) -> Option<u32> {
        if self.head.free_group == 0 && self.head.fresh_groups as usize == self.groups.len() {
            self.evict_group(instance, lane);
        }
        if self.head.free_group != 0 {
            let slot = self.head.free_group - 1;
            self.head.free_group = self.groups[slot as usize].next;
            return Some(slot);
        }
        if (self.head.fresh_groups as usize) < self.groups.len() {
            self.head.fresh_groups += 1;
            return Some(self.head.fresh_groups - 1);
        }
        None
    }

    /// Those that were served long ago: a few, so that nobody has to do much.
    fn forget_idle(&mut self, instance: u32, lane: i32) {
        let Some(slot) = self.lane_slot(instance, lane) else { return };
        for _ in 0..2 {
            let lists = self.lanes[slot as usize].groups;
            let Some(first) = lists.idle.0.checked_sub(1) else { return };
            if lists.served.saturating_sub(self.groups[first as usize].served_at) < RECENT {
                return;
            }
            self.forget_group(first);
        }
    }

    /// Makes room for another group: somebody has nothing running, here or in another lane.
    fn evict_group(&mut self, instance: u32, lane: i32) {
        let own = self.lane_slot(instance, lane).map(|slot| self.lanes[slot as usize].groups);
        // The last of the turns: it would have waited longest.
        let near = own.and_then(|lists| [lists.idle.0, lists.turns.1].into_iter().find(|&link| link != 0));
        let is_idle = |group: &Group| group.gate != 0 && group.running == 0 && group.server == 0;
        let found = match near.map(|link| link - 1).filter(|&slot| is_idle(&self.groups[slot as usize])) {
            Some(slot) => Some(slot),
            None => self.groups.iter().position(is_idle).map(|slot| slot as u32),
        };
        if let Some(slot) = found {
            let group = self.groups[slot as usize];
            self.forget_group(slot);
            for (instance, lane) in [(instance, lane), (group.instance, group.lane)] {
                if let Some(slot) = self.lane_slot(instance, lane) {
                    self.lanes[slot as usize].groups.is_short = 1;
                }
            }
        }
    }

    /// Forgets a group; what waits of it lies behind P from now on.
    pub(super) fn forget_group(&mut self, slot: u32) {
        self.unlist(slot);
        let group = self.groups[slot as usize];
        let position = if group.server != 0 { group.position.min(group.spill) } else { group.position };
        if position < Rank::MAX
            && let Some(lane) = self.lane_slot(group.instance, group.lane)
        {
            self.lanes[lane as usize].go_back(position);
        }
        if group.server != 0 {
            self.served(slot);
        }
        index::remove(self.group_index, group.gate - 1, group.key);
        self.gates[group.gate as usize - 1].groups -= 1;
        self.groups[slot as usize] = Group { next: self.head.free_group, ..Group::default() };
        self.head.free_group = slot + 1;
        self.head.groups -= 1;
    }

    /// A lane loses its slot, and with it the lists: everything lies behind P then.
    pub(super) fn dissolve_lists(&mut self, lane: u32) {
        let lists = self.lanes[lane as usize].groups;
        for first in [lists.turns.0, lists.idle.0] {
            let mut at = first;
            while let Some(slot) = at.checked_sub(1) {
                at = self.groups[slot as usize].next;
                let group = &mut self.groups[slot as usize];
                if group.running == 0 {
                    self.forget_group(slot);
                } else {
                    (group.list, group.next, group.prev) = (List::None, 0, 0);
                    group.position = Rank::MAX;
                }
            }
        }
        self.lanes[lane as usize].groups = Lists::default();
    }

    // ---- parking

    fn is_strict(&self, group: &Group) -> bool {
        self.gates[group.gate as usize - 1].limits.is_strict
    }

    fn has_room(&self, group: &Group) -> bool {
        group.running < self.gates[group.gate as usize - 1].limits.group
    }

    /// The slot of an entry's group, if that is managed.
    fn group_of(&self, lane: u32, entry: &Ready) -> Option<u32> {
        let lane = &self.lanes[lane as usize];
        self.group_slot(lane.instance, lane.id, entry.group)
    }

    /// Whether an entry need not wait for the turn of its group.
    fn may_go_first(&self, lane: u32, group: u32) -> bool {
        let group = &self.groups[group as usize];
        group.list == List::Idle
            && !self.is_strict(group)
            && self.lanes[lane as usize].groups.served.saturating_sub(group.served_at) >= RECENT
    }

    /// Whether an entry is to be parked.
    fn waits_for_group(&self, lane: u32, entry: &Ready) -> bool {
        entry.group != 0 && self.group_of(lane, entry).is_some_and(|group| !self.may_go_first(lane, group))
    }

    /// Whether an attempt that was read has to be in its group's index before it is handed over.
    pub fn needs_index(&self, instance: u32, lane: i32, entry: &Ready) -> bool {
        if entry.group == 0 || entry.place.is_indexed {
            return false;
        }
        let Some(slot) = self.lane_slot(instance, lane) else { return false };
        let gate = self.lanes[slot as usize].gate.checked_sub(1);
        let limits = gate.map(|gate| self.gates[gate as usize].limits);
        limits.is_some_and(|limits| limits.is_strict) || self.waits_for_group(slot, entry)
    }

    /// Raises the lane's flag, as a refill does, and tells which of the first entries of `ready` have to get into their
    /// groups' indexes. How many; 0: no flag was raised. Then [`Frontier::indexed`], and in any case
    /// [`Frontier::refill_end`] and what comes after that.
    pub fn index_begin(&mut self, instance: u32, lane: i32, session: u32, out: &mut [Ready]) -> usize {
        let Some(slot) = self.lane_slot(instance, lane) else { return 0 };
        if self.lanes[slot as usize].refiller != 0 {
            return 0;
        }
        // Beyond so many it is too early to tell.
        let entries = (self.lanes[slot as usize].len as usize).min(2 * out.len());
        let mut found = 0;
        for nth in 0..entries {
            let entry = self.ring(slot).get(nth);
            if found < out.len() && self.needs_index(instance, lane, &entry) {
                out[found] = entry;
                found += 1;
            }
        }
        if found > 0 {
            let lane = &mut self.lanes[slot as usize];
            lane.refiller = session + 1;
            (lane.read, lane.spill) = (lane.position, Rank::MAX);
        }
        found
    }

    /// These are in their groups' indexes now, or are not where they were.
    pub fn indexed(&mut self, instance: u32, lane: i32, entries: &[Ready]) {
        let Some(slot) = self.lane_slot(instance, lane) else { return };
        for entry in entries {
            let mut ring = self.ring(slot);
            if let Ok(nth) = ring.search(entry.rank)
                && ring.get(nth) == *entry
            {
                ring.get_mut(nth).place.is_indexed = true;
            }
        }
    }

    /// The groups' indexes of an instance have lost what was in them: everything parked lies behind P from now on.
    pub fn unpark_all(&mut self, instance: u32) {
        for slot in 0..self.groups.len() as u32 {
            let group = self.groups[slot as usize];
            let from = group.position.min(if group.server != 0 { group.spill } else { Rank::MAX });
            if group.gate == 0 || group.instance != instance || from == Rank::MAX {
                continue;
            }
            if let Some(lane) = self.lane_slot(instance, group.lane) {
                self.lanes[lane as usize].go_back(from);
            }
            let group = &mut self.groups[slot as usize];
            (group.position, group.spill) = (Rank::MAX, Rank::MAX);
            self.nudge(slot);
        }
        // Those of other instances, too: they are looked for once more than needed.
        self.ready.iter_mut().for_each(|entry| entry.place.is_indexed = false);
        self.running.iter_mut().for_each(|entry| entry.place.is_indexed = false);
    }

    /// Takes note of a waiting attempt of a managed group, which is in the group's index and not to be put into `ready`.
    /// False: the group is not managed, or not any more.
    pub(super) fn park(&mut self, lane: u32, entry: &Ready) -> bool {
        let Some(slot) = self.group_of(lane, entry) else { return false };
        if self.may_go_first(lane, slot) {
            self.forget_group(slot);
            return false;
        }
        let group = &mut self.groups[slot as usize];
        let mark = if group.server != 0 { &mut group.spill } else { &mut group.position };
        *mark = (*mark).min(entry.rank.before());
        group.stir();
        self.nudge(slot);
        true
    }

    /// Whether the group of a parked entry waits for its turn, so that somebody should come.
    pub(super) fn has_turn(&self, lane: u32, entry: &Ready) -> bool {
        self.group_of(lane, entry).is_some_and(|slot| self.groups[slot as usize].list == List::Turns)
    }

    /// Puts a group where it belongs now.
    fn nudge(&mut self, slot: u32) {
        let group = self.groups[slot as usize];
        if group.server != 0 {
            return;
        }
        let waits = group.position < Rank::MAX && group.held == 0;
        let is_listed = if waits && self.has_room(&group) {
            group.list == List::Turns || self.enlist_group(slot, List::Turns)
        } else if group.running == 0 && group.held == 0 {
            group.list == List::Idle || self.enlist_group(slot, List::Idle)
        } else {
            self.unlist(slot);
            return;
        };
        // Its lane has no slot: everything lies behind P.
        if !is_listed && group.running == 0 {
            self.forget_group(slot);
        } else if !is_listed {
            self.groups[slot as usize].position = Rank::MAX;
        }
    }

    pub(super) fn enter_group(&mut self, slot: u32) {
        self.groups[slot as usize].running += 1;
        if let Some(lists) = self.lists(slot) {
            let served = lists.served;
            self.groups[slot as usize].served_at = served;
        }
        self.nudge(slot);
    }

    /// Something of a group was taken and is not any more.
    pub(super) fn leave_group(&mut self, slot: u32, was_running: bool) {
        let group = &mut self.groups[slot as usize];
        group.running -= u32::from(was_running);
        // Whatever it was that held it may be gone.
        group.stir();
        self.nudge(slot);
    }

    /// What holds the groups of an instance may be gone.
    pub fn release_held(&mut self, instance: u32) {
        if self.head.groups == 0 {
            return;
        }
        for slot in 0..self.groups.len() as u32 {
            let group = &mut self.groups[slot as usize];
            if group.gate != 0 && group.instance == instance && (group.held != 0 || group.server != 0) {
                group.stir();
                self.nudge(slot);
            }
        }
    }

    // ---- turns

    /// Where the group whose turn is next in a lane stands.
    pub(super) fn turn_rank(&self, lane: u32) -> Option<Rank> {
        let turn = self.lanes[lane as usize].groups.turns.0.checked_sub(1)?;
        Some(self.groups[turn as usize].foremost())
    }

    /// Parks what has to be parked at the head of `ready`, and tells what comes next.
    pub(super) fn choose(&mut self, lane: u32, gate: u32) -> Choice {
        let is_strict = self.gates[gate as usize].limits.is_strict;
        loop {
            let first = self.first_ready(lane);
            if let Some(entry) = first
                && entry.group != 0
            {
                if is_strict && self.group_of(lane, &entry).is_none() {
                    let (instance, id) = (self.lanes[lane as usize].instance, self.lanes[lane as usize].id);
                    // What has to run first stands in the logs.
                    match self.group_or_create(instance, id, gate, entry.group) {
                        Some(group) => self.nudge(group),
                        None => return Choice::Full,
                    }
                }
                if !entry.place.is_indexed && self.waits_for_group(lane, &entry) {
                    return Choice::Index;
                }
                if self.park(lane, &entry) {
                    self.ring(lane).pop();
                    continue;
                }
            }
            let lists = self.lanes[lane as usize].groups;
            let Some(turn) = lists.turns.0.checked_sub(1) else {
                return first.map_or(Choice::Nothing, Choice::Ready);
            };
            let priority = self.groups[turn as usize].foremost().priority;
            // It may be before something that was not read yet.
            let is_first = priority <= self.lanes[lane as usize].horizon().priority;
            return match first {
                // To read on would only push out others.
                None if lists.is_short != 0 => Choice::Turn(turn),
                // There may be other groups behind P, who have waited longer.
                None if is_first && (lists.is_groups_turn != 0 || !self.lanes[lane as usize].has_more()) => {
                    Choice::Turn(turn)
                }
                None => {
                    self.lanes[lane as usize].groups.is_groups_turn = 1;
                    Choice::Nothing
                }
                Some(entry) if entry.rank.priority < priority => Choice::Ready(entry),
                Some(entry) if priority < entry.rank.priority => Choice::Turn(turn),
                Some(_) if lists.is_groups_turn != 0 => Choice::Turn(turn),
                Some(entry) => Choice::Ready(entry),
            };
        }
    }

    /// A group that has room if what the claimer's own transaction is ending does not count.
    pub(super) fn own_turn(&self, instance: u32, lane: i32, ending: &[i64]) -> Option<u32> {
        ending.iter().find_map(|&id| {
            let entry = self.entry(instance, id).filter(|entry| entry.lane == lane && entry.grouped != 0)?;
            let slot = self.group_slot(instance, lane, entry.group)?;
            let group = &self.groups[slot as usize];
            let waits = group.position < Rank::MAX && group.held == 0 && group.server == 0;
            (waits && self.room_of(slot, ending) > 0).then_some(slot)
        })
    }

    /// How many attempts of a group may start, not counting what the claimer's own transaction is ending.
    fn room_of(&self, slot: u32, ending: &[i64]) -> u32 {
        let group = &self.groups[slot as usize];
        let is_own = |entry: &Running| entry.grouped != 0 && entry.lane == group.lane && entry.group == group.hash;
        let own = ending.iter().filter(|&&id| self.entry(group.instance, id).as_ref().is_some_and(is_own)).count();
        let limit = self.gates[group.gate as usize - 1].limits.group;
        (limit + own as u32).saturating_sub(group.running)
    }

    /// Begins to serve a group.
    pub(super) fn serve(&mut self, slot: u32, session: u32) -> Turn {
        self.unlist(slot);
        self.head.servers += 1;
        if let Some(lists) = self.lists(slot) {
            lists.serving += 1;
        }
        let group = &mut self.groups[slot as usize];
        (group.server, group.spill, group.has_news) = (session + 1, Rank::MAX, 0);
        Turn { group: group.hash, after: group.position }
    }

    fn stop_serving(&mut self, slot: u32) {
        self.served(slot);
        let group = &mut self.groups[slot as usize];
        group.server = 0;
        group.position = group.position.min(group.spill);
    }

    fn served(&mut self, slot: u32) {
        self.head.servers -= 1;
        if let Some(lists) = self.lists(slot) {
            lists.serving = lists.serving.saturating_sub(1);
        }
    }

    /// Ends the turn of a group: takes what was found, as far as there is room, as [`Frontier::take`] does. Returns
    /// how many. After an error nothing was found, and was read up to where the turn began. Then
    /// [`Frontier::refill_wake`] and the rest, as after a refill.
    #[allow(clippy::too_many_arguments, reason = "what take has, and what was found")]
    pub fn turn_end(
        &mut self,
        instance: u32,
        lane: i32,
        owner: u32,
        pid: i32,
        claimer: &super::Claimer<'_>,
        turn: Turn,
        served: &Served<'_>,
        out: &mut [Ready],
    ) -> usize {
        let Some(slot) = self.group_slot(instance, lane, turn.group) else { return 0 };
        if self.groups[slot as usize].server != owner + 1 {
            return 0;
        }
        self.groups[slot as usize].position = served.read_to;
        self.groups[slot as usize].is_known = 0;
        let gate = self.groups[slot as usize].gate - 1;
        let lane_slot = self.lane_slot(instance, lane);
        let mut room = match lane_slot {
            // Its gate knows the claimer's settings: he has just passed it.
            Some(_) => self.room(gate, claimer).min(self.room_of(slot, claimer.ending)).min(out.len() as u32),
            None => 0,
        };
        let before = lane_slot.and_then(|lane| self.first_ready(lane)).map(|entry| entry.rank.priority);
        let mut taken = 0;
        for &entry in served.found {
            if let Some(known) = index::find(self.running_index, instance, entry.id) {
                self.running[known as usize].again = 1;
                continue;
            }
            // What came while this was read, and stands before it, is to be read first.
            let is_overtaking = self.groups[slot as usize].spill < entry.rank;
            if room == 0
                || self.running_is_full()
                || is_overtaking
                || before.is_some_and(|other| other < entry.rank.priority)
            {
                let group = &mut self.groups[slot as usize];
                group.position = group.position.min(entry.rank.before());
                (group.is_known, group.urgency) = (1, entry.rank.priority);
                break;
            }
            self.add_claimed(instance, lane, owner, pid, entry, Some(gate));
            out[taken] = entry;
            (taken, room) = (taken + 1, room - 1);
        }
        self.stop_serving(slot);
        let group = &mut self.groups[slot as usize];
        group.held = u8::from(served.is_held && group.has_news == 0);
        if served.is_held {
            group.position = group.position.min(turn.after);
        }
        self.nudge(slot);
        taken
    }

    /// Ends the turns that a session was serving: it is going away. Returns the lane of one of them, where others
    /// may have waited for it; call it until it returns `None`.
    pub fn turn_abandon(&mut self, session: u32) -> Option<(u32, i32)> {
        if self.head.servers == 0 {
            return None;
        }
        let slot = self.groups.iter().position(|group| group.gate != 0 && group.server == session + 1)? as u32;
        let group = self.groups[slot as usize];
        self.stop_serving(slot);
        self.nudge(slot);
        Some((group.instance, group.lane))
    }

    /// Counts a hand-out of a lane.
    pub(super) fn handed_out(&mut self, lane: u32) {
        let lists = &mut self.lanes[lane as usize].groups;
        lists.served += 1;
        lists.is_groups_turn ^= 1;
        lists.is_short = 0;
    }
}

#[cfg(test)]
impl Group {
    pub(super) fn next_link(&self) -> u32 {
        self.next
    }

    pub(super) fn prev_link(&self) -> u32 {
        self.prev
    }
}

#[cfg(test)]
impl Lists {
    pub(super) fn idle_ends(&self) -> (u32, u32) {
        self.idle
    }
}
