//! Knows which jobs have successors, and which of these jobs the duty `release` must still look at. It consists of a
//! filter, a list and the order to look at everything. The protocol is in docs/internals/after.md.
//!
//! Like the frontier this is a cache of the logs in memory of the caller. Zero bytes are a valid start. It allocates
//! nothing and cannot fail.
//!
//! Invariant: until a process has taken a job that was handed over, the job is in the list or a look at everything is
//! ordered. A job with successors is in the filter, or the filter is not known. The commit of a transaction that
//! announced a job learns whether the job may have ended since.

/// The size of the hash table in which jobs of the list are found. At most half of it is used.
const PLACES: usize = 8_192;
/// The capacity of the list.
const ROOM: usize = PLACES / 2;
/// The words of a filter.
const WORDS: usize = 4_096;
/// The bits of a filter.
const BITS: u64 = WORDS as u64 * 64;
/// The filter is rebuilt when it has more bits set: many of its jobs may have ended long ago.
const FULL_FILTER_BITS: u32 = BITS as u32 / 8;

/// The number of cells of `told_at`. Jobs share them by hash.
const CELLS: usize = 256;

/// A Bloom filter: a set of jobs with false positives.
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

/// What is known of the jobs with successors in one database. All zero: nothing is known, and a look at everything is
/// ordered.
#[repr(C)]
pub struct Awaited {
    /// False if a look at everything is ordered.
    is_seen: bool,
    /// Whether the filter has all jobs with successors.
    is_known: bool,
    /// Whether a process builds the next filter.
    is_building: bool,
    /// How many processes have taken jobs and not served them yet.
    serving: u32,
    /// How many jobs are in the list.
    count: u32,
    /// The filter is too full with more bits set than this, but never with fewer than `FULL_FILTER_BITS`.
    full_at: u32,
    /// How often a job became known as awaited: see `adds`.
    adds: u64,
    /// Counts the ends of awaited jobs and the looks at everything.
    clock: u64,
    /// The value of `clock` when the last look at everything began.
    looked_at: u64,
    /// The process that has taken jobs last, and how often that was another one than before: see `epoch`.
    taker: i32,
    epoch: u64,
    /// The monotonic time before which the list is not looked at.
    list_at: i64,
    /// The monotonic time before which not everything is looked at.
    everything_at: i64,
    /// The jobs of the list. `places_of` has the place of each, so that clearing a short list costs little.
    list: [i64; ROOM],
    places_of: [u16; ROOM],
    /// The hash table: a job's position in `list` plus one. 0: the place is free.
    places: [u16; PLACES],
    /// For each cell the value of `clock` when the last awaited job of the cell ended.
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

    /// True if no job has successors.
    pub fn is_quiet(&self) -> bool {
        self.is_known && self.filter.bits == 0
    }

    /// True if nothing is pending: the list is empty, no look at everything is ordered, and no process is serving.
    pub fn is_idle(&self) -> bool {
        self.is_seen && self.is_known && !self.is_building && self.count == 0 && self.serving == 0
    }

    /// Adds jobs to the filter that may soon have successors, before an open transaction looks whether they live. If
    /// they do not, or if the transaction is rolled back, they stay in the filter as false positives. Returns the mark
    /// for `add_announced`, and whether the caller must wake the worker.
    pub fn announce(&mut self, jobs: &[i64]) -> (u64, bool) {
        let mut is_ordered = false;
        for &job_id in jobs {
            is_ordered |= self.note(job_id);
        }
        (self.clock, is_ordered)
    }

    /// Notes that a job has successors, and hands it over. The commit of the transaction that has enqueued them calls
    /// this. Returns whether the caller must wake the worker.
    pub fn add(&mut self, job_id: i64) -> bool {
        self.adds = self.adds.wrapping_add(1);
        let is_ordered = self.note(job_id);
        self.hand_over(job_id) || is_ordered
    }

    /// As `add`, for a job that was found to live after it was announced. It is handed over only if it may have ended
    /// since the mark. Otherwise its end is still to come and will hand it over.
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

    /// Adds a job to the filter. Returns whether the caller must wake the worker, because the filter is now too full.
    fn note(&mut self, job_id: i64) -> bool {
        self.filter.add(job_id);
        if self.is_building {
            self.fresh.add(job_id);
        }
        let is_full = self.filter.bits > self.full_at.max(FULL_FILTER_BITS);
        is_full && self.is_known && !self.is_building && self.order()
    }

    /// Returns how often a job became known as awaited. While the number stays the same, no job has got new successors
    /// from a transaction whose commit callback has run.
    pub fn adds(&self) -> u64 {
        self.adds
    }

    /// True if a job may have successors, or may be watched.
    pub fn may_await(&self, job_id: i64) -> bool {
        !self.is_known || self.filter.has(job_id) || self.is_watched(job_id)
    }

    /// True if a job probably has successors. Then the session that ends it may look for them.
    pub fn is_awaited(&self, job_id: i64) -> bool {
        self.is_known && self.filter.bits != 0 && self.filter.has(job_id)
    }

    /// Watches a job: its end hands it over even if its successors were released, because a flow must be looked at
    /// then.
    pub fn watch(&mut self, job_id: i64) {
        self.note(!job_id);
    }

    /// True if a job is probably watched. A watch has bits of its own, since sessions may release a job's successors
    /// without the duty, and flows never.
    fn is_watched(&self, job_id: i64) -> bool {
        self.filter.has(!job_id)
    }

    /// Hands over a job that has ended, if it may have successors. Returns whether the caller must wake the worker.
    pub fn ended(&mut self, job_id: i64) -> bool {
        self.tell(job_id) && self.hand_over(job_id)
    }

