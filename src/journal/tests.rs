//! The journal under cuts, garbage, other hands and a full disk.
#![allow(clippy::disallowed_methods)]

use std::fs;
use std::path::PathBuf;

use proptest::prelude::*;

use super::*;

const DEST: &str = "s3://bucket/job/";

fn open(directory: &Path) -> Opened {
    Journal::open(Some(directory), DEST).unwrap()
}

fn file_of(directory: &Path) -> PathBuf {
    file::Paths::new(directory, DEST).journal
}

fn key(name: &str) -> Key {
    Key::new(name).unwrap()
}

fn uploaded(n: u64) -> Uploaded {
    let parts = (0..=n % 3).map(|part| Sha256::of(&[n.to_le_bytes(), part.to_le_bytes()].concat())).collect::<Vec<_>>();
    Uploaded {
        stat: Stat { dev: 0, ino: n, size: n * 3, mtime_ns: -7, ctime_ns: i64::MAX },
        digest: Digest::from(parts),
        etag: ETag::new(&format!("{n:032x}")),
        young_parts: u32::try_from(n % 2).unwrap(),
        link: n.is_multiple_of(5).then(|| key("the/target")),
        partial: n.is_multiple_of(7),
    }
}

fn upload(n: u64) -> OpenUpload {
    OpenUpload {
        stat: uploaded(n).stat,
        id: UploadId(format!("id {n}\"\n")),
        nonce: format!("nonce-{n}"),
        parts: BTreeMap::from([(1, part(1, n)), (2, part(2, n + 1))]),
    }
}

fn part(number: u32, n: u64) -> (StoredPart, Sha256) {
    let sha256 = Sha256::of(&n.to_le_bytes());
    let returned = n.is_multiple_of(2).then_some(sha256);
    (StoredPart { number, size_bytes: 8 << 20, etag: ETag::new(&format!("etag-{n}")), sha256: returned }, sha256)
}

fn ended(run: u64) -> Ended {
    Ended { run, manifest_etag: ETag::new("m"), tree: Sha256::of(b"tree"), outcome: Outcome::Succeeded }
}

#[test]
fn a_restart_finds_everything_and_is_the_same_holder() {
    let directory = tempfile::tempdir().unwrap();
    let control = directory.path().join("not/yet/there");
    let Opened { mut journal, notices } = open(&control);
    assert!(notices.is_empty() && journal.was_empty() && journal.is_persistent());
    assert!(journal.wants_sync());
    journal.sync_handle().unwrap().sync().unwrap();
    assert!(!journal.wants_sync());
    let odd = "sp ace/ü\n\"%\\\u{1}/-x";
    for n in 0..40 {
        journal.record(key(&format!("file-{n}")), uploaded(n));
    }
    journal.record(key(odd), uploaded(41));
    journal.forget("file-3");
    journal.forget("never was");
    journal.begin_upload(key("big"), upload(4));
    journal.part_done("big", part(3, 9).0, part(3, 9).1);
    journal.part_done("none", part(3, 9).0, part(3, 9).1);
    journal.begin_upload(key("done"), upload(5));
    journal.end_upload("done");
    journal.set_ended(Some(ended(2)));
    assert!(!journal.wants_sync(), "nothing is in the file yet");
    journal.flush();
    assert!(journal.wants_sync());
    let (holder, state) = (journal.holder_id().to_owned(), journal.state.clone());
    drop(journal);

    for _ in 0..2 {
        let Opened { journal, notices } = open(&control);
        assert!(notices.is_empty() && !journal.was_empty());
        assert_eq!(journal.holder_id(), holder);
        assert_eq!(journal.state, state);
        assert_eq!((journal.len(), journal.iter().count()), (40, 40));
        assert_eq!(journal.get(odd), Some(&uploaded(41)));
        assert_eq!(journal.get("file-3"), None);
        assert_eq!(journal.upload("big").unwrap().parts.len(), 3);
        assert_eq!(journal.uploads().count(), 1);
        assert_eq!(journal.ended(), Some(&ended(2)));
    }
    let journal = Journal::read_only(Some(&control), DEST);
    assert!(journal.state == state && !journal.is_persistent());
    assert!(Journal::read_only(Some(&directory.path().join("no")), DEST).was_empty());
    assert!(!directory.path().join("no").exists());
}

