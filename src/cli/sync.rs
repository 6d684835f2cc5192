//! `chiefsync sync`: once.

use std::sync::Arc;

use clap::Args;
use tokio::sync::watch::Receiver;

use chiefsync::config::SyncConfig;
use chiefsync::exit::{Ending, Signal, UsageError};
use chiefsync::metrics::Metrics;

use super::screen::Screen;
use super::session::Session;
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
    let _ = (config, json, metrics, signal);
    Ending::fault("this build has no engine")
}
