//! Verify: what the head and the manifest say, against the bucket's listing, its bytes, and the disk.
//!
//! ```text
//! head ── ended ── manifest ── listing (`bucket`) ── every byte (`bucket`, deep) ── SRC (`local`) ── report
//!      └─ open ─── SRC (`local`) against each object's own checksum (`unended`) ──────────────────────┘
//! ```
//!
//! Invariants: nothing is written; a difference counts only if head and manifest are still the same when it was found; what
//! could not be compared is never a match.

mod bucket;
mod local;
mod report;
mod unended;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use crate::clock::{self, Duration, Instant};
use crate::config::Filter;
use crate::exit::{Ending, ExitCode, Signal};
use crate::head::{Head, Lease, Outcome};
use crate::manifest::{Manifest, ManifestError};
use crate::marker::MarkerKind;
use crate::metrics::Metrics;
use crate::stage::Stage;
use crate::store::retry::{Patience, Until};
use crate::store::{ErrorKind, SharedStore, StoreError};
use crate::sync::Outside;

use self::report::Findings;

pub use self::report::{Counts, Entry, HeadFacts, ManifestFacts, Overall, Report, Verdict};

/// A store that answers nothing for this long is given up: nobody waits here for a training run.
pub const GIVE_UP: Duration = Duration::from_secs(60);

/// How often patience is renewed: each time wakes every request that waits.
const RENEW: Duration = Duration::from_secs(5);

/// A head that changes while it is verified is verified again this often.
const ROUNDS: u32 = 3;

/// What to compare.
#[derive(Clone, Debug, Default)]
pub struct VerifyConfig {
    /// SRC, absolute, if the disk is compared too.
    pub source: Option<PathBuf>,
    /// What of SRC is none of the bucket's business: the same globs as for `watch` and `sync`.
    pub filter: Filter,
    /// Whether every object is downloaded and hashed.
    pub deep: bool,
    /// Bytes of memory that the process as a whole is meant to stay within.
    pub memory_bytes: u64,
}

/// Compares, and says how the process should end: 0 everything matches, 3 there is nothing to compare with, 4 a difference.
/// `on_entry` is told of every entry that was compared, in the order of their paths, once all is known.
pub async fn verify(config: VerifyConfig, outside: Outside, on_entry: impl FnMut(&Entry) + Send) -> (Report, Ending) {
    let Outside { store, patience, metrics, mut signals } = outside;
    metrics.stage(Stage::Prove);
    let alive = Arc::new(Alive::new(patience, metrics));
    let verification = Verification { config, store, alive };
    let compared = tokio::select! {
        compared = verification.run() => compared,
        Ok(_) = signals.wait_for(|signal| *signal != Signal::Run) => {
            Err(Ending::new(ExitCode::Incomplete, "stopped before everything was compared"))
        }
    };
    match compared {
        Ok(compared) => compared.conclude(&verification, on_entry),
        Err(ending) => (Report::default(), ending),
    }
}

/// What is compared with what.
struct Verification {
    config: VerifyConfig,
    store: SharedStore,
    alive: Arc<Alive>,
}

/// What was found.
struct Compared {
    head: Head,
    /// What the entries were compared with; `None`: with the checksums of the objects themselves, or with nothing.
    manifest: Option<Manifest>,
    findings: Findings,
}

impl Verification {
    async fn run(&self) -> Result<Compared, Ending> {
        let mut round = 1;
        loop {
            let (head, etag) = self.head().await?.ok_or_else(|| self.no_head())?;
            let compared = self.compare(head).await?;
            if compared.findings.is_empty() || round == ROUNDS {
                return Ok(compared);
            }
            // A run that ends or begins meanwhile changes the ground under the comparison. A renewal does not.
            let now = self.head().await?;
            let same = |now: &Head| {
                let before = &compared.head;
                (now.run, &now.ended, now.archiving) == (before.run, &before.ended, before.archiving)
            };
            if now.is_some_and(|(now, now_etag)| now_etag == etag || same(&now)) {
                return Ok(compared);
            }
            tracing::info!("the head has changed meanwhile: comparing again");
            round += 1;
        }
    }

    async fn head(&self) -> Result<Option<(Head, crate::store::ETag)>, Ending> {
        let read = Lease::read(self.store.as_ref()).await.map_err(|error| Ending::from_lease_error(&error));
        self.alive.beat();
        read
    }

    fn no_head(&self) -> Ending {
        Ending::new(
            ExitCode::Incomplete,
            format!("there is no head below {}: nothing to verify against", self.store.url()),
        )
        .with_hint("is that the right prefix? `chiefsync sync SRC DEST` compares a directory with it and writes a head")
    }

