//! Prove: the bucket's own listing must say what the journal says, for every file that the last scan saw. Then the
//! manifest, the head's swap, and the marker last of all.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use crate::clock;
use crate::digest::Sha256;
use crate::disk::ReadFile;
use crate::exit::{Ending, ExitCode};
use crate::head::{LeaseError, Outcome, RunEnd};
use crate::journal::{Ended, Journal, Uploaded};
use crate::key::Key;
use crate::manifest::{Absent, Facts, ManifestWriter, MarkerFacts, TreeDigest};
use crate::marker::{Marker, MarkerKind};
use crate::stage::Stage;
use crate::store::inventory::{self, compare_listing};
use crate::store::retry::Until;
use crate::store::{
    Body, BodySource, Condition, ETag, ErrorKind, Listed, SharedStore, StoreError, WriteOptions, Written, put_intact,
};

use super::recover::Remote;
use super::{Engine, LAST_WORDS, Trouble, recover};

/// How often a difference is mended before it is reported.
const ROUNDS: u32 = 3;

/// What a listing shows other than it should.
#[derive(Debug)]
pub(super) struct Difference {
    /// The file.
    pub key: Key,
    /// What is there instead; `None`: nothing.
    pub listed: Option<Listed>,
}

/// Compares `present` (sorted) with the bucket's listing: key, size and ETag must be what the writes returned. `other` gets
/// the objects beside them, more than once where the prefix is listed again.
pub(super) async fn compare(
    store: &SharedStore,
    journal: &Journal,
    present: &[Key],
    mut other: impl FnMut(Listed),
) -> Result<Vec<Difference>, StoreError> {
    let names: Vec<&str> = present.iter().map(Key::as_str).collect();
    let is_same = |_, listed: &Listed| {
        let up = journal.get(listed.key.as_str());
        up.is_some_and(|up| up.stat.size == listed.size_bytes && up.etag == listed.etag)
    };
    let (mut differences, _) = compare_listing(store, &names, true, is_same, &mut other).await?;
    if !differences.is_empty() {
        // Before a difference counts, it must also show in one listing from front to back.
        (differences, _) = compare_listing(store, &names, false, is_same, &mut other).await?;
    }
    let of = |inventory::Difference { index, listed }| Difference { key: present[index].clone(), listed };
    Ok(differences.into_iter().map(of).collect())
}

/// The digest of everything that a run ends with: equal digests mean equal trees. Both lists are sorted.
pub(super) fn tree_digest<'a>(
    journal: &Journal,
    present: &[Key],
    links: impl Iterator<Item = (&'a Key, &'a Key)>,
) -> Sha256 {
    let mut tree = TreeDigest::default();
    for key in present {
        if let Some(up) = journal.get(key.as_str()) {
            tree.file(key, up.stat.size, &up.digest);
        }
    }
    for (key, target) in links {
        tree.link(key, target);
    }
    tree.finish()
}

impl Engine {
    /// Proves that everything present is in the bucket, mending what isn't; then writes the verdict.
    ///
    /// `outcome` is what the run ends with if nothing is missing. Returns how the process should end; the head stays ours.
    pub(super) async fn prove(&mut self, outcome: Outcome, marker: Option<&Marker>, ended_at_ns: i64) -> Ending {
        let mut ending = self.mend_and_prove(outcome, marker, ended_at_ns).await;
        if matches!(ending.code, ExitCode::Incomplete | ExitCode::Differs) {
            // Whatever else went wrong, a trainer's failure is what the caller must know.
            match outcome {
                Outcome::Failed => ending.code = ExitCode::TrainerFailed,
                Outcome::Lost => ending.code = ExitCode::TrainerLost,
                Outcome::Succeeded | Outcome::Interrupted | Outcome::Synced => {}
            }
        }
        ending
    }

