//! Preflight and Recover: from a configuration to an engine that may act.
//!
//! Invariants: nothing in the bucket is changed before the head is ours; what the journal doesn't know is rebuilt from the
//! bucket, by listing and digests, never by times.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::clock;
use crate::config::{Config, Destination};
use crate::digest::Digest;
use crate::disk;
use crate::exit::{Ending, ExitCode};
use crate::head::{Holder, Lease, RunEnd, TakeOptions, needs_archive};
use crate::journal::{Journal, JournalError};
use crate::key::{Key, Prefix};
use crate::manifest::{Manifest, ManifestError};
use crate::stage::Stage;
use crate::store::inventory::inventory;
use crate::store::probe::{self, Capabilities};
use crate::store::{ETag, SharedStore, StoreError};

use super::buffers::Buffers;
use super::commit::Hold;
use super::forecast::Forecast;
use super::look::Looker;
use super::plan::Rules;
use super::scan::Tree;
use super::settle::{PendingFiles, Times};
use super::upload::Uploader;
use super::{Engine, Outside, Scanning};

/// Jobs and the disk's events wait beyond this many: backpressure instead of memory.
const CHANNEL: usize = 256;

/// An object that is known from the bucket alone.
#[derive(Clone, Debug)]
pub(crate) struct Remote {
    /// Its length.
    pub size_bytes: u64,
    /// Its tag.
    pub etag: ETag,
    /// Its digest, where a manifest tells it of this very tag.
    pub digest: Option<Digest>,
}

/// Opens SRC: it must be a directory.
///
/// # Errors
/// How to end when it isn't.
pub(super) fn open_tree(config: &Config) -> Result<Tree, Ending> {
    let source = &config.source;
    let describe = |what: String, hint: &str| Ending::usage(format!("SRC {}: {what}", source.display()), hint);
    match disk::metadata(source) {
        Ok(meta) if meta.is_dir() => {}
        Ok(_) => return Err(describe("not a directory".into(), "SRC is the chief's output directory")),
        Err(error) => return Err(describe(error.to_string(), "is the output volume mounted into this container?")),
    }
    Tree::new(source, config.filter.clone()).map_err(|e| describe(e.to_string(), "SRC must be readable"))
}

/// Opens the journal of this destination, and says what was noticed about it.
///
/// # Errors
/// Exit 6 when another process of this machine has it.
pub(super) fn open_journal(config: &Config) -> Result<Journal, Ending> {
    match Journal::open(Some(&config.control), &config.destination.url()) {
        Ok(opened) => {
            for notice in opened.notices {
                tracing::warn!("{notice}");
            }
            Ok(opened.journal)
        }
        Err(error @ JournalError::Locked { .. }) => {
            Err(Ending::new(ExitCode::Fenced, error.to_string()).with_hint(error.hint()))
        }
    }
}

/// Asks the store what it really does; one that ignores conditions can't be fenced.
pub(super) async fn preflight(config: &Config, store: &SharedStore) -> Result<Capabilities, Ending> {
    let capabilities = probe::probe(store.as_ref()).await.map_err(|error| Ending::from_store_error(&error))?;
    tracing::info!(%capabilities, destination = %store.url(), "what the store does");
    if config.fence && !capabilities.can_fence() {
        return Err(Ending::usage(
            format!("{} ignores conditional writes: two writers could not be told apart", store.url()),
            "with --no-fence, only when nothing else ever writes to this prefix",
        ));
    }
    Ok(capabilities)
}

