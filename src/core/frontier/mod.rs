//! The frontier knows which attempt is next, which attempts are running and which sessions wait. It is a cache of the
//! logs and may be thrown away at any time: only the unique keys of the logs prevent that two sessions take one
//! attempt. The caller holds one lock around every call. Nothing here allocates memory or fails.
//!
//! Each **lane** (instance, queue, stage) has a bounded list `ready` and a scan position P. *Pushes*, *spills* and
//! *refills* change both: see docs/internals/frontier.md.
//!
//! Each part owns its arrays: `lane_set`, `group_set`, `gate_set`, `start_set`, `running_set` and `session_set`. The
//! first four are the `Backlog`. What changes several parts is in [`Backlog`] and [`Frontier`].
//!
//! Invariant: every committed waiting attempt that is due is in `ready`, or in `running`, or ranks behind P in the
//! lane's index. A lane without a slot reads as P before everything.

mod ahead;
mod answers;
mod claims;
mod collect;
mod costs;
mod deadlines;
mod dear;
mod disconnect;
mod ending;
mod gate;
mod gate_set;
mod group;
mod group_index;
mod group_set;
pub mod index;
mod lane;
mod lane_set;
mod lanes;
mod limits;
mod managed;
mod memory;
mod passes;
mod push;
mod rank;
mod rates;
mod ready;
mod refill;
mod retries;
mod retrying;
mod running;
mod running_set;
mod serving;
mod session;
mod session_set;
mod several;
mod slot;
mod slots;
mod start_set;
mod starts;
mod take;
mod throttle;
mod turn_end;
mod turns;
mod waiters;
mod waiting_groups;
mod window;

pub use ahead::Ahead;
pub use answers::{Collect, Hold, Next, Served, Take, TakeOne, Turn, Wait};
pub use costs::{Priced, gone, price, used};
pub use disconnect::{Disconnect, MAX_DISCONNECT_US};
pub use ending::Ending;
pub use gate_set::GateSet;
pub use group::Group;
pub use lane::Lane;
pub use lane_set::LaneSet;
pub use limits::{Claimer, GATE_LANES, Gate, Limits};
pub use memory::{Arrays, Backlog, Frontier, Head};
pub use passes::charge_of;
pub use rank::{Place, Rank};
pub use ready::Ready;
pub use retries::Retrying;
pub use running::{DeadlineRoot, MISSED_CANCEL, MISSED_RERUN, Owner, Running, State};
pub use running_set::RunningSet;
pub use session::{Session, Sleeper, WAIT_LANES};
pub use session_set::SessionSet;
pub use several::Lanes;
pub use start_set::StartSet;
pub use starts::{NODES_PER_RATE, PastStart, Rate, Starts};
pub use waiting_groups::{SLOTS_PER_CALL, WaitingGroup};

#[cfg(test)]
mod tests;
