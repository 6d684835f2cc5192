//! `sync`: one pass over SRC, without following it; and the plan alone, for `--dry-run`.

use std::collections::HashSet;
use std::path::Path;

use crate::clock::{self, Duration, Instant};
use crate::config::SyncConfig;
use crate::exit::{Ending, ExitCode};
use crate::head::{Lease, Outcome};
use crate::journal::Journal;
use crate::key::Key;
use crate::marker::MarkerKind;
use crate::stage::Stage;
use crate::store::inventory::inventory;
use crate::store::retry::Until;
use crate::store::{SharedStore, StoreError};

use super::plan::{Action, Rules, decide};
use super::scan::{Found, Tree, Unnameable, Visitor, What};
use super::settle::Times;
use super::{Engine, Outside, prove, recover};

/// The largest record of a checkpoint that is read, in bytes.
const RECORD_LIMIT_BYTES: u64 = 256 * 1024 * 1024;

/// Brings DEST up to date, once.
pub async fn sync(config: SyncConfig, outside: Outside) -> Ending {
    let base = config.base.clone();
    let tree = match recover::open_tree(&base) {
        Ok(tree) => tree,
        Err(ending) => return ending,
    };
    let journal = match recover::open_journal(&base) {
        Ok(journal) => journal,
        Err(ending) => return ending,
    };
    let deadline = base.deadline.map(|deadline| clock::now() + deadline);
    outside.patience.set(deadline.map_or(Until::Forever, Until::Deadline));
    super::heed_signals(&outside, base.grace);
    outside.metrics.stage(Stage::Preflight);
    if !config.delete
        && let Some(ending) = nothing_to_do(&tree, &journal, &outside).await
    {
        return ending;
    }
    let mut signals = outside.signals.clone();
    let times = Times { settle: Duration::ZERO, growing_interval: Duration::MAX / 4 };
    let starting = recover::engine(base.clone(), outside, tree, journal, times, false);
    let mut engine = tokio::select! {
        engine = starting => match engine {
            Ok(engine) => engine,
            Err(ending) => return ending,
        },
        () = super::grace_is_over(&mut signals, base.grace) => {
            return Ending::new(ExitCode::Incomplete, "stopped before the destination could be reached; nothing was uploaded");
        }
    };
    engine.sync_once(config.delete, deadline).await
}

impl Engine {
    async fn sync_once(&mut self, delete: bool, deadline: Option<Instant>) -> Ending {
        if self.verdict_stands {
            self.clear_verdict().await;
        }
        let started_at_ns = clock::wall_ns();
        self.drain(started_at_ns, deadline).await;
        let marker = self.marker.take();
        let mut ending = None;
        if delete && self.stop.is_none() && self.missing.is_empty() {
            ending = self.delete_strangers().await.err().map(|error| Ending::from_store_error(&error));
        }
        let ending = match (ending, marker) {
            (Some(ending), _) => ending,
            (None, Some(marker)) => {
                let outcome = if marker.kind == MarkerKind::Done { Outcome::Succeeded } else { Outcome::Failed };
                self.prove(outcome, Some(&marker), started_at_ns).await
            }
            (None, None) => self.prove(Outcome::Synced, None, started_at_ns).await,
        };
        self.leave(ending).await
    }

    /// Removes objects below the prefix that no local file answers to: never control objects, markers, what is excluded, or
    /// what a record names. Only after everything local is up.
    async fn delete_strangers(&mut self) -> Result<(), StoreError> {
        let (head, _) = match Lease::read(self.store.as_ref()).await {
            Ok(Some(found)) => found,
            Ok(None) => return Ok(()),
            Err(crate::head::LeaseError::Store(error)) => return Err(error),
            Err(error) => {
                let kind = crate::store::ErrorKind::Stop;
                return Err(StoreError::new(kind, "DeleteObject", self.store.url(), error.to_string()));
            }
        };
        let recorded = recorded_keys(self.store.as_ref(), &head).await?;
        let local: HashSet<&str> = self.present.iter().map(Key::as_str).collect();
        let mut strangers = Vec::new();
        inventory(&self.store, &[], |listed| {
            let kept = listed.key.is_control()
                || MarkerKind::of(listed.key.as_str()).is_some()
                || local.contains(listed.key.as_str())
                || self.looker.tree().ignores(listed.key.as_str())
                || recorded.contains(&listed.key);
            if !kept {
                strangers.push(listed.key);
            }
        })
        .await?;
        for key in strangers {
            if self.hold.check().await.is_err() {
                // The loop's next step ends the run; nothing more is removed in somebody else's tree.
                return Ok(());
            }
            self.store.delete(&key).await?;
            self.journal.forget(key.as_str());
            tracing::info!(path = %key, "deleted: not in SRC");
        }
        Ok(())
    }
}

