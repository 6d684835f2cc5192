//! `chiefsync sync`: once.

use std::io::Write as _;
use std::sync::Arc;

use clap::Args;
use tokio::sync::watch::Receiver;

use chiefsync::config::SyncConfig;
use chiefsync::config::units::show_size;
use chiefsync::exit::{Ending, Signal, UsageError, one_line};
use chiefsync::metrics::Metrics;
use chiefsync::store::retry::{Patience, Until};
use chiefsync::sync::PlanLine;
use chiefsync::sync::plan::Action;

use super::screen::Screen;
use super::session::{Session, open, outside};
use super::shared::{Limit, Shared, leave_last_word, parse_limit};

/// Once: brings DEST up to date, proves, exits.
#[derive(Debug, Args)]
pub struct Sync {
    /// Prints what would be done, and does nothing.
    #[arg(long, env = "CHIEFSYNC_DRY_RUN")]
    dry_run: bool,
    /// Removes objects that SRC doesn't have: only below DEST, never what belongs to a checkpoint or to chiefsync.
    #[arg(long, env = "CHIEFSYNC_DELETE")]
    delete: bool,
    /// Prints the result as JSON.
    #[arg(long, env = "CHIEFSYNC_JSON")]
    json: bool,
    /// Stops trying after this long; "off" means never.
    #[arg(long, value_name = "TIME", default_value = "off", value_parser = parse_limit, env = "CHIEFSYNC_DEADLINE", help_heading = "Times")]
    deadline: Limit,
    #[command(flatten)]
    pub shared: Shared,
}

impl Sync {
    /// Brings DEST up to date.
    pub fn run(&self, screen: &Screen) -> Ending {
        let ending = match self.config() {
            Ok(config) => {
                let session =
                    Session { memory_bytes: config.base.memory_bytes, metrics_addr: self.shared.metrics_addr };
                session.run(screen, |metrics, signal| bring(config, self.json, metrics, signal))
            }
            Err(error) => error.into(),
        };
        leave_last_word(&ending, self.shared.termination_message().as_deref());
        ending
    }

    /// What was typed as what holds.
    pub fn config(&self) -> Result<SyncConfig, UsageError> {
        Ok(SyncConfig { base: self.shared.config(self.deadline.0, true)?, dry_run: self.dry_run, delete: self.delete })
    }
}

async fn bring(config: SyncConfig, json: bool, metrics: Arc<Metrics>, signal: Receiver<Signal>) -> Ending {
    if config.dry_run {
        return plan(config, json, metrics).await;
    }
    let ending = match outside(&config.base.destination, metrics, signal).await {
        Ok(outside) => chiefsync::sync::sync(config, outside).await,
        Err(ending) => ending,
    };
    if json && let Err(error) = writeln!(std::io::stdout().lock(), "{}", ending.to_json()) {
        return Ending::fault(format!("stdout: {error}"));
    }
    ending
}

/// Prints the plan: a line an action, of which `--json` makes objects.
async fn plan(config: SyncConfig, json: bool, metrics: Arc<Metrics>) -> Ending {
    let destination = config.base.destination.clone();
    let open = || async move { open(&destination, Patience::new(Until::Stop), metrics).await };
    let mut out = std::io::BufWriter::new(std::io::stdout());
    let mut written = Ok(());
    let ending = chiefsync::sync::dry_run(config, open, |line| {
        let (action, path, bytes, why) = match &line {
            PlanLine::Act(found, action) => {
                let (bytes, why) = match action {
                    Action::Upload { stat, .. } | Action::Copy { stat, .. } => (Some(stat.size), None),
                    Action::Skip(why) | Action::Missing(why) => (None, Some(why.as_str())),
                    _ => (None, None),
                };
                (action.name(), found.key.as_str(), bytes, why)
            }
            PlanLine::Unnameable(name) => ("missing", name.name.as_str(), None, Some(name.why.as_str())),
            PlanLine::Delete(key) => ("delete", key.as_str(), None, None),
        };
        if json {
            let line = serde_json::json!({ "action": action, "path": path, "bytes": bytes, "why": why });
            written = written.as_ref().map_err(|_| ()).and_then(|()| writeln!(out, "{line}").map_err(|_| ()));
        } else if action != "unchanged" {
            let bytes = bytes.map(|bytes| format!("  {}", show_size(bytes))).unwrap_or_default();
            let why = why.map(|why| format!("  ({why})")).unwrap_or_default();
            let path = one_line(path);
            written = written
                .as_ref()
                .map_err(|_| ())
                .and_then(|()| writeln!(out, "{action:<10} {path}{bytes}{why}").map_err(|_| ()));
        }
    })
    .await;
    match written.and_then(|()| out.flush().map_err(|_| ())) {
        Ok(()) => ending,
        Err(()) => Ending::fault("the plan could not be written to stdout"),
    }
}
