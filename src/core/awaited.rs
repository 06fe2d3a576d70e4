//! Which jobs others are after, and which of them the duty `release` has still to look at: a filter, a list, and the
//! order to look at everything. The protocol is docs/internals/after.md.
//!
//! Like the frontier this is a cache of the logs, laid over memory of the caller, whose zero bytes are a valid start.
//! It allocates nothing and cannot fail.
//!
//! Invariant: a job that was handed over is in the list, or a look at everything is ordered, until a process has taken
//! it. A job that others are after is in the filter, or the filter is not known. What has happened to a job since it
//! was announced is told to the commit of the transaction that has announced it.

/// Places of the table by hash in which the list is looked up; half of them are used at most.
const PLACES: usize = 8_192;
/// The most jobs of the list.
const ROOM: usize = PLACES / 2;
/// The words of a filter.
const WORDS: usize = 4_096;
/// The bits of a filter.
const BITS: u64 = WORDS as u64 * 64;
/// With more bits set, the filter is built anew: many of the jobs in it may have ended long ago.
const FULL: u32 = BITS as u32 / 8;

/// Jobs share so many cells in which it is noted when the end of one was last told.
const CELLS: usize = 256;

/// A set of jobs that may say yes in vain.
#[repr(C)]
struct Filter {
    words: [u64; WORDS],
    /// How many bits are set.
    bits: u32,
}

impl Filter {
    /// The two bits of a job.
    fn bits_of(job_id: i64) -> [u64; 2] {
        let hash = hash(job_id);
        [hash % BITS, (hash >> 32) % BITS]
    }

    fn add(&mut self, job_id: i64) {
        for bit in Self::bits_of(job_id) {
            let word = &mut self.words[(bit / 64) as usize];
            self.bits += u32::from(*word & (1 << (bit % 64)) == 0);
            *word |= 1 << (bit % 64);
        }
    }

    fn has(&self, job_id: i64) -> bool {
        Self::bits_of(job_id).iter().all(|bit| self.words[(bit / 64) as usize] & (1 << (bit % 64)) != 0)
    }

    fn clear(&mut self) {
        self.words.fill(0);
        self.bits = 0;
    }
}

fn hash(job_id: i64) -> u64 {
    let mixed = job_id.cast_unsigned().wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) ^ (mixed >> 32)
}

/// What is known of jobs that others are after, in one database. All zero: nothing is, and everything is to be looked
/// at.
#[repr(C)]
pub struct Awaited {
    /// Whether no look at everything is ordered.
    is_seen: bool,
    /// Whether the filter has all jobs that others are after.
    is_known: bool,
    /// Whether a process builds the next filter.
    is_building: bool,
    /// How many processes have taken jobs that they have not served yet.
    serving: u32,
    /// How many jobs are in the list.
    count: u32,
    /// With so many bits set, the filter counts as too full; 0: `FULL`.
    full_at: u32,
    /// How often a job became known as awaited: see `adds`.
    adds: u64,
    /// Counts the ends of awaited jobs, and the looks at everything.
    clock: u64,
    /// When the last look at everything has begun, by that clock.
    looked_at: u64,
    /// The monotonic time before which the list is not looked at.
    list_at: i64,
    /// The monotonic time before which not everything is looked at.
    everything_at: i64,
    /// The jobs of the list, each with its place: so that few cost little, however many there is room for.
    list: [i64; ROOM],
    places_of: [u16; ROOM],
    /// The number of the job at each place, plus one.
    places: [u16; PLACES],
    /// When the end of a job of each cell was last told while the job passed for awaited, by that clock.
    told_at: [u64; CELLS],
    filter: Filter,
    fresh: Filter,
}

impl Awaited {
    /// Forgets everything, as after a start.
    pub fn reset(&mut self) {
        (self.is_seen, self.is_known, self.is_building) = (false, false, false);
        (self.serving, self.full_at, self.list_at, self.everything_at) = (0, 0, i64::MIN, i64::MIN);
        self.filter.clear();
        self.clear_list();
        self.looked_at = self.tick();
    }

    fn tick(&mut self) -> u64 {
        self.clock = self.clock.wrapping_add(1);
        self.clock
    }

    /// Whether it is known that nothing is awaited.
    pub fn is_quiet(&self) -> bool {
        self.is_known && self.filter.bits == 0
    }

    /// Whether no process has anything to serve, and none will have because of what has been handed over by now.
    pub fn is_idle(&self) -> bool {
        self.is_seen && self.is_known && !self.is_building && self.count == 0 && self.serving == 0
    }

