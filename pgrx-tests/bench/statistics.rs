//! Medians and such.

/// The value below which this share of the values lies; NaN of none.
pub fn quantile(values: &[f64], share: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = (share * sorted.len().saturating_sub(1) as f64).round() as usize;
    sorted.get(at).copied().unwrap_or(f64::NAN)
}

/// The middle one of the values; NaN of none.
pub fn median(values: &[f64]) -> f64 {
    let (low, high) = (quantile(values, 0.5), -quantile(&values.iter().map(|v| -v).collect::<Vec<_>>(), 0.5));
    (low + high) / 2.0
}