    async fn mend_and_prove(&mut self, outcome: Outcome, marker: Option<&Marker>, ended_at_ns: i64) -> Ending {
        if self.is_late() {
            self.patience.set(Until::Deadline(clock::now() + LAST_WORDS));
        }
        for round in 1.. {
            self.metrics.stage(Stage::Prove);
            if let Some(ending) = self.stop.take() {
                return ending.with_details(self.missing_lines());
            }
            self.present.sort_unstable();
            self.present.dedup();
            self.list_what_never_came_up();
            let compared = compare(&self.store, &self.journal, &self.present, drop).await;
            let differences = match compared {
                Ok(differences) => self.look_closer(differences).await,
                Err(error) => Err(error),
            };
            let differences = match differences {
                Ok(differences) => differences,
                Err(error) => return Ending::from_store_error(&error).with_details(self.missing_lines()),
            };
            if differences.is_empty() {
                break;
            }
            if round == ROUNDS || self.is_late() {
                let lines = differences.iter().map(|d| format!("{}: {}", d.key, describe(d))).collect();
                return Ending::new(ExitCode::Differs, "the bucket does not hold what was sent")
                    .with_details(lines)
                    .with_hint("somebody else changes objects below this prefix; give the job a prefix of its own");
            }
            for difference in differences {
                tracing::warn!(path = %difference.key, "in the bucket {}: sending it again", describe(&difference));
                self.journal.forget(difference.key.as_str());
                if let Some(listed) = difference.listed {
                    let remote = Remote { size_bytes: listed.size_bytes, etag: listed.etag, digest: None };
                    self.remote.insert(difference.key, remote);
                }
            }
            self.drain(ended_at_ns, self.deadline).await;
        }
        match self.write_verdict(outcome, marker).await {
            Ok(ending) => ending,
            Err(LeaseError::Store(error)) => Ending::from_store_error(&error).with_details(self.missing_lines()),
            Err(error) => Ending::from_lease_error(&error),
        }
    }

    /// Asks those objects themselves whose listing has the right length and another tag; what holds what was sent is no
    /// difference, and goes by its own tag from now on.
    async fn look_closer(&mut self, differences: Vec<Difference>) -> Result<Vec<Difference>, StoreError> {
        let mut left = Vec::new();
        for difference in differences {
            let up = self.journal.get(difference.key.as_str());
            let same_size = difference.listed.as_ref().zip(up).filter(|(listed, up)| listed.size_bytes == up.stat.size);
            let Some(up) = same_size.map(|(_, up)| up.clone()) else {
                left.push(difference);
                continue;
            };
            match self.uploader.is_intact(&difference.key, &up).await? {
                Some(etag) if etag == up.etag => {}
                Some(etag) => self.journal.record(difference.key, Uploaded { etag, ..up }),
                None => left.push(difference),
            }
        }
        Ok(left)
    }

    /// What the last scan saw and what is not up as it was seen is missing, whoever forgot to say so; only the rest is
    /// proven.
    fn list_what_never_came_up(&mut self) {
        let (journal, missing, scan) = (&self.journal, &mut self.missing, self.scanning.last);
        self.present.retain(|key| {
            let is_up = journal.get(key.as_str()).is_some();
            if !is_up {
                let trouble = || Trouble { why: "not uploaded".to_owned(), scan };
                missing.entry(key.to_string()).or_insert_with(trouble);
            }
            is_up && !missing.contains_key(key.as_str())
        });
    }

    /// Manifest, then the head's swap, then the marker: each only if the one before is there.
    async fn write_verdict(&mut self, outcome: Outcome, marker: Option<&Marker>) -> Result<Ending, LeaseError> {
        let complete = self.missing.is_empty();
        if complete {
            self.sweep_uploads().await;
        }
        // A marker in the bucket says that everything is there; where it isn't, there is none, and the manifest tells.
        let outcome = match outcome {
            Outcome::Succeeded | Outcome::Synced if !complete => Outcome::Interrupted,
            other => other,
        };
        let (etag, tree) = self.write_manifest(outcome, marker).await?;
        let end = RunEnd {
            outcome,
            manifest: etag.clone(),
            marker: marker.map(|m| m.identity),
            pod_uid: self.config.pod_uid.clone(),
            at: clock::timestamp(),
        };
        let in_head = end.clone();
        self.hold.update(move |head| head.ended = Some(in_head)).await?;
        if let Some(marker) = marker.filter(|m| complete || m.kind == MarkerKind::Failed) {
            let path = self.config.source.join(marker.kind.file_name());
            put_over(&self.store, &marker.kind.key(), marker_body(marker, path).await?).await?;
        }
        self.run_end = Some(end);
        self.verdict_stands = true;
        self.marker_gone = false;
        self.journal.set_ended(Some(Ended { run: self.run, manifest_etag: etag, tree, outcome }));
        self.journal.flush();
        Ok(self.ending(outcome))
    }

    /// Throws away what uploads of files that are gone left in the store: nobody will go on with them.
    async fn sweep_uploads(&mut self) {
        let left: Vec<_> = self.journal.uploads().map(|(key, upload)| (key.clone(), upload.id.clone())).collect();
        for (key, id) in left {
            match self.store.abort(&key, &id).await {
                Ok(()) => self.journal.end_upload(key.as_str()),
                Err(error) => tracing::warn!(path = %key, %error, "an unfinished upload could not be thrown away"),
            }
        }
    }

