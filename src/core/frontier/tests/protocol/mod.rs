//! The protocols of transactions, of the move and of late requests, explored completely. The exploration runs the steps
//! of a few sessions and the background worker in every order, with rollbacks and a crash.
//!
//! Each test explores one small scenario. The frontier in it is the real one. Rows, locks, callbacks and the steps of
//! each verb are transcribed from `src`, and each step names its function. `docs/internals/model.md` says what the
//! model leaves out.
//!
//! Each mistake that was made in these protocols, or that they avoid, is a [`Fault`]. A test puts it into the model and
//! shows that the exploration finds it. This proves that the model can see such mistakes.
//!
//! Invariant: a promise is checked in every state. Requests that were not served are looked for in every state in which
//! all sessions are done ([`drain`]).

mod data;
mod drain;
mod duties;
mod ends;
mod memory;
mod requests;
mod scenario;
mod scenarios;
mod steps;
mod verbs;
mod world;

use stateright::{Model, Property};

use self::data::{Duty, Phase};
use self::scenario::{Fault, Promise, Scenario};
use self::world::World;

/// A scenario, and the fault that is put in, if there is one.
#[derive(Clone, Debug)]
pub struct Protocol {
    pub scenario: Scenario,
    pub fault: Option<Fault>,
}

/// The next thing that happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Step(usize),
    /// A session stops waiting for a move.
    GiveUp(usize),
    /// A session's transaction is rolled back, or its process ends.
    Abort(usize),
    Begin(Duty),
    Crash,
}

impl Model for Protocol {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        vec![World::new(&self.scenario, self.fault)]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        // No later action can repair a broken promise.
        if world.told.broken != 0 {
            return;
        }
        for session in 0..world.clients.len() {
            let phase = world.clients[session].phase;
            if world.is_busy(&self.scenario, session) {
                actions.push(Action::Step(session));
            }
            if phase == Phase::Open {
                actions.push(Action::GiveUp(session));
                if world.aborts_left > 0 {
                    actions.push(Action::Abort(session));
                }
            }
        }
        if world.clients[world.worker()].phase == Phase::Idle {
            actions.extend(world.duties(&self.scenario, self.fault).into_iter().map(Action::Begin));
        }
        if world.crashes_left > 0 {
            actions.push(Action::Crash);
        }
    }

    fn next_state(&self, world: &World, action: Action) -> Option<World> {
        let mut world = world.clone();
        match action {
            Action::Step(session) => {
                if !world.step(&self.scenario, self.fault, session) {
                    return None;
                }
            }
            Action::GiveUp(session) => {
                if !world.give_up(&self.scenario, self.fault, session) {
                    return None;
                }
            }
            Action::Abort(session) => {
                world.aborts_left -= 1;
                world.roll_back(session);
            }
            Action::Begin(duty) => world.begin_duty(duty),
            Action::Crash => world.crash(self.fault),
        }
        let is_quiet = (0..world.clients.len()).all(|session| !world.is_busy(&self.scenario, session));
        if is_quiet
            && world.told.broken == 0
            && let Err(promise) = drain::drain(&self.scenario, self.fault, &world)
        {
            world.break_promise(promise);
        }
        Some(world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        fn keeps<const N: usize>(_: &Protocol, world: &World) -> bool {
            world.told.broken & (1 << N) == 0
        }
        let conditions = [keeps::<0>, keeps::<1>, keeps::<2>, keeps::<3>, keeps::<4>, keeps::<5>];
        let named = Promise::ALL.into_iter().zip(conditions);
        named
            .map(|((promise, name), condition)| {
                debug_assert_eq!(Promise::ALL[promise as usize].1, name);
                Property::always(name, condition)
            })
            .collect()
    }
}
