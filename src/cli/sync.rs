//! `chiefsync sync`: once.

use std::io;
use std::sync::Arc;

use clap::Args;
use serde::Serialize;
use tokio::sync::watch::Receiver;

use chiefsync::config::SyncConfig;
use chiefsync::exit::{Ending, Signal, UsageError};
use chiefsync::metrics::{Metrics, Snapshot};
use chiefsync::store::OpenOptions;
use chiefsync::store::retry::{Patience, Until};

use super::screen::Screen;
use super::session::{Session, reach};
use super::shared::{Limit, Shared, leave_last_word, parse_limit};
use super::table::{print_json, print_json_line};

/// Once: brings DEST up to date, proves, exits.
#[derive(Debug, Args)]
pub struct Sync {
    /// Prints what would be done, and does nothing.
    #[arg(long, env = "CHIEFSYNC_DRY_RUN")]
    dry_run: bool,
    /// Removes objects that SRC doesn't have: only below DEST, never what belongs to a checkpoint or to chiefsync.
    #[arg(long, env = "CHIEFSYNC_DELETE")]
    delete: bool,
    /// Prints the result as JSON; with --dry-run one object a line, the result last.
    #[arg(long, env = "CHIEFSYNC_JSON")]
    json: bool,
    /// Stops trying after this long; "off" means never.
    #[arg(long, value_name = "TIME", default_value = "off", value_parser = parse_limit, env = "CHIEFSYNC_DEADLINE", help_heading = "Times")]
    deadline: Limit,
    #[command(flatten)]
    pub shared: Shared,
}

impl Sync {
    /// Brings DEST up to date, and leaves the last word for Kubernetes.
    pub fn run(&self, screen: &Screen) -> Ending {
        let ending = self.run_with(screen);
        leave_last_word(&ending, self.shared.termination_message().as_deref());
        ending
    }

    fn run_with(&self, screen: &Screen) -> Ending {
        let config = match self.config() {
            Ok(config) => config,
            Err(error) => return error.into(),
        };
        let session = Session {
            memory_bytes: config.base.memory_bytes,
            metrics_addr: self.shared.metrics_addr,
            live: !self.dry_run,
        };
        let ending = if self.dry_run {
            let json = self.json;
            session.run(screen, move |metrics, _| show_plan(config, json, metrics))
        } else {
            session.run(screen, |metrics, signals| bring(config, metrics, signals))
        };
        if self.json {
            let result = Report::of(&ending, &screen.metrics().snapshot());
            // After the plan's lines another line follows.
            let print = if self.dry_run { print_json_line } else { print_json };
            if let Err(error) = print(&mut io::stdout().lock(), &result) {
                return Ending::fault(format!("stdout: {error}"));
            }
        }
        ending
    }

    /// What was typed as what holds.
    pub fn config(&self) -> Result<SyncConfig, UsageError> {
        Ok(SyncConfig { base: self.shared.config(self.deadline.0, true)?, dry_run: self.dry_run, delete: self.delete })
    }
}

async fn bring(config: SyncConfig, metrics: Arc<Metrics>, signals: Receiver<Signal>) -> Ending {
    let patience = Patience::new(Until::Forever);
    let options = OpenOptions::default();
    let store = match reach(&config.base.destination, &options, patience.clone(), &metrics).await {
        Ok(store) => store,
        Err(error) => return Ending::from_store_error(&error),
    };
    drop((config, store, patience, metrics, signals));
    Ending::fault("this build has no engine")
}

async fn show_plan(config: SyncConfig, json: bool, metrics: Arc<Metrics>) -> Ending {
    drop((config, json, metrics));
    Ending::fault("this build has no engine")
}

/// The result for programs.
#[derive(Serialize)]
struct Report<'a> {
    code: u8,
    ending: &'static str,
    summary: &'a str,
    details: &'a [String],
    hint: Option<&'a str>,
    uploaded_files: u64,
    uploaded_bytes: u64,
    unchanged_files: u64,
    failed_files: u64,
    seconds: f64,
}

impl<'a> Report<'a> {
    fn of(ending: &'a Ending, now: &Snapshot) -> Report<'a> {
        Report {
            code: ending.code.number(),
            ending: ending.code.name(),
            summary: &ending.summary,
            details: &ending.details,
            hint: ending.hint.as_deref(),
            uploaded_files: now.done_files,
            uploaded_bytes: now.sent_bytes,
            unchanged_files: now.unchanged_files,
            failed_files: now.failed_files,
            seconds: now.running.as_secs_f64(),
        }
    }
}
