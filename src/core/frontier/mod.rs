//! The frontier: which attempt is next, what is running, who waits.
//!
//! It is a cache of what the logs say, may be thrown away at any time, and is never the only guard:
//! the keys of the logs are. Everything here happens under one lock that the caller holds, takes no
//! memory, and cannot fail.
//!
//! Per **lane** (instance, queue, stage) there is a bounded list `ready` and the scan position P.
//!
//! Invariant: every committed waiting attempt that is due is in `ready`, or in `running`, or ranks
//! behind P in the lane's index (or the lane has no slot at all, which reads as P before everything).
//!
//! How it is kept:
//! * a commit *pushes* what ranks at or before P; what ranks behind P is left to the index;
//! * a full `ready` gives back its largest entry by moving P before it (a *spill*);
//! * a *refill* first raises the lane's flag; from then on every commit pushes, wherever it ranks; only
//!   then are the logs read. It ends, in one call, with P = min(last rank read, every spill
//!   meanwhile) and the flag down. One refiller per lane;
//! * nothing that is in `running` is ever pushed; when it is given back it is pushed then;
//! * only what ranks at or before the *horizon* (P, or what a refill has read by now) is handed out, so
//!   that the order is exact; but for jobs that no callback told of (a prepared transaction, a purge that was
//!   undone) while a refill was under way: they may be passed over until the next one.
//!
//! An entry of `ready` may be stale (a refill saw an attempt unclaimed whose whole life then passed):
//! whoever takes it finds its claim in the log and drops it.

mod deadlines;
mod gate;
mod groups;
pub mod index;
mod ready;
mod running;
mod several;
mod waiters;
mod window;

use crate::id;
pub use gate::{Claimer, GATE_LANES, Gate, Limits};
use groups::{Choice, Lists};
pub use groups::{Group, Served, Turn};
use index::Bucket;
pub use ready::Ready;
use ready::Ring;
pub use running::{LATE_CANCEL, LATE_RERUN, Running, State};
pub use several::Lanes;
pub use waiters::{LANES as WAIT_LANES, Session};

/// The order in which ready attempts run: smaller first.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rank {
    /// The job's priority.
    pub priority: i32,
    /// The job's id: first come, first served; a retried job keeps its place.
    pub job_id: i64,
}

impl Rank {
    /// Before every attempt.
    pub const MIN: Rank = Rank { priority: i32::MIN, job_id: i64::MIN };
    /// Behind every attempt.
    pub const MAX: Rank = Rank { priority: i32::MAX, job_id: i64::MAX };

    /// The position that lies just before this rank.
    pub fn before(self) -> Rank {
        Rank { priority: self.priority, job_id: self.job_id - 1 }
    }
}

/// Where an attempt's row lies: segment, block and offset.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// Block number in the segment's attempt table.
    pub block: u32,
    /// Line pointer in the block.
    pub offset: u16,
    /// The segment.
    pub segment: u8,
    /// The row there is in its group's index.
    pub is_indexed: bool,
}

/// A lane's slot; all zero is free.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Lane {
    instance: u32,
    id: i32,
    used: u8,
    paused: u8,
    position: Rank,
    /// Session number plus one of the refiller; 0: the flag is down.
    refiller: u32,
    /// The refill has read everything up to here.
    read: Rank,
    /// The smallest position that a spill asked for since the flag went up.
    spill: Rank,
    /// 1: the lane was doubted since the flag went up.
    doubted: u8,
    /// What the last refill has read, if the lane was doubted meanwhile: entries up to here are handed out all the same.
    /// Else nobody would get anything while memory is doubted again and again.
    lenient: Rank,
    head: u32,
    len: u32,
    waiters_first: u32,
    waiters_last: u32,
    last_used: u64,
    /// The gate of its queue, slot plus one; 0: none, or nobody has come through it yet.
    gate: u32,
    groups: Lists,
}

impl Lane {
    fn is_used(&self) -> bool {
        self.used != 0
    }

    /// Whether something may lie behind P.
    fn has_more(&self) -> bool {
        self.position < Rank::MAX
    }

    /// Somebody reads what may be taken next: it is too early to say that there is nothing.
    fn is_read(&self) -> bool {
        self.refiller != 0 || self.groups.serving != 0
    }

    /// Everything behind this position is to be read again.
    fn go_back(&mut self, position: Rank) {
        let mark = if self.refiller != 0 { &mut self.spill } else { &mut self.position };
        *mark = (*mark).min(position);
        self.lenient = self.lenient.min(position);
    }

    /// Everything is to be read again.
    fn doubt(&mut self) {
        self.position = Rank::MIN;
        self.doubted = u8::from(self.refiller != 0);
    }

    /// Entries of `ready` up to here are surely the smallest there are: nothing unread ranks before.
    fn horizon(&self) -> Rank {
        if self.refiller != 0 && self.doubted == 0 { self.read.min(self.spill) } else { self.position }
    }

    /// Whether what is pushed now belongs into `ready`; else it is behind P, and nobody is reading there.
    fn keeps(&self, rank: Rank) -> bool {
        self.refiller != 0 || rank <= self.position.max(self.lenient)
    }

    /// Whether looking may find a job, in `ready`, in a group whose turn it is, or behind P.
    fn may_have_jobs(&self) -> bool {
        self.len > 0 || self.position < Rank::MAX || self.groups.turns.0 != 0
    }
}

