//! The numbers as Prometheus reads them: names, units and help in one place.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeCounterValue, EncodeGaugeValue, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::{Registry, Unit};

use super::{Metrics, Snapshot};
use crate::stage::Stage;

/// The media type of [`Metrics::exposition`].
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

impl Metrics {
    /// All numbers as OpenMetrics text.
    pub fn exposition(self: &Arc<Metrics>) -> String {
        let mut registry = Registry::with_prefix("chiefsync");
        registry.register_collector(Box::new(Arc::clone(self)));
        let mut text = String::new();
        // Writing to a String doesn't fail.
        let _ = prometheus_client::encoding::text::encode(&mut text, &registry);
        text
    }
}

impl Collector for Metrics {
    fn encode(&self, encoder: DescriptorEncoder) -> fmt::Result {
        Exposition(encoder).all(&self.snapshot())
    }
}

struct Exposition<'a>(DescriptorEncoder<'a>);

impl Exposition<'_> {
    fn all(&mut self, now: &Snapshot) -> fmt::Result {
        self.build_info()?;
        self.stage(now.stage)?;
        let age = now.oldest_unsynced.unwrap_or_default().as_secs_f64();
        let behind = now.falling_behind.unwrap_or_default().as_secs_f64();

        self.counter("uploaded_files", "Files that became durable in the bucket", None, now.done_files)?;
        self.counter("uploaded", "Bytes that the store accepted", Some(Unit::Bytes), now.sent_bytes)?;
        self.counter(
            "copied",
            "Bytes that the store copied by itself instead of receiving them again",
            Some(Unit::Bytes),
            now.copied_bytes,
        )?;
        self.counter("unchanged_files", "Files that were in the bucket already", None, now.unchanged_files)?;
        self.counter("failed_files", "Files that were given up, for a time or for good", None, now.failed_files)?;
        self.gauge("queue_files", "Files that wait or are under way", None, now.queued_files)?;
        self.gauge("queue", "Bytes that wait or are under way", Some(Unit::Bytes), now.queued_bytes)?;
        self.gauge(
            "oldest_unsynced_age",
            "Age of the oldest file that isn't durable in the bucket, 0 when all are",
            Some(Unit::Seconds),
            age,
        )?;
        self.lag(now)?;
        self.gauge(
            "falling_behind",
            "Forecast: how long what waits will take to send while more comes than goes, 0 while uploads keep up",
            Some(Unit::Seconds),
            behind,
        )?;
        self.by("retries", "Requests that were tried again, by reason", "reason", &now.retries)?;
        self.by("rescans", "Full scans of the output directory, by reason", "reason", &now.rescans)?;
        self.counter("queue_overflows", "Times that the kernel dropped file events", None, now.overflows)?;
        self.counter("hash", "Time spent hashing", Some(Unit::Seconds), now.hash_seconds)?;
        self.counter("read", "Time spent reading files", Some(Unit::Seconds), now.read_seconds)?;
        self.counter("send", "Time spent sending, all requests added up", Some(Unit::Seconds), now.send_seconds)
    }

    fn build_info(&mut self) -> fmt::Result {
        let labels = [("version", env!("CARGO_PKG_VERSION"))];
        let mut metric = self.0.encode_descriptor("build_info", "Always 1; says what runs", None, MetricType::Gauge)?;
        ConstGauge::new(1_u64).encode(metric.encode_family(&labels)?)
    }

    fn stage(&mut self, current: Stage) -> fmt::Result {
        let mut metric =
            self.0.encode_descriptor("stage", "1 for the stage that the run is in", None, MetricType::Gauge)?;
        for stage in Stage::ALL {
            let labels = [("stage", stage.name())];
            ConstGauge::new(u64::from(stage == current)).encode(metric.encode_family(&labels)?)?;
        }
        Ok(())
    }

    fn counter<V: EncodeCounterValue + Clone + fmt::Debug>(
        &mut self,
        name: &str,
        help: &str,
        unit: Option<Unit>,
        value: V,
    ) -> fmt::Result {
        let metric = self.0.encode_descriptor(name, help, unit.as_ref(), MetricType::Counter)?;
        ConstCounter::new(value).encode(metric)
    }

    fn gauge<V: EncodeGaugeValue + Clone + fmt::Debug>(
        &mut self,
        name: &str,
        help: &str,
        unit: Option<Unit>,
        value: V,
    ) -> fmt::Result {
        let metric = self.0.encode_descriptor(name, help, unit.as_ref(), MetricType::Gauge)?;
        ConstGauge::new(value).encode(metric)
    }

    fn by(&mut self, name: &str, help: &str, label: &str, counts: &BTreeMap<&'static str, u64>) -> fmt::Result {
        let mut metric = self.0.encode_descriptor(name, help, None, MetricType::Counter)?;
        for (value, count) in counts {
            ConstCounter::new(*count).encode(metric.encode_family(&[(label, *value)])?)?;
        }
        Ok(())
    }

    fn lag(&mut self, now: &Snapshot) -> fmt::Result {
        let help = "From a file's close to its being durable in the bucket";
        let mut metric = self.0.encode_descriptor("lag", help, Some(&Unit::Seconds), MetricType::Histogram)?;
        let lag = &now.lag;
        metric.encode_histogram::<[(&str, &str); 0]>(lag.sum_seconds, lag.count(), &lag.buckets, None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Duration;

    #[test]
    fn a_scrape_shows_what_was_counted() {
        let metrics = Metrics::new();
        metrics.stage(Stage::Follow);
        metrics.sent(4096);
        metrics.file_done(4096);
        metrics.retry("slow_down");
        metrics.lag(Duration::from_millis(7));
        let text = metrics.exposition();
        for line in [
            "chiefsync_stage{stage=\"follow\"} 1",
            "chiefsync_stage{stage=\"drain\"} 0",
            "chiefsync_uploaded_bytes_total 4096",
            "chiefsync_uploaded_files_total 1",
            "chiefsync_retries_total{reason=\"slow_down\"} 1",
            "chiefsync_lag_seconds_bucket{le=\"0.005\"} 0",
            "chiefsync_lag_seconds_bucket{le=\"0.01\"} 1",
            "chiefsync_lag_seconds_bucket{le=\"+Inf\"} 1",
            "chiefsync_lag_seconds_count 1",
            "chiefsync_oldest_unsynced_age_seconds 0.0",
            "# TYPE chiefsync_lag_seconds histogram",
            "# EOF",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is missing in\n{text}");
        }
    }
}