/// What the records of the head's checkpoints name: kept, whatever SRC holds.
async fn recorded_keys(store: &dyn crate::store::Store, head: &crate::head::Head) -> Result<HashSet<Key>, StoreError> {
    #[derive(serde::Deserialize)]
    struct Record {
        files: Vec<RecordedFile>,
    }
    #[derive(serde::Deserialize)]
    struct RecordedFile {
        path: Key,
    }
    let mut keys = HashSet::new();
    for record in head.checkpoints.iter().filter_map(|row| row.record.as_deref()) {
        let refuse = |why: String| {
            StoreError::new(crate::store::ErrorKind::Corrupt, "GetObject", format!("{}{record}", store.url()), why)
                .with_hint("nothing is deleted while a checkpoint's record can't be read")
        };
        let key = Key::new(record).map_err(|e| refuse(e.to_string()))?;
        let bytes = store.get(&key, None, None).await?.collect(RECORD_LIMIT_BYTES).await?;
        let record: Record = serde_json::from_slice(&bytes).map_err(|e| refuse(e.to_string()))?;
        keys.extend(record.files.into_iter().map(|file| file.path));
    }
    Ok(keys)
}

/// Whether the tree is what the last proof was about: then one listing proves it again, and nothing is written at all.
async fn nothing_to_do(tree: &Tree, journal: &Journal, outside: &Outside) -> Option<Ending> {
    let ended = journal.ended()?;
    // The answers are needed in any case: ask while the disk is scanned.
    let head = async { Lease::read(outside.store.as_ref()).await.ok().flatten() };
    let (view, head) = {
        let scan = async { tokio::task::block_in_place(|| View::of(tree, journal)) };
        let (head, view) = tokio::join!(head, scan);
        (view, head?.0)
    };
    let end = head.ended.as_ref()?;
    let marker = crate::marker::read(tree.root()).map(|marker| marker.map(|marker| marker.identity));
    let same = view.unchanged
        && head.holder.is_none()
        && head.run == ended.run
        && end.manifest == ended.manifest_etag
        && matches!(end.outcome, Outcome::Synced | Outcome::Succeeded)
        && marker.ok()? == end.marker;
    if !same {
        return None;
    }
    outside.metrics.stage(Stage::Prove);
    let digest = prove::tree_digest(journal, &view.present, view.links.iter().map(|(key, target)| (key, target)));
    if digest != ended.tree {
        return None;
    }
    // The verdict itself must still be there, too.
    let (mut manifest, mut done) = (false, false);
    let differences = prove::compare(&outside.store, journal, &view.present, |listed| {
        manifest |= listed.key == crate::manifest::key() && listed.etag == end.manifest;
        done |= listed.key == MarkerKind::Done.key();
    });
    if !differences.await.ok()?.is_empty() || !manifest || done != (end.outcome == Outcome::Succeeded) {
        return None;
    }
    let bytes: u64 = view.present.iter().filter_map(|key| journal.get(key.as_str())).map(|up| up.stat.size).sum();
    outside.metrics.file_unchanged(view.present.len() as u64);
    let summary = format!(
        "nothing to do: {} files, {} in {}, checked",
        view.present.len(),
        crate::config::units::show_size(bytes),
        outside.store.url()
    );
    Some(Ending::new(ExitCode::Proven, summary))
}

/// What one scan says against the journal alone.
struct View<'a> {
    journal: &'a Journal,
    rules: Rules,
    unchanged: bool,
    present: Vec<Key>,
    links: Vec<(Key, Key)>,
}

impl<'a> View<'a> {
    fn of(tree: &Tree, journal: &'a Journal) -> View<'a> {
        let rules = Rules { prefix: crate::key::Prefix::default(), draining: true };
        let mut view = View { journal, rules, unchanged: true, present: Vec::new(), links: Vec::new() };
        tree.walk(tree.root(), &mut view);
        view.present.sort_unstable();
        view.links.sort_unstable();
        view
    }
}

impl Visitor for View<'_> {
    fn directory(&mut self, _: &Path) {}