    /// Adds jobs to the filter that others may soon be after, before an open transaction looks whether they live. If
    /// they do not, or it is rolled back, the filter says yes in vain. Returns the mark for `add_announced`, and
    /// whether the worker is to be woken.
    pub fn announce(&mut self, jobs: &[i64]) -> (u64, bool) {
        let mut is_ordered = false;
        for &job_id in jobs {
            is_ordered |= self.note(job_id);
        }
        (self.clock, is_ordered)
    }

    /// Notes that others are after a job, and hands it over, as the transaction that has enqueued them is committed.
    /// Returns whether the worker is to be woken.
    pub fn add(&mut self, job_id: i64) -> bool {
        self.adds = self.adds.wrapping_add(1);
        let is_ordered = self.note(job_id);
        self.hand_over(job_id) || is_ordered
    }

    /// As `add`, of a job that was found to live after it was announced: it is handed over only if its end may have
    /// been told since. Otherwise its end comes yet, and hands it over.
    pub fn add_announced(&mut self, job_id: i64, mark: u64) -> bool {
        if self.told_at[Self::cell(job_id)].max(self.looked_at) > mark {
            return self.add(job_id);
        }
        self.adds = self.adds.wrapping_add(1);
        self.note(job_id)
    }

    fn cell(job_id: i64) -> usize {
        hash(job_id) as usize % CELLS
    }

    /// Adds a job to the filter. Returns whether the worker is to be woken, since that has grown too full.
    fn note(&mut self, job_id: i64) -> bool {
        self.filter.add(job_id);
        if self.is_building {
            self.fresh.add(job_id);
        }
        let is_full = self.filter.bits > self.full_at.max(FULL);
        is_full && self.is_known && !self.is_building && self.order()
    }

    /// How often a job became known as awaited. While it is the same, nothing new is after any job whose commit has run
    /// its callback.
    pub fn adds(&self) -> u64 {
        self.adds
    }

    /// Whether others may be after a job, or it is watched.
    pub fn may_await(&self, job_id: i64) -> bool {
        !self.is_known || self.filter.has(job_id) || self.is_watched(job_id)
    }

    /// Whether others are probably after a job, so that a session that ends it may look.
    pub fn is_awaited(&self, job_id: i64) -> bool {
        self.is_known && self.filter.bits != 0 && self.filter.has(job_id)
    }

    /// Has the end of a job hand it over, whatever is after it: a flow is to be looked at then.
    pub fn watch(&mut self, job_id: i64) {
        self.note(!job_id);
    }

    /// Whether a job is probably watched. It has bits of its own, since what is after a job may be released without the
    /// duty, and flows are not.
    fn is_watched(&self, job_id: i64) -> bool {
        self.filter.has(!job_id)
    }

    /// Hands over a job that has ended, if others may be after it. Returns whether the worker is to be woken.
    pub fn ended(&mut self, job_id: i64) -> bool {
        self.tell(job_id) && self.hand_over(job_id)
    }

    /// The same, for a job of which all was released that was after it when so many were known as awaited.
    pub fn ended_served(&mut self, job_id: i64, adds: u64) -> bool {
        let is_served = self.is_known && self.adds == adds && !self.is_watched(job_id);
        self.tell(job_id) && !is_served && self.hand_over(job_id)
    }

    /// Notes the end of a job for those that have announced it. Returns whether it may concern others; if not, nothing
    /// is noted.
    fn tell(&mut self, job_id: i64) -> bool {
        let may_await = self.may_await(job_id);
        if may_await {
            self.told_at[Self::cell(job_id)] = self.tick();
        }
        may_await
    }

    /// Has the duty look at what is after a job, at once. Returns whether the worker is to be woken.
    pub fn hand_over(&mut self, job_id: i64) -> bool {
        self.list_at = i64::MIN;
        self.insert(job_id)
    }

    /// Has the duty look at what is after a job, at this monotonic time or before.
    pub fn put_off(&mut self, job_id: i64, at: i64) {
        self.list_at = if self.count == 0 { at } else { self.list_at.min(at) };
        self.insert(job_id);
    }

    fn insert(&mut self, job_id: i64) -> bool {
        // After a start the look that is ordered does not wait, and sees what this is about.
        if !self.is_seen && !self.is_known {
            return false;
        }
        let count = self.count as usize;
        if count == ROOM {
            return self.order();
        }
        let mut place = hash(job_id) as usize % PLACES;
        while let Some(n) = self.places[place].checked_sub(1) {
            if self.list[n as usize] == job_id {
                return false;
            }
            place = (place + 1) % PLACES;
        }
        (self.list[count], self.places_of[count]) = (job_id, place as u16);
        self.count += 1;
        self.places[place] = self.count as u16;
        true
    }

    fn clear_list(&mut self) {
        let count = std::mem::take(&mut self.count) as usize;
        self.places_of[..count].iter().for_each(|&place| self.places[place as usize] = 0);
    }

