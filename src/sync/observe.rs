//! Observe: from what was looked at to what is to be done about it.
//!
//! Invariant: whatever a look brings ends in exactly one of: unchanged, pending, a look later, skipped, recorded, missing.

use super::*;

impl Engine {
    /// One thing was looked at: decides what is to be done, and when.
    pub(super) fn observe(&mut self, look: Look, scan: Option<u64>, tick: u64) {
        let Look { found, evidence } = look;
        if let Some(kind) = MarkerKind::of(found.key.as_str()) {
            match &found.what {
                What::File(stat) => return self.observe_marker(kind, *stat, evidence),
                // Below that name the bucket says that a run has ended: nothing else may get it.
                What::FileLink { .. } | What::DirectoryLink { .. } | What::BadLink(_) => {
                    return self
                        .trouble(kind.file_name(), "a link is no end marker: it must be a regular file".to_owned());
                }
                What::Special(_) | What::Unreadable(_) => {}
            }
        }
        if let What::File(stat) = &found.what {
            // Also what nobody waits for is a sign of life: a large file that is still under its temporary name.
            let age_ns = clock::wall_ns().saturating_sub(stat.ctime_ns).max(0).unsigned_abs();
            let changed_at = clock::now().checked_sub(Duration::from_nanos(age_ns));
            self.last_change = changed_at.map_or(self.last_change, |at| at.max(self.last_change));
        }
        let known = self.journal.get(found.key.as_str());
        let target = match &found.what {
            What::FileLink { target, .. } => self.journal.get(target.as_str()),
            _ => None,
        };
        let action = decide(&found, known, target, &self.rules);
        let key = found.key;
        if self.rules.draining && scan.is_some() {
            match &action {
                Action::Missing(_) | Action::Skip(_) | Action::RecordLink { .. } => {}
                _ if self.given_up.contains(&key) => return self.still_missing(&key),
                _ => self.present.push(key.clone()),
            }
        }
        match action {
            Action::Unchanged => {
                self.missing.remove(key.as_str());
                self.waits_no_more(&key);
            }
            Action::LookAgain => {
                let known = self.journal.get(key.as_str()).expect("looked at again because the journal knows it");
                let (stat, young_until_ns) = (known.stat, known.stat.ctime_ns.saturating_add(YOUNG_NS));
                let left_ns = young_until_ns.saturating_sub(clock::wall_ns());
                if self.rules.draining || left_ns <= 0 {
                    self.see(key, Action::LookAgain, stat, Evidence::Settled, tick, scan);
                } else {
                    let left = Duration::from_nanos(left_ns.unsigned_abs().min(YOUNG_NS.unsigned_abs()));
                    self.pending.look_at(key, clock::now() + left);
                }
            }
            Action::Wait => {
                self.waits_no_more(&key);
                tracing::debug!(path = %key, "looks temporary: waits for the end marker");
            }
            Action::Skip(what) => {
                self.waits_no_more(&key);
                let trouble = Trouble { why: what, scan: self.scanning.last };
                if self.skipped.insert(key.to_string(), trouble.clone()).is_none() {
                    tracing::warn!(path = %key, why = %trouble.why, "skipped");
                }
            }
            Action::RecordLink { target } => {
                self.waits_no_more(&key);
                self.links.insert(key, (target, self.scanning.last));
            }
            Action::Missing(why) => {
                self.waits_no_more(&key);
                self.trouble(key.as_str(), why);
            }
            // A scan may have seen a pointer later than it looked around it. After the end marker nothing new comes.
            Action::Upload { rank: Rank::Pointer, .. } if scan.is_some() && !self.rules.draining => {
                self.looker.look(key, evidence);
            }
            Action::Upload { stat, .. } => self.see(key, action, stat, evidence, tick, scan),
            Action::Copy { ref target, stat } => {
                let up = self.journal.get(target.as_str()).is_some_and(|up| up.stat.same_version(&stat));
                let never = self.looker.tree().ignores(target.as_str()) || MarkerKind::of(target.as_str()).is_some();
                if up || never {
                    self.see(key, action, stat, evidence, tick, scan);
                } else if self.rules.draining && self.missing.contains_key(target.as_str()) {
                    self.waits_no_more(&key);
                    self.trouble(key.as_str(), format!("it is a link to {target}, which can't be uploaded"));
                } else {
                    // Its target goes first; what is left then is a copy on the server.
                    self.waits_no_more(&key);
                    self.dirty = true;
                    let waiting = self.links_waiting.entry(target.clone()).or_default();
                    if !waiting.contains(&key) {
                        waiting.push(key);
                    }
                }
            }
        }
    }

    /// What was to be sent under this name is something else now; a job that is at it finds out by itself.
    pub(super) fn waits_no_more(&mut self, key: &Key) {
        if self.pending.get(key.as_str()).is_some_and(|p| !matches!(p.phase, settle::Phase::Sending { .. })) {
            self.pending.remove(key);
        }
    }