/// Who we are to the head.
pub(super) fn holder(config: &Config, journal: &Journal) -> Holder {
    Holder {
        id: journal.holder_id().to_owned(),
        host: rustix::system::uname().nodename().to_string_lossy().into_owned(),
        pod_uid: config.pod_uid.clone(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        since: clock::timestamp(),
    }
}

/// Takes the head.
pub(super) async fn take(config: &Config, store: &SharedStore, journal: &Journal) -> Result<Lease, Ending> {
    let me = holder(config, journal);
    let options = TakeOptions { time_to_live: config.lease, fence: config.fence };
    let on_wait = |holder: &Holder, left: clock::Duration| {
        tracing::warn!(%holder, seconds = left.as_secs(), "the prefix is held: waiting whether its holder still lives");
    };
    Lease::take(Arc::clone(store), me, options, on_wait).await.map_err(|error| Ending::from_lease_error(&error))
}

/// What the bucket holds, for files that the journal doesn't know.
pub(super) async fn rebuild(store: &SharedStore) -> Result<HashMap<Key, Remote>, StoreError> {
    let mut remote = HashMap::new();
    let manifest_key = crate::manifest::key();
    let mut manifest_is_there = false;
    inventory(store, &[], |listed| {
        if listed.key == manifest_key {
            manifest_is_there = true;
        } else if !listed.key.is_control() {
            remote.insert(listed.key, Remote { size_bytes: listed.size_bytes, etag: listed.etag, digest: None });
        }
    })
    .await?;
    if manifest_is_there {
        // A shortcut, no authority: without it each object is asked for its checksum.
        match Manifest::read(store.as_ref(), &manifest_key).await {
            Ok(Some((manifest, _))) => {
                for file in manifest.files {
                    if let Some(there) = remote.get_mut(&file.path)
                        && there.etag == file.etag
                        && there.size_bytes == file.size_bytes
                    {
                        there.digest = Some(file.digest);
                    }
                }
            }
            Ok(None) => {}
            Err(ManifestError::Store(error)) => return Err(error),
            Err(error) => tracing::warn!(%error, "the manifest can't be used; comparing object by object"),
        }
    }
    Ok(remote)
}

/// How the run before `run` ended, from its archived manifest.
pub(super) async fn archived_end(store: &SharedStore, run: u64) -> Result<Option<RunEnd>, StoreError> {
    let key = Key::control(&format!("runs/{}/manifest.json", run.saturating_sub(1)));
    match Manifest::read(store.as_ref(), &key).await {
        Ok(found) => Ok(found.map(|(manifest, etag)| RunEnd {
            outcome: manifest.facts.outcome,
            manifest: etag,
            marker: manifest.facts.marker.map(|marker| marker.identity),
            pod_uid: manifest.facts.holder.pod_uid,
            at: manifest.facts.ended_at,
        })),
        Err(ManifestError::Store(error)) => Err(error),
        Err(error) => {
            tracing::warn!(%error, "it can't be told whether the end marker is that run's");
            Ok(None)
        }
    }
}

/// The prefix of a destination; a directory has none.
pub(super) fn prefix(destination: &Destination) -> Prefix {
    match destination {
        Destination::S3 { prefix, .. } => prefix.clone(),
        Destination::File { .. } => Prefix::default(),
    }
}

/// Preflight and Recover together: takes the head, knows what is up, and is ready to look.
///
/// # Errors
/// How to end when that is not possible.
pub(super) async fn engine(
    config: Config,
    outside: Outside,
    tree: Tree,
    journal: Journal,
    times: Times,
    watching: bool,
) -> Result<Engine, Ending> {
    let Outside { store, patience, metrics, signals } = outside;
    metrics.stage(Stage::Preflight);
    let capabilities = preflight(&config, &store).await?;
    metrics.stage(Stage::Recover);
    let lease = take(&config, &store, &journal).await?;
    let (run, run_end) = (lease.head().run, lease.head().ended.clone());
    // Under a head that is new a verdict may lie around whose head was lost.
    let verdict_stands = needs_archive(lease.head()) || lease.generation() == 1;
    tracing::info!(generation = lease.generation(), run, "the prefix is ours");
    let hold = Hold::keep(lease, Arc::clone(&store), config.lease);
    let remote = if journal.was_empty() || journal.has_gaps() {
        let mut remote = rebuild(&store).await.map_err(|error| Ending::from_store_error(&error))?;
        remote.retain(|key, there| journal.get(key.as_str()).is_none_or(|known| known.etag != there.etag));
        if !remote.is_empty() && journal.was_empty() {
            tracing::info!(objects = remote.len(), "no journal: comparing with what the bucket holds");
        }
        remote
    } else {
        HashMap::new()
    };

    let (event_sender, events) = mpsc::channel(CHANNEL);
    let (progress_sender, progress) = mpsc::channel(CHANNEL);
    let (looker, unwatched) = Looker::start(tree, event_sender, watching);
    let buffer_bytes = Buffers::budget_bytes(config.memory_bytes);
    let uploader = Arc::new(Uploader {
        root: Arc::from(looker.tree().root()),
        store: Arc::clone(&store),
        buffers: Buffers::new(buffer_bytes),
        metrics: Arc::clone(&metrics),
        fence: config.fence,
        verified_by_store: capabilities.verifies_digests,
        local_volume: !is_remote_volume(&config.source),
        hold: hold.clone(),
        progress: progress_sender,
    });
    let rules = Rules { prefix: prefix(&config.destination), draining: false };
    let mut engine = Engine {
        store,
        patience,
        metrics,
        signals,
        journal,
        hold,
        looker,
        events,
        progress,
        uploader,
        jobs: JoinSet::new(),
        aborts: JoinSet::new(),
        rules,
        pending: PendingFiles::new(times),
        remote,
        missing: Default::default(),
        skipped: Default::default(),
        links: Default::default(),
        links_waiting: HashMap::new(),
        tick: 0,
        scanning: Scanning::default(),
        rescan_interval: None,
        next_rescan: None,
        next_sync: None,
        last_change: clock::now(),
        watched: watching,
        present: Vec::new(),
        dirty: false,
        given_up: Default::default(),
        unsteady: HashMap::new(),
        quiet_until_ns: None,
        newest_change_ns: 0,
        marker: None,
        markers_seen: HashMap::new(),
        failed: None,
        passed: Default::default(),
        verdict_stands,
        run_end,
        marker_gone: false,
        grace_ends: None,
        deadline: None,
        run,
        started_at: clock::timestamp(),
        stop: None,
        stop_signal: None,
        files_sent: 0,
        bytes_sent: 0,
        forecast: Forecast::default(),
        next_forecast: clock::now(),
        behind: false,
        config,
    };
    if let Some(error) = unwatched {
        engine.watched = false;
        engine.say_unwatched(&error);
    }
    Ok(engine)
}

/// Whether SRC is on a file system that other machines write to without an event here.
pub(super) fn is_remote_volume(source: &Path) -> bool {
    disk::is_network_file_system(source).unwrap_or(false)
}
