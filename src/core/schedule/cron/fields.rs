//! The fields of a cron expression.
//!
//! Responsible for these types. Not responsible for reading an expression (`parse`), nor for its slots (`cron`).

/// A cron expression: the local times at which a job is planned.
///
/// Bit n of a field's set stands for the value n.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cron {
    pub(super) seconds: u64,
    pub(super) minutes: u64,
    pub(super) hours: u64,
    pub(super) months: u64,
    pub(super) days: DaysOfMonth,
    pub(super) weekdays: DaysOfWeek,
    /// Whether hours or minutes have `*` or a step. Such an expression follows the elapsed time when the clock changes.
    pub(super) is_elapsed: bool,
}

/// The field of the days of the month.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DaysOfMonth {
    pub(super) days: u64,
    /// `L` and `L-n`: bit n is the day n days before the month's last.
    pub(super) from_end: u64,
    /// `nW`: the working day nearest to day n, in the same month.
    pub(super) near: u64,
    /// `LW`: the last working day.
    pub(super) last_working: bool,
    /// Whether the field begins with `*`.
    pub(super) is_any: bool,
}

/// The field of the days of the week. 0 is Sunday.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DaysOfWeek {
    pub(super) days: u64,
    /// `d#n`: the set at n - 1 has the weekdays that match on their n-th occurrence in the month.
    pub(super) nth: [u64; 5],
    /// `dL`: the weekdays that match on their last occurrence in the month.
    pub(super) last: u64,
    /// Whether the field begins with `*`.
    pub(super) is_any: bool,
}
