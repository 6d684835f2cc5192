//! Follow: the life of `watch`, from the first look at SRC to the last word.

use crate::clock::{self, Duration};
use crate::config::{Config, WatchConfig};
use crate::exit::{Ending, ExitCode, Signal};
use crate::head::Outcome;
use crate::marker::{Marker, MarkerKind};
use crate::stage::Stage;
use crate::store::retry::Until;

use super::settle::Times;
use super::{Engine, LAST_WORDS, Outside, recover};

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
pub async fn watch(config: WatchConfig, outside: Outside) -> Ending {
    let mut signals = outside.signals.clone();
    let base = config.base.clone();
    super::heed_signals(&outside, base.grace);
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
    let starting = recover::engine(base.clone(), outside, tree, journal, times, true);
    let mut engine = tokio::select! {
        engine = starting => match engine {
            Ok(engine) => engine,
            Err(ending) => return ending,
        },
        () = super::grace_is_over(&mut signals, base.grace) => {
            return Ending::new(ExitCode::Incomplete, "stopped before the destination could be reached; nothing was uploaded");
        }
        () = ended_meanwhile(&base, &patience) => unreachable!("ends only with the other branches"),
    };
    let local = if recover::is_remote_volume(&base.source) { RESCAN_NETWORK } else { RESCAN_LOCAL };
    engine.rescan_interval = Some(config.rescan.unwrap_or(local));
    let ending = engine.live(&config).await;
    let is_verdict = matches!(ending.code, ExitCode::Proven | ExitCode::TrainerFailed | ExitCode::TrainerLost);
    if config.stay && is_verdict {
        tracing::info!(code = ending.code.number(), "the run has ended; staying until SIGTERM");
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
        tokio::time::sleep(Duration::from_secs(1)).await;
        if let (Some(deadline), Ok(Some(_))) = (config.deadline, crate::marker::read(&config.source)) {
            patience.set(Until::Deadline(clock::now() + deadline));
            std::future::pending::<()>().await;
        }
    }
}

