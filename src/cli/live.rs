//! The live view: totals, the large files under way, the rate, the time that is left.

use std::sync::Arc;

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use tokio::time::MissedTickBehavior;

use chiefsync::clock::{self, Duration, Instant};
use chiefsync::config::{show_duration, show_size};
use chiefsync::exit::one_line;
use chiefsync::metrics::{CurrentFile, Metrics, Snapshot};
use chiefsync::stage::Stage;

/// How often the numbers are looked at.
const TICK: Duration = Duration::from_millis(200);

/// How long the rate takes to follow a change.
const RATE_FOLLOWS: Duration = Duration::from_secs(3);

/// So many files have a line of their own.
const FILE_LINES: usize = 5;

/// Draws until it is dropped.
pub async fn show(bars: MultiProgress, metrics: Arc<Metrics>) {
    let headline = bars.add(ProgressBar::new_spinner());
    headline.set_style(style("{spinner} {wide_msg}"));
    let mut lines: Vec<ProgressBar> = Vec::new();
    let mut rate = Rate::new(clock::now());
    let mut ticks = tokio::time::interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    loop {
        ticks.tick().await;
        let now = metrics.snapshot();
        rate.observe(clock::now(), now.sent_bytes + now.copied_bytes);
        headline.set_message(headline_text(&now, rate.bytes_a_second));
        headline.tick();
        let shown = &now.current[..now.current.len().min(FILE_LINES)];
        while lines.len() > shown.len() {
            lines.pop().iter().for_each(|line| bars.remove(line));
        }
        while lines.len() < shown.len() {
            let line = bars.add(ProgressBar::new(0));
            line.set_style(style("  {bar:24} {wide_msg}"));
            lines.push(line);
        }
        for (line, file) in lines.iter().zip(shown) {
            line.set_length(file.bytes);
            line.set_position(file.sent_bytes);
            line.set_message(file_text(file));
        }
    }
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()).progress_chars("━╸─")
}

fn headline_text(now: &Snapshot, bytes_a_second: f64) -> String {
    let under_way: u64 = now.current.iter().map(|file| file.sent_bytes).sum();
    let mut parts = vec![now.stage.name().to_owned()];
    let left_bytes = if now.found_bytes > 0 || now.found_files > 0 {
        let done_files = now.done_files + now.unchanged_files;
        parts.push(format!("{} of {} files", grouped(done_files), grouped(now.found_files.max(done_files))));
        let left = now.queued_bytes.saturating_sub(under_way);
        let done_bytes = now.found_bytes.saturating_sub(left);
        parts.push(format!("{} of {}", show_size(done_bytes), show_size(now.found_bytes)));
        left
    } else {
        parts.push(format!("{} files, {} up", grouped(now.done_files), show_size(now.done_bytes)));
        now.queued_bytes.saturating_sub(under_way)
    };
    if now.queued_files == 0 {
        if now.stage == Stage::Follow {
            parts.push("up to date".to_owned());
        }
    } else {
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        parts.push(format!("{}/s", show_size(bytes_a_second as u64)));
        #[allow(clippy::cast_precision_loss)]
        let left = Duration::try_from_secs_f64(left_bytes as f64 / bytes_a_second);
        // Who sends nothing has no time left to tell.
        if let Some(left) = left.ok().filter(|left| *left < Duration::from_secs(100 * 3600)) {
            parts.push(format!("{} left", show_duration(Duration::from_secs(left.as_secs() + 1))));
        }
    }
    let retries: u64 = now.retries.values().sum();
    if retries > 0 {
        parts.push(format!("{} retries", grouped(retries)));
    }
    if now.failed_files > 0 {
        parts.push(format!("{} failed", grouped(now.failed_files)));
    }
    if let Some(behind) = now.falling_behind {
        parts.push(format!("falling behind by {}", show_duration(behind)));
    }
    parts.join(" · ")
}

