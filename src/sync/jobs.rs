//! Jobs: what may begin, and what follows from how it ended.
//!
//! Invariant: a job's end is the only place where the journal learns that a file is up.

use super::*;

/// How many files of each lane go at a time: small ones wait for answers, large ones for buffers.
const LANES: [usize; 2] = [16, 8];

/// While draining, a version that can't be read whole this often is given up.
const UNSTEADY_READS: u32 = 5;

impl Engine {
    /// Begins what may begin: up to a bounded number of jobs a lane.
    pub(super) fn dispatch(&mut self) {
        if self.stop.is_some() || self.verdict_stands {
            return;
        }
        for (lane, &limit) in LANES.iter().enumerate() {
            while self.pending.sending(lane) < limit {
                let Some((key, pending)) = self.pending.start(lane) else { break };
                let job = self.job(key.clone(), &pending);
                let uploader = Arc::clone(&self.uploader);
                self.jobs.spawn(async move {
                    let outcome = uploader.run(job).await;
                    (key, outcome)
                });
            }
        }
    }

    pub(super) fn job(&self, key: Key, pending: &Pending) -> Job {
        let known = self.journal.get(key.as_str());
        let remote = self.remote.get(key.as_str());
        let mut link = None;
        let rebuild = remote.filter(|remote| remote.size_bytes == pending.stat.size);
        let first = match (&pending.action, known) {
            (Action::Upload { .. }, _) if let Some(there) = rebuild => {
                First::Rebuild { etag: there.etag.clone(), digest: there.digest.clone() }
            }
            (Action::Upload { compare: true, .. }, Some(known)) => First::Compare(known.clone()),
            (Action::LookAgain, Some(known)) => First::Recheck(known.clone()),
            (Action::Copy { target, stat }, _) => {
                link = Some(target.clone());
                match self.journal.get(target.as_str()) {
                    Some(up) if up.stat.same_version(stat) => {
                        First::Copy { source: target.clone(), uploaded: up.clone() }
                    }
                    _ => First::Send,
                }
            }
            _ => First::Send,
        };
        // What a listing showed is newer than what the journal says.
        let there = remote.map(|remote| remote.etag.clone()).or_else(|| known.map(|known| known.etag.clone()));
        Job {
            path: self.looker.tree().path(link.as_ref().unwrap_or(&key)),
            stat: pending.stat,
            growing: pending.growing && !self.rules.draining,
            first,
            there,
            resume: self.journal.upload(key.as_str()).cloned(),
            link,
            last_look: self.rules.draining,
            key,
        }
    }

    pub(super) fn on_job(&mut self, done: Result<(Key, Outcome), tokio::task::JoinError>) {
        // A job tells its progress before it ends: take that in first.
        while let Ok(progress) = self.progress.try_recv() {
            self.on_progress(progress);
        }
        let (key, outcome) = match done {
            Ok(done) => done,
            Err(error) if error.is_cancelled() => return,
            Err(error) => return self.stop_with(Ending::fault(format!("an upload ended unexpectedly: {error}"))),
        };
        let Some((pending, again)) = self.pending.finish(&key) else { return };
        self.metrics.progress_beat();
        match outcome {
            Outcome::Sent(uploaded) => {
                let took = pending.noticed.elapsed();
                if let Some(closed) = pending.closed {
                    self.metrics.lag(closed.elapsed());
                }
                let bytes = uploaded.stat.size;
                self.metrics.file_done(bytes);
                self.files_sent += 1;
                self.bytes_sent += bytes;
                let action = if uploaded.link.is_some() { "copied" } else { "uploaded" };
                tracing::info!(path = %key, bytes, ms = took.as_millis() as u64, "{action}");
                self.is_up(key, uploaded, again);
            }
            Outcome::Same(uploaded) => {
                self.metrics.file_unchanged(1);
                tracing::debug!(path = %key, bytes = uploaded.stat.size, "already there");
                self.is_up(key, uploaded, again);
            }
            Outcome::Changed if self.rules.draining && self.is_unsteady(&key, pending.stat) => {
                self.give_up(key, "reads as changed, again and again, though nothing says that it changes".to_owned());
            }
            Outcome::Changed => {
                tracing::debug!(path = %key, "changed while it was read: again later");
                self.dirty = true;
                self.looker.look(key, again.unwrap_or(Evidence::Seen));
            }
            Outcome::Gone => {
                tracing::info!(path = %key, "gone before it was uploaded");
                self.abort_upload(&key);
                self.looker.look(key, Evidence::Seen);
            }
            Outcome::Unreadable(why) => self.give_up(key, why),
            Outcome::Superseded(by) => self.stop_with(superseded(&by)),
            Outcome::Failed(error) if error.kind == ErrorKind::Stop => {
                self.stop_with(Ending::from_store_error(&error));
            }
            Outcome::Failed(error) => self.give_up(key, error.to_string()),
        }
    }