    fn found(&mut self, found: Found) {
        if MarkerKind::of(found.key.as_str()).is_some() {
            self.unchanged &= matches!(found.what, What::File(_));
            return;
        }
        match act(&found, self.journal, &self.rules) {
            Action::Unchanged => self.present.push(found.key),
            Action::RecordLink { target } => self.links.push((found.key, target)),
            Action::Skip(_) => {}
            _ => self.unchanged = false,
        }
    }

    fn unnameable(&mut self, _: Unnameable) {
        self.unchanged = false;
    }

    fn wanted(&self) -> bool {
        self.unchanged
    }
}

fn act(found: &Found, journal: &Journal, rules: &Rules) -> Action {
    let target = match &found.what {
        What::FileLink { target, .. } => journal.get(target.as_str()),
        _ => None,
    };
    decide(found, journal.get(found.key.as_str()), target, rules)
}

/// One line of a plan.
#[derive(Debug)]
pub enum PlanLine<'a> {
    /// What would be done about a file or a link.
    Act(&'a Found, &'a Action),
    /// A name that can't be a key.
    Unnameable(&'a Unnameable),
    /// An object that `--delete` would remove.
    Delete(&'a Key),
}

/// Shows what `sync` would do, and does nothing. The store is opened only when the journal can't tell.
pub async fn dry_run<F>(config: SyncConfig, open: impl FnOnce() -> F, mut show: impl FnMut(PlanLine<'_>)) -> Ending
where
    F: Future<Output = Result<SharedStore, StoreError>>,
{
    let base = &config.base;
    let tree = match recover::open_tree(base) {
        Ok(tree) => tree,
        Err(ending) => return ending,
    };
    let journal = Journal::read_only(Some(&base.control), &base.destination.url());
    let rules = Rules { prefix: recover::prefix(&base.destination), draining: true };
    let mut plan =
        Plan { journal: &journal, rules, show: &mut show, keys: Vec::new(), counts: [0; 2], missing: Vec::new() };
    tree.walk(tree.root(), &mut plan);
    let (local, [changes, unchanged], missing) = (plan.keys, plan.counts, plan.missing);
    let mut deletions = 0;
    if config.delete {
        let local: HashSet<Key> = local.into_iter().collect();
        let listed = async {
            let store = open().await?;
            inventory(&store, &[], |listed| {
                if !listed.key.is_control()
                    && MarkerKind::of(listed.key.as_str()).is_none()
                    && !local.contains(&listed.key)
                    && !tree.ignores(listed.key.as_str())
                {
                    show(PlanLine::Delete(&listed.key));
                    deletions += 1;
                }
            })
            .await
        };
        if let Err(error) = listed.await {
            return Ending::from_store_error(&error);
        }
    }
    let code = if missing.is_empty() { ExitCode::Proven } else { ExitCode::Incomplete };
    let known =
        if journal.was_empty() { "; no journal: what is in the bucket already would be compared first" } else { "" };
    let summary = format!("dry run: {changes} to do, {unchanged} unchanged, {deletions} to delete{known}");
    Ending::new(code, summary).with_details(missing)
}

struct Plan<'a, S: FnMut(PlanLine<'_>)> {
    journal: &'a Journal,
    rules: Rules,
    show: &'a mut S,
    keys: Vec<Key>,
    counts: [u64; 2],
    missing: Vec<String>,
}

impl<S: FnMut(PlanLine<'_>)> Visitor for Plan<'_, S> {
    fn directory(&mut self, _: &Path) {}

    fn found(&mut self, found: Found) {
        if MarkerKind::of(found.key.as_str()).is_some() {
            return;
        }
        let action = act(&found, self.journal, &self.rules);
        match &action {
            Action::Unchanged => self.counts[1] += 1,
            Action::Missing(why) => self.missing.push(format!("{}: {why}", crate::exit::one_line(found.key.as_str()))),
            _ => self.counts[0] += 1,
        }
        (self.show)(PlanLine::Act(&found, &action));
        self.keys.push(found.key);
    }

    fn unnameable(&mut self, name: Unnameable) {
        self.missing.push(format!("{}: {}", crate::exit::one_line(&name.name), name.why));
        (self.show)(PlanLine::Unnameable(&name));
    }
}