    /// Orders a look at everything, if anything is awaited: some jobs have ended, and it is not known which. Returns
    /// whether the worker is to be woken.
    pub fn ended_unknown(&mut self) -> bool {
        !self.is_quiet() && self.order()
    }

    /// Orders a look at everything. Returns whether the worker is to be woken. What is in the list is served before,
    /// since the look may have to wait.
    pub fn order(&mut self) -> bool {
        std::mem::take(&mut self.is_seen)
    }

    /// Returns when the duty is due, in monotonic microseconds; `i64::MAX`: there is nothing to do.
    pub fn look_at(&self) -> i64 {
        let everything = if !self.is_seen && !self.is_building { self.everything_at } else { i64::MAX };
        let list = if self.count > 0 { self.list_at } else { i64::MAX };
        everything.min(list)
    }

    /// Begins a look at everything, if one is due. The caller reads which jobs are awaited, calls `found` for them, and
    /// `looked` at its end.
    pub fn begin_look(&mut self, now: i64) -> bool {
        if self.is_seen || self.is_building || self.everything_at > now {
            return false;
        }
        (self.is_seen, self.is_building) = (true, true);
        self.looked_at = self.tick();
        self.fresh.clear();
        true
    }

    /// Notes a job that the look at everything has found to be awaited.
    pub fn found(&mut self, job_id: i64) {
        self.fresh.add(job_id);
    }

    /// Ends a look at everything: from now on the filter is known. There is no other one before this monotonic time.
    pub fn looked(&mut self, next_at: i64) {
        std::mem::swap(&mut self.filter, &mut self.fresh);
        // What is awaited in truth does not make the filter too full.
        self.full_at = self.filter.bits.saturating_mul(2);
        (self.is_known, self.is_building, self.everything_at) = (true, false, next_at);
    }

    /// Gives up a look at everything. It is ordered anew.
    pub fn give_up_look(&mut self) {
        self.is_building = false;
        self.order();
    }

    /// Moves the list to `taken`, which has room for it, if it is due.
    pub fn take(&mut self, now: i64, taken: &mut Vec<i64>) {
        if self.count == 0 || self.list_at > now {
            return;
        }
        taken.extend_from_slice(&self.list[..self.count as usize]);
        self.clear_list();
    }

    /// Notes that a process has taken what it has still to serve, or that it has served it.
    pub fn serve(&mut self, is_serving: bool) {
        self.serving = if is_serving { self.serving + 1 } else { self.serving.saturating_sub(1) };
    }

    /// The most jobs that `take` returns.
    pub const ROOM: usize = ROOM;
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn fresh() -> Box<Awaited> {
        let filter = || Filter { words: [0; WORDS], bits: 0 };
        Box::new(Awaited {
            is_seen: false,
            is_known: false,
            is_building: false,
            serving: 0,
            count: 0,
            full_at: 0,
            adds: 0,
            clock: 0,
            looked_at: 0,
            list_at: 0,
            everything_at: 0,
            list: [0; ROOM],
            places_of: [0; ROOM],
            places: [0; PLACES],
            told_at: [0; CELLS],
            filter: filter(),
            fresh: filter(),
        })
    }

    fn known() -> Box<Awaited> {
        let mut awaited = fresh();
        assert!(awaited.begin_look(0));
        awaited.looked(0);
        awaited
    }

    fn take(awaited: &mut Awaited) -> BTreeSet<i64> {
        let mut taken = Vec::with_capacity(Awaited::ROOM);
        awaited.take(0, &mut taken);
        taken.into_iter().collect()
    }

    #[test]
    fn after_a_start_everything_is_to_be_looked_at_and_each_end_counts() {
        let mut awaited = fresh();
        assert!(!awaited.is_quiet() && !awaited.is_idle());
        assert_eq!(awaited.look_at(), 0);
        assert!(!awaited.ended(31), "the look that is ordered sees it");
        assert!(awaited.begin_look(0));
        assert!(!awaited.begin_look(0), "one process looks");
        assert!(awaited.ended(31), "the filter is not known");
        awaited.found(47);
        awaited.add(63);
        awaited.looked(0);
        assert_eq!(take(&mut awaited), BTreeSet::from([31, 63]));
        assert!(awaited.ended(47) && awaited.ended(63) && !awaited.ended(31));
    }

    #[test]
    fn nothing_awaited_costs_nothing() {
        let mut awaited = known();
        assert!(awaited.is_quiet() && awaited.is_idle());
        assert!(!awaited.ended(31) && !awaited.ended_unknown());
        assert_eq!(awaited.look_at(), i64::MAX);
    }

