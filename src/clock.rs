//! The one door to time.
//!
//! Deadlines and ages use the monotonic clock; wall-clock time is for people, for file times of the same kernel and for
//! signatures, never for deciding who owns a prefix.
#![allow(clippy::disallowed_methods)]

pub use std::time::{Duration, Instant};

use std::time::SystemTime;

/// Now, monotonic.
pub fn now() -> Instant {
    Instant::now()
}

/// Now, as the kernel stamps files: nanoseconds since 1970.
pub fn wall_ns() -> i64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}

/// Now, for people and documents: RFC 3339 in UTC, to the millisecond.
pub fn timestamp() -> String {
    format!("{:.3}", jiff::Timestamp::now())
}

/// Waits. On the runtime's clock, which tests can pause.
pub async fn sleep(duration: Duration) {
    tokio::time::sleep(duration).await;
}

/// A stopwatch on the runtime's monotonic clock: for waits that tests want to pass at once.
#[derive(Clone, Copy, Debug)]
pub struct Stopwatch(tokio::time::Instant);

impl Stopwatch {
    /// Starts now.
    pub fn start() -> Stopwatch {
        Stopwatch(tokio::time::Instant::now())
    }

    /// Since the start.
    pub fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }
}
