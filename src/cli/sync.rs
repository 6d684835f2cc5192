//! `chiefsync sync`: once.

use std::io::{self, BufWriter, Write as _};
use std::sync::Arc;

use clap::Args;
use serde::Serialize;
use tokio::sync::watch::Receiver;

use chiefsync::clock::{self, Duration};
use chiefsync::config::{SyncConfig, show_size};
use chiefsync::exit::{Ending, Signal, UsageError, one_line};
use chiefsync::metrics::{Metrics, Snapshot};
use chiefsync::store::OpenOptions;
use chiefsync::store::retry::{Patience, Until};
use chiefsync::sync::plan::Action;
use chiefsync::sync::{self, PlanLine};

use super::screen::Screen;
use super::session::{Session, outside, reach};
use super::shared::{Limit, Shared, leave_last_word, parse_limit};
use super::table::{print_json, print_json_line};

/// How long `--dry-run --delete` waits for a listing: somebody waits for it.
const LISTING_TAKES: Duration = Duration::from_secs(30);

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
    match outside(&config.base.destination, &OpenOptions::default(), metrics, signals).await {
        Ok(outside) => sync::sync(config, outside).await,
        Err(ending) => ending,
    }
}

async fn show_plan(config: SyncConfig, json: bool, metrics: Arc<Metrics>) -> Ending {
    let destination = config.base.destination.clone();
    let open = || async move {
        let patience = Patience::new(Until::Deadline(clock::now() + LISTING_TAKES));
        reach(&destination, &OpenOptions::default(), patience, &metrics).await
    };
    let mut out = BufWriter::with_capacity(64 << 10, io::stdout());
    let mut written = Ok(());
    let ending = sync::dry_run(config, open, |line| {
        // People want to know what would change.
        let shown = json || !matches!(line, PlanLine::Act(_, Action::Unchanged));
        if shown && written.is_ok() {
            written = writeln!(out, "{}", PlanRow::of(&line).shown(json));
        }
    })
    .await;
    match written.and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Ending::fault(format!("stdout: {error}")),
        _ => ending,
    }
}

/// One line of the plan, for people and for programs.
#[derive(Serialize)]
struct PlanRow<'a> {
    action: &'static str,
    path: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<&'a str>,
}

impl<'a> PlanRow<'a> {
    fn of(line: &'a PlanLine<'_>) -> PlanRow<'a> {
        let row = PlanRow { action: "delete", path: "", bytes: None, target: None, why: None };
        match line {
            PlanLine::Delete(key) => PlanRow { path: key.as_str(), ..row },
            PlanLine::Unnameable(name) => PlanRow { action: "missing", path: &name.name, why: Some(&name.why), ..row },
            PlanLine::Act(found, action) => {
                let row = PlanRow { action: action.name(), path: found.key.as_str(), ..row };
                match action {
                    Action::Upload { stat, .. } => PlanRow { bytes: Some(stat.size), ..row },
                    Action::Copy { target, stat } => {
                        PlanRow { bytes: Some(stat.size), target: Some(target.as_str()), ..row }
                    }
                    Action::RecordLink { target } => PlanRow { target: Some(target.as_str()), ..row },
                    Action::Skip(why) | Action::Missing(why) => PlanRow { why: Some(why), ..row },
                    Action::Unchanged | Action::LookAgain | Action::Wait => row,
                }
            }
        }
    }

    fn shown(&self, json: bool) -> String {
        if json {
            return serde_json::to_string(self).unwrap_or_default();
        }
        let size = self.bytes.map(show_size).unwrap_or_default();
        let mut line = format!("{:10} {size:>10}  {}", self.action, one_line(self.path));
        if let Some(target) = self.target {
            line += &format!(" -> {}", one_line(target));
        }
        if let Some(why) = self.why {
            line += &format!(": {}", one_line(why));
        }
        line
    }
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
