//! Medians and quantiles of samples.

/// Returns the value below which this share of the values lies. NaN if there are no values.
pub fn quantile(values: &[f64], share: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = (share * sorted.len().saturating_sub(1) as f64).round() as usize;
    sorted.get(at).copied().unwrap_or(f64::NAN)
}

/// Returns the median. NaN if there are no values.
pub fn median(values: &[f64]) -> f64 {
    let (low, high) = (quantile(values, 0.5), -quantile(&values.iter().map(|v| -v).collect::<Vec<_>>(), 0.5));
    (low + high) / 2.0
}

/// Returns the median of a figure.
pub fn median_of<T>(samples: &[T], figure: impl Fn(&T) -> f64) -> f64 {
    median(&samples.iter().map(figure).collect::<Vec<_>>())
}

/// Returns the ratio of two figures in each round.
pub fn ratios<T>(ones: &[T], others: &[T], figure: impl Fn(&T) -> f64) -> Vec<f64> {
    ones.iter().zip(others).map(|(one, other)| figure(one) / figure(other)).collect()
}

/// Returns three quantiles as text.
pub fn spread(values: &[f64], unit: &str) -> String {
    let at = |share| quantile(values, share);
    format!("p50 {:.0} {unit}, p95 {:.0} {unit}, p99 {:.0} {unit}", at(0.5), at(0.95), at(0.99))
}