#[test]
fn a_killed_process_has_not_forgotten_what_it_flushed() {
    let directory = tempfile::tempdir().unwrap();
    let Opened { mut journal, .. } = open(directory.path());
    journal.record(key("a"), uploaded(1));
    journal.flush();
    journal.record(key("b"), uploaded(2));
    let bytes = fs::read(file_of(directory.path())).unwrap();
    let read = file::read_lines(&bytes[..], DEST).unwrap().unwrap().unwrap();
    assert_eq!(read.state.files.keys().map(Key::as_str).collect::<Vec<_>>(), ["a"]);
    assert!(bytes.is_ascii() && bytes.ends_with(b"\n"));
}

#[test]
fn a_torn_tail_is_cut_off_and_said() {
    let directory = tempfile::tempdir().unwrap();
    let mut journal = open(directory.path()).journal;
    journal.record(key("a"), uploaded(1));
    journal.record(key("b"), uploaded(2));
    drop(journal);
    let path = file_of(directory.path());
    let whole = fs::read(&path).unwrap();
    fs::write(&path, &whole[..whole.len() - 5]).unwrap();
    let Opened { mut journal, notices } = open(directory.path());
    assert!(notices[0].contains("torn tail"), "{notices:?}");
    assert!(journal.get("a").is_some() && journal.get("b").is_none());
    journal.record(key("b"), uploaded(2));
    drop(journal);
    assert_eq!(fs::read(&path).unwrap(), whole);
    // Zeros are what some file systems leave of a write that a node's crash cut short.
    fs::write(&path, [&whole[..], &[0; 5000]].concat()).unwrap();
    assert!(open(directory.path()).notices[0].contains("5000 bytes"));
    assert_eq!(fs::read(&path).unwrap(), whole);
    fs::write(&path, &whole[..20]).unwrap();
    let Opened { journal, notices } = open(directory.path());
    assert!(journal.was_empty() && notices[0].contains("torn first line"), "{notices:?}");
    drop(journal);
    assert!(open(directory.path()).notices.is_empty());
}

#[test]
fn a_garbled_line_is_dropped_and_the_others_count() {
    let directory = tempfile::tempdir().unwrap();
    let mut journal = open(directory.path()).journal;
    for name in ["a", "b", "c"] {
        journal.record(key(name), uploaded(1));
    }
    drop(journal);
    let path = file_of(directory.path());
    let text = fs::read_to_string(&path).unwrap();
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    lines[2] = lines[2].replace("\"b\"", "\"x\"");
    lines.insert(3, "z".repeat(3 * line::MAX_LINE_BYTES));
    fs::write(&path, lines.join("\n") + "\n").unwrap();
    let Opened { journal, notices } = open(directory.path());
    assert!(notices.len() == 1 && notices[0].contains("2 garbled lines dropped"), "{notices:?}");
    assert!(journal.get("a").is_some() && journal.get("c").is_some());
    assert_eq!(journal.len(), 2);
    drop(journal);
    assert!(open(directory.path()).notices.is_empty(), "the garbage is gone");
}

#[test]
fn a_journal_of_something_else_is_set_aside() {
    let directory = tempfile::tempdir().unwrap();
    let path = file_of(directory.path());
    let aside = |n: u32| fs::read(format!("{}.bad-{n}", path.display())).unwrap();
    let header = |schema: u32, destination: &str| {
        let mut bytes = Vec::new();
        let (destination, holder, created_at) = (destination.into(), "h".into(), "t".into());
        line::append_line(&mut bytes, &Header { schema, destination, holder, created_at });
        bytes
    };
    let cases = [
        (header(1, "s3://other/"), "it belongs to s3://other/"),
        (header(2, DEST), "its schema is 2"),
        (b"hello\nworld\n".to_vec(), "garbled"),
        (vec![0; 2 * line::MAX_LINE_BYTES], "no journal"),
    ];
    for (n, (bytes, why)) in (1..).zip(cases) {
        fs::write(&path, &bytes).unwrap();
        let Opened { mut journal, notices } = open(directory.path());
        assert!(notices.len() == 1 && notices[0].contains(why), "{notices:?}");
        assert!(journal.was_empty() && journal.is_persistent());
        assert_eq!(aside(n), bytes);
        journal.record(key("a"), uploaded(1));
        drop(journal);
        assert_eq!(open(directory.path()).journal.len(), 1);
    }
}

