//! What becomes of a running attempt when the connection of its claim ends.
//!
//! Invariant: the value needs four bytes in the attempt's entry, and all zero is the default.

/// The longest span, in microseconds: 30 days.
pub const MAX_DISCONNECT_US: i64 = 30 * 86_400_000_000;

/// What the end of the claim's connection does to the attempt. By default nothing: the attempt keeps its lease.
///
/// 0: nothing. 1: the attempt expires immediately. [`u32::MAX`]: the connection has broken, and the deadline is that of
/// the span. Another n: if the connection breaks, the lease ends at most n - 1 milliseconds later.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Disconnect(u32);

impl Disconnect {
    /// The attempt keeps its lease.
    pub const KEEPS: Self = Self(0);
    /// The attempt expires immediately, however the connection ends.
    pub const EXPIRES: Self = Self(1);
    /// The connection has broken, and the attempt's deadline is that of the span.
    const BROKEN: Self = Self(u32::MAX);

    /// Returns the value for a span in microseconds, which counts in milliseconds, rounded up. 0: the attempt expires
    /// immediately. The span must be between 0 and [`MAX_DISCONNECT_US`].
    pub fn after(us: i64) -> Self {
        let ms = us.clamp(0, MAX_DISCONNECT_US).div_euclid(1000) + i64::from(us % 1000 > 0);
        Self(u32::try_from(ms + 1).unwrap_or(u32::MAX - 1))
    }

    /// True if the attempt expires immediately when its connection ends.
    pub fn expires(self) -> bool {
        self == Self::EXPIRES
    }

    /// True if the attempt's deadline is that of the span after the connection broke.
    pub fn is_broken(self) -> bool {
        self == Self::BROKEN
    }

    /// Returns the latest deadline after the end of the connection at `now`. `None`: the deadline stays.
    /// `has_broken`: the client has not said goodbye.
    pub(super) fn deadline(self, now: i64, has_broken: bool) -> Option<i64> {
        match self {
            Self::KEEPS | Self::BROKEN => None,
            Self::EXPIRES => Some(i64::MIN),
            Self(span) => has_broken.then(|| now.saturating_add((i64::from(span) - 1) * 1000)),
        }
    }

    /// Notes that the deadline is now that of the span.
    pub(super) fn note_broken(&mut self) {
        if !self.expires() {
            *self = Self::BROKEN;
        }
    }

    /// Notes that a session has extended the lease.
    pub(super) fn note_extended(&mut self) {
        if self.is_broken() {
            *self = Self::KEEPS;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_is_rounded_up_to_milliseconds() {
        let ends = |us, has_broken| Disconnect::after(us).deadline(7, has_broken);
        assert_eq!(Disconnect::default().deadline(7, true), None);
        assert_eq!((ends(0, true), ends(0, false)), (Some(i64::MIN), Some(i64::MIN)));
        for (us, rounded) in [(1, 1000), (1000, 1000), (1001, 2000), (MAX_DISCONNECT_US, MAX_DISCONNECT_US)] {
            assert_eq!((ends(us, true), ends(us, false)), (Some(7 + rounded), None), "{us}");
        }
    }
}