    #[test]
    fn a_full_list_orders_a_look_at_everything() {
        let mut awaited = known();
        for job_id in 1..=Awaited::ROOM as i64 {
            assert!(awaited.hand_over(job_id));
        }
        assert!(awaited.is_seen);
        assert!(awaited.hand_over(-1), "the worker is woken for that");
        assert!(!awaited.is_seen);
        assert!(!awaited.hand_over(-2), "it is woken already");
        assert_eq!(take(&mut awaited).len(), Awaited::ROOM, "these need not wait for that look");
        assert!(awaited.hand_over(-3) && awaited.begin_look(0));
        assert_eq!(take(&mut awaited), BTreeSet::from([-3]));
    }

    #[test]
    fn a_filter_that_has_grown_too_full_is_built_anew_once() {
        let mut awaited = known();
        let mut job_id = 0;
        while awaited.is_seen {
            job_id += 16;
            awaited.add(job_id);
            take(&mut awaited);
        }
        assert!(i64::from(FULL) / 2 <= job_id / 16);
        assert!(awaited.begin_look(0));
        (16..=job_id).step_by(16).for_each(|job_id| awaited.found(job_id));
        awaited.looked(0);
        awaited.add(-16);
        assert!(awaited.is_seen, "all of them are awaited");
    }

    #[test]
    fn what_is_put_off_waits_unless_something_new_comes() {
        let mut awaited = known();
        awaited.put_off(31, 7);
        assert_eq!((awaited.look_at(), take(&mut awaited).len()), (7, 0));
        awaited.hand_over(47);
        assert_eq!(take(&mut awaited), BTreeSet::from([31, 47]));
    }

    #[test]
    fn what_is_announced_is_handed_over_only_if_something_has_happened_to_it() {
        let mut awaited = known();
        let (mark, _) = awaited.announce(&[31, 47, 63, 79]);
        assert!(!awaited.add_announced(31, mark) && take(&mut awaited).is_empty(), "its end comes yet");
        assert!(awaited.ended(31));
        assert!(awaited.ended(47), "it is known before others are after it");
        assert_eq!(take(&mut awaited), BTreeSet::from([31, 47]));
        assert!(awaited.add_announced(47, mark), "its end was told, and what came after it was not visible");
        assert!(!awaited.ended_served(63, awaited.adds()));
        assert!(awaited.add_announced(63, mark), "also if the session that has ended it saw all there was");
        assert_eq!(take(&mut awaited), BTreeSet::from([47, 63]));
        let (later, _) = awaited.announce(&[47]);
        assert!(!awaited.add_announced(47, later));
        awaited.order();
        assert!(awaited.begin_look(0));
        awaited.looked(0);
        assert!(awaited.add_announced(79, mark), "the look at everything may have come too early");
    }

    #[test]
    fn what_is_announced_in_vain_does_not_fill_the_filter_for_good() {
        let mut awaited = known();
        let is_ordered = (1..=i64::from(FULL)).map(|n| awaited.announce(&[n * 16 + 15]).1).filter(|ordered| *ordered);
        assert_eq!(is_ordered.count(), 1, "the worker is woken once");
        assert!(awaited.begin_look(0));
        awaited.looked(0);
        assert!(awaited.is_quiet());
    }

    #[test]
    fn a_look_that_is_given_up_is_ordered_anew() {
        let mut awaited = known();
        awaited.order();
        assert!(awaited.begin_look(0));
        awaited.give_up_look();
        assert!(!awaited.is_idle() && awaited.begin_look(0));
    }

    proptest! {
        #![proptest_config(crate::cases(64))]

        /// Compares with a set: what is awaited is found by each filter, and what was handed over is taken.
        #[test]
        fn nothing_is_forgotten(steps in prop::collection::vec((0u8..6, 1i64..500), crate::length(300))) {
            let mut awaited = known();
            let (mut awaits, mut due) = (BTreeSet::new(), BTreeSet::new());
            for (verb, id) in steps {
                let job_id = id << 4 | 15;
                match verb {
                    0 | 1 => {
                        awaited.add(job_id);
                        awaits.insert(job_id);
                        due.insert(job_id);
                    }
                    2 => {
                        let is_new = awaited.ended(job_id);
                        if awaits.contains(&job_id) {
                            prop_assert_eq!(is_new, due.insert(job_id));
                        } else if is_new {
                            due.insert(job_id);
                        }
                    }
                    3 => prop_assert_eq!(take(&mut awaited), std::mem::take(&mut due)),
                    4 => {
                        awaited.order();
                        prop_assert!(awaited.begin_look(0));
                        awaits.iter().for_each(|job_id| awaited.found(*job_id));
                    }
                    _ => if awaited.is_building { awaited.looked(0) },
                }
                prop_assert!(awaits.iter().all(|job_id| awaited.filter.has(*job_id)));
                if awaited.is_building { awaited.looked(0) }
            }
        }
    }
}
