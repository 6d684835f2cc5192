//! Stderr, shared between log lines, the live view and the last word.

use std::io::{self, IsTerminal as _, Write as _};
use std::sync::Arc;

use indicatif::{MultiProgress, ProgressDrawTarget};

use chiefsync::exit::{Ending, ExitCode};
use chiefsync::metrics::Metrics;

use super::{Global, LogFormat, logging};

/// How often the live view is drawn, at most, in Hz.
const DRAWS_A_SECOND: u8 = 10;

/// Where people and programs see what happens.
#[derive(Clone)]
pub struct Screen {
    bars: MultiProgress,
    metrics: Arc<Metrics>,
    live: bool,
    json: bool,
    quiet: bool,
    verbose: bool,
}

impl Screen {
    /// Takes stderr, and begins to log to it.
    pub fn new(global: Global) -> Screen {
        let terminal = io::stderr().is_terminal() && variable("TERM").as_deref() != Some("dumb");
        let live = terminal && global.log_format == LogFormat::Auto && !global.quiet();
        let target =
            if live { ProgressDrawTarget::stderr_with_hz(DRAWS_A_SECOND) } else { ProgressDrawTarget::hidden() };
        let screen = Screen {
            bars: MultiProgress::with_draw_target(target),
            metrics: Metrics::new(),
            live,
            json: global.log_format == LogFormat::Json,
            quiet: global.quiet(),
            verbose: global.verbose > 0,
        };
        logging::init(global, terminal, wants_color(terminal, variable), screen.clone());
        screen
    }

    /// The numbers that the log, the live view and the server show.
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.metrics
    }

    /// Where the live view draws; `None` where there is none.
    pub fn bars(&self) -> Option<&MultiProgress> {
        self.live.then_some(&self.bars)
    }

    /// Whether results are wanted in full.
    pub fn verbose(&self) -> bool {
        self.verbose
    }

    /// Writes one line, above the live view where there is one. A stderr that is gone stops nobody.
    pub fn line(&self, line: &str) {
        let write = || {
            let mut stderr = io::stderr().lock();
            let _ = stderr.write_all(line.as_bytes()).and_then(|()| stderr.write_all(b"\n"));
        };
        if self.live { self.bars.suspend(write) } else { write() }
    }

    /// Writes text for people to stdout, above the live view where there is one; in a JSON log and where silence is wanted,
    /// nothing.
    pub fn tell(&self, text: &str) {
        if self.json || self.quiet {
            return;
        }
        self.bars.suspend(|| {
            let mut stdout = io::stdout().lock();
            // A reader that went away changes nothing about what is done.
            let _ = stdout.write_all(text.as_bytes()).and_then(|()| stdout.write_all(b"\n"));
        });
    }

    /// Wipes the live view.
    pub fn clear(&self) {
        let _ = self.bars.clear();
    }

    /// Says how it ended, on stderr, because stdout holds results alone; in a JSON log as its last line.
    ///
    /// # Errors
    /// The stream's own.
    pub fn report(&self, ending: &Ending) -> io::Result<()> {
        self.clear();
        if self.json {
            return ending.report_json(&mut io::stderr().lock());
        }
        if ending.code == ExitCode::Proven && (self.quiet || ending.summary.is_empty()) {
            return Ok(());
        }
        ending.report(&mut io::stderr().lock())
    }
}

/// Whether to use colors: what `NO_COLOR`, `CLICOLOR_FORCE` and `CLICOLOR` say, else whether a person looks.
fn wants_color(terminal: bool, variable: impl Fn(&str) -> Option<String>) -> bool {
    if variable("NO_COLOR").is_some() {
        false
    } else if variable("CLICOLOR_FORCE").is_some_and(|value| value != "0") {
        true
    } else {
        terminal && variable("CLICOLOR").as_deref() != Some("0")
    }
}

/// A variable that is set to something.
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colors_are_where_people_want_them() {
        for (terminal, set, colors) in [
            (true, "", true),
            (false, "", false),
            (true, "NO_COLOR=1", false),
            (true, "CLICOLOR=0", false),
            (false, "CLICOLOR=1", false),
            (false, "CLICOLOR_FORCE=1", true),
            (false, "CLICOLOR_FORCE=0", false),
        ] {
            let variable = |name: &str| set.strip_prefix(name)?.strip_prefix('=').map(str::to_owned);
            assert_eq!(wants_color(terminal, variable), colors, "{terminal} {set}");
        }
    }
}
