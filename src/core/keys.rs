//! Decides what the calls of a producer do under their unique keys.
//!
//! Responsible for the decisions alone. Not responsible for holding keys (`holders`), nor for reading what is known of
//! them and writing what follows (`job::unique`).
//!
//! Invariant: a batch of calls has the effect that its calls would have one after the other.

/// What a call does if its key is taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IfTaken {
    /// Nothing.
    Skip,
    /// It gives its contents to the living job. An ended job stays as it is.
    Renew,
    /// It raises an error.
    Error,
}

/// A call with a key.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    /// The position of its key.
    pub key: usize,
    /// What it does if the key is taken.
    pub if_taken: IfTaken,
    /// The version of its contents. If a version as new is known, the call does nothing.
    pub version: Option<i64>,
    /// The earliest time at which the key is free again.
    pub taken_until: Option<i64>,
}

/// The facts that were recorded of a key by earlier calls.
#[derive(Clone, Copy, Debug)]
pub struct Recorded {
    /// The job of the newest of these calls.
    pub job_id: i64,
    /// The facts count until this time.
    pub expires_at: i64,
    /// The earliest time at which the key is free again.
    pub taken_until: Option<i64>,
    /// The newest accepted version.
    pub version: Option<i64>,
}

/// A job that has a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Job {
    /// The job that the call of this position makes.
    New(usize),
    /// A living job, or an ended job that will run once more.
    Live(i64),
    /// An ended job. It keeps the key until `taken_until`, or was the last one with a version.
    Ended(i64),
}

/// A key, as the calls so far have left it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Key {
    /// The job that has the key. `None`: the key is free.
    pub holder: Option<Job>,
    /// The newest known version.
    pub version: Option<i64>,
    /// The earliest time at which the key is free again.
    pub taken_until: Option<i64>,
    /// The position of the last call that changed something.
    pub last_call: Option<usize>,
    /// True if facts about the key must be recorded, because they count beyond the end of the job.
    pub is_recorded: bool,
    /// The job of the newest recorded call, if that still counts.
    recorded: Option<i64>,
}

impl Key {
    /// Returns a key before the first call. `live`: the living job under the key, and its version.
    pub fn new(live: Option<(i64, Option<i64>)>, recorded: Option<Recorded>, now: i64) -> Self {
        let recorded = recorded.filter(|recorded| recorded.expires_at > now);
        let taken_until = recorded.and_then(|recorded| recorded.taken_until);
        let ended = recorded.filter(|_| taken_until.is_some_and(|until| until > now));
        let of_live = live.and_then(|(_, version)| version);
        Self {
            holder: live.map(|(job_id, _)| Job::Live(job_id)).or(ended.map(|recorded| Job::Ended(recorded.job_id))),
            version: of_live.max(recorded.and_then(|recorded| recorded.version)),
            taken_until,
            last_call: None,
            is_recorded: false,
            recorded: recorded.map(|recorded| recorded.job_id),
        }
    }

    /// Returns until when facts about the key count, if a version counts for `retention` microseconds.
    pub fn expires_at(&self, now: i64, retention: i64) -> i64 {
        let of_version = self.version.map_or(now, |_| now.saturating_add(retention));
        of_version.max(self.taken_until.unwrap_or(now))
    }

    /// Decides what the call of this position does, after the calls before it. Returns its job. `Err`: the job that has
    /// the key.
    fn call(&mut self, position: usize, call: &Call) -> Result<Job, Job> {
        let is_known = call.version.is_some_and(|version| Some(version) <= self.version);
        if is_known && let Some(job) = self.holder.or(self.recorded.map(Job::Ended)) {
            return Ok(job);
        }
        let job = match (self.holder, call.if_taken) {
            (None, _) => *self.holder.insert(Job::New(position)),
            (Some(job), IfTaken::Skip) => return Ok(job),
            (Some(job), IfTaken::Error) => return Err(job),
            // The job cannot be renewed, and no other job may run until the key is free.
            (Some(job @ Job::Ended(_)), IfTaken::Renew) => return Ok(job),
            (Some(job), IfTaken::Renew) => job,
        };
        self.last_call = Some(position);
        self.version = self.version.max(call.version);
        self.taken_until = self.taken_until.max(call.taken_until);
        self.is_recorded |= call.version.is_some() || call.taken_until.is_some();
        Ok(job)
    }
}