#[test]
fn one_process_at_a_time() {
    let directory = tempfile::tempdir().unwrap();
    let first = open(directory.path()).journal;
    let error = Journal::open(Some(directory.path()), DEST).err().unwrap();
    let JournalError::Locked { holder_pid, .. } = &error;
    assert_eq!(*holder_pid, Some(std::process::id()));
    assert!(error.to_string().contains("held by another chiefsync") && error.hint().contains("--control"));
    let other = Journal::open(Some(directory.path()), "s3://bucket/other/").unwrap();
    assert!(other.journal.is_persistent(), "another destination is another journal");
    drop(first);
    assert!(open(directory.path()).journal.is_persistent());
}

#[test]
fn without_a_place_it_lives_in_memory() {
    let directory = tempfile::tempdir().unwrap();
    let occupied = directory.path().join("a-file");
    fs::write(&occupied, "").unwrap();
    let Opened { mut journal, notices } = open(&occupied);
    assert!(!journal.is_persistent() && notices[0].contains("kept in memory"), "{notices:?}");
    journal.record(key("a"), uploaded(1));
    journal.flush();
    assert_eq!(journal.get("a"), Some(&uploaded(1)));
    assert_eq!(fs::read(&occupied).unwrap(), b"");
    assert!(Journal::open(None, DEST).unwrap().notices.is_empty());
    // A link in place of the journal is not followed.
    std::os::unix::fs::symlink(&occupied, file_of(directory.path())).unwrap();
    assert!(!open(directory.path()).journal.is_persistent());
}

#[test]
fn a_full_disk_costs_the_file_and_not_the_run() {
    let directory = tempfile::tempdir().unwrap();
    let mut journal = open(directory.path()).journal;
    journal.record(key("a"), uploaded(1));
    journal.flush();
    journal.backing.as_mut().unwrap().file = AppendFile::open(Path::new("/dev/full")).unwrap();
    journal.record(key("b"), uploaded(2));
    journal.flush();
    assert!(!journal.is_persistent() && !journal.wants_sync());
    let notice = journal.take_notice().unwrap();
    assert!(notice.contains("No space left") && notice.contains("hint:"), "{notice}");
    journal.record(key("c"), uploaded(3));
    journal.flush();
    assert_eq!((journal.take_notice(), journal.len()), (None, 3));
    assert!(Journal::open(Some(directory.path()), DEST).is_err(), "its holder lives on");
    assert_eq!(Journal::read_only(Some(directory.path()), DEST).len(), 1);
    // There is room again.
    journal.given_up.as_mut().unwrap().try_again_at = clock::now();
    journal.flush();
    assert!(journal.is_persistent() && journal.take_notice().unwrap().contains("is written again"));
    journal.record(key("d"), uploaded(4));
    let (holder, state) = (journal.holder_id().to_owned(), journal.state.clone());
    drop(journal);
    let Opened { journal, notices } = open(directory.path());
    assert_eq!((journal.holder_id(), &journal.state, notices.len()), (holder.as_str(), &state, 0));
}

#[test]
fn a_journal_stays_bounded_however_much_is_uploaded() {
    let directory = tempfile::tempdir().unwrap();
    let mut journal = open(directory.path()).journal;
    let path = file_of(directory.path());
    let mut largest = 0;
    for n in 0..60_000 {
        journal.record(key(&format!("events-{}", n % 100)), uploaded(n));
        if n % 50 == 0 {
            journal.begin_upload(key("big"), upload(n));
            journal.flush();
            journal.end_upload("big");
            largest = largest.max(fs::metadata(&path).unwrap().len());
        }
    }
    journal.flush();
    assert!(largest < COMPACT_FROM_BYTES + 100_000, "{largest}");
    let state = journal.state.clone();
    drop(journal);
    let journal = open(directory.path()).journal;
    assert_eq!(journal.state, state);
    assert!(!PathBuf::from(format!("{}.tmp", path.display())).exists());
}

