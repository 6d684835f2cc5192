//! Follow: the life of `watch`, from the first look at SRC to the last word.

use crate::clock::{self, Duration};
use crate::config::{Config, WatchConfig};
use crate::exit::{Ending, ExitCode, Signal};
use crate::head::Outcome;
use crate::marker::{Marker, MarkerKind};
use crate::stage::Stage;
use crate::store::retry::Until;

use super::settle::Times;
use super::{Engine, Outside, recover};

/// Full scans this far apart where inotify sees every change, and where other machines write too.
const RESCAN_LOCAL: Duration = Duration::from_secs(60);
const RESCAN_NETWORK: Duration = Duration::from_secs(10);

/// How often a SRC that isn't there yet is looked for.
const APPEAR_INTERVAL: Duration = Duration::from_millis(200);

/// Of the grace, the last quarter is kept for sending what is left without waiting for it to settle.
const GRACE_DRAIN_PART: u32 = 4;

/// Why following ended.
enum End {
    Marker(Box<Marker>),
    Signal,
    Lost,
    Stopped,
}

/// Follows SRC until its end marker, drains, proves, and says how the process should end.
pub async fn watch(config: WatchConfig, mut outside: Outside) -> Ending {
    let mut signals = outside.signals.clone();
    let base = config.base.clone();
    if let Err(ending) = appear(&base, &mut signals).await {
        return ending;
    }
    let journal = match recover::open_journal(&base) {
        Ok(journal) => journal,
        Err(ending) => return ending,
    };
    let tree = match recover::open_tree(&base) {
        Ok(tree) => tree,
        Err(ending) => return ending,
    };
    outside.patience.set(Until::Forever);
    let times = Times { settle: config.settle, growing_interval: config.growing_interval };
    let patience = outside.patience.clone();
    outside.signals = signals.clone();
    let starting = recover::engine(base.clone(), outside, tree, journal, times, true);
    let mut engine = tokio::select! {
        engine = starting => match engine {
            Ok(engine) => engine,
            Err(ending) => return ending,
        },
        () = stopped(&mut signals) => {
            return Ending::new(ExitCode::Incomplete, "stopped before the destination could be reached; nothing was uploaded");
        }
        () = ended_meanwhile(&base, &patience) => unreachable!("ends only with the other branches"),
    };
    let local = if recover::is_remote_volume(&base.source) { RESCAN_NETWORK } else { RESCAN_LOCAL };
    engine.rescan_interval = Some(config.rescan.unwrap_or(local));
    let ending = engine.live(&config).await;
    if config.stay && ending.code == ExitCode::Proven {
        tracing::info!("proven; staying until SIGTERM");
        stopped(&mut signals).await;
    }
    ending
}

/// Waits for SRC to appear: the trainer may create it.
async fn appear(config: &Config, signals: &mut tokio::sync::watch::Receiver<Signal>) -> Result<(), Ending> {
    let mut said = false;
    while let Err(error) = crate::disk::metadata(&config.source) {
        if error.kind() != std::io::ErrorKind::NotFound {
            break;
        }
        if !said {
            tracing::warn!(source = %config.source.display(), "SRC is not there yet: waiting for it");
            said = true;
        }
        tokio::select! {
            () = tokio::time::sleep(APPEAR_INTERVAL) => {}
            () = stopped(signals) => {
                let what = format!("stopped before SRC {} appeared", config.source.display());
                return Err(Ending::new(ExitCode::Incomplete, what));
            }
        }
    }
    Ok(())
}

/// While the destination can't be reached the trainer may end: then patience ends, too, at the deadline.
async fn ended_meanwhile(config: &Config, patience: &crate::store::retry::Patience) {
    loop {
        tokio::time::sleep(Duration::from_secs(5)).await;
        if let (Some(deadline), Ok(Some(_))) = (config.deadline, crate::marker::read(&config.source)) {
            patience.set(Until::Deadline(clock::now() + deadline));
            std::future::pending::<()>().await;
        }
    }
}

async fn stopped(signals: &mut tokio::sync::watch::Receiver<Signal>) {
    if signals.wait_for(|signal| *signal != Signal::Run).await.is_err() {
        std::future::pending::<()>().await;
    }
}

impl Engine {
    async fn live(&mut self, config: &WatchConfig) -> Ending {
        if self.verdict_stands && !self.is_restart() {
            self.clear_verdict().await;
        }
        if self.run_end.is_none() && matches!(crate::marker::read(&self.config.source), Ok(Some(_))) {
            // An earlier start may have archived the verdict of the run that the marker belongs to.
            match recover::archived_end(&self.store, self.run).await {
                Ok(end) => self.run_end = end,
                Err(error) => self.stop_with(Ending::from_store_error(&error)),
            }
        }
        self.rescan("start");
        let ending = loop {
            match self.follow(config).await {
                End::Marker(marker) if marker.kind == MarkerKind::Done => {
                    break self.end(Outcome::Succeeded, Some(&marker)).await;
                }
                End::Marker(marker) => {
                    let ending = self.end(Outcome::Failed, Some(&marker)).await;
                    if ending.code != ExitCode::TrainerFailed || !config.restart_policy.restarts_in_place() {
                        break ending;
                    }
                    if !self.wait_for_attempt(config, &marker).await {
                        break ending;
                    }
                    self.clear_verdict().await;
                }
                End::Lost => break self.end(Outcome::Lost, None).await,
                End::Signal => break self.interrupt().await,
                End::Stopped => {
                    break self.stop.take().expect("stopped with an ending").with_details(self.missing_lines());
                }
            }
        };
        self.leave(ending).await
    }

