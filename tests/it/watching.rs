//! What a trainer may do to its volume while it is watched. Full scans are an hour apart here: whatever arrives before DONE
//! arrived because of an event.

use std::io::Write as _;

use dev_s3::{Fault, Gate, Hold, Operation, When};

use crate::harness::{Cli, DevS3, Sandbox, assert_same_tree, content, eventually};

fn by_events_alone(sandbox: &Sandbox, server: &DevS3) -> Cli {
    sandbox.watch(server.place(), "job").args(["--rescan", "1h"])
}

/// A new or moved-in directory: watch it, then scan it.
#[test]
fn a_directory_that_is_moved_in_arrives_and_is_followed() {
    let (sandbox, server) = (Sandbox::new(), DevS3::start());
    let mut watch = by_events_alone(&sandbox, &server).spawn();
    watch.wait_for_log("the prefix is ours");
    sandbox.mkdir("runs");
    let deep: Vec<(&str, &[u8])> = vec![("a", b"a"), ("b/c/d", b"d"), ("b/c/e", b"e")];
    sandbox.place_directory("from-outside", &deep);
    sandbox.place_directory("runs/nested-from-outside", &deep);
    for path in ["from-outside/b/c/e", "runs/nested-from-outside/b/c/d"] {
        watch.wait_for_log(&format!("uploaded path={path}"));
    }
    // Its directories are watched, the deep ones too.
    sandbox.write("from-outside/b/c/later", b"later");
    watch.wait_for_log("uploaded path=from-outside/b/c/later");
    sandbox.done();
    watch.wait().expect_code(0);
    assert_same_tree(&sandbox.tree(), &server.tree("job"));
}

/// A directory that is renamed keeps its kernel watch, which must learn its new name.
#[test]
fn a_directory_that_is_renamed_within_src_is_followed_under_its_new_name() {
    let (sandbox, server) = (Sandbox::new(), DevS3::start());
    let mut watch = by_events_alone(&sandbox, &server).spawn();
    sandbox.write("old/deep/a", b"a");
    watch.wait_for_log("uploaded path=old/deep/a");
    sandbox.rename("old", "new");
    watch.wait_for_log("uploaded path=new/deep/a");
    sandbox.write("new/b", b"b");
    sandbox.write("new/deep/c", b"c");
    watch.wait_for_log("uploaded path=new/b");
    watch.wait_for_log("uploaded path=new/deep/c");
    // Another directory takes the old name.
    sandbox.write("old/deep/d", b"d");
    watch.wait_for_log("uploaded path=old/deep/d");
    sandbox.done();
    watch.wait().expect_code(0);
    let mut bucket = server.tree("job");
    // Nothing is deleted because something vanished locally.
    assert!(bucket.remove("old/deep/a").is_some());
    assert_same_tree(&sandbox.tree(), &bucket);
}

/// A directory that is removed and made again is watched again.
#[test]
fn a_directory_that_is_removed_and_made_again_is_followed() {
    let (sandbox, server) = (Sandbox::new(), DevS3::start());
    let mut watch = by_events_alone(&sandbox, &server).spawn();
    for round in 0..5 {
        let (first, second) = (format!("logs/{round}-first"), format!("logs/{round}-second"));
        sandbox.write(&first, &content(round, 1000));
        watch.wait_for_log(&format!("uploaded path={first}"));
        sandbox.write(&second, &content(round, 2000));
        watch.wait_for_log(&format!("uploaded path={second}"));
        sandbox.remove("logs");
    }
    sandbox.write("logs/last", b"last");
    sandbox.done();
    watch.wait().expect_code(0);
    assert_eq!(server.content("job", "logs/last").as_deref(), Some(&b"last"[..]));
    assert_eq!(server.tree("job").len(), 11);
}

