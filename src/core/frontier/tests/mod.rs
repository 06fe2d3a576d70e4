//! The frontier against naive models of it, with random operations.

mod after;
mod collect;
mod costs;
mod explore;
mod fair;
mod limits_model;
pub mod memory;
pub mod model;
mod protocol;
mod several;