    /// As `ended`, for a job whose successors were all released when `adds` had this value.
    pub fn ended_served(&mut self, job_id: i64, adds: u64) -> bool {
        let is_served = self.is_known && self.adds == adds && !self.is_watched(job_id);
        self.tell(job_id) && !is_served && self.hand_over(job_id)
    }

    /// Notes the end of a job for transactions that have announced it, if the job may have successors. Returns whether
    /// it may.
    fn tell(&mut self, job_id: i64) -> bool {
        let may_await = self.may_await(job_id);
        if may_await {
            self.told_at[Self::cell(job_id)] = self.tick();
        }
        may_await
    }

    /// Orders the duty to look at a job's successors immediately. Returns whether the caller must wake the worker.
    pub fn hand_over(&mut self, job_id: i64) -> bool {
        self.list_at = i64::MIN;
        self.insert(job_id)
    }

    /// Orders the duty to look at a job's successors at this monotonic time or earlier.
    pub fn put_off(&mut self, job_id: i64, at: i64) {
        self.list_at = if self.count == 0 { at } else { self.list_at.min(at) };
        self.insert(job_id);
    }

    fn insert(&mut self, job_id: i64) -> bool {
        // After a start the ordered look at everything does not wait, and it sees this job.
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

    /// Orders a look at everything, if any job has successors: unknown jobs have ended. Returns whether the caller must
    /// wake the worker.
    pub fn ended_unknown(&mut self) -> bool {
        !self.is_quiet() && self.order()
    }

    /// Orders a look at everything. Returns whether the caller must wake the worker. The jobs of the list are served
    /// before, since the look may have to wait.
    pub fn order(&mut self) -> bool {
        std::mem::take(&mut self.is_seen)
    }

    /// Returns when the duty is due, in monotonic microseconds; `i64::MAX`: there is nothing to do.
    pub fn look_at(&self) -> i64 {
        let everything = if !self.is_seen && !self.is_building { self.everything_at } else { i64::MAX };
        let list = if self.count > 0 { self.list_at } else { i64::MAX };
        everything.min(list)
    }

    /// Begins a look at everything, if one is due. The caller then reads which jobs have successors, calls `found` for
    /// each, and calls `looked` at the end.
    pub fn begin_look(&mut self, now: i64) -> bool {
        if self.is_seen || self.is_building || self.everything_at > now {
            return false;
        }
        (self.is_seen, self.is_building) = (true, true);
        self.looked_at = self.tick();
        self.epoch = self.epoch.wrapping_add(1);
        self.fresh.clear();
        true
    }

    /// Notes that the look at everything has found a job with successors.
    pub fn found(&mut self, job_id: i64) {
        self.fresh.add(job_id);
    }

    /// Ends a look at everything: the filter is now known. The next look begins no earlier than this monotonic time.
    pub fn looked(&mut self, next_at: i64) {
        std::mem::swap(&mut self.filter, &mut self.fresh);
        // Jobs that really have successors do not make the filter too full.
        self.full_at = self.filter.bits.saturating_mul(2);
        (self.is_known, self.is_building, self.everything_at) = (true, false, next_at);
    }

    /// Gives up a look at everything and orders a new one.
    pub fn give_up_look(&mut self) {
        self.is_building = false;
        self.order();
    }

    /// Returns a number that changes when a process must forget what it remembers of flows: the next filter may lack
    /// what the process has watched, or another process may have learned of ends that this one has not.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Moves the list to `taken`, if the list is due. `taken` must have room for it. `process`: the caller.
    pub fn take(&mut self, now: i64, process: i32, taken: &mut Vec<i64>) {
        if self.count == 0 || self.list_at > now {
            return;
        }
        if std::mem::replace(&mut self.taker, process) != process {
            self.epoch = self.epoch.wrapping_add(1);
        }
        taken.extend_from_slice(&self.list[..self.count as usize]);
        self.clear_list();
    }

    /// Notes that a process has taken jobs that it must still serve, or that it has served them.
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
            taker: 0,
            epoch: 0,
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
        awaited.take(0, 1, &mut taken);
        taken.into_iter().collect()
    }

    #[test]
    fn after_a_start_everything_is_to_be_looked_at_and_each_end_counts() {
        let mut awaited = fresh();
        assert!(!awaited.is_quiet() && !awaited.is_idle());
        assert_eq!(awaited.look_at(), 0);
        assert!(!awaited.ended(31), "the ordered look sees it");
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
        assert!(awaited.hand_over(-1), "the worker is woken for the look");
        assert!(!awaited.is_seen);
        assert!(!awaited.hand_over(-2), "it is woken already");
        assert_eq!(take(&mut awaited).len(), Awaited::ROOM, "the list need not wait for the look");
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
        assert!(i64::from(FULL_FILTER_BITS) / 2 <= job_id / 16);
        assert!(awaited.begin_look(0));
        (16..=job_id).step_by(16).for_each(|job_id| awaited.found(job_id));
        awaited.looked(0);
        awaited.add(-16);
        assert!(awaited.is_seen, "all these jobs have successors");
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
        assert!(!awaited.add_announced(31, mark) && take(&mut awaited).is_empty(), "its end is still to come");
        assert!(awaited.ended(31));
        assert!(awaited.ended(47), "it is in the filter before it has successors");
        assert_eq!(take(&mut awaited), BTreeSet::from([31, 47]));
        assert!(awaited.add_announced(47, mark), "its end was noted before its successors were visible");
        assert!(!awaited.ended_served(63, awaited.adds()));
        assert!(awaited.add_announced(63, mark), "also if its successors of that time were all released");
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
        let is_ordered =
            (1..=i64::from(FULL_FILTER_BITS)).map(|n| awaited.announce(&[n * 16 + 15]).1).filter(|ordered| *ordered);
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

        /// Compares with a set: the filter finds each job with successors, and each job that was handed over is taken.
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
