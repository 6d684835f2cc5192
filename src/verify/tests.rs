//! Every verdict and every exit code, on a tree that `sync` brought up.
#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

use std::fs;
use std::path::Path;

use tempfile::TempDir;
use tokio::sync::watch;

use super::*;
use crate::config::{Config, Destination, SyncConfig};
use crate::digest::MIN_PART_BYTES;
use crate::key::Key;
use crate::store::faults::{Fault, Faults, Faulty, When};
use crate::store::{Body, OpenOptions, Operation, RetryReason, WriteOptions};

struct Rig {
    source: TempDir,
    bucket: TempDir,
    store: SharedStore,
    faults: Faults,
    signal: watch::Sender<Signal>,
}

impl Rig {
    async fn new() -> Rig {
        let bucket = tempfile::tempdir().unwrap();
        let faulty = Faulty::new(crate::store::open(&destination(&bucket), &OpenOptions::default()).await.unwrap());
        let faults = faulty.faults();
        let source = tempfile::tempdir().unwrap();
        Rig { source, bucket, store: Arc::new(faulty), faults, signal: watch::Sender::new(Signal::Run) }
    }

    /// A tree of every kind, ended by DONE, brought up and proven.
    async fn proven() -> Rig {
        let rig = Rig::new().await;
        for (name, content) in [("a", "alpha"), ("d/b", "beta"), ("empty", "")] {
            rig.write(name, content.as_bytes());
        }
        rig.write("large", &vec![7; 2 * MIN_PART_BYTES as usize + 5]);
        std::os::unix::fs::symlink("a", rig.source.path().join("link")).unwrap();
        std::os::unix::fs::symlink("d", rig.source.path().join("folder")).unwrap();
        rig.write("DONE", b"{\"step\": 5}");
        assert_eq!(rig.sync().await.code, ExitCode::Proven);
        rig
    }