#[derive(Clone, Debug)]
enum Change {
    Record(u8, u64),
    Forget(u8),
    Begin(u8, u64),
    Part(u8, u32, u64),
    End(u8),
    RunEnded(Option<u64>),
}

fn change() -> impl Strategy<Value = Change> {
    let (name, n) = (0_u8..4, 0_u64..100);
    prop_oneof![
        (name.clone(), n.clone()).prop_map(|(name, n)| Change::Record(name, n)),
        name.clone().prop_map(Change::Forget),
        (name.clone(), n.clone()).prop_map(|(name, n)| Change::Begin(name, n)),
        (name.clone(), 1_u32..4, n.clone()).prop_map(|(name, number, n)| Change::Part(name, number, n)),
        name.prop_map(Change::End),
        proptest::option::of(n).prop_map(Change::RunEnded),
    ]
}

fn make(journal: &mut Journal, change: Change) {
    let name = |n: u8| ["a", "b/c", "ü\"", "d"][usize::from(n)];
    match change {
        Change::Record(at, n) => journal.record(key(name(at)), uploaded(n)),
        Change::Forget(at) => journal.forget(name(at)),
        Change::Begin(at, n) => journal.begin_upload(key(name(at)), OpenUpload { parts: BTreeMap::new(), ..upload(n) }),
        Change::Part(at, number, n) => journal.part_done(name(at), part(number, n).0, part(number, n).1),
        Change::End(at) => journal.end_upload(name(at)),
        Change::RunEnded(run) => journal.set_ended(run.map(ended)),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    #[test]
    fn any_prefix_of_a_journal_is_a_prefix_of_its_history(changes in proptest::collection::vec(change(), 0..24)) {
        let directory = tempfile::tempdir().unwrap();
        let mut journal = open(directory.path()).journal;
        let path = file_of(directory.path());
        let mut history = vec![(fs::metadata(&path).unwrap().len(), journal.state.clone())];
        for change in changes {
            make(&mut journal, change);
            journal.flush();
            history.push((fs::metadata(&path).unwrap().len(), journal.state.clone()));
        }
        let bytes = fs::read(&path).unwrap();
        for cut in 0..=bytes.len() {
            let read = file::read_lines(&bytes[..cut], DEST).unwrap().unwrap();
            match history.iter().rev().find(|(len_bytes, _)| *len_bytes <= cut as u64) {
                None => prop_assert!(read.is_none()),
                Some((len_bytes, state)) => {
                    let read = read.unwrap();
                    prop_assert_eq!(&read.state, state);
                    prop_assert_eq!(read.torn_bytes, cut as u64 - len_bytes);
                }
            }
        }
        // What a compaction leaves is the same state in exactly the bytes that were counted.
        journal.compact();
        let live_bytes = journal.state.live_bytes;
        drop(journal);
        let journal = open(directory.path()).journal;
        prop_assert_eq!(&journal.state, &history.last().unwrap().1);
        prop_assert_eq!(journal.state.live_bytes, live_bytes);
    }

    #[test]
    fn garbage_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..300), at in 0_usize..600) {
        let directory = tempfile::tempdir().unwrap();
        let mut journal = open(directory.path()).journal;
        journal.record(key("a"), uploaded(1));
        journal.begin_upload(key("b"), upload(1));
        drop(journal);
        let path = file_of(directory.path());
        let mut content = fs::read(&path).unwrap();
        let at = at.min(content.len());
        let end = (at + bytes.len()).min(content.len());
        content.splice(at..end, bytes);
        fs::write(&path, content).unwrap();
        prop_assert!(open(directory.path()).journal.is_persistent());
    }
}