/// Files created before the watch on a new directory is set are found by scanning it.
#[test]
fn files_that_are_faster_than_the_watch_on_their_directory_arrive() {
    let (sandbox, server) = (Sandbox::new(), DevS3::start());
    let mut watch = by_events_alone(&sandbox, &server).spawn();
    watch.wait_for_log("the prefix is ours");
    for n in 0..200 {
        sandbox.write(&format!("{n}/a/b/c/file"), &content(n, 100));
    }
    eventually("all arrive by events alone", || {
        server.keys_below("job").iter().filter(|k| k.ends_with("/file")).count() == 200
    });
    sandbox.done();
    watch.wait().expect_code(0);
    assert_same_tree(&sandbox.tree(), &server.tree("job"));
}

/// A rewrite of the same size is seen, however soon it follows; times and sizes alone decide nothing. Nobody asks for the
/// file's times in between: a kernel that makes them fine when they are asked for leaves the two writes in one tick.
#[test]
fn a_rewrite_of_the_same_size_within_one_clock_tick_arrives() {
    let (sandbox, server) = (Sandbox::new(), DevS3::start());
    let mut watch = by_events_alone(&sandbox, &server).spawn();
    sandbox.write("state", &content(0, 4096));
    watch.wait_for_log("uploaded path=state");
    for round in 1..200_u64 {
        let second = content(2 * round + 1, 4096);
        sandbox.overwrite("state", &content(2 * round, 4096));
        if round % 3 == 0 {
            // Now and then right after the first version went up.
            let sent = server.count(Operation::PutObject).requests;
            eventually("something is sent", || server.count(Operation::PutObject).requests > sent);
        }
        sandbox.overwrite("state", &second);
        sandbox.set_mtime("state", 1_700_000_000, 0);
        if round % 20 == 0 {
            eventually("the last version is up", || server.content("job", "state").as_deref() == Some(&second[..]));
        }
    }
    sandbox.done();
    watch.wait().expect_code(0);
    assert_same_tree(&sandbox.tree(), &server.tree("job"));
}

/// The same without an event: the second write happens while the first version is being sent, and DONE follows at once.
#[test]
fn a_rewrite_of_the_same_size_while_the_file_is_sent_arrives() {
    let (sandbox, server) = (Sandbox::new(), DevS3::start());
    let gate = Gate::new();
    let put = When::operation(Operation::PutObject).key("job/state").times(1);
    server.faults().add(put, Fault::Stall(Hold::Until(gate.clone())));
    let watch = by_events_alone(&sandbox, &server).spawn();
    sandbox.write("state", &content(1, 4096));
    gate.arrived_blocking(1);
    sandbox.overwrite("state", &content(2, 4096));
    sandbox.done();
    gate.open();
    watch.wait().expect_code(0);
    assert_same_tree(&sandbox.tree(), &server.tree("job"));
}

/// Growing files: debounced while they are open; after DONE what they ended with.
#[test]
fn a_file_that_is_held_open_and_grows_is_up_before_it_is_closed() {
    let (sandbox, server) = (Sandbox::new(), DevS3::start());
    let watch = by_events_alone(&sandbox, &server).spawn();
    let mut log = sandbox.open_append("events.out");
    let mut written = Vec::new();
    let up = || server.content("job", "events.out").map_or(0, |bytes| bytes.len());
    // It never rests for as long as the settle time, until it has gone up twice.
    let (mut seen, mut versions) = (0, 0);
    eventually("it goes up while it grows", || {
        let line = format!("line {}\n", written.len());
        written.extend_from_slice(line.as_bytes());
        log.write_all(line.as_bytes()).unwrap();
        let now = up();
        if now > seen {
            (seen, versions) = (now, versions + 1);
        }
        versions == 2
    });
    assert!(written.starts_with(&server.content("job", "events.out").unwrap()), "what is up is a beginning of it");
    log.write_all(b"the end\n").unwrap();
    sandbox.done();
    // Still open: DONE promises what was there.
    watch.wait().expect_code(0);
    assert_same_tree(&sandbox.tree(), &server.tree("job"));
}

