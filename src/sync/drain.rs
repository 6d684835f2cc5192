//! Drain: sends what is left, without waiting for anything to settle, until a scan equals what was sent.

use crate::clock::{self, Instant};
use crate::stage::Stage;
use crate::store::retry::Until;

use super::{Engine, Trouble};

impl Engine {
    /// Drains, until `deadline` at the latest; a first signal brings that forward. Changes later than `ended_at_ns` (wall
    /// clock) plus the quiet time are not waited for; where the volume's clock is ahead of ours, what the first scan finds
    /// there moves that moment. What could not be sent is in `missing` afterwards; what must be up is in `present`.
    pub(super) async fn drain(&mut self, ended_at_ns: i64, deadline: Option<Instant>) {
        self.metrics.stage(Stage::Drain);
        self.deadline = deadline;
        self.patience.set(deadline.map_or(Until::Forever, Until::Deadline));
        self.rules.draining = true;
        let quiet_ns = i64::try_from(self.config.quiet.as_nanos()).unwrap_or(i64::MAX);
        self.quiet_until_ns = None;
        self.newest_change_ns = ended_at_ns;
        self.given_up.clear();
        self.unsteady.clear();
        loop {
            self.scanning.again = None;
            while self.scanning.running.is_some() && !self.is_over() {
                // A scan that began before the end marker was seen proves nothing; wait it out.
                self.step(self.deadline).await;
            }
            self.dirty = false;
            self.rescan("drain");
            self.dispatch();
            while (self.scanning.running.is_some() || !self.pending.is_empty()) && !self.is_over() {
                if self.scanning.running.is_none() {
                    self.quiet_until_ns.get_or_insert(self.newest_change_ns.saturating_add(quiet_ns));
                }
                if self.verdict_stands && !self.pending.is_empty() {
                    // Proven before, and changed since.
                    self.clear_verdict().await;
                }
                self.step(self.deadline).await;
            }
            self.quiet_until_ns.get_or_insert(self.newest_change_ns.saturating_add(quiet_ns));
            let is_settled = self.scanning.running.is_none() && self.pending.is_empty() && !self.dirty;
            if is_settled && self.stop.is_none() {
                return;
            }
            if self.is_over() {
                self.cut().await;
                return;
            }
        }
    }

    /// Back to following, for a new attempt.
    pub(super) fn follow_on(&mut self) {
        self.rules.draining = false;
        self.given_up.clear();
        self.present = Vec::new();
        self.deadline = None;
        self.patience.set(self.grace_ends.map_or(Until::Forever, Until::Deadline));
    }

    /// Whether the time for sending is over.
    pub(super) fn is_late(&self) -> bool {
        self.deadline.is_some_and(|at| clock::now() >= at)
    }

    fn is_over(&self) -> bool {
        self.stop.is_some() || self.is_late()
    }

    /// The time is over: ends the jobs that run and lists what they and the rest leave undone.
    async fn cut(&mut self) {
        self.jobs.abort_all();
        while let Some(done) = self.jobs.join_next().await {
            // Some have ended in time.
            self.on_job(done);
        }
        while let Ok(progress) = self.progress.try_recv() {
            self.on_progress(progress);
        }
        let why = if self.is_late() { "not uploaded in time" } else { "not uploaded" };
        let left: Vec<_> = self.pending.iter().map(|(key, _)| key.clone()).collect();
        if self.scanning.running.is_some() || left.is_empty() {
            // Without a scan that found nothing to do nobody knows what else there is.
            let trouble =
                Trouble { why: "the last look at it did not end in time".to_owned(), scan: self.scanning.last };
            self.missing.insert(self.config.source.display().to_string(), trouble);
        }
        for key in left {
            self.pending.remove(&key);
            let trouble = Trouble { why: why.to_owned(), scan: self.scanning.last };
            self.missing.entry(key.to_string()).or_insert(trouble);
        }
        self.journal.flush();
    }
}
