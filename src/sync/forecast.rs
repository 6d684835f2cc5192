//! Forecast: whether the trainer writes faster than the store takes it. Pure.

use std::collections::VecDeque;

use crate::clock::{Duration, Instant};

/// Rates are taken over this long.
const WINDOW: Duration = Duration::from_secs(60);

/// Less than this says nothing yet.
const SHORTEST: Duration = Duration::from_secs(20);

/// One look at the counters.
#[derive(Clone, Copy, Debug)]
struct Sample {
    at: Instant,
    noticed_bytes: u64,
    sent_bytes: u64,
}

/// What was noticed and what was sent, over the last minute.
#[derive(Debug, Default)]
pub struct Forecast {
    samples: VecDeque<Sample>,
}

impl Forecast {
    /// Takes the counters' values; returns how long what waits would take to send, if more keeps coming than goes.
    pub fn take(&mut self, at: Instant, noticed_bytes: u64, sent_bytes: u64, waiting_bytes: u64) -> Option<Duration> {
        if waiting_bytes == 0 {
            // Caught up: what came before says nothing about what comes next.
            self.samples.clear();
        }
        while self.samples.front().is_some_and(|first| at.duration_since(first.at) > WINDOW) {
            self.samples.pop_front();
        }
        self.samples.push_back(Sample { at, noticed_bytes, sent_bytes });
        let first = self.samples.front()?;
        let span = at.duration_since(first.at);
        let (came, went) = (noticed_bytes - first.noticed_bytes, sent_bytes.saturating_sub(first.sent_bytes));
        if span < SHORTEST || came <= went {
            return None;
        }
        #[allow(clippy::cast_precision_loss)]
        let seconds = waiting_bytes as f64 * span.as_secs_f64() / went.max(1) as f64;
        // A week is as good as never.
        Some(Duration::from_secs_f64(seconds.min(7.0 * 86_400.0)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_queue_that_grows_is_falling_behind() {
        let start = crate::clock::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut forecast = Forecast::default();
        assert_eq!(forecast.take(at(0), 100, 0, 100), None);
        assert_eq!(forecast.take(at(10), 1_000, 100, 900), None, "too early to tell");
        assert_eq!(forecast.take(at(40), 4_100, 1_600, 2_400), Some(Duration::from_secs(60)));
        assert_eq!(forecast.take(at(50), 4_100, 4_100, 0), None, "caught up");
        assert_eq!(forecast.take(at(90), 5_000, 5_000, 10), None, "as much went as came");
    }
}