/// Gone before it was uploaded: said, counted, no error.
#[test]
fn a_file_that_is_deleted_before_its_upload_is_no_error() {
    let (sandbox, server) = (Sandbox::new(), DevS3::start());
    // One disappears while it waits to settle, one while its upload waits for the store.
    let gate = Gate::new();
    let begin = When::operation(Operation::CreateMultipartUpload);
    server.faults().add(begin, Fault::Stall(Hold::Until(gate.clone())));
    let watch = by_events_alone(&sandbox, &server).args(["--settle", "1h"]).spawn();
    // Nothing settles by itself here, so what arrives was closed under the watch's eyes.
    eventually("a file arrives by its event", || {
        sandbox.write("kept", b"kept");
        server.content("job", "kept").is_some()
    });
    let open = sandbox.open_append("unsettled");
    sandbox.write_large("large", 1, 20 << 20);
    gate.arrived_blocking(1);
    sandbox.remove("unsettled");
    sandbox.remove("large");
    drop(open);
    gate.open();
    sandbox.done();
    watch.wait().expect_code(0);
    assert!(server.uploads().is_empty(), "an upload is left open");
    assert!(server.content("job", "unsettled").is_none());
}

/// What still changes after `--quiet` is listed, exit 3; a DONE in the bucket would be a lie.
#[test]
fn files_that_still_change_after_done_are_listed_and_nothing_claims_success() {
    let (sandbox, server) = (Sandbox::new(), DevS3::start());
    // The log's upload takes longer than the quiet time, and the log goes on: no version of it is the last one in time.
    let gate = Gate::new();
    let put = When::operation(Operation::PutObject).key("never-ends.log").times(1);
    server.faults().add(put, Fault::StallAnswer(Hold::Until(gate.clone())));
    let mut watch = sandbox.watch(server.place(), "job").args(["--quiet", "300ms"]).json_log().spawn();
    sandbox.write("kept", b"kept");
    let mut log = sandbox.open_append("never-ends.log");
    log.write_all(b"begun\n").unwrap();
    sandbox.done();
    gate.arrived_blocking(1);
    let done_ns = sandbox.ctime_ns("DONE");
    while !watch.has_ended() {
        log.write_all(b"still here\n").unwrap();
        if sandbox.ctime_ns("never-ends.log") > done_ns + 5_000_000_000 {
            gate.open();
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let ended = watch.wait().expect_code(3);
    let details = ended.ending()["details"].to_string();
    assert!(details.contains("never-ends.log") && !details.contains("kept"), "{details}");
    assert!(server.content("job", "DONE").is_none(), "DONE in the bucket");
    let manifest = server.content("job", ".chiefsync/manifest.json").expect("a manifest");
    let manifest: serde_json::Value = serde_json::from_slice(&manifest).unwrap();
    assert_eq!(manifest["outcome"], "interrupted");
    assert!(manifest["missing"].to_string().contains("never-ends.log"));
    assert_eq!(server.content("job", "kept").as_deref(), Some(&b"kept"[..]));
}

/// Names that merely look temporary wait until DONE, then go up like anything else.
#[test]
fn a_name_that_looks_temporary_waits_until_done() {
    let (sandbox, server) = (Sandbox::new(), DevS3::start());
    let mut watch = by_events_alone(&sandbox, &server).spawn();
    sandbox.write("a.tmp", &content(1, 1000));
    sandbox.write("b.partial", &content(2, 1000));
    sandbox.write("c", b"c");
    watch.wait_for_log("uploaded path=c");
    sandbox.rename("a.tmp", "a");
    watch.wait_for_log("uploaded path=a ");
    assert!(!server.keys_below("job").iter().any(|key| key.ends_with(".tmp") || key.ends_with(".partial")));
    sandbox.done();
    watch.wait().expect_code(0);
    assert_same_tree(&sandbox.tree(), &server.tree("job"));
}

/// SRC may appear after the start; an empty one works.
#[test]
fn src_may_appear_later_and_be_empty() {
    let (sandbox, server) = (Sandbox::new(), DevS3::start());
    std::fs::remove_dir(sandbox.src()).unwrap();
    let mut watch = sandbox.watch(server.place(), "job").spawn();
    watch.wait_for_log("SRC is not there yet");
    sandbox.mkdir("");
    sandbox.done();
    watch.wait().expect_code(0);
    assert_same_tree(&sandbox.tree(), &server.tree("job"));
    assert!(server.content("job", "DONE").is_some());
}