    /// Whether the very same version could not be read whole several times. One that goes on changing has newer versions,
    /// and `see` gives it up when it is too late.
    pub(super) fn is_unsteady(&mut self, key: &Key, stat: Stat) -> bool {
        let (version, times) = self.unsteady.entry(key.clone()).or_insert((stat, 0));
        *times = if version.same_version(&stat) { *times + 1 } else { 1 };
        *version = stat;
        *times >= UNSTEADY_READS
    }

    /// What was sent, or was there already, is what the file was.
    pub(super) fn is_up(&mut self, key: Key, uploaded: crate::journal::Uploaded, again: Option<Evidence>) {
        self.missing.remove(key.as_str());
        self.remote.remove(key.as_str());
        // One that was begun when the file was larger.
        self.abort_upload(&key);
        if uploaded.young_parts > 0 && !self.rules.draining {
            let young_until_ns = uploaded.stat.ctime_ns.saturating_add(YOUNG_NS);
            let left_ns = young_until_ns.saturating_sub(clock::wall_ns()).clamp(0, YOUNG_NS).unsigned_abs();
            self.pending.look_at(key.clone(), clock::now() + Duration::from_nanos(left_ns));
        } else if uploaded.partial {
            // It grew, and goes on growing: the next look comes by itself only if it makes an event.
            self.pending.look_at(key.clone(), clock::now() + self.pending.settle());
        }
        self.journal.record(key.clone(), uploaded);
        if let Some(evidence) = again {
            self.looker.look(key.clone(), evidence);
        }
        for link in self.links_waiting.remove(&key).unwrap_or_default() {
            self.looker.look(link, Evidence::Settled);
        }
    }

    pub(super) fn give_up(&mut self, key: Key, why: String) {
        self.metrics.file_failed();
        self.trouble(key.as_str(), why);
        self.given_up.insert(key);
    }

    pub(super) fn on_progress(&mut self, progress: Progress) {
        match progress {
            Progress::Begun(key, upload) => {
                self.journal.begin_upload(key, upload);
                self.next_sync.get_or_insert(clock::now() + SYNC_INTERVAL / 10);
            }
            Progress::Part(key, part, sha256) => {
                self.journal.part_done(key.as_str(), part, sha256);
                self.metrics.progress_beat();
            }
            Progress::Over(key) => self.journal.end_upload(key.as_str()),
        }
    }

    /// Throws away what an upload of a file that is gone left in the store.
    pub(super) fn abort_upload(&mut self, key: &Key) {
        if self.pending.get(key.as_str()).is_some() {
            return;
        }
        if let Some(upload) = self.journal.upload(key.as_str()) {
            let (store, key, id) = (Arc::clone(&self.store), key.clone(), upload.id.clone());
            self.journal.end_upload(key.as_str());
            self.aborts.spawn(async move {
                if let Err(error) = store.abort(&key, &id).await {
                    tracing::warn!(path = %key, %error, "an unfinished upload could not be thrown away");
                }
            });
        }
    }
}