    async fn write_manifest(
        &mut self,
        outcome: Outcome,
        marker: Option<&Marker>,
    ) -> Result<(ETag, Sha256), LeaseError> {
        let head = self.hold.head().await?;
        let facts = Facts {
            schema: crate::manifest::SCHEMA,
            run: self.run,
            generation: head.generation,
            outcome,
            holder: head.holder.unwrap_or_else(|| recover::holder(&self.config, &self.journal)),
            marker: marker.map(MarkerFacts::from),
            started_at: self.started_at.clone(),
            ended_at: clock::timestamp(),
            figures: self.metrics.snapshot().figures(),
        };
        let mut writer = ManifestWriter::new(&facts, self.present.len());
        for key in &self.present {
            if let Some(up) = self.journal.get(key.as_str()) {
                writer.file(key, up.stat.size, &up.digest, &up.etag, up.link.as_ref());
            }
        }
        for (key, (target, _)) in &self.links {
            writer.link(key, target);
        }
        let absent = |(path, trouble): (&String, &Trouble)| Absent { path: path.clone(), why: trouble.why.clone() };
        self.skipped.iter().map(absent).for_each(|entry| writer.skipped(&entry));
        self.missing.iter().map(absent).for_each(|entry| writer.missing(&entry));
        let finished = writer.finish(self.files_sent, self.bytes_sent);
        let written = put_over(&self.store, &crate::manifest::key(), Body::hashed(finished.bytes)).await?;
        Ok((written.etag, finished.tree))
    }

    fn ending(&self, outcome: Outcome) -> Ending {
        let files = self.present.len();
        let bytes: u64 = self.present.iter().filter_map(|k| self.journal.get(k.as_str())).map(|up| up.stat.size).sum();
        let what = format!(
            "{files} files, {} in {}, checked; {} files, {} sent",
            crate::config::units::show_size(bytes),
            self.store.url(),
            self.files_sent,
            crate::config::units::show_size(self.bytes_sent),
        );
        let missing = self.missing_lines();
        let summary = match missing.len() {
            0 => what,
            1 => format!("1 file is missing; {what}"),
            count => format!("{count} files are missing; {what}"),
        };
        let is_whole = missing.is_empty();
        let (code, word, hint) = match outcome {
            Outcome::Succeeded => (ExitCode::Proven, "succeeded", None),
            Outcome::Synced => (ExitCode::Proven, "synced", None),
            Outcome::Failed => (
                ExitCode::TrainerFailed,
                "the trainer failed",
                Some("the trainer's own log says why; what it left is kept"),
            ),
            Outcome::Lost => {
                let hint = "it was killed (out of memory?) or hangs: its log and `kubectl describe pod` tell";
                (ExitCode::TrainerLost, "the trainer is lost", Some(hint))
            }
            Outcome::Interrupted if is_whole => {
                let hint = "the run did not end: what was there is in the bucket, without DONE";
                (ExitCode::Incomplete, "interrupted", Some(hint))
            }
            Outcome::Interrupted => {
                let hint = "mend what the lines above say and run it again: only what is missing is sent";
                (ExitCode::Incomplete, "incomplete", Some(hint))
            }
        };
        Ending { hint: hint.map(str::to_owned), ..Ending::new(code, format!("{word}: {summary}")) }
            .with_details(missing)
    }
}

/// A marker's bytes: those that were read, or, of one that is too large to be a document, the file's own.
async fn marker_body(marker: &Marker, path: PathBuf) -> Result<Body, StoreError> {
    if marker.is_whole() {
        return Ok(Body::hashed(marker.bytes.clone()));
    }
    let (seen, name) = (marker.stat, marker.kind.file_name());
    let read = move || {
        let file = ReadFile::open(&path)?;
        let sha256 = if file.opened() == seen { file.sha256(0, seen.size)? } else { None };
        Ok::<_, io::Error>(sha256.map(|sha256| (file, sha256)))
    };
    match tokio::task::spawn_blocking(read).await.map_err(io::Error::other).flatten() {
        Ok(Some((file, sha256))) => {
            let source = BodySource::File { file: Arc::new(file), offset: 0 };
            Ok(Body { source, len_bytes: seen.size, sha256 })
        }
        Ok(None) => {
            Err(StoreError::new(ErrorKind::Missing, "PutObject", name, "the end marker changed while it was sent"))
        }
        Err(error) => Err(StoreError::new(ErrorKind::Missing, "PutObject", name, format!("the end marker: {error}"))),
    }
}

/// Writes a control object over whatever is there: the head decides who may.
async fn put_over(store: &SharedStore, key: &Key, body: Body) -> Result<Written, StoreError> {
    let options = WriteOptions { content_type: Some("application/json"), ..WriteOptions::when(Condition::None) };
    put_intact(store.as_ref(), key, body, options).await
}

fn describe(difference: &Difference) -> String {
    match &difference.listed {
        None => "it is not there".to_owned(),
        Some(listed) => format!("there is another version ({} bytes, ETag {})", listed.size_bytes, listed.etag),
    }
}