    fn write(&self, name: &str, content: &[u8]) {
        let path = self.source.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    fn object(&self, name: &str) -> std::path::PathBuf {
        self.bucket.path().join(name)
    }

    fn outside(&self) -> Outside {
        Outside {
            store: Arc::clone(&self.store),
            patience: Patience::new(Until::Stop),
            metrics: Metrics::new(),
            signals: self.signal.subscribe(),
        }
    }

    async fn sync(&self) -> Ending {
        let base = Config {
            source: self.source.path().to_owned(),
            destination: destination(&self.bucket),
            control: self.source.path().join(".chiefsync"),
            filter: Filter::default(),
            memory_bytes: 64 << 20,
            fence: true,
            lease: Duration::from_secs(60),
            pod_uid: None,
            deadline: None,
            quiet: Duration::from_secs(5),
            grace: Duration::from_secs(5),
            termination_message: None,
        };
        crate::sync::sync(SyncConfig { base, dry_run: false, delete: false }, self.outside()).await
    }

    async fn verify_by(&self, change: impl FnOnce(&mut VerifyConfig)) -> (Report, Ending) {
        let mut config = VerifyConfig { memory_bytes: 64 << 20, ..VerifyConfig::default() };
        change(&mut config);
        let mut seen = Vec::new();
        let (report, ending) = verify(config, self.outside(), |entry| seen.push(entry.clone())).await;
        let wrong: Vec<_> = seen.iter().filter(|entry| entry.verdict != Verdict::Match).cloned().collect();
        assert_eq!(wrong, report.entries);
        assert_eq!((seen.len() - wrong.len()) as u64, report.counts.matching);
        assert!(seen.is_sorted_by_key(|entry| entry.path.clone()));
        (report, ending)
    }

    async fn verify(&self) -> (Report, Ending) {
        self.verify_by(|_| {}).await
    }

    async fn verify_with_source(&self) -> (Report, Ending) {
        self.verify_by(|config| config.source = Some(self.source.path().to_owned())).await
    }

    async fn verify_deep(&self) -> (Report, Ending) {
        self.verify_by(|config| config.deep = true).await
    }

    async fn head(&self) -> Head {
        Lease::read(self.store.as_ref()).await.unwrap().unwrap().0
    }

    async fn put(&self, key: &Key, content: impl Into<bytes::Bytes>) {
        self.store.put(key, Body::hashed(content), WriteOptions::default()).await.unwrap();
    }

    async fn put_head(&self, head: &Head) {
        self.put(&Head::key(), serde_json::to_vec(head).unwrap()).await;
    }
}

fn destination(bucket: &TempDir) -> Destination {
    Destination::File { directory: bucket.path().to_owned() }
}

fn rows(report: &Report) -> Vec<(&str, &str)> {
    report.entries.iter().map(|entry| (entry.path.as_str(), entry.verdict.name())).collect()
}

/// Other bytes of the same length in the same place, with the same time: nothing but reading tells.
fn rot(path: &Path) {
    let modified = fs::metadata(path).unwrap().modified().unwrap();
    let mut content = fs::read(path).unwrap();
    *content.last_mut().unwrap() ^= 1;
    fs::write(path, content).unwrap();
    fs::File::options().write(true).open(path).unwrap().set_modified(modified).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_proven_tree_matches_in_every_way() {
    let rig = Rig::proven().await;
    // A file of each kind, and DONE; with SRC the link to a directory as well.
    for (source, deep, entries) in [(false, false, 6), (false, true, 6), (true, false, 7), (true, true, 7)] {
        let source = source.then(|| rig.source.path().to_owned());
        let (report, ending) = rig.verify_by(|config| (config.source, config.deep) = (source.clone(), deep)).await;
        assert_eq!((ending.code, report.verdict), (ExitCode::Proven, Overall::Match), "{ending:?} {report:?}");
        assert_eq!((report.counts.matching, report.counts.extra), (entries, 0), "{report:?}");
        assert_eq!(report.head.as_ref().unwrap().ended.as_ref().unwrap().outcome, Outcome::Succeeded);
        assert_eq!(report.manifest.as_ref().unwrap().counts.files, 5);
        assert_eq!(ending.summary.contains("every byte read back"), deep, "{}", ending.summary);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_bucket_lost_or_got_is_told() {
    let rig = Rig::proven().await;
    fs::remove_file(rig.object("a")).unwrap();
    fs::write(rig.object("d/b"), "gamma").unwrap();
    fs::write(rig.object("older"), "history").unwrap();
    let (report, ending) = rig.verify().await;
    assert_eq!(ending.code, ExitCode::Differs);
    assert_eq!(rows(&report), [("a", "missing remotely"), ("d/b", "differs")]);
    assert_eq!(report.extra, ["older"]);
    assert!(ending.summary.starts_with("1 missing remotely, 1 differ in file://"), "{}", ending.summary);
    assert!(ending.summary.ends_with("4 match; 1 other objects beside them"), "{}", ending.summary);
    assert!(report.entries[1].why.as_ref().unwrap().starts_with("another version is there (5 bytes, ETag "));
}

#[tokio::test(flavor = "multi_thread")]
async fn history_beside_the_manifest_is_no_difference() {
    let rig = Rig::proven().await;
    fs::write(rig.object("step-1"), "an older checkpoint").unwrap();
    let (report, ending) = rig.verify().await;
    assert_eq!((ending.code, report.counts.extra), (ExitCode::Proven, 1), "{ending:?}");
}

/// Size and ETag are as they should be: only `--deep` sees it.
#[tokio::test(flavor = "multi_thread")]
async fn deep_finds_one_flipped_bit() {
    let rig = Rig::proven().await;
    rot(&rig.object("large"));
    rot(&rig.object("DONE"));
    assert_eq!(rig.verify().await.1.code, ExitCode::Proven);
    let (report, ending) = rig.verify_deep().await;
    assert_eq!(ending.code, ExitCode::Differs);
    assert_eq!(rows(&report), [("DONE", "differs"), ("large", "differs")]);
}

/// Bytes that are damaged on their way down once are not the object's fault; those that always are, are.
#[tokio::test(flavor = "multi_thread")]
async fn what_reads_back_wrong_is_read_twice() {
    let rig = Rig::proven().await;
    rig.faults.add(When::operation(Operation::Get).key("large").times(1), Fault::FlipBit);
    assert_eq!(rig.verify_deep().await.1.code, ExitCode::Proven);
    rig.faults.clear();
    rig.faults.add(When::operation(Operation::Get).key("large"), Fault::FlipBit);
    let (report, ending) = rig.verify_deep().await;
    assert_eq!((ending.code, rows(&report)), (ExitCode::Differs, vec![("large", "differs")]));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_disk_lost_or_got_is_told() {
    let rig = Rig::proven().await;
    let source = rig.source.path();
    fs::remove_file(source.join("a")).unwrap();
    std::os::unix::fs::symlink("gone", source.join("dangling")).unwrap();
    rig.write("new", b"never brought up");
    rig.write("empty", b"not any more");
    rot(&source.join("large"));
    let (report, ending) = rig.verify_with_source().await;
    assert_eq!(ending.code, ExitCode::Differs);
    assert_eq!(
        rows(&report),
        [
            ("a", "missing locally"),
            ("dangling", "missing remotely"),
            ("empty", "differs"),
            ("large", "differs"),
            // The link's target is gone: it ends nowhere.
            ("link", "missing remotely"),
            ("new", "missing remotely"),
        ]
    );
    let why = |path: &str| report.entries.iter().find(|entry| entry.path == path).unwrap().why.clone().unwrap();
    assert_eq!(why("empty"), "it has 12 bytes below SRC, and 0 in the manifest");
    assert_eq!(why("large"), "it has other bytes below SRC");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_excluded_is_not_compared() {
    let rig = Rig::proven().await;
    rig.write("new.log", b"excluded");
    fs::remove_file(rig.source.path().join("large")).unwrap();
    let filter = Filter::new(&[(false, "*.log".to_owned()), (false, "large".to_owned())]).unwrap();
    let source = Some(rig.source.path().to_owned());
    let (report, ending) = rig.verify_by(|config| (config.source, config.filter) = (source, filter)).await;
    assert_eq!(ending.code, ExitCode::Proven, "{report:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn links_to_directories_are_compared() {
    let rig = Rig::proven().await;
    fs::remove_file(rig.source.path().join("folder")).unwrap();
    fs::create_dir(rig.source.path().join("other")).unwrap();
    std::os::unix::fs::symlink("d", rig.source.path().join("fresh")).unwrap();
    let (report, _) = rig.verify_with_source().await;
    assert_eq!(rows(&report), [("folder", "missing locally"), ("fresh", "missing remotely")]);
    std::os::unix::fs::symlink("other", rig.source.path().join("folder")).unwrap();
    let (report, _) = rig.verify_with_source().await;
    assert_eq!(rows(&report), [("folder", "differs"), ("fresh", "missing remotely")]);
}

/// DONE is there if the run succeeded, FAILED if it failed, and never anything else.
#[tokio::test(flavor = "multi_thread")]
async fn the_marker_agrees_with_the_outcome() {
    let rig = Rig::proven().await;
    fs::rename(rig.object("DONE"), rig.object("FAILED")).unwrap();
    let (report, ending) = rig.verify().await;
    assert_eq!(ending.code, ExitCode::Differs);
    assert_eq!(rows(&report), [("DONE", "missing remotely"), ("FAILED", "differs")]);

    let rig = Rig::proven().await;
    fs::remove_file(rig.source.path().join("DONE")).unwrap();
    assert_eq!(rows(&rig.verify_with_source().await.0), [("DONE", "missing locally")]);
    rig.write("DONE", b"another end");
    assert_eq!(rows(&rig.verify_with_source().await.0), [("DONE", "differs")]);

    let rig = Rig::new().await;
    rig.write("a", b"alpha");
    assert_eq!(rig.sync().await.code, ExitCode::Proven);
    assert_eq!(rig.verify_with_source().await.1.code, ExitCode::Proven);
    rig.write("DONE", b"");
    assert_eq!(rows(&rig.verify_with_source().await.0), [("DONE", "missing remotely")]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_run_could_not_bring_up_stays_missing() {
    let rig = Rig::new().await;
    std::os::unix::fs::symlink("nowhere", rig.source.path().join("dangling")).unwrap();
    rig.write("DONE", b"");
    assert_eq!(rig.sync().await.code, ExitCode::Incomplete);
    let (report, ending) = rig.verify().await;
    assert_eq!(ending.code, ExitCode::Differs);
    assert_eq!(rows(&report), [("dangling", "missing remotely")]);
    assert!(ending.summary.contains("(interrupted)"), "{}", ending.summary);
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_manifest_that_the_head_names_counts() {
    let rig = Rig::proven().await;
    let manifest = rig.object(".chiefsync/manifest.json");
    let json = fs::read(&manifest).unwrap();
    fs::write(&manifest, json).unwrap();
    let (report, ending) = rig.verify().await;
    assert_eq!((ending.code, rows(&report)), (ExitCode::Differs, vec![(".chiefsync/manifest.json", "differs")]));
    fs::remove_file(&manifest).unwrap();
    let (report, ending) = rig.verify().await;
    assert_eq!(
        (ending.code, rows(&report)),
        (ExitCode::Differs, vec![(".chiefsync/manifest.json", "missing remotely")])
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_garbled_is_said_with_a_way_out() {
    let rig = Rig::proven().await;
    rig.put(&crate::manifest::key(), "{}").await;
    let (report, ending) = rig.verify().await;
    assert_eq!((ending.code, report.verdict), (ExitCode::Differs, Overall::Unverified));
    assert!(ending.summary.contains("manifest.json can't be believed") && ending.hint.is_some(), "{ending:?}");
    rig.put(&Head::key(), "no head").await;
    let (_, ending) = rig.verify().await;
    assert_eq!(ending.code, ExitCode::Differs);
    assert!(ending.summary.contains("head.json can't be read") && ending.hint.is_some(), "{ending:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_head_there_is_nothing_to_verify() {
    let rig = Rig::new().await;
    rig.put(&Key::new("a").unwrap(), "alpha").await;
    for source in [None, Some(rig.source.path().to_owned())] {
        let (report, ending) = rig.verify_by(|config| config.source = source).await;
        assert_eq!((ending.code, report.verdict), (ExitCode::Incomplete, Overall::Unverified));
        assert!(ending.summary.contains("there is no head") && ending.hint.unwrap().contains("sync"));
    }
}

/// What the hint says helps: another `sync` does not take the journal's word for a verdict that is gone.
#[tokio::test(flavor = "multi_thread")]
async fn a_verdict_that_was_lost_is_made_again() {
    for name in ["DONE", ".chiefsync/manifest.json"] {
        let rig = Rig::proven().await;
        fs::remove_file(rig.object(name)).unwrap();
        assert_eq!(rows(&rig.verify().await.0), [(name, "missing remotely")]);
        assert_eq!(rig.sync().await.code, ExitCode::Proven);
        assert_eq!(rig.verify_with_source().await.1.code, ExitCode::Proven, "{name}");
    }
}

/// An open run has no manifest: SRC is compared with the objects themselves.
#[tokio::test(flavor = "multi_thread")]
async fn an_open_run_is_compared_object_by_object() {
    let rig = Rig::proven().await;
    let mut head = rig.head().await;
    head.ended = None;
    rig.put_head(&head).await;
    let (_, ending) = rig.verify().await;
    assert_eq!(ending.code, ExitCode::Incomplete);
    assert!(ending.summary.starts_with("run 1 is open, and nobody holds the prefix"), "{}", ending.summary);

    let (report, ending) = rig.verify_with_source().await;
    assert_eq!((ending.code, rows(&report)), (ExitCode::Differs, vec![("DONE", "differs")]));
    fs::remove_file(rig.object("DONE")).unwrap();
    let (report, ending) = rig.verify_with_source().await;
    assert_eq!((ending.code, report.counts.matching), (ExitCode::Proven, 5), "{report:?}");
    assert!(ending.summary.contains("run 1, which is still open (held by nobody)"), "{}", ending.summary);

    // Rotated away here, kept there; not up yet; other bytes of the same length.
    fs::remove_file(rig.source.path().join("d/b")).unwrap();
    rig.write("new", b"not up yet");
    rig.write("unfinished.tmp", b"not up yet");
    rig.write("a", b"ALPHA");
    rig.write("empty", b"not any more");
    let (report, ending) = rig.verify_with_source().await;
    assert_eq!(ending.code, ExitCode::Differs);
    assert_eq!(
        rows(&report),
        [
            ("a", "differs"),
            ("empty", "differs"),
            ("link", "differs"),
            ("new", "missing remotely"),
            ("unfinished.tmp", "missing remotely"),
        ]
    );
    assert_eq!(report.extra, ["d/b"]);
}

/// A foreign object has no checksum of ours: its bytes are read.
#[tokio::test(flavor = "multi_thread")]
async fn without_a_checksum_the_bytes_decide() {
    let rig = Rig::new().await;
    rig.put_head(&Head::first(1)).await;
    rig.write("a", b"alpha");
    rig.write("b", b"beta");
    fs::write(rig.object("a"), "alpha").unwrap();
    fs::write(rig.object("b"), "BETA").unwrap();
    let (report, ending) = rig.verify_with_source().await;
    assert_eq!((ending.code, rows(&report)), (ExitCode::Differs, vec![("b", "differs")]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_refuses_or_stays_away_ends_it() {
    for (kind, code) in
        [(ErrorKind::Stop, ExitCode::Refused), (ErrorKind::Retry(RetryReason::Timeout), ExitCode::Incomplete)]
    {
        for operation in [Operation::Get, Operation::List] {
            let rig = Rig::proven().await;
            rig.faults.add(When::operation(operation), Fault::Refuse(kind));
            let (report, ending) = rig.verify_deep().await;
            assert_eq!((ending.code, report.verdict), (code, Overall::Unverified), "{operation:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_ends_it() {
    let rig = Rig::proven().await;
    rig.signal.send_replace(Signal::Stop(ExitCode::Terminated));
    let gate = crate::store::faults::Gate::new();
    rig.faults.add(When::operation(Operation::List), Fault::Wait(gate));
    let (report, ending) = rig.verify().await;
    assert_eq!((ending.code, report.verdict), (ExitCode::Incomplete, Overall::Unverified));
}

/// A run that begins while the last one is verified must not look like a difference.
#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_begins_meanwhile_is_no_difference() {
    let rig = Rig::proven().await;
    let gate = crate::store::faults::Gate::new();
    rig.faults.add(When::operation(Operation::List).times(1), Fault::Wait(gate.clone()));
    let begin = async {
        gate.arrived(1).await;
        let mut head = rig.head().await;
        (head.ended, head.run) = (None, 2);
        rig.put_head(&head).await;
        fs::remove_file(rig.object("DONE")).unwrap();
        gate.open();
    };
    let ((report, ending), ()) = tokio::join!(rig.verify(), begin);
    assert_eq!((ending.code, report.verdict), (ExitCode::Incomplete, Overall::Unverified));
    assert!(ending.summary.starts_with("run 2 is open"), "{}", ending.summary);
}