    async fn compare(&self, head: Head) -> Result<Compared, Ending> {
        let ended = match (&head.ended, &self.config.source) {
            (Some(ended), _) => ended,
            (None, Some(source)) => {
                let findings = unended::compare(self, &head, source).await?;
                return Ok(Compared { head, manifest: None, findings });
            }
            (None, None) => return Err(self.open_run(&head)),
        };
        let mut findings = Findings::default();
        let name = crate::manifest::key();
        let manifest = match Manifest::read(self.store.as_ref(), &name).await {
            Ok(Some((manifest, etag))) if etag == ended.manifest => Some(manifest),
            Ok(Some((_, etag))) => {
                let why = format!("another version is there (ETag {etag}), and the head names {}", ended.manifest);
                findings.note(name.as_str(), Verdict::Differs, 0, why);
                None
            }
            Ok(None) => {
                let why = "the head says that the run has ended, and its manifest is not there".to_owned();
                findings.note(name.as_str(), Verdict::MissingRemotely, 0, why);
                None
            }
            Err(ManifestError::Store(error)) => return Err(failed(&error)),
            Err(error) => {
                return Err(
                    Ending::new(ExitCode::Differs, error.to_string()).with_hint(error.hint().unwrap_or_default())
                );
            }
        };
        self.alive.beat();
        let Some(manifest) = manifest else { return Ok(Compared { head, manifest, findings }) };
        bucket::compare(self, &manifest, &mut findings).await.map_err(|e| failed(&e))?;
        if let Some(source) = &self.config.source {
            local::compare(self, source, &manifest, &mut findings).await?;
        }
        for absent in &manifest.missing {
            findings.note(&absent.path, Verdict::MissingRemotely, 0, format!("never uploaded: {}", absent.why));
        }
        findings.skipped += manifest.skipped.len() as u64;
        Ok(Compared { head, manifest: Some(manifest), findings })
    }

    /// Without SRC there is nothing that an open run could be compared with.
    fn open_run(&self, head: &Head) -> Ending {
        let holder = head.holder.as_ref().map_or_else(
            || "and nobody holds the prefix: its last writer stopped before the end".to_owned(),
            |holder| format!("held by {holder}"),
        );
        Ending::new(ExitCode::Incomplete, format!("run {} is open, {holder}: there is no manifest yet", head.run))
            .with_hint("verify it when the run has ended, or give SRC to compare what is up so far with the disk")
    }
}

/// The marker that the bucket must have for this outcome; it may have no other.
fn promised_marker(outcome: Outcome) -> Option<MarkerKind> {
    match outcome {
        Outcome::Succeeded => Some(MarkerKind::Done),
        Outcome::Failed => Some(MarkerKind::Failed),
        Outcome::Lost | Outcome::Interrupted | Outcome::Synced => None,
    }
}

fn failed(error: &StoreError) -> Ending {
    Ending::from_store_error(error)
}

/// What an error about one object says about that object; errors about more than it are handed back.
fn verdict_of(error: StoreError) -> Result<(Verdict, String), StoreError> {
    match error.kind {
        ErrorKind::Missing => Ok((Verdict::MissingRemotely, "removed while it was verified".to_owned())),
        ErrorKind::Fenced => Ok((Verdict::Differs, "changed while it was verified".to_owned())),
        ErrorKind::Corrupt | ErrorKind::Refused => Ok((Verdict::Differs, format!("can't be read: {}", error.message))),
        ErrorKind::Retry(_) | ErrorKind::Stop | ErrorKind::Unsupported => Err(error),
    }
}

/// Signs of life: they renew the patience with the store, and drive the live view.
struct Alive {
    patience: Patience,
    metrics: Arc<Metrics>,
    state: Mutex<State>,
}

struct State {
    renewed: Instant,
    left_files: u64,
    left_bytes: u64,
    found: (u64, u64),
}

impl Alive {
    fn new(patience: Patience, metrics: Arc<Metrics>) -> Alive {
        let now = clock::now();
        patience.set(Until::Deadline(now + GIVE_UP));
        let state = Mutex::new(State { renewed: now, left_files: 0, left_bytes: 0, found: (0, 0) });
        Alive { patience, metrics, state }
    }

    /// The store answered.
    fn beat(&self) {
        self.change(|_| {});
    }

    /// So much is to be read.
    fn expect(&self, files: u64, bytes: u64) {
        self.change(|state| {
            state.left_files += files;
            state.left_bytes += bytes;
            state.found = (state.found.0 + files, state.found.1 + bytes);
        });
    }

    /// So many bytes of it were read.
    fn read(&self, bytes: u64) {
        self.metrics.sent(bytes);
        self.change(|state| state.left_bytes = state.left_bytes.saturating_sub(bytes));
    }

    /// A file is done with.
    fn file(&self) {
        self.metrics.file_unchanged(1);
        self.change(|state| state.left_files = state.left_files.saturating_sub(1));
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut state);
        self.metrics.found(state.found.0, state.found.1);
        self.metrics.queue(state.left_files, state.left_bytes);
        self.metrics.progress_beat();
        let now = clock::now();
        if now.saturating_duration_since(state.renewed) >= RENEW {
            state.renewed = now;
            self.patience.set(Until::Deadline(now + GIVE_UP));
        }
    }
}

#[cfg(test)]
mod tests;
