//! Computes when a failed attempt runs again: a constant, linear or exponential delay with a ceiling and jitter.
//!
//! Invariant: a delay is never negative, and no argument makes it overflow.

/// How the delay grows with the number of the attempt that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Curve {
    /// `base`
    Constant,
    /// `base * n`
    Linear,
    /// `base * 2^(n-1)`
    Exponential,
}

impl Curve {
    /// Returns the curve with this name, as it is written in SQL.
    pub fn parse(name: &str) -> Option<Self> {
        match name {
            "constant" => Some(Self::Constant),
            "linear" => Some(Self::Linear),
            "exponential" => Some(Self::Exponential),
            _ => None,
        }
    }
}

/// Returns the delay in microseconds after attempt `n` (1, 2, …) has failed.
///
/// `random` is a number in `0.0..1.0`. After `max` was applied, the jitter changes the delay by up to `jitter` (0.0 to
/// 1.0) of itself, up or down. So jobs that reach the ceiling do not all run together.
pub fn delay(curve: Curve, base: i64, max: i64, jitter: f64, n: i32, random: f64) -> i64 {
    let n = i64::from(n.max(1));
    let grown = match curve {
        Curve::Constant => base,
        Curve::Linear => base.saturating_mul(n),
        Curve::Exponential if n > 62 => max,
        Curve::Exponential => base.saturating_mul(1 << (n - 1)),
    };
    let capped = grown.clamp(0, max.max(0));
    let moved = capped as f64 * (1.0 + jitter.clamp(0.0, 1.0) * (2.0 * random - 1.0));
    moved.max(0.0) as i64
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: i64 = 1_000_000;

    #[test]
    fn curves_grow_as_documented() {
        let at = |curve, n| delay(curve, 10 * S, 86_400 * S, 0.0, n, 0.5) / S;
        assert_eq!([1, 2, 3].map(|n| at(Curve::Constant, n)), [10, 10, 10]);
        assert_eq!([1, 2, 3].map(|n| at(Curve::Linear, n)), [10, 20, 30]);
        assert_eq!([1, 2, 3, 4].map(|n| at(Curve::Exponential, n)), [10, 20, 40, 80]);
    }

    #[test]
    fn the_ceiling_holds_for_any_attempt_number() {
        for n in [15, 40, 62, 63, 64, 1000, i32::MAX] {
            assert_eq!(delay(Curve::Exponential, 10 * S, 86_400 * S, 0.0, n, 0.5), 86_400 * S);
        }
        assert_eq!(delay(Curve::Linear, i64::MAX, 5, 0.0, 7, 0.5), 5);
    }

    #[test]
    fn jitter_moves_either_way_and_not_further() {
        assert_eq!(delay(Curve::Constant, 1000, 9999, 0.1, 1, 0.0), 900);
        assert_eq!(delay(Curve::Constant, 1000, 9999, 0.1, 1, 1.0), 1100);
        assert_eq!(delay(Curve::Constant, 0, 9999, 0.1, 1, 0.0), 0);
    }
}