/// A key that is taken, of a call that asks for an error then.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Taken {
    /// The position of the key.
    pub key: usize,
    /// The job that has the key.
    pub by: Job,
}

/// A job that is made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NewJob {
    /// The position of the call that makes the job.
    pub call: usize,
    /// The position of the call that gives its contents.
    pub contents: usize,
    /// The position of its key. `None`: it has none.
    pub key: Option<usize>,
}

/// What the calls of a producer do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Plan {
    /// The job of each call.
    pub jobs: Vec<Job>,
    /// The keys, as the calls leave them.
    pub keys: Vec<Key>,
    /// The jobs that are made, in the order of the calls that make them.
    pub new: Vec<NewJob>,
}

impl Plan {
    /// Decides what calls do. `None` is a call without a key. Before, `keys` has the keys of the calls, and the other
    /// lists are empty. If they have room for all calls, nothing is allocated.
    ///
    /// Errors: a call that asks for an error finds its key taken.
    pub fn decide(mut self, calls: &[Option<Call>]) -> Result<Self, Taken> {
        for (position, call) in calls.iter().enumerate() {
            let job = match call {
                Some(call) => {
                    let job = self.keys[call.key].call(position, call);
                    job.map_err(|by| Taken { key: call.key, by })?
                }
                None => Job::New(position),
            };
            if job == Job::New(position) {
                self.new.push(NewJob { call: position, contents: position, key: call.map(|call| call.key) });
            }
            self.jobs.push(job);
        }
        // A later call may have given its contents to a job that an earlier one makes.
        for job in &mut self.new {
            job.contents = job.key.and_then(|key| self.keys[key].last_call).unwrap_or(job.call);
        }
        Ok(self)
    }

