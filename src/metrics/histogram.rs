//! How long files took from their close to being durable: a histogram of atomics.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::clock::Duration;

/// The upper bounds of the buckets in seconds, 5 ms to 1 h; what took longer falls into one more.
const BOUNDS_SECONDS: [f64; 18] =
    [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0];

#[derive(Debug, Default)]
pub(super) struct Histogram {
    buckets: [AtomicU64; BOUNDS_SECONDS.len() + 1],
    sum_ns: AtomicU64,
}

impl Histogram {
    pub(super) fn observe(&self, took: Duration) {
        let seconds = took.as_secs_f64();
        let bucket = BOUNDS_SECONDS.partition_point(|bound| *bound < seconds);
        self.buckets[bucket].fetch_add(1, Relaxed);
        self.sum_ns.fetch_add(super::nanoseconds(took), Relaxed);
    }

    pub(super) fn snapshot(&self) -> LagSnapshot {
        let bounds = BOUNDS_SECONDS.into_iter().chain([f64::INFINITY]);
        LagSnapshot {
            buckets: bounds.zip(&self.buckets).map(|(bound, count)| (bound, count.load(Relaxed))).collect(),
            sum_seconds: Duration::from_nanos(self.sum_ns.load(Relaxed)).as_secs_f64(),
        }
    }
}

/// The histogram at one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct LagSnapshot {
    /// (upper bound in seconds, how many fell into this bucket); the last bound is `f64::INFINITY`.
    pub buckets: Vec<(f64, u64)>,
    /// All of them added up.
    pub sum_seconds: f64,
}

impl LagSnapshot {
    /// How many were observed.
    pub fn count(&self) -> u64 {
        self.buckets.iter().map(|(_, count)| count).sum()
    }

    /// The upper bound of the bucket in which the quantile `q` (0 to 1) lies; `None` when nothing was observed.
    pub fn quantile_seconds(&self, q: f64) -> Option<f64> {
        #[allow(clippy::cast_precision_loss)]
        let rank = q * self.count() as f64;
        let mut below = 0;
        self.buckets.iter().find_map(|&(bound, count)| {
            below += count;
            #[allow(clippy::cast_precision_loss)]
            (count > 0 && below as f64 >= rank).then_some(bound)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_falls_into_the_first_bucket_that_holds_it() {
        let histogram = Histogram::default();
        for ms in [0, 5, 6, 3_600_000, 3_600_001] {
            histogram.observe(Duration::from_millis(ms));
        }
        let lag = histogram.snapshot();
        let filled: Vec<_> = lag.buckets.iter().filter(|(_, count)| *count > 0).copied().collect();
        assert_eq!(filled, [(0.005, 2), (0.01, 1), (3600.0, 1), (f64::INFINITY, 1)]);
        assert_eq!(lag.count(), 5);
        assert!((lag.sum_seconds - 7200.012).abs() < 1e-6);
    }

    #[test]
    fn a_quantile_is_its_buckets_bound() {
        let histogram = Histogram::default();
        assert_eq!(histogram.snapshot().quantile_seconds(0.5), None);
        for ms in 1..=100 {
            histogram.observe(Duration::from_millis(ms));
        }
        let lag = histogram.snapshot();
        assert_eq!(lag.quantile_seconds(0.5), Some(0.05));
        assert_eq!(lag.quantile_seconds(0.99), Some(0.1));
        assert_eq!(lag.quantile_seconds(0.0), Some(0.005));
    }
}
