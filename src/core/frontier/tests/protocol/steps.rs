//! The changes that an open transaction will make to memory at its end (`transaction::pending`, `transaction::settle`),
//! without counters and wake-ups.

use super::data::{INSTANCE, LANE, Step};
use super::scenario::Fault;
use super::world::World;
use crate::frontier::{Disconnect, MISSED_CANCEL, Ready, State};

impl World {
    pub fn record(&mut self, session: usize, step: Step) {
        self.clients[session].steps.push(step);
    }

    /// `pending::unrecord`.
    pub fn unrecord(&mut self, session: usize, id: i64) {
        let steps = &mut self.clients[session].steps;
        let is_it = |step: &Step| matches!(step, Step::Taken(i) | Step::Ended(i) | Step::Ending(i) if *i == id);
        if let Some(at) = steps.iter().rposition(is_it) {
            steps.remove(at);
        }
    }

    /// `Instance::miss_of_entry`.
    pub fn miss_of_entry(&mut self, id: i64, fault: Option<Fault>) {
        if self.memory.entry(id).is_some_and(|entry| entry.cancel != 0) {
            self.memory.cancels.add(id, fault);
        }
    }

    /// `take::forget_taken`.
    pub fn forget_taken(&mut self, session: usize, id: i64, fault: Option<Fault>) {
        self.unrecord(session, id);
        self.miss_of_entry(id, fault);
        self.memory.with(|frontier, root| {
            if fault == Some(Fault::PushHeldBackForgotten) {
                frontier.discard(root, INSTANCE, id)
            } else {
                frontier.discard_stale(root, INSTANCE, id)
            }
        });
    }

    /// `take::forget_entry`.
    pub fn forget_entry(&mut self, id: i64, fault: Option<Fault>) {
        self.miss_of_entry(id, fault);
        self.memory.with(|frontier, root| frontier.discard(root, INSTANCE, id));
    }

    /// `take::forget_ended`.
    pub fn forget_ended(&mut self, id: i64, fault: Option<Fault>) {
        let is_ending = self.memory.entry(id).is_some_and(|entry| entry.state == State::Ending);
        if !is_ending || fault == Some(Fault::EndingEntryForgotten) {
            self.forget_entry(id, fault);
        }
    }

    pub fn push(&mut self, ready: Ready) {
        self.memory.with(|frontier, _| frontier.push(INSTANCE, LANE, ready));
    }

    /// `settle::settle`: runs the callback, under one hold of the lock. Then releases the transaction's locks.
    pub fn settle(&mut self, session: usize, is_committed: bool, fault: Option<Fault>) {
        let steps = std::mem::take(&mut self.clients[session].steps);
        if is_committed {
            steps.into_iter().for_each(|step| self.commit(step, fault));
        } else {
            steps.into_iter().rev().for_each(|step| self.abort(step, fault));
        }
        self.release(session);
    }

    fn commit(&mut self, step: Step, fault: Option<Fault>) {
        /// A time far away. In the model a lease ends when the worker is told to end it.
        const DEADLINE: i64 = 100;
        match step {
            Step::Enqueued(at, has_moved) => {
                if !(has_moved && fault == Some(Fault::MovedNotTold)) && fault != Some(Fault::ToldBeforeVisible) {
                    self.push(at.ready());
                }
                self.told.settled |= 1 << at.job;
            }
            Step::Taken(id) => self.memory.with(|frontier, root| {
                frontier.claimed(root, INSTANCE, id, 1, DEADLINE, Disconnect::KEEPS);
            }),
            Step::Ended(id) | Step::Ending(id) => {
                let ended = self.memory.with(|frontier, root| frontier.ended(root, INSTANCE, id));
                let is_late = ended.is_some_and(|(entry, _)| entry.missed & MISSED_CANCEL != 0);
                if is_late && fault != Some(Fault::LateCancelForgotten) {
                    self.memory.cancels.add(id, fault);
                }
            }
            Step::Missed(at) => self.push(at.ready()),
            Step::Relocated(at) => {
                self.memory.with(|frontier, _| frontier.running.relocate(INSTANCE, at.id, at.place()))
            }
            Step::CancelRequested(at) => {
                let is_known = self.memory.with(|frontier, root| {
                    frontier.running.request_cancel(INSTANCE, at.id)
                        || fault != Some(Fault::CancelAfterEndForgotten)
                            && frontier.expire_now(root, INSTANCE, LANE, at.ready())
                });
                if !is_known && fault != Some(Fault::CancelAfterEndForgotten) {
                    self.memory.cancels.add(at.id, fault);
                }
            }
            Step::Unseen => {}
            Step::Drained => self.segments[0].state = super::data::State::Drained,
        }
    }

    fn abort(&mut self, step: Step, fault: Option<Fault>) {
        match step {
            Step::Taken(id) | Step::Ended(id) => {
                self.miss_of_entry(id, fault);
                if fault == Some(Fault::CancelOfRolledBackClaimForgotten) {
                    self.memory.cancels.ids.retain(|&known| known != id);
                    self.memory.forget_cancel(id);
                }
                self.memory.with(|frontier, root| frontier.give_back(root, INSTANCE, id, 0));
            }
            Step::Missed(at) => self.push(at.ready()),
            Step::Ending(id) => self.memory.with(|frontier, root| frontier.running.undo_end(root, INSTANCE, id)),
            Step::Unseen if fault != Some(Fault::UndoneMoveNotTold) => {
                self.memory.with(|frontier, _| frontier.invalidate(INSTANCE));
            }
            _ => {}
        }
    }
}
