//! The job that a rate has no room for.
//!
//! Responsible for what it needs. Not responsible for what jobs cost (`costs`).

/// The job that waits until as much is free as it costs. All zero: there is none.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Dear {
    id: i64,
    cost: u32,
}

impl Dear {
    pub(super) fn new(id: i64, cost: u32) -> Self {
        Self { id, cost }
    }

    /// Returns what an attempt costs, if it is this one, else 1.
    pub(super) fn cost_of(&self, id: i64) -> u32 {
        if self.id == id { self.cost.max(1) } else { 1 }
    }

    /// Forgets the job if it is this one. Returns whether it was.
    pub(super) fn forget(&mut self, id: i64) -> bool {
        let is_it = self.id == id && self.cost > 0;
        if is_it {
            *self = Self::default();
        }
        is_it
    }

    /// Returns how much must be free before a job starts. A job that costs more than the limit starts alone.
    fn needs(&self, limit: u32) -> u32 {
        self.cost.clamp(1, limit.max(1))
    }

    /// Returns how much of a rate may be used now.
    pub(super) fn room(&self, limit: u32, used: u64) -> u32 {
        let left = u64::from(limit).saturating_sub(used) as u32;
        if left < self.needs(limit) { 0 } else { left }
    }

    /// Returns how much of what is used has to expire before a job may start.
    pub(super) fn must_free(&self, limit: u32, used: u64) -> u64 {
        (used + u64::from(self.needs(limit))).saturating_sub(limit.into())
    }

    /// True if an attempt that costs this may start beside others that have used so much. If it does not fit, it is
    /// dear, unless another one is. If another one is, it may start only if its cost was reserved before.
    pub(super) fn admits(&mut self, dear: Self, is_reserved: bool, limit: u32, others: u64) -> bool {
        let is_first = self.cost == 0;
        let fits = fits(dear.cost, limit, others);
        if is_first && !fits {
            *self = dear;
        }
        fits && (is_first || is_reserved)
    }
}

/// True if this much fits beside what others have used. What costs more than the limit fits alone.
pub(super) fn fits(cost: u32, limit: u32, others: u64) -> bool {
    others == 0 || others + u64::from(cost) <= limit.into()
}