    /// A file differs from what is up.
    pub(super) fn see(
        &mut self,
        key: Key,
        action: Action,
        stat: Stat,
        evidence: Evidence,
        tick: u64,
        scan: Option<u64>,
    ) {
        let now = clock::now();
        self.last_change = now;
        if self.rules.draining {
            if self.given_up.contains(&key) {
                return self.still_missing(&key);
            }
            self.newest_change_ns = self.newest_change_ns.max(stat.ctime_ns);
            if self.quiet_until_ns.is_some_and(|until| stat.ctime_ns > until) {
                let quiet = self.config.quiet.as_secs_f32();
                self.trouble(key.as_str(), format!("still changes more than {quiet} s after the end"));
                self.pending.remove(&key);
                self.given_up.insert(key);
                return;
            }
            self.dirty = true;
        }
        let rank = Rank::of(&key);
        self.pending.see(&key, action, stat, rank, evidence, now, tick, scan, self.rules.draining);
    }

    pub(super) fn observe_marker(&mut self, kind: MarkerKind, stat: Stat, evidence: Evidence) {
        // An old one is complete; a young one that nobody closed yet is looked at again. The volume's clock may be ahead.
        let age_ns = clock::wall_ns().saturating_sub(stat.ctime_ns);
        let (settle, now) = (self.pending.settle(), clock::now());
        if evidence == Evidence::Seen && age_ns < i64::try_from(settle.as_nanos()).unwrap_or(i64::MAX) {
            let first = self.markers_seen.get(&kind).filter(|(seen, _)| seen.same_version(&stat)).map(|(_, at)| *at);
            if first.is_none_or(|at| now.duration_since(at) < settle) {
                self.markers_seen.insert(kind, (stat, first.unwrap_or(now)));
                self.pending.look_at(kind.key(), first.unwrap_or(now) + settle);
                return;
            }
        }
        self.markers_seen.remove(&kind);
        match crate::marker::read(&self.config.source) {
            Ok(Some(marker)) if self.passed.contains(&marker.identity) => {}
            Ok(Some(marker)) => {
                let stale = crate::marker::is_stale(&marker, self.run_end.as_ref(), self.config.pod_uid.as_deref());
                if let Some(why) = stale {
                    tracing::warn!(path = kind.file_name(), why, "stale end marker: following past it");
                    self.passed.push(marker.identity);
                } else {
                    self.marker = Some(marker);
                }
            }
            Ok(None) => {}
            Err(error) => self.trouble(kind.file_name(), format!("the end marker can't be read: {error}")),
        }
    }

    pub(super) fn on_gone(&mut self, key: &Key) {
        self.links.remove(key);
        self.skipped.remove(key.as_str());
        self.missing.remove(key.as_str());
        let waiting = self.pending.get(key.as_str()).is_some_and(|p| !matches!(p.phase, settle::Phase::Sending { .. }));
        if waiting && self.pending.remove(key).is_some() {
            tracing::info!(path = %key, "gone before it was uploaded");
        }
        if MarkerKind::of(key.as_str()).is_some() {
            self.last_change = clock::now();
            self.marker_gone = true;
        }
        self.abort_upload(key);
    }

    pub(super) fn on_scan_ended(&mut self, id: u64, unwatched: Option<inotify::WatchError>) {
        self.scanning.running = None;
        let vanished: Vec<Key> = self
            .pending
            .iter()
            .filter(|(_, p)| p.scan < id && !matches!(p.phase, settle::Phase::Sending { .. }))
            .map(|(key, _)| key.clone())
            .collect();
        for key in vanished {
            // Seen by a hint after the scan had passed, or gone: one more look tells.
            self.looker.look(key, Evidence::Seen);
        }
        // What was given up while draining is not looked at any more, and stays missing.
        let (draining, given_up) = (self.rules.draining, &self.given_up);
        self.missing.retain(|path, trouble| trouble.scan >= id || draining && given_up.contains(path.as_str()));
        self.skipped.retain(|_, trouble| trouble.scan >= id);
        self.links.retain(|_, (_, scan)| *scan >= id);
        // What an earlier process began of files that are gone, or that need no upload any more.
        let open = self.journal.uploads().map(|(key, _)| key.clone()).filter(|key| !self.given_up.contains(key));
        for key in open.collect::<Vec<_>>() {
            self.abort_upload(&key);
        }
        while self.aborts.try_join_next().is_some() {}
        if let Some(error) = unwatched
            && self.watched
        {
            self.watched = false;
            self.say_unwatched(&error);
        }
        self.next_rescan = self.rescan_interval.map(|interval| clock::now() + interval);
        self.metrics.progress_beat();
        if let Some(why) = self.scanning.again.take() {
            self.rescan(why);
        }
    }

    pub(super) fn say_unwatched(&mut self, error: &inotify::WatchError) {
        let polling = Duration::from_secs(10);
        self.rescan_interval = self.rescan_interval.map(|interval| interval.min(polling));
        let hint = match error {
            inotify::WatchError::Limit => "raise fs.inotify.max_user_watches or max_user_instances on the node",
            _ => "changes are found by scanning alone",
        };
        tracing::warn!(?error, hint, "inotify can't watch every directory: scanning every {} s", polling.as_secs());
    }

    /// Begins a full scan, or another one when the running one ends.
    pub(super) fn rescan(&mut self, why: &'static str) {
        if self.scanning.running.is_some() {
            self.scanning.again = Some(why);
            return;
        }
        if why == "overflow" {
            self.metrics.overflow();
        }
        tracing::debug!(why, "scan");
        // Only what this scan sees counts as present.
        self.present.clear();
        self.metrics.rescans(why);
        self.tick += 1;
        self.scanning.tick = self.tick;
        self.scanning.last += 1;
        self.scanning.running = Some(self.scanning.last);
        self.looker.scan(self.scanning.last);
    }
}