/// Counters and free lists; all zero is a valid start.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Head {
    clock: u64,
    /// First free slot of `running` plus one, once all slots were used once.
    free: u32,
    /// Slots of `running` never used yet begin here.
    fresh: u32,
    /// Entries of `running` in use.
    pub running: u32,
    /// Lanes in use.
    pub lanes: u32,
    /// Gates in use.
    pub gates: u32,
    /// Groups in use.
    pub groups: u32,
    /// Groups that somebody serves.
    servers: u32,
    /// As `free` and `fresh`, of groups.
    free_group: u32,
    fresh_groups: u32,
    /// A gate that a rate had closed opens not before this monotonic time; 0: there is none.
    opens_at: i64,
}

/// Deadlines of one instance; the caller keeps it in the instance's slot.
pub type DeadlineRoot = u32;

/// What `take` found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Take {
    /// This many were taken. `refill`: less than half is left and the index has more.
    Some {
        /// How many.
        taken: usize,
        /// Whether the taker should refill.
        refill: bool,
    },
    /// Nothing in memory, and P is not at the end: refill.
    Refill,
    /// Nothing in memory, and somebody is refilling: wait, then look again.
    Refilling,
    /// Nothing is ready.
    Empty,
    /// There is a job, but `running` is full. No wake-up will tell when it no longer is: do not wait.
    Full,
    /// No slot for the lane: all are in use by waiters or refillers.
    NoLane,
    /// A limit of the queue is reached.
    Closed,
    /// No slot to count a limited queue in.
    NoGate,
    /// It is a group's turn, which the caller is to serve: [`Frontier::turn_end`], however that ends.
    Turn(Turn),
    /// What comes next has to wait for its group, and is not in the group's index yet: [`Frontier::index_begin`].
    Index,
}

/// What a claimer who looks at several lanes knows of one before he takes from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// What comes next ranks so, or, of a group whose turn it is, not before.
    Ready(Rank),
    /// It lies behind P, if there is one: refill.
    Unread,
    /// Nothing that is known, as yet or at all.
    Nothing,
}

/// What became of the wish to take one certain attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TakeOne {
    /// It is the caller's.
    Taken,
    /// It is taken already; look at the entry.
    Busy,
    /// `running` is full.
    Full,
}

/// What became of the wish to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// The session stands in the lists of all its lanes and may sleep.
    Sleep,
    /// One of the lanes may have a job by now: look again.
    Look,
    /// No slot for one of the lanes: all are in use by waiters or refillers, this session's included.
    NoLane,
}

/// What became of the wish to end an attempt.
#[derive(Clone, Copy, Debug)]
pub enum End {
    /// The caller may insert the outcome.
    Yours(Running),
    /// Another open transaction has it; its process id.
    Busy(Running),
    /// Not in memory, or claimed by nobody: the logs know.
    Unknown,
}

/// The frontier, laid over memory of the caller. See the module.
pub struct Frontier<'a> {
    /// Counters.
    pub head: &'a mut Head,
    /// One per lane.
    pub lanes: &'a mut [Lane],
    /// Index of lanes, [`index::buckets_for`] as many.
    pub lane_index: &'a mut [Bucket],
    /// `ready` of all lanes, the same share for each.
    pub ready: &'a mut [Ready],
    /// All that is taken.
    pub running: &'a mut [Running],
    /// Index of `running`, [`index::buckets_for`] as many.
    pub running_index: &'a mut [Bucket],
    /// One per session.
    pub sessions: &'a mut [Session],
    /// One per limited queue.
    pub gates: &'a mut [Gate],
    /// Groups that something runs of, or that wait for their turn.
    pub groups: &'a mut [Group],
    /// Index of `groups`, [`index::buckets_for`] as many.
    pub group_index: &'a mut [Bucket],
}

