//! The mark of a lane whose queue is being dropped, or was dropped a short while ago.
//!
//! Responsible for its form in shared memory. Not responsible for marking and for asking for marks (`catalog::drops`),
//! nor for the end of a mark (`Instance::end_drop_mark`).
//!
//! Invariant: a mark is changed under the frontier's lock only.

/// The mark of a lane whose queue (or which, as a stage) is being dropped, or was dropped a short while ago.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Dropping {
    /// The lane; 0 if the mark is free.
    pub lane: i32,
    /// Whether the transaction that drops it is still open.
    pub is_open: bool,
}
