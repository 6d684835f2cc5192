//! `chiefsync watch`: the sidecar.

use std::sync::Arc;

use clap::Args;
use tokio::sync::watch::Receiver;

use chiefsync::clock::Duration;
use chiefsync::config::{RestartPolicy, WatchConfig, parse_duration};
use chiefsync::exit::{Ending, Signal, UsageError};
use chiefsync::metrics::Metrics;
use chiefsync::store::OpenOptions;
use chiefsync::sync;

use super::screen::Screen;
use super::session::{Session, outside};
use super::shared::{Limit, Shared, leave_last_word, parse_interval, parse_limit};

/// The sidecar: follows SRC until its end marker, drains, proves, exits.
#[derive(Debug, Args)]
pub struct Watch {
    /// A file that no event closed counts as settled after this long without change.
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = parse_duration, env = "CHIEFSYNC_SETTLE", help_heading = "Times")]
    settle: Duration,
    /// Full scans this far apart; if not given, 60 s, and 10 s on network file systems.
    #[arg(long, value_name = "TIME", value_parser = parse_interval, env = "CHIEFSYNC_RESCAN", help_heading = "Times")]
    rescan: Option<Duration>,
    /// A file that grows all the time goes up at most this often.
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_interval, env = "CHIEFSYNC_GROWING_INTERVAL", help_heading = "Times")]
    growing_interval: Duration,
    /// Stops trying this long after DONE or a signal; "off" means never.
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = parse_limit, env = "CHIEFSYNC_DEADLINE", help_heading = "Times")]
    deadline: Limit,
    /// Gives a trainer up for lost that changed nothing and left no marker for this long; "off" waits for ever.
    #[arg(long, value_name = "TIME", default_value = "off", value_parser = parse_limit, env = "CHIEFSYNC_IDLE_DEADLINE", help_heading = "Times")]
    idle_deadline: Limit,

    /// The trainer's restartPolicy: Never, ExitCode or OnFailure; if not given, as OnFailure.
    #[arg(long, value_name = "POLICY", value_parser = parse_policy, env = "CHIEFSYNC_RESTART_POLICY", help_heading = "Ends")]
    restart_policy: Option<RestartPolicy>,
    /// How long to follow after FAILED for a new attempt, under OnFailure.
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = parse_duration, env = "CHIEFSYNC_RESTART_WAIT", help_heading = "Ends")]
    restart_wait: Duration,
    /// Idles after the proof until SIGTERM: for native sidecars.
    #[arg(long, env = "CHIEFSYNC_STAY", help_heading = "Ends")]
    stay: bool,

    #[command(flatten)]
    pub shared: Shared,
}

fn parse_policy(text: &str) -> Result<RestartPolicy, UsageError> {
    match text.to_ascii_lowercase().as_str() {
        "never" => Ok(RestartPolicy::Never),
        "exitcode" => Ok(RestartPolicy::ExitCode),
        "onfailure" => Ok(RestartPolicy::OnFailure),
        "unknown" => Ok(RestartPolicy::Unknown),
        "always" => Err(UsageError::new(
            "a trainer that is always restarted never ends its job",
            "set the job's restartPolicy to OnFailure, Never or ExitCode, and write the same here",
        )),
        _ => Err(UsageError::new(format!("{text:?} is no restart policy"), "write Never, ExitCode or OnFailure")),
    }
}

impl Watch {
    /// Follows until the end, and leaves the last word for Kubernetes.
    pub fn run(&self, screen: &Screen) -> Ending {
        let ending = self.run_with(screen, OpenOptions::default());
        leave_last_word(&ending, self.shared.termination_message().as_deref());
        ending
    }

    /// Follows until the end.
    pub fn run_with(&self, screen: &Screen, options: OpenOptions) -> Ending {
        let config = match self.config() {
            Ok(config) => config,
            Err(error) => return error.into(),
        };
        let session =
            Session { memory_bytes: config.base.memory_bytes, metrics_addr: self.shared.metrics_addr, live: true };
        session.run(screen, |metrics, signals| follow(config, options, metrics, signals))
    }

    /// What was typed as what holds.
    pub fn config(&self) -> Result<WatchConfig, UsageError> {
        let config = WatchConfig {
            base: self.shared.config(self.deadline.0, false)?,
            settle: self.settle,
            rescan: self.rescan,
            growing_interval: self.growing_interval,
            restart_policy: self.restart_policy.unwrap_or_default(),
            restart_wait: self.restart_wait,
            idle_deadline: self.idle_deadline.0,
            stay: self.stay,
        };
        if config.idle_deadline.is_none() {
            tracing::warn!(
                "without --idle-deadline a trainer that dies without a marker is waited for until the pod is stopped"
            );
        }
        Ok(config)
    }
}

async fn follow(config: WatchConfig, options: OpenOptions, metrics: Arc<Metrics>, signals: Receiver<Signal>) -> Ending {
    match outside(&config.base.destination, &options, metrics, signals).await {
        Ok(outside) => sync::watch(config, outside).await,
        Err(ending) => ending,
    }
}