impl Frontier<'_> {
    // ---- lanes -----------------------------------------------------------------------------------

    fn lane_slot(&self, instance: u32, lane: i32) -> Option<u32> {
        index::find(self.lane_index, instance, i64::from(lane))
    }

    fn ring(&mut self, slot: u32) -> Ring<'_> {
        let share = self.ready.len() / self.lanes.len();
        let lane = &mut self.lanes[slot as usize];
        Ring { slots: &mut self.ready[slot as usize * share..][..share], head: &mut lane.head, len: &mut lane.len }
    }

    /// The lane's slot; a new one evicts the lane that was used longest ago and that nobody waits for
    /// or refills. Eviction is safe: no slot reads as "P before everything".
    fn lane_or_create(&mut self, instance: u32, lane: i32) -> Option<u32> {
        self.head.clock += 1;
        let clock = self.head.clock;
        if let Some(slot) = self.lane_slot(instance, lane) {
            self.lanes[slot as usize].last_used = clock;
            return Some(slot);
        }
        let slot = (0..self.lanes.len() as u32)
            .filter(|&s| {
                let l = &self.lanes[s as usize];
                !l.is_used() || (l.waiters_first == 0 && l.refiller == 0 && l.groups.serving == 0)
            })
            .min_by_key(|&s| {
                let l = &self.lanes[s as usize];
                (l.is_used(), l.last_used)
            })?;
        self.forget_lane(slot);
        self.lanes[slot as usize] = Lane {
            instance,
            id: lane,
            used: 1,
            position: Rank::MIN,
            lenient: Rank::MIN,
            last_used: clock,
            ..Lane::default()
        };
        self.head.lanes += 1;
        index::insert(self.lane_index, instance, i64::from(lane), slot);
        Some(slot)
    }

    fn forget_lane(&mut self, slot: u32) {
        let lane = self.lanes[slot as usize];
        if lane.is_used() {
            self.dissolve_lists(slot);
            index::remove(self.lane_index, lane.instance, i64::from(lane.id));
            self.lanes[slot as usize] = Lane::default();
            self.head.lanes -= 1;
        }
    }

    /// Says whether the lane's queue is paused: then new jobs wake nobody.
    pub fn set_paused(&mut self, instance: u32, lane: i32, paused: bool) {
        if let Some(slot) = self.lane_slot(instance, lane) {
            self.lanes[slot as usize].paused = u8::from(paused);
        }
    }

    /// Wakes one who waits for this lane, whatever there is to do; call until it returns `None`.
    pub fn wake_any(&mut self, instance: u32, lane: i32) -> Option<u32> {
        let slot = self.lane_slot(instance, lane)?;
        self.wake_first(slot)
    }

    /// Makes memory doubt itself: every lane of the instance is read again from its index. For changes
    /// that no commit callback of ours saw; who waits where they were made must look too: [`Self::pass_on`],
    /// or [`Self::wake_any_lane`].
    pub fn distrust(&mut self, instance: u32) {
        for slot in 0..self.lanes.len() {
            let lane = &mut self.lanes[slot];
            if lane.is_used() && lane.instance == instance {
                lane.doubt();
            }
        }
        self.release_held(instance);
    }

    /// As [`Self::distrust`], and what is in `ready` is forgotten, too: it may be of rows that are gone.
    pub fn forget_ready(&mut self, instance: u32) {
        self.distrust(instance);
        for lane in self.lanes.iter_mut().filter(|lane| lane.is_used() && lane.instance == instance) {
            (lane.head, lane.len) = (0, 0);
            lane.go_back(Rank::MIN);
        }
    }

    /// Wakes one who waits for any lane of the instance; call until it returns `None`.
    pub fn wake_any_lane(&mut self, instance: u32) -> Option<u32> {
        let slot = (0..self.lanes.len()).find(|&s| {
            let lane = &self.lanes[s];
            lane.is_used() && lane.instance == instance && lane.waiters_first != 0
        })?;
        self.wake_first(slot as u32)
    }

    /// Forgets a lane and all that runs in it: its queue was dropped. Its waiters must have been woken.
    pub fn drop_lane(&mut self, root: &mut DeadlineRoot, instance: u32, lane: i32) {
        if self.head.gates > 0 {
            self.drop_gates(instance, Some(lane));
        }
        if let Some(slot) = self.lane_slot(instance, lane)
            && self.lanes[slot as usize].waiters_first == 0
            && self.lanes[slot as usize].refiller == 0
        {
            self.forget_lane(slot);
        }
        for slot in 0..self.running.len() as u32 {
            let entry = &self.running[slot as usize];
            if entry.state != State::Free && entry.instance == instance && entry.lane == lane {
                self.forget_running(root, slot);
            }
        }
    }

    /// Forgets an instance: its extension or database was dropped.
    pub fn drop_instance(&mut self, root: &mut DeadlineRoot, instance: u32) {
        if self.head.gates > 0 {
            self.drop_gates(instance, None);
        }
        for slot in 0..self.running.len() as u32 {
            let entry = &self.running[slot as usize];
            if entry.state != State::Free && entry.instance == instance {
                self.forget_running(root, slot);
            }
        }
        for slot in 0..self.lanes.len() as u32 {
            let lane = &self.lanes[slot as usize];
            if lane.is_used() && lane.instance == instance && lane.waiters_first == 0 {
                self.forget_lane(slot);
            }
        }
    }

    // ---- ready -----------------------------------------------------------------------------------

    /// Tells the frontier of a waiting attempt that is committed and due. Returns a session to wake.
    pub fn push(&mut self, instance: u32, lane: i32, entry: Ready) -> Option<u32> {
        let slot = self.learn(instance, lane, entry)?;
        if self.lanes[slot as usize].paused != 0 || self.is_closed(slot) { None } else { self.wake_first(slot) }
    }

    /// `push` that wakes nobody: for the later jobs of a large commit, when the first ones *in this lane* have
    /// woken somebody, in the same hold of the lock; he wakes the next when he finds jobs left.
    pub fn push_quietly(&mut self, instance: u32, lane: i32, entry: Ready) {
        self.learn(instance, lane, entry);
    }

    /// Whether `push` would keep it in memory; else it is left to the index, where it ranks behind P, and `push` does
    /// no more than to wake somebody.
    pub fn wants(&self, instance: u32, lane: i32, entry: Ready) -> bool {
        index::find(self.running_index, instance, entry.id).is_some()
            || entry.place.is_indexed && self.group_slot(instance, lane, entry.group).is_some()
            || self.lane_slot(instance, lane).is_some_and(|slot| self.lanes[slot as usize].keeps(entry.rank))
    }

    fn learn(&mut self, instance: u32, lane: i32, entry: Ready) -> Option<u32> {
        if let Some(taken) = index::find(self.running_index, instance, entry.id) {
            self.running[taken as usize].again = 1;
            return None;
        }
        let slot = self.lane_slot(instance, lane)?;
        if entry.place.is_indexed && self.park(slot, &entry) {
            return self.has_turn(slot, &entry).then_some(slot);
        }
        if self.lanes[slot as usize].keeps(entry.rank) {
            self.put(slot, entry);
        }
        Some(slot)
    }

    /// Puts an entry into `ready`, spilling the largest when it is full.
    fn put(&mut self, slot: u32, entry: Ready) {
        let mut ring = self.ring(slot);
        let at = match ring.search(entry.rank) {
            Err(at) => at,
            Ok(at) => {
                // The same job: the newer attempt is the living one. The same attempt: it may have moved.
                if id::count(entry.id) >= id::count(ring.get(at).id) {
                    ring.remove(at);
                    ring.insert(at, entry);
                }
                return;
            }
        };
        let spilled = if !ring.is_full() {
            ring.insert(at, entry);
            return;
        } else if at == ring.len() {
            entry.rank
        } else {
            let last = ring.remove(ring.len() - 1);
            ring.insert(at, entry);
            last.rank
        };
        self.lanes[slot as usize].go_back(spilled.before());
    }

    /// The entry of `ready` that may be handed out next.
    fn first_ready(&mut self, slot: u32) -> Option<Ready> {
        let lane = &self.lanes[slot as usize];
        let limit = lane.horizon().max(lane.lenient);
        self.ring(slot).first().filter(|entry| entry.rank <= limit)
    }

    /// Takes up to `out.len()` attempts for the open transaction of `owner`. `claimer`: what is to be heeded, if the
    /// queue is limited.
    pub fn take(
        &mut self,
        instance: u32,
        lane: i32,
        owner: u32,
        pid: i32,
        claimer: Option<&Claimer<'_>>,
        out: &mut [Ready],
    ) -> Take {
        self.take_to(instance, lane, owner, pid, claimer, Rank::MAX, out)
    }

    /// What comes next in a lane. A lane without a slot is unread.
    pub fn next_in(&mut self, instance: u32, lane: i32) -> Next {
        let Some(slot) = self.lane_slot(instance, lane) else { return Next::Unread };
        let first = self.first_ready(slot).map(|entry| entry.rank);
        let turn = self.turn_rank(slot);
        match first.into_iter().chain(turn).min() {
            Some(rank) => Next::Ready(rank),
            None if self.lanes[slot as usize].refiller == 0 && self.lanes[slot as usize].has_more() => Next::Unread,
            None => Next::Nothing,
        }
    }

    /// As [`Self::take`], but of `ready` nothing that ranks behind `up_to`: what comes next is in another lane then.
    #[allow(clippy::too_many_arguments, reason = "who, where, what")]
    pub fn take_to(
        &mut self,
        instance: u32,
        lane: i32,
        owner: u32,
        pid: i32,
        claimer: Option<&Claimer<'_>>,
        up_to: Rank,
        out: &mut [Ready],
    ) -> Take {
        let Some(slot) = self.lane_or_create(instance, lane) else { return Take::NoLane };
        let Ok(gate) = self.pass(instance, slot, claimer) else { return Take::NoGate };
        let mut room = out.len();
        let mut has_groups = false;
        if let (Some(gate), Some(claimer)) = (gate, claimer) {
            room = room.min(self.room(gate, claimer) as usize);
            if room == 0 {
                return Take::Closed;
            }
            has_groups = self.gates[gate as usize].has_groups();
        }
        let mut taken = 0;
        while taken < room {
            let choice = match gate {
                Some(gate) if has_groups => self.choose(slot, gate),
                _ => self.first_ready(slot).map_or(Choice::Nothing, Choice::Ready),
            };
            let entry = match choice {
                Choice::Ready(entry) if taken > 0 && entry.rank > up_to => break,
                Choice::Ready(entry) => entry,
                Choice::Turn(_) if taken > 0 => break,
                Choice::Turn(_) if self.running_is_full() => return Take::Full,
                Choice::Turn(group) => return Take::Turn(self.serve(group, owner)),
                Choice::Index if taken == 0 && self.lanes[slot as usize].refiller == 0 => return Take::Index,
                // First what was taken; or somebody else does it just now.
                Choice::Index | Choice::Nothing => break,
                Choice::Full if taken == 0 => return Take::Full,
                Choice::Full => break,
            };
            if index::find(self.running_index, instance, entry.id).is_some() {
                self.ring(slot).pop();
                continue;
            }
            let has_place = !self.running_is_full()
                && match gate {
                    Some(gate) if has_groups && entry.group != 0 => {
                        self.group_or_create(instance, lane, gate, entry.group).is_some()
                    }
                    _ => true,
                };
            if !has_place {
                if taken == 0 {
                    return Take::Full;
                }
                break;
            }
            self.ring(slot).pop();
            self.add_claimed(instance, lane, owner, pid, entry, gate);
            out[taken] = entry;
            taken += 1;
        }
        if taken == 0
            && has_groups
            && let Some(claimer) = claimer
            && let Some(group) = self.own_turn(instance, lane, claimer.ending)
        {
            return Take::Turn(self.serve(group, owner));
        }
        let lane = &self.lanes[slot as usize];
        let (more, flag) = (lane.position < Rank::MAX, lane.refiller != 0);
        let share = (self.ready.len() / self.lanes.len()) as u32;
        match (taken, more, flag) {
            (0, _, true) => Take::Refilling,
            (0, true, false) => Take::Refill,
            (0, false, false) if lane.is_read() => Take::Refilling,
            (0, false, false) => Take::Empty,
            _ => Take::Some { taken, refill: more && !flag && lane.len < share.div_ceil(2) },
        }
    }

    /// A worker's transaction takes an attempt.
    fn add_claimed(&mut self, instance: u32, lane: i32, owner: u32, pid: i32, entry: Ready, gate: Option<u32>) {
        let slot = self.add_running(Running::taken(instance, lane, owner, pid, entry));
        let (Some(slot), Some(gate)) = (slot, gate) else { return };
        self.count_in(gate, slot);
        let gate = &mut self.gates[gate as usize];
        if gate.limits.rate > 0 {
            gate.take_token();
            self.running[slot as usize].token = 1;
        }
        if let Some(lane) = self.lane_slot(instance, lane) {
            self.handed_out(lane);
        }
    }

    /// If the lane may have jobs and somebody waits for them, he is woken. After a refill; who was woken
    /// passes on by [`Self::stop_waiting`]. A chain, so that no producer has to wake a crowd in its commit.
    pub fn pass_on(&mut self, instance: u32, lane: i32) -> Option<u32> {
        let slot = self.lane_slot(instance, lane)?;
        self.wake_next(slot)
    }

    /// Begins to wait for lanes (each with whether its queue is paused) in which `take` found nothing:
    /// for a job in any of them, and for the end of the refills that are under way there. A session that was
    /// woken and now waits for other lanes than those it was to look at calls [`Self::stop_waiting`] first.
    pub fn wait(&mut self, session: u32, instance: u32, lanes: &[(i32, bool)]) -> Wait {
        self.delist(session);
        let (mut look, mut for_refill) = (false, false);
        for (nth, &(lane, paused)) in lanes.iter().take(WAIT_LANES).enumerate() {
            let Some(slot) = self.lane_or_create(instance, lane) else {
                self.delist(session);
                return Wait::NoLane;
            };
            // Its list keeps this lane in memory while the next ones look for a slot.
            self.enlist(session, nth, slot);
            let lane = &mut self.lanes[slot as usize];
            lane.paused = u8::from(paused);
            if paused {
                continue;
            }
            if lane.is_read() && !self.is_closed(slot) {
                for_refill = true;
                look |= self.lanes[slot as usize].refiller == 0 && self.lanes[slot as usize].position < Rank::MAX;
                look |= self.first_ready(slot).is_some() || self.lanes[slot as usize].groups.turns.0 != 0;
            } else {
                look |= self.has_something(slot);
            }
        }
        if look {
            self.delist(session);
            return Wait::Look;
        }
        self.sleep(session, for_refill);
        Wait::Sleep
    }

    fn is_closed(&self, slot: u32) -> bool {
        let gate = self.lanes[slot as usize].gate.checked_sub(1);
        gate.is_some_and(|gate| self.gates[gate as usize].is_closed())
    }

    /// Whether a claimer who has nothing open may find a job.
    fn has_something(&self, slot: u32) -> bool {
        self.lanes[slot as usize].may_have_jobs() && !self.is_closed(slot)
    }

    // ---- refill ----------------------------------------------------------------------------------

    /// Raises the lane's flag. Returns the position behind which the index is to be read, with a
    /// snapshot taken *after* this call; `None`: somebody else is refilling, or there is nothing to read.
    pub fn refill_begin(&mut self, instance: u32, lane: i32, session: u32) -> Option<Rank> {
        let slot = self.lane_or_create(instance, lane)?;
        let lane = &mut self.lanes[slot as usize];
        if lane.refiller != 0 || lane.position == Rank::MAX {
            return None;
        }
        lane.refiller = session + 1;
        lane.read = lane.position;
        lane.spill = Rank::MAX;
        Some(lane.position)
    }

    /// Hands over waiting attempts that were read, in order. `read_to`: everything up to there was
    /// looked at; that is the position just before the next row ([`Rank::before`]: attempts of one job
    /// rank alike), or [`Rank::MAX`] when there is none. Returns false when `ready` is full of what was read: stop.
    pub fn refill_push(&mut self, instance: u32, lane: i32, session: u32, found: &[Ready], read_to: Rank) -> bool {
        let Some(slot) = self.lane_slot(instance, lane) else { return false };
        if self.lanes[slot as usize].refiller != session + 1 {
            return false;
        }
        for &entry in found {
            if let Some(taken) = index::find(self.running_index, instance, entry.id) {
                self.running[taken as usize].again = 1;
                continue;
            }
            if entry.place.is_indexed && self.park(slot, &entry) {
                continue;
            }
            let ring = self.ring(slot);
            if ring.is_full() && ring.last().is_some_and(|last| last.rank < entry.rank) {
                self.lanes[slot as usize].read = entry.rank.before();
                return false;
            }
            self.put(slot, entry);
        }
        self.lanes[slot as usize].read = read_to;
        let ring = self.ring(slot);
        !ring.is_full() || ring.last().is_some_and(|last| last.rank > read_to)
    }

    /// Lowers the flag and sets P, in one step. Also right after an error in the middle: what was read
    /// was read in order. Returns whether it was this session's refill; then call [`Self::refill_wake`].
    pub fn refill_end(&mut self, instance: u32, lane: i32, session: u32) -> bool {
        let Some(slot) = self.lane_slot(instance, lane) else { return false };
        let lane = &mut self.lanes[slot as usize];
        if lane.refiller != session + 1 {
            return false;
        }
        lane.refiller = 0;
        let read = lane.read.min(lane.spill);
        (lane.position, lane.lenient) = if lane.doubted != 0 { (Rank::MIN, read) } else { (read, Rank::MIN) };
        lane.doubted = 0;
        true
    }

    /// After a refill: wakes those who waited for its end, one a call; call until it returns `None`, then
    /// [`Self::pass_on`], whatever ended the refill: those who wait for jobs may have relied on it.
    pub fn refill_wake(&mut self, instance: u32, lane: i32) -> Option<u32> {
        let slot = self.lane_slot(instance, lane)?;
        self.wake_refill_waiter(slot)
    }

    /// Ends whatever refill this session has under way: it is going away. Returns its lane; then as after
    /// any refill.
    pub fn refill_abandon(&mut self, session: u32) -> Option<(u32, i32)> {
        let slot = self.lanes.iter().position(|l| l.is_used() && l.refiller == session + 1)?;
        let (instance, id) = (self.lanes[slot].instance, self.lanes[slot].id);
        self.refill_end(instance, id, session);
        Some((instance, id))
    }

    // ---- running ---------------------------------------------------------------------------------

    fn running_is_full(&self) -> bool {
        self.head.running as usize == self.running.len()
    }

    fn add_running(&mut self, entry: Running) -> Option<u32> {
        if self.running_is_full() {
            return None;
        }
        let slot = if self.head.free != 0 {
            let slot = self.head.free - 1;
            self.head.free = self.running[slot as usize].next;
            slot
        } else {
            self.head.fresh += 1;
            self.head.fresh - 1
        };
        self.running[slot as usize] = entry;
        self.head.running += 1;
        index::insert(self.running_index, entry.instance, entry.id, slot);
        Some(slot)
    }

    fn forget_running(&mut self, root: &mut DeadlineRoot, slot: u32) -> Running {
        deadlines::remove(self.running, root, slot);
        self.count_out(slot);
        let entry = self.running[slot as usize];
        index::remove(self.running_index, entry.instance, entry.id);
        self.running[slot as usize] = Running { next: self.head.free, ..Running::default() };
        self.head.free = slot + 1;
        self.head.running -= 1;
        entry
    }

    fn running_slot(&self, instance: u32, id: i64) -> Option<u32> {
        index::find(self.running_index, instance, id)
    }

    /// The entry of a taken attempt.
    pub fn entry(&self, instance: u32, id: i64) -> Option<Running> {
        self.running_slot(instance, id).map(|slot| self.running[slot as usize])
    }

    /// Takes one certain waiting attempt, as a claimer would, so that nobody else can have it. One that is not due is
    /// not made so by being given back.
    #[allow(clippy::too_many_arguments, reason = "who, where, what")]
    pub fn take_one(
        &mut self,
        root: &mut DeadlineRoot,
        instance: u32,
        lane: i32,
        owner: u32,
        pid: i32,
        entry: Ready,
        is_due: bool,
    ) -> TakeOne {
        if let Some(slot) = self.running_slot(instance, entry.id) {
            if !self.running[slot as usize].is_doomed() {
                return TakeOne::Busy;
            }
            deadlines::remove(self.running, root, slot);
            let entry = &mut self.running[slot as usize];
            (entry.state, entry.owner, entry.session, entry.pid) = (State::Taken, owner, owner + 1, pid);
            return TakeOne::Taken;
        }
        if self.running_is_full() {
            return TakeOne::Full;
        }
        if let Some(slot) = self.lane_slot(instance, lane) {
            let mut ring = self.ring(slot);
            if let Ok(at) = ring.search(entry.rank)
                && ring.get(at).id == entry.id
            {
                ring.remove(at);
            }
        }
        let taken = Running::taken(instance, lane, owner, pid, entry);
        self.add_running(Running { system: 1, early: u8::from(!is_due), ..taken });
        TakeOne::Taken
    }

    /// The claim of a taken attempt is committed: the lease starts. An extension that was granted before
    /// holds. To be called before [`Self::ended`] when one transaction did both: what has ended may be taken
    /// by another, who finds it stale.
    pub fn claimed(&mut self, root: &mut DeadlineRoot, instance: u32, id: i64, lease: i64, deadline: i64, bound: bool) {
        let Some(slot) = self.running_slot(instance, id) else { return };
        self.settle_token(slot, deadline - lease);
        let entry = &mut self.running[slot as usize];
        entry.claimed = 1;
        entry.lease = lease;
        entry.longest = entry.longest.max(lease);
        entry.deadline = entry.deadline.max(deadline);
        entry.bound = u8::from(bound);
        if entry.state == State::Taken {
            entry.state = State::Running;
            entry.owner = 0;
            deadlines::insert(self.running, root, slot);
        }
    }

    /// Somebody asked for a taken attempt to be cancelled. False: it is not in memory.
    pub fn request_cancel(&mut self, instance: u32, id: i64) -> bool {
        let Some(slot) = self.running_slot(instance, id) else { return false };
        let entry = &mut self.running[slot as usize];
        entry.cancel = 1;
        entry.note_late(LATE_CANCEL);
        true
    }

    /// Somebody asked for another run after that of a taken attempt. False: it is not in memory.
    pub fn request_rerun(&mut self, instance: u32, id: i64) -> bool {
        let Some(slot) = self.running_slot(instance, id) else { return false };
        let entry = &mut self.running[slot as usize];
        entry.rerun = 1;
        entry.note_late(LATE_RERUN);
        true
    }

    /// A taken attempt was not claimed after all, whether or not it was to be ended too: back to `ready`.
    /// Returns a session to wake. One that was to be cancelled meanwhile stays, as if its lease had ended:
    /// the worker takes it ([`Self::take_one`]) and cancels it. Its worker may have begun: it uses up the rate.
    pub fn give_back(&mut self, root: &mut DeadlineRoot, instance: u32, id: i64, now: i64) -> Option<u32> {
        let slot = self.running_slot(instance, id)?;
        let entry = &mut self.running[slot as usize];
        if entry.claimed != 0 {
            return None;
        }
        self.settle_token(slot, now);
        let gate = self.running[slot as usize].gate;
        let entry = &mut self.running[slot as usize];
        if entry.cancel != 0 {
            (entry.state, entry.owner, entry.deadline, entry.system) = (State::Running, 0, i64::MIN, 1);
            deadlines::remove(self.running, root, slot);
            deadlines::insert(self.running, root, slot);
            self.count_out(slot);
            let entry = self.running[slot as usize];
            return self.wake_after(gate, &entry);
        }
        let entry = self.forget_running(root, slot);
        // It may have fallen due while it was taken.
        let is_due = entry.early == 0 || entry.again != 0;
        let pushed = if is_due { self.push(instance, entry.lane, entry.ready()) } else { None };
        pushed.or_else(|| self.wake_after(gate, &entry))
    }

    /// Drops an entry that the logs proved wrong, without giving anything back.
    /// Returns a session to wake.
    pub fn discard(&mut self, root: &mut DeadlineRoot, instance: u32, id: i64) -> Option<u32> {
        let slot = self.running_slot(instance, id)?;
        self.leave(root, slot).1
    }

    /// Drops a taken entry that its taker found not to be waiting. If somebody held back a push of it
    /// meanwhile, the taker may have looked too early: then it is pushed. Returns a session to wake.
    pub fn discard_stale(&mut self, root: &mut DeadlineRoot, instance: u32, id: i64) -> Option<u32> {
        let slot = self.running_slot(instance, id)?;
        if self.running[slot as usize].again == 0 {
            return self.leave(root, slot).1;
        }
        let gate = self.running[slot as usize].gate;
        let entry = self.forget_running(root, slot);
        let pushed = self.push(instance, entry.lane, entry.ready());
        pushed.or_else(|| self.wake_after(gate, &entry))
    }

    /// Forgets an entry. Returns it, and a session to wake: something else may start instead.
    fn leave(&mut self, root: &mut DeadlineRoot, slot: u32) -> (Running, Option<u32>) {
        let gate = self.running[slot as usize].gate;
        let entry = self.forget_running(root, slot);
        (entry, self.wake_after(gate, &entry))
    }

    /// Somebody to look for what may start now that an entry is gone: another job of its queue, if that is limited,
    /// or of its group.
    fn wake_after(&mut self, gate: u32, entry: &Running) -> Option<u32> {
        match gate.checked_sub(1) {
            Some(gate) => self.wake_at_gate(gate),
            None if entry.group != 0 && self.head.groups > 0 => self.pass_on(entry.instance, entry.lane),
            None => None,
        }
    }

    /// An attempt that was running when somebody asked for it to be cancelled, and is not any more: should it
    /// wait, it is kept as in [`Self::give_back`]. False: `running` is full.
    pub fn doom(&mut self, root: &mut DeadlineRoot, instance: u32, lane: i32, entry: Ready) -> bool {
        if self.take_one(root, instance, lane, 0, 0, entry, true) != TakeOne::Taken {
            return false;
        }
        let Some(slot) = self.running_slot(instance, entry.id) else { return false };
        let doomed = &mut self.running[slot as usize];
        (doomed.state, doomed.session, doomed.cancel, doomed.deadline) = (State::Running, 0, 1, i64::MIN);
        deadlines::insert(self.running, root, slot);
        true
    }

    /// Adds an attempt whose claim was found in the log. An entry that is there already is left alone.
    /// False: `running` is full.
    pub fn recover(&mut self, root: &mut DeadlineRoot, entry: Running) -> bool {
        if self.running_slot(entry.instance, entry.id).is_some() {
            return true;
        }
        let unlinked =
            Running { claimed: 1, timed: 0, child: 0, next: 0, prev: 0, gate: 0, grouped: 0, token: 0, ..entry };
        let Some(slot) = self.add_running(unlinked) else {
            return false;
        };
        if let Some(gate) = self.gate_of(entry.instance, entry.lane) {
            self.count_in(gate, slot);
        }
        if entry.state == State::Running {
            deadlines::insert(self.running, root, slot);
        }
        true
    }

    /// The caller's transaction wants to end this attempt. While it is open no deadline fires.
    pub fn end(&mut self, root: &mut DeadlineRoot, instance: u32, id: i64, owner: u32) -> End {
        let Some(slot) = self.running_slot(instance, id) else { return End::Unknown };
        let entry = self.running[slot as usize];
        match entry.state {
            State::Running if entry.is_doomed() => return End::Unknown,
            State::Running => {}
            State::Taken if entry.owner == owner => {}
            _ => return End::Busy(entry),
        }
        deadlines::remove(self.running, root, slot);
        let this = &mut self.running[slot as usize];
        this.state = State::Ending;
        this.owner = owner;
        this.late = 0;
        End::Yours(entry)
    }

    /// The outcome is committed. Returns the entry that was there, and a session to wake.
    pub fn ended(&mut self, root: &mut DeadlineRoot, instance: u32, id: i64) -> Option<(Running, Option<u32>)> {
        let slot = self.running_slot(instance, id)?;
        Some(self.leave(root, slot))
    }

    /// The row of a taken attempt lies elsewhere now.
    pub fn relocate(&mut self, instance: u32, id: i64, place: Place) {
        if let Some(slot) = self.running_slot(instance, id) {
            self.running[slot as usize].place = place;
        }
    }

    /// The outcome was rolled back: as before, and the deadline counts again.
    pub fn unend(&mut self, root: &mut DeadlineRoot, instance: u32, id: i64) {
        let Some(slot) = self.running_slot(instance, id) else { return };
        let entry = &mut self.running[slot as usize];
        if entry.state != State::Ending {
            return;
        }
        if entry.claimed == 0 {
            entry.state = State::Taken;
            return;
        }
        entry.state = State::Running;
        entry.owner = 0;
        deadlines::insert(self.running, root, slot);
    }

    /// Sets a new deadline for an attempt whose own has passed by now.
    pub fn postpone(&mut self, root: &mut DeadlineRoot, instance: u32, id: i64, now: i64, until: i64) {
        let entry = self.running_slot(instance, id).map(|slot| self.running[slot as usize]);
        if entry.is_some_and(|entry| entry.deadline <= now) {
            self.extend(root, instance, id, 0, until);
        }
    }

    /// Sets a new deadline. `lease` counts from now; the longest is remembered. Returns the entry as it
    /// is then, `None` when it is not in memory or claimed by nobody.
    pub fn extend(
        &mut self,
        root: &mut DeadlineRoot,
        instance: u32,
        id: i64,
        lease: i64,
        deadline: i64,
    ) -> Option<Running> {
        let slot = self.running_slot(instance, id).filter(|&slot| !self.running[slot as usize].is_doomed())?;
        let timed = self.running[slot as usize].state == State::Running;
        if timed {
            deadlines::remove(self.running, root, slot);
        }
        let entry = &mut self.running[slot as usize];
        entry.deadline = deadline;
        entry.longest = entry.longest.max(lease);
        let entry = *entry;
        if timed {
            deadlines::insert(self.running, root, slot);
        }
        Some(entry)
    }

    /// A longer lease than any before is on record: a heartbeat of up to this length needs no other.
    pub fn lengthen(&mut self, instance: u32, id: i64, lease: i64) {
        if let Some(slot) = self.running_slot(instance, id) {
            let entry = &mut self.running[slot as usize];
            entry.longest = entry.longest.max(lease);
        }
    }

    /// The earliest deadline of the instance.
    pub fn next_deadline(&self, root: DeadlineRoot) -> Option<i64> {
        deadlines::first(root).map(|slot| self.running[slot as usize].deadline)
    }

    /// The running attempt whose deadline is the earliest, if that has passed.
    pub fn expired(&self, root: DeadlineRoot, now: i64) -> Option<Running> {
        let entry = self.running[deadlines::first(root)? as usize];
        (entry.deadline <= now).then_some(entry)
    }

    /// A connection has ended, its transaction too: its bound claims fall due now, those that another
    /// transaction is ending when that is rolled back. Returns how many did.
    pub fn session_ended(&mut self, root: &mut DeadlineRoot, instance: u32, session: u32) -> usize {
        let mut due = 0;
        for slot in 0..self.head.fresh {
            let entry = &mut self.running[slot as usize];
            if entry.state == State::Free || entry.instance != instance || entry.session != session + 1 {
                continue;
            }
            entry.session = 0;
            if entry.bound == 0 {
                continue;
            }
            let timed = entry.state == State::Running;
            deadlines::remove(self.running, root, slot);
            self.running[slot as usize].deadline = i64::MIN;
            if timed {
                deadlines::insert(self.running, root, slot);
                due += 1;
            }
        }
        due
    }

    /// The entries of an instance, from slot `from` on: the next and the slot to go on from.
    pub fn next_running(&self, instance: u32, from: u32) -> Option<(u32, Running)> {
        (from..self.head.fresh).find_map(|slot| {
            let entry = self.running[slot as usize];
            (entry.state != State::Free && entry.instance == instance).then_some((slot + 1, entry))
        })
    }

    /// Whether somebody is refilling the lane, or serves one of its groups.
    pub fn is_refilling(&self, instance: u32, lane: i32) -> bool {
        self.lane_slot(instance, lane).is_some_and(|slot| self.lanes[slot as usize].is_read())
    }

    /// Calls `each` with the attempts of a lane in `ready`, in order; then P. `None` when the lane has no slot.
    pub fn each_ready(&mut self, instance: u32, lane: i32, mut each: impl FnMut(Ready)) -> Option<Rank> {
        let slot = self.lane_slot(instance, lane)?;
        let ring = self.ring(slot);
        (0..ring.len()).for_each(|nth| each(ring.get(nth)));
        Some(self.lanes[slot as usize].position)
    }

    /// Whether a claimer who has nothing open may find a job in this lane.
    pub fn has_jobs(&self, instance: u32, lane: i32) -> bool {
        self.lane_slot(instance, lane).is_some_and(|slot| self.has_something(slot))
    }

    /// How many attempts of a lane are in `ready`, and P; `None` when the lane has no slot.
    pub fn lane_state(&self, instance: u32, lane: i32) -> Option<(usize, Rank)> {
        let slot = self.lane_slot(instance, lane)?;
        let lane = &self.lanes[slot as usize];
        Some((lane.len as usize, lane.position))
    }
}

#[cfg(test)]
mod limits_model;
#[cfg(test)]
mod model;