pub(super) async fn stopped(signals: &mut tokio::sync::watch::Receiver<Signal>) {
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
            let ended = match self.follow(config).await {
                End::Marker(marker) if marker.kind == MarkerKind::Done => {
                    self.end(Outcome::Succeeded, Some(&marker)).await
                }
                End::Marker(marker) => {
                    let waited = self.failed.take().is_some();
                    match self.end(Outcome::Failed, Some(&marker)).await {
                        Some(ending) if waited || !config.restart_policy.restarts_in_place() => Some(ending),
                        Some(ending) if ending.code != ExitCode::TrainerFailed => Some(ending),
                        Some(ending) => (!self.wait_for_attempt(config, *marker).await).then_some(ending),
                        None => None,
                    }
                }
                End::Lost => self.end(Outcome::Lost, None).await,
                End::Signal => self.interrupt().await,
                End::Stopped => {
                    Some(self.stop.take().expect("stopped with an ending").with_details(self.missing_lines()))
                }
            };
            if let Some(ending) = ended {
                break ending;
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
            Ok(begins) => {
                if let Some(run) = begins {
                    tracing::info!(run, "a new run begins; the earlier verdict is kept under .chiefsync/runs/");
                    self.run = run;
                    self.started_at = clock::timestamp();
                }
                self.journal.set_ended(None);
                self.verdict_stands = false;
                self.marker_gone = false;
                // What waited for this may go.
                self.dispatch();
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
                self.failed = None;
                return End::Marker(Box::new(marker));
            }
            if self.verdict_stands && (self.marker_gone || !self.pending.is_empty()) {
                self.clear_verdict().await;
                continue;
            }
            let now = clock::now();
            let mut waits_until = None;
            if let Some(failed) = self.failed.clone() {
                let waited = self.last_change + config.restart_wait;
                let is_over = self.pending.is_empty() && now >= waited;
                // Where nobody hears that a marker goes, a look tells.
                if self.marker_gone || is_over && self.is_overtaken(&failed) {
                    tracing::info!("a new attempt began");
                    self.failed = None;
                    continue;
                }
                if is_over {
                    return End::Marker(Box::new(failed));
                }
                waits_until = Some(waited).filter(|at| *at > now);
            }
            let drain_at = self.grace_ends.map(|ends| ends - self.config.grace / GRACE_DRAIN_PART);
            if drain_at.is_some_and(|at| now >= at) {
                return self.failed.clone().map_or(End::Signal, |failed| End::Marker(Box::new(failed)));
            }
            let idle_ends = config.idle_deadline.map(|idle| self.last_change + idle);
            if self.pending.is_empty() && idle_ends.is_some_and(|at| now >= at) {
                tracing::error!("nothing changed until the idle deadline and there is no marker: the trainer is lost");
                return self.failed.clone().map_or(End::Lost, |failed| End::Marker(Box::new(failed)));
            }
            let idle_ends = idle_ends.filter(|at| *at > now);
            self.step([waits_until, drain_at, idle_ends].into_iter().flatten().min()).await;
        }
    }

    /// Drains, proves and writes the verdict; `None` when `marker` turned out not to be the last word.
    async fn end(&mut self, outcome: Outcome, marker: Option<&Marker>) -> Option<Ending> {
        let deadline = self.config.deadline.map(|deadline| clock::now() + deadline);
        let deadline = [deadline, self.grace_ends].into_iter().flatten().min();
        // The volume's clock may be ahead of ours.
        let ended_at_ns = marker.map_or(i64::MIN, |marker| marker.stat.ctime_ns).max(clock::wall_ns());
        self.drain(ended_at_ns, deadline).await;
        if self.stop.is_none()
            && let Some(marker) = marker
            && self.is_overtaken(marker)
        {
            tracing::warn!(marker = marker.kind.file_name(), "the end marker is gone or another one: following on");
            self.follow_on();
            return None;
        }
        Some(self.prove(outcome, marker, ended_at_ns).await)
    }

    /// Whether the volume says something else by now than this marker did: a teardown that crashed after DONE, a trainer
    /// that was started again.
    fn is_overtaken(&mut self, marker: &Marker) -> bool {
        match crate::marker::read(&self.config.source) {
            Ok(Some(now)) if now.identity == marker.identity => false,
            Ok(Some(now)) if !self.passed.contains(&now.identity) => {
                self.marker = Some(now);
                true
            }
            Ok(_) => {
                self.marker_gone = true;
                true
            }
            // It was there a moment ago; what can't be read now changes nothing.
            Err(_) => false,
        }
    }

    /// The grace is nearly over: sends what is there, complete or not, and says that the run was interrupted. `None` when
    /// the end marker came meanwhile.
    async fn interrupt(&mut self) -> Option<Ending> {
        let ended_at_ns = clock::wall_ns();
        self.drain(ended_at_ns, self.grace_ends).await;
        if self.stop.is_none() && self.marker.is_some() && !self.is_late() {
            return None;
        }
        Some(self.prove(Outcome::Interrupted, None, ended_at_ns).await)
    }

    /// After FAILED: whether a new attempt begins before the wait is over. That the marker goes, or another comes, shows it.
    /// Files that change may be the failed attempt's last words: they go up, and the wait begins anew.
    async fn wait_for_attempt(&mut self, config: &WatchConfig, failed: Marker) -> bool {
        let until = clock::now() + config.restart_wait;
        tracing::warn!(seconds = config.restart_wait.as_secs(), "the trainer failed: waiting for a new attempt");
        self.follow_on();
        self.metrics.stage(Stage::Follow);
        self.passed.push(failed.identity);
        // It may have been looked at once more while it was drained.
        self.marker = self.marker.take().filter(|marker| marker.identity != failed.identity);
        self.marker_gone = false;
        loop {
            let is_over = clock::now() >= until;
            if self.stop.is_some() || self.stop_signal.is_some() {
                return false;
            }
            if self.marker.is_some() || self.marker_gone || is_over && self.is_overtaken(&failed) {
                tracing::info!("a new attempt began");
                self.clear_verdict().await;
                return true;
            }
            if !self.pending.is_empty() {
                tracing::info!("files change after FAILED: following on");
                self.failed = Some(failed);
                self.clear_verdict().await;
                return true;
            }
            if is_over {
                return false;
            }
            self.step(Some(until)).await;
        }
    }

    /// Gives the head back, whatever happened; a head that is not ours any more is left alone.
    pub(super) async fn leave(&mut self, ending: Ending) -> Ending {
        self.metrics.stage(Stage::Exit);
        self.patience.set(Until::Deadline(clock::now() + LAST_WORDS));
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