    /// A verdict that is there already is ours if the very marker that it ends on is still on the volume: then the container
    /// was restarted, and the proof is made again. Any other is an earlier run's.
    fn is_restart(&self) -> bool {
        let there = crate::marker::read(&self.config.source).ok().flatten();
        there.zip(self.run_end.as_ref()).is_some_and(|(marker, end)| {
            Some(&marker.identity) == end.marker.as_ref()
                && crate::marker::is_stale(&marker, Some(end), self.config.pod_uid.as_deref()).is_none()
        })
    }

    /// Moves the verdict that stands out of the way, before anything below the prefix changes.
    pub(super) async fn clear_verdict(&mut self) {
        match self.hold.archive().await {
            Ok(run) => {
                tracing::info!(run, "a new run begins; the earlier verdict is kept under .chiefsync/runs/");
                self.run = run;
                self.started_at = clock::timestamp();
                self.journal.set_ended(None);
                self.verdict_stands = false;
                self.marker_gone = false;
            }
            Err(error) => self.stop_with(Ending::from_lease_error(&error)),
        }
    }

    /// Follows until something ends it.
    async fn follow(&mut self, config: &WatchConfig) -> End {
        self.metrics.stage(Stage::Follow);
        loop {
            if self.stop.is_some() {
                return End::Stopped;
            }
            if let Some(marker) = self.marker.take() {
                tracing::info!(marker = marker.kind.file_name(), "the end marker is there");
                return End::Marker(Box::new(marker));
            }
            if self.verdict_stands && (self.marker_gone || !self.pending.is_empty()) {
                self.clear_verdict().await;
                continue;
            }
            let now = clock::now();
            if self.stop_signal.is_some() && self.grace_ends.is_none() {
                let grace = self.config.grace;
                tracing::warn!(
                    seconds = grace.as_secs(),
                    "told to stop: following until the trainer or the grace ends"
                );
                self.patience.set(Until::Deadline(now + grace));
                self.grace_ends = Some(now + grace);
            }
            let drain_at = self.grace_ends.map(|ends| ends - self.config.grace / GRACE_DRAIN_PART);
            if drain_at.is_some_and(|at| now >= at) {
                return End::Signal;
            }
            let idle_ends = config.idle_deadline.map(|idle| self.last_change + idle);
            if self.pending.is_empty() && idle_ends.is_some_and(|at| now >= at) {
                tracing::error!("nothing changed until the idle deadline and there is no marker: the trainer is lost");
                return End::Lost;
            }
            let until = [drain_at, idle_ends.filter(|at| *at > now)].into_iter().flatten().min();
            self.step(until).await;
        }
    }

    /// Drains, proves and writes the verdict.
    async fn end(&mut self, outcome: Outcome, marker: Option<&Marker>) -> Ending {
        let deadline = match (self.config.deadline, self.grace_ends) {
            (Some(deadline), Some(grace)) => Some((clock::now() + deadline).min(grace)),
            (deadline, grace) => deadline.map(|d| clock::now() + d).or(grace),
        };
        let ended_at_ns = clock::wall_ns();
        self.drain(ended_at_ns, deadline).await;
        if deadline.is_some_and(|at| clock::now() >= at) {
            self.patience.set(Until::Deadline(clock::now() + self.last_words()));
        }
        self.prove(outcome, marker, ended_at_ns, deadline).await
    }

    /// The grace is nearly over: sends what is there, complete or not, and says that the run was interrupted.
    async fn interrupt(&mut self) -> Ending {
        let grace_ends = self.grace_ends;
        let ended_at_ns = clock::wall_ns();
        self.drain(ended_at_ns, grace_ends).await;
        self.patience.set(Until::Deadline(clock::now() + self.last_words()));
        self.prove(Outcome::Interrupted, None, ended_at_ns, grace_ends).await
    }

    /// What the manifest, the head and the last line may still take: the grace was configured less this.
    fn last_words(&self) -> Duration {
        Duration::from_secs(3)
    }

    /// After FAILED: whether a new attempt begins before the wait is over.
    async fn wait_for_attempt(&mut self, config: &WatchConfig, failed: &Marker) -> bool {
        let until = clock::now() + config.restart_wait;
        tracing::warn!(seconds = config.restart_wait.as_secs(), "the trainer failed: waiting for a new attempt");
        self.follow_on();
        self.metrics.stage(Stage::Follow);
        self.passed.push(failed.identity);
        self.marker_gone = false;
        loop {
            if self.stop.is_some() || self.stop_signal.is_some() || clock::now() >= until {
                return false;
            }
            if self.marker.is_some() || self.marker_gone || !self.pending.is_empty() {
                tracing::info!("a new attempt began");
                return true;
            }
            self.step(Some(until)).await;
        }
    }

    /// Gives the head back, whatever happened; a head that is not ours any more is left alone.
    pub(super) async fn leave(&mut self, ending: Ending) -> Ending {
        self.metrics.stage(Stage::Exit);
        self.patience.set(Until::Deadline(clock::now() + self.last_words()));
        while self.aborts.join_next().await.is_some() {}
        if ending.code != ExitCode::Fenced
            && let Err(error) = self.hold.release(|_| {}).await
        {
            tracing::warn!(%error, "the prefix could not be given back: the next writer waits for its time to live");
        }
        self.journal.flush();
        ending
    }
}
