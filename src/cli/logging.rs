//! Log lines: one an event, for people as text, for programs as JSON.
//!
//! Invariants: a line is one line whatever a file is called; only chiefsync's own events below warnings are shown, at any
//! verbosity, because what the SDK says there may hold a secret.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::fmt;

use serde_json::Value;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::{Context, Layer, SubscriberExt as _};

use chiefsync::clock::{self, Instant};
use chiefsync::exit::one_line;
use chiefsync::stage::Stage;

use super::screen::Screen;
use super::{Global, LogFormat};

/// Begins to log.
pub fn init(global: Global, terminal: bool, color: bool, screen: Screen) {
    let targets = targets(global);
    let style = match global.log_format {
        LogFormat::Json => Style::Json,
        LogFormat::Auto | LogFormat::Text => Style::Text { elapsed: terminal, color },
    };
    let files = screen.bars().is_none() || global.verbose > 0;
    let lines = Lines { style, files, started: clock::now(), screen };
    let subscriber = tracing_subscriber::registry().with(lines.with_filter(targets));
    // A second call in one process (tests) keeps the first subscriber.
    let _ = tracing::subscriber::set_global_default(subscriber);
}

/// Lets panics appear as what the log is made of, with a backtrace where `RUST_BACKTRACE` asks for one.
pub fn catch_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let message = panic.payload_as_str().unwrap_or("of no known kind");
        let place = panic.location().map(ToString::to_string).unwrap_or_default();
        let backtrace = Backtrace::capture();
        if backtrace.status() == BacktraceStatus::Captured {
            tracing::error!(place, %backtrace, "panic: {message}");
        } else {
            tracing::error!(place, "panic: {message}");
        }
    }));
}

fn targets(global: Global) -> Targets {
    let (ours, others) = match global.verbose {
        0 if global.quiet() => (LevelFilter::WARN, LevelFilter::ERROR),
        0 => (LevelFilter::INFO, LevelFilter::ERROR),
        1 => (LevelFilter::DEBUG, LevelFilter::WARN),
        _ => (LevelFilter::TRACE, LevelFilter::WARN),
    };
    Targets::new().with_default(others).with_target("chiefsync", ours)
}

/// Writes events as lines.
struct Lines {
    style: Style,
    /// Whether single files are worth a line; the live view shows them otherwise.
    files: bool,
    started: Instant,
    screen: Screen,
}

enum Style {
    /// For people; with the time since the start on a terminal, the time of day elsewhere.
    Text { elapsed: bool, color: bool },
    /// For programs.
    Json,
}

impl<S: Subscriber> Layer<S> for Lines {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let level = *event.metadata().level();
        if !self.files && level > Level::WARN && fields.others.iter().any(|(name, _)| *name == "path") {
            return;
        }
        let stage = self.screen.metrics().current_stage();
        let line = match self.style {
            Style::Json => json_line(&clock::timestamp(), level, stage, fields),
            Style::Text { elapsed: true, color } => {
                let time = format!("{:7.1}s", self.started.elapsed().as_secs_f64());
                text_line(&time, level, stage, &fields, color)
            }
            Style::Text { elapsed: false, color } => text_line(&clock::timestamp(), level, stage, &fields, color),
        };
        self.screen.line(&line);
    }
}

/// What an event says.
#[derive(Default)]
struct Fields {
    message: String,
    /// In the order in which they stand in the code.
    others: Vec<(&'static str, Value)>,
}

impl Fields {
    fn add(&mut self, field: &Field, value: Value) {
        self.others.push((field.name(), value));
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            self.message = format!("{value:?}");
        } else {
            self.add(field, format!("{value:?}").into());
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "message" {
            self.message = value.to_owned();
        } else {
            self.add(field, value.into());
        }
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.add(field, value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.add(field, value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.add(field, value.into());
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.add(field, value.into());
    }
}

fn json_line(time: &str, level: Level, stage: Stage, fields: Fields) -> String {
    let mut line = String::from("{");
    let head = [
        ("time", time.into()),
        ("level", level.as_str().to_lowercase().into()),
        ("stage", stage.name().into()),
        ("message", fields.message.into()),
    ];
    for (name, value) in head.into_iter().chain(fields.others) {
        let comma = if line.len() > 1 { "," } else { "" };
        line += &format!("{comma}{}:{value}", Value::from(name));
    }
    line + "}"
}

fn text_line(time: &str, level: Level, stage: Stage, fields: &Fields, color: bool) -> String {
    let (dim, paint, reset) = if color { ("\x1b[2m", paint(level), "\x1b[0m") } else { ("", "", "") };
    let mut line = format!("{dim}{time}{reset} {paint}{level:<5}{reset} {dim}{:<9}{reset} ", stage.name());
    line += &one_line(&fields.message);
    for (name, value) in &fields.others {
        let value = match value {
            Value::String(text) => plain_or_quoted(text),
            other => other.to_string(),
        };
        line += &format!(" {dim}{name}={reset}{value}");
    }
    line
}

/// Text as it is, or in quotes where it would run into its neighbours.
fn plain_or_quoted(text: &str) -> String {
    let plain = !text.is_empty() && !text.contains(|c: char| c.is_whitespace() || c.is_control() || "\"='".contains(c));
    if plain { text.to_owned() } else { format!("{text:?}") }
}

fn paint(level: Level) -> &'static str {
    match level {
        Level::ERROR => "\x1b[31m",
        Level::WARN => "\x1b[33m",
        Level::INFO => "\x1b[32m",
        _ => "\x1b[34m",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event() -> Fields {
        Fields { message: "uploaded\x1b".to_owned(), others: vec![("path", "a b\n".into()), ("bytes", 17.into())] }
    }

    #[test]
    fn text_is_one_line_whatever_a_file_is_called() {
        assert_eq!(
            text_line("12:00", Level::INFO, Stage::Follow, &event(), false),
            r#"12:00 INFO  follow    uploaded\u{1b} path="a b\n" bytes=17"#
        );
    }

    #[test]
    fn json_keeps_its_order() {
        assert_eq!(
            json_line("12:00", Level::WARN, Stage::Drain, event()),
            r#"{"time":"12:00","level":"warn","stage":"drain","message":"uploaded\u001b","path":"a b\n","bytes":17}"#
        );
    }

    /// What the SDK says below warnings may hold a secret: it is shown at no verbosity.
    #[test]
    fn only_our_own_details_are_shown() {
        let shows = |silent, verbose, target: &str, level| {
            targets(Global { silent, verbose, log_format: LogFormat::Text }).would_enable(target, &level)
        };
        for verbose in 0..=255 {
            for target in ["aws_config", "aws_smithy_runtime::client", "hyper_util", "rustls"] {
                assert!(!shows(false, verbose, target, Level::INFO));
                assert!(!shows(false, verbose, target, Level::DEBUG));
            }
        }
        assert!(shows(false, 0, "chiefsync::sync", Level::INFO));
        assert!(!shows(false, 0, "chiefsync::sync", Level::DEBUG));
        assert!(shows(false, 1, "chiefsync::sync", Level::DEBUG));
        assert!(!shows(true, 0, "chiefsync::sync", Level::INFO));
    }
}