    /// Returns the living jobs that get other contents: the position of each job's key, and that of the call that gives
    /// them.
    pub fn renewed(&self) -> impl Iterator<Item = (usize, usize)> {
        let renewed = |key: &Key| if let Some(Job::Live(_)) = key.holder { key.last_call } else { None };
        self.keys.iter().enumerate().filter_map(move |(n, key)| Some((n, renewed(key)?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    const NOW: i64 = 100;
    const KEYS: usize = 3;

    /// What is stored of a key: the living job, and the facts of earlier calls. A job is named by its id, or by minus
    /// one and the position of the call that has made it.
    #[derive(Clone, Debug, Default, PartialEq)]
    struct Stored {
        live: Option<Live>,
        recorded: Option<(i64, Option<i64>, Option<i64>)>,
    }

    #[derive(Clone, Debug, PartialEq)]
    struct Live {
        name: i64,
        version: Option<i64>,
        /// The call whose contents it has. `None`: those that it had before.
        contents: Option<usize>,
    }

    fn name(position: usize) -> i64 {
        -1 - position as i64
    }

    /// Does what the manual says of one call. Returns the call's job, or the job that makes the call fail.
    fn call_once(stored: &mut Stored, position: usize, call: &Call) -> Result<i64, i64> {
        let (recorded_job, recorded_version, taken_until) =
            stored.recorded.map_or((None, None, None), |(job, version, until)| (Some(job), version, until));
        let known = stored.live.as_ref().and_then(|live| live.version).max(recorded_version);
        let is_old = call.version.zip(known).is_some_and(|(version, known)| version <= known);
        let ended = recorded_job.filter(|_| stored.live.is_none() && taken_until.is_some_and(|until| until > NOW));
        let there = stored.live.as_ref().map(|live| live.name).or(ended);
        if is_old && let Some(job) = there.or(recorded_job) {
            return Ok(job);
        }
        if let Some(job) = there {
            match call.if_taken {
                IfTaken::Skip => return Ok(job),
                IfTaken::Error => return Err(job),
                IfTaken::Renew if stored.live.is_none() => return Ok(job),
                IfTaken::Renew => {}
            }
        }
        let job = there.unwrap_or(name(position));
        let version = known.max(call.version);
        stored.live = Some(Live { name: job, version, contents: Some(position) });
        if call.version.is_some() || call.taken_until.is_some() {
            stored.recorded = Some((job, version, taken_until.max(call.taken_until)));
        }
        Ok(job)
    }

    fn key_of(stored: &Stored) -> Key {
        let live = stored.live.as_ref().map(|live| (live.name, live.version));
        let recorded = stored.recorded.map(|(job_id, version, taken_until)| Recorded {
            job_id,
            expires_at: NOW + 1,
            taken_until,
            version,
        });
        Key::new(live, recorded, NOW)
    }

    fn plan(stored: &[Stored], calls: &[Option<Call>]) -> Result<Plan, Taken> {
        Plan { jobs: Vec::new(), keys: stored.iter().map(key_of).collect(), new: Vec::new() }.decide(calls)
    }

    fn named(job: Job) -> i64 {
        match job {
            Job::New(position) => name(position),
            Job::Live(job_id) | Job::Ended(job_id) => job_id,
        }
    }

    fn version() -> impl Strategy<Value = Option<i64>> {
        prop::option::of(1i64..5)
    }

    fn until() -> impl Strategy<Value = Option<i64>> {
        prop::option::weighted(0.3, NOW - 2..NOW + 3)
    }

    fn stored() -> impl Strategy<Value = Stored> {
        let live = prop::option::of((1i64..4, version()));
        let recorded = prop::option::of((1i64..4, version(), until()));
        (live, recorded).prop_map(|(live, recorded)| Stored {
            live: live.map(|(name, version)| Live { name, version, contents: None }),
            recorded,
        })
    }

    fn all_stored() -> impl Strategy<Value = Vec<Stored>> {
        prop::collection::vec(stored(), KEYS)
    }

    fn calls(errors: u32) -> impl Strategy<Value = Vec<Option<Call>>> {
        let if_taken = prop_oneof![2 => Just(IfTaken::Skip), 4 => Just(IfTaken::Renew), errors => Just(IfTaken::Error)];
        let call = (0..KEYS, if_taken, version(), until()).prop_map(|(key, if_taken, version, taken_until)| Call {
            key,
            if_taken,
            version,
            taken_until,
        });
        prop::collection::vec(prop::option::weighted(0.9, call), crate::length(12))
    }

    proptest! {
        #![proptest_config(crate::cases(2000))]

        #[test]
        fn a_batch_has_the_effect_of_single_calls_in_order(stored in all_stored(), calls in calls(1)) {
            let mut after = stored.clone();
            let one_by_one: Result<Vec<i64>, (usize, i64)> = calls
                .iter()
                .enumerate()
                .map(|(position, call)| match call {
                    Some(call) => call_once(&mut after[call.key], position, call).map_err(|by| (call.key, by)),
                    None => Ok(name(position)),
                })
                .collect();
            let plan = match plan(&stored, &calls) {
                Ok(plan) => plan,
                Err(taken) => {
                    prop_assert_eq!(one_by_one, Err((taken.key, named(taken.by))));
                    return Ok(());
                }
            };
            prop_assert_eq!(Ok(plan.jobs.iter().map(|job| named(*job)).collect()), one_by_one);
            // The contents of jobs, and what is recorded.
            let new: BTreeMap<usize, &NewJob> = plan.new.iter().map(|new| (new.call, new)).collect();
            let renewed: BTreeMap<usize, usize> = plan.renewed().collect();
            for (n, (key, stored)) in plan.keys.iter().zip(&stored).enumerate() {
                let contents = match key.holder {
                    Some(Job::New(call)) => Some(new[&call].contents),
                    _ => renewed.get(&n).copied(),
                };
                let live = after[n].live.as_ref();
                prop_assert_eq!(contents, live.and_then(|live| live.contents));
                let has_changed = after[n] != *stored;
                prop_assert_eq!(key.last_call.is_some(), has_changed);
                if has_changed {
                    prop_assert_eq!(live.map(|live| live.version), Some(key.version));
                    prop_assert_eq!(key.is_recorded, after[n].recorded != stored.recorded || key.is_recorded);
                }
                if key.is_recorded {
                    let job = key.holder.map(named);
                    prop_assert_eq!(after[n].recorded, job.map(|job| (job, key.version, key.taken_until)));
                } else {
                    prop_assert_eq!(after[n].recorded, stored.recorded);
                }
            }
        }

        #[test]
        fn at_most_one_job_of_a_key_is_made_and_none_beside_a_living_one(stored in all_stored(), calls in calls(1)) {
            let Ok(plan) = plan(&stored, &calls) else { return Ok(()) };
            for (n, stored) in stored.iter().enumerate() {
                let made = plan.new.iter().filter(|new| new.key == Some(n)).count();
                prop_assert!(made <= usize::from(stored.live.is_none()));
            }
            let without_key = calls.iter().filter(|call| call.is_none()).count();
            prop_assert_eq!(plan.new.iter().filter(|new| new.key.is_none()).count(), without_key);
        }

        #[test]
        fn calls_of_one_key_do_not_concern_another(stored in all_stored(), calls in calls(1), key in 0..KEYS) {
            let Ok(all) = plan(&stored, &calls) else { return Ok(()) };
            let mut alone = calls.clone();
            alone.iter_mut().for_each(|call| *call = call.filter(|call| call.key == key));
            let alone = plan(&stored, &alone).unwrap();
            prop_assert_eq!(alone.keys[key], all.keys[key]);
        }

        #[test]
        fn a_call_that_skips_or_fails_changes_no_living_job(stored in all_stored(), calls in calls(3)) {
            let is_renewing = |call: &Call| call.if_taken == IfTaken::Renew;
            let Ok(plan) = plan(&stored, &calls) else { return Ok(()) };
            for (_, contents) in plan.renewed() {
                prop_assert!(calls[contents].as_ref().is_some_and(is_renewing));
            }
        }

        #[test]
        fn a_key_is_taken_as_long_as_was_said(stored in stored(), call in calls(0)) {
            let until = stored.recorded.and_then(|(.., until)| until);
            let key = key_of(&stored);
            let is_taken = stored.live.is_some() || until.is_some_and(|until| until > NOW);
            prop_assert_eq!(key.holder.is_some(), is_taken);
            if let Some(call) = call.into_iter().flatten().next() && let Some(holder @ Job::Ended(_)) = key.holder {
                let plan = Plan { jobs: Vec::new(), keys: vec![key], new: Vec::new() };
                let plan = plan.decide(&[Some(Call { key: 0, ..call })]).unwrap();
                prop_assert_eq!((&plan.jobs[..], plan.new.len(), plan.renewed().count()), (&[holder][..], 0, 0));
            }
        }

        #[test]
        fn versions_and_times_only_grow(stored in all_stored(), calls in calls(1)) {
            let Ok(plan) = plan(&stored, &calls) else { return Ok(()) };
            for (key, before) in plan.keys.iter().zip(stored.iter().map(key_of)) {
                prop_assert!(key.version >= before.version && key.taken_until >= before.taken_until);
            }
        }
    }

    #[test]
    fn facts_that_have_expired_do_not_count() {
        let recorded = Recorded { job_id: 1, expires_at: NOW, taken_until: Some(NOW + 1), version: Some(7) };
        assert_eq!(Key::new(None, Some(recorded), NOW), Key::new(None, None, NOW));
    }

    #[test]
    fn facts_count_for_the_retention_of_a_version_and_for_the_time_of_the_key() {
        let key = |version, taken_until| Key { version, taken_until, ..Key::new(None, None, NOW) };
        let expires_at = |key: Key| key.expires_at(NOW, 10);
        assert_eq!(expires_at(key(Some(1), None)), NOW + 10);
        assert_eq!(expires_at(key(None, Some(NOW + 3))), NOW + 3);
        assert_eq!(expires_at(key(Some(1), Some(NOW + 30))), NOW + 30);
        assert_eq!(key(Some(1), None).expires_at(NOW, i64::MAX), i64::MAX);
    }
}