fn file_text(file: &CurrentFile) -> String {
    format!("{} of {} {}", show_size(file.sent_bytes), show_size(file.bytes), one_line(file.key.as_str()))
}

/// `12345` as `12,345`.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Bytes a second, smoothed so that a person can read them.
struct Rate {
    at: Instant,
    bytes: u64,
    bytes_a_second: f64,
    /// What of the past is in the average yet: until there is enough of it, the average is the plain one.
    seen: Duration,
}

impl Rate {
    fn new(at: Instant) -> Rate {
        Rate { at, bytes: 0, bytes_a_second: 0.0, seen: Duration::ZERO }
    }

    fn observe(&mut self, at: Instant, bytes: u64) {
        let passed = at.saturating_duration_since(self.at);
        if passed.is_zero() {
            return;
        }
        self.seen += passed;
        let weight = passed.as_secs_f64() / self.seen.min(RATE_FOLLOWS).max(passed).as_secs_f64();
        #[allow(clippy::cast_precision_loss)]
        let current = bytes.saturating_sub(self.bytes) as f64 / passed.as_secs_f64();
        self.bytes_a_second += (current - self.bytes_a_second) * weight;
        (self.at, self.bytes) = (at, bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use chiefsync::key::Key;

    #[test]
    fn the_headline_says_where_it_stands() {
        let metrics = Metrics::new();
        metrics.stage(Stage::Follow);
        assert_eq!(headline_text(&metrics.snapshot(), 0.0), "follow · 0 files, 0 B up · up to date");

        metrics.found(5000, 12 << 30);
        metrics.file_unchanged(1203);
        metrics.file_done(2 << 30);
        metrics.queue(3796, 10 << 30);
        let file = metrics.begin_file(&Key::new("model.pt").unwrap(), 4 << 30);
        file.advance(1 << 30);
        let now = metrics.snapshot();
        assert_eq!(
            headline_text(&now, f64::from(512 << 20)),
            "follow · 1,204 of 5,000 files · 3 GiB of 12 GiB · 512 MiB/s · 19 s left"
        );
        assert_eq!(file_text(&now.current[0]), "1 GiB of 4 GiB model.pt");
        // Nothing moves: no time is told.
        assert_eq!(headline_text(&now, 0.0), "follow · 1,204 of 5,000 files · 3 GiB of 12 GiB · 0 B/s");

        metrics.retry("slow_down");
        metrics.file_failed();
        metrics.falling_behind(Some(Duration::from_secs(90)));
        let text = headline_text(&metrics.snapshot(), 0.0);
        assert!(text.ends_with(" · 1 retries · 1 failed · falling behind by 1 m 30 s"), "{text}");
    }

    #[test]
    fn the_rate_follows_what_happens() {
        let start = clock::now();
        let mut rate = Rate::new(start);
        for tick in 1..=50 {
            rate.observe(start + TICK * tick, 1000 * u64::from(tick));
        }
        assert!((rate.bytes_a_second - 5000.0).abs() < 1.0, "{}", rate.bytes_a_second);
        for tick in 51..=150 {
            rate.observe(start + TICK * tick, 50_000);
        }
        assert!(rate.bytes_a_second < 10.0, "{}", rate.bytes_a_second);
    }

    /// Drawing into nowhere takes the same way as into a terminal: lines come and go with the files.
    #[tokio::test]
    async fn lines_come_and_go_with_the_files() {
        let metrics = Metrics::new();
        let bars = MultiProgress::with_draw_target(indicatif::ProgressDrawTarget::hidden());
        let view = tokio::spawn(show(bars, Arc::clone(&metrics)));
        for name in ["a", "b"] {
            let _file = metrics.begin_file(&Key::new(name).unwrap(), 1 << 30);
            tokio::time::sleep(TICK * 2).await;
        }
        tokio::time::sleep(TICK * 2).await;
        view.abort();
        assert!(view.await.unwrap_err().is_cancelled());
    }
}
