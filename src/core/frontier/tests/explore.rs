//! Explores a model completely. Responsible for the ways to fail: a promise is broken, a scenario has become smaller
//! than it was, or a fault is not found. Not responsible for the models and their scenarios.

use std::fmt::Debug;
use std::hash::Hash;
use std::time::Instant;

use stateright::{Checker, HasDiscoveries, Model};

/// The number of steps that are explored under miri, which is a thousand times slower. 0: all steps are explored.
const STEPS: usize = if cfg!(miri) { 4 } else { 0 };

/// The result of an exploration.
pub struct Found {
    /// The number of states.
    states: usize,
    /// The broken promise, and the steps that break it.
    broken: Option<(&'static str, String)>,
}

/// Explores a model.
pub fn explore<M>(model: M) -> Found
where
    M: Model<Action: Clone + Debug + PartialEq> + Send + Sync + 'static,
    M::State: Clone + Debug + Hash + PartialEq + Send + Sync,
{
    let begun = Instant::now();
    let checker = model.checker().threads(2).finish_when(HasDiscoveries::Any);
    let checker = checker.target_max_depth(STEPS).spawn_bfs().join();
    let broken = checker.discoveries().into_iter().next();
    let broken = broken.map(|(promise, path)| {
        let last = path.last_state().clone();
        let actions: Vec<String> = path.into_actions().iter().map(|action| format!("{action:?}")).collect();
        (promise, format!("{}\n{last:#?}", actions.join("\n")))
    });
    let states = checker.unique_state_count();
    println!("{states} states in {:?}", begun.elapsed());
    Found { states, broken }
}

impl Found {
    /// Asserts that every promise holds in every state.
    pub fn holds(self, least: usize) {
        if let Some((promise, way)) = self.broken {
            panic!("not true: {promise}\n{way}");
        }
        let states = self.states;
        assert!(cfg!(miri) || states >= least, "{states} states: the scenario has become smaller than it was");
    }

    /// Asserts that the exploration has found one of these promises broken.
    pub fn finds(self, fault: impl Debug, promises: &[&str]) {
        let Some((name, way)) = self.broken else { panic!("{fault:?} is not found in {} states", self.states) };
        println!("{fault:?}: not true that {name}");
        assert!(promises.contains(&name), "{name}\n{way}");
    }
}
