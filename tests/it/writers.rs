//! Two writers, one prefix: the head's compare-and-swap decides, and the loser can do no harm.

use rustix::process::Signal;

use crate::harness::{Cli, DevS3, Sandbox, assert_same_tree, eventually};

fn impatient(sandbox: &Sandbox, server: &DevS3, pod: &str) -> Cli {
    sandbox.watch(server.place(), "job").args(["--lease", "5s", "--pod-uid", pod])
}

/// Another writer owns the prefix: exit 6, and it is named.
#[test]
fn a_second_writer_is_refused_and_told_who_the_first_is() {
    let (first, second, server) = (Sandbox::new(), Sandbox::new(), DevS3::start());
    first.write("first", b"first");
    second.write("second", b"second");
    second.done();
    let mut watch = impatient(&first, &server, "first-pod").spawn();
    watch.wait_for_log("uploaded path=first");
    impatient(&second, &server, "second-pod").run().expect_code(6).expect_said("first-pod");
    // Nor can a one-shot sync slip in.
    let sync = second.sync(server.place(), "job").args(["--lease", "5s"]);
    sync.run().expect_code(6).expect_said("first-pod");
    first.done();
    watch.wait().expect_code(0);
    assert_same_tree(&first.tree(), &server.tree("job"));
}

/// A writer of the same machine that shares the control directory is refused at once: the journal is locked.
#[test]
fn a_second_writer_with_the_same_journal_is_refused_at_once() {
    let (sandbox, server) = (Sandbox::new(), DevS3::start());
    let mut watch = sandbox.watch(server.place(), "job").spawn();
    watch.wait_for_log("the prefix is ours");
    sandbox.watch(server.place(), "job").run().expect_code(6);
    sandbox.done();
    watch.wait().expect_code(0);
}

/// Taking the head raises the generation; a holder that shows no sign of life for the time to live is taken over.
#[test]
fn a_writer_that_was_killed_is_taken_over_after_its_lease() {
    let (first, second, server) = (Sandbox::new(), Sandbox::new(), DevS3::start());
    first.write("first", b"first");
    second.write("second", b"second");
    second.done();
    let mut watch = impatient(&first, &server, "first-pod").spawn();
    watch.wait_for_log("uploaded path=first");
    watch.kill();
    impatient(&second, &server, "second-pod").run().expect_code(0).expect_said("first-pod");
    assert_eq!(server.tree("job").into_keys().collect::<Vec<_>>(), ["first", "second"]);
}

/// A superseded writer's next swap fails and it ends with 6; what it still sends is refused by its conditions.
#[test]
fn a_writer_that_slept_through_being_superseded_changes_nothing_more() {
    let (first, second, server) = (Sandbox::new(), Sandbox::new(), DevS3::start());
    first.write("state", b"of the first");
    let mut watch = impatient(&first, &server, "first-pod").spawn();
    watch.wait_for_log("uploaded path=state");
    watch.freeze();
    first.write("state", b"of the first, later");

    second.write("state", b"of the second");
    second.done();
    impatient(&second, &server, "second-pod").run().expect_code(0);
    server.clear_requests();
    watch.thaw();
    watch.wait().expect_code(6);
    let writes = server.writes();
    assert!(writes.is_empty(), "the first one still wrote {writes:?}");
    assert_same_tree(&second.tree(), &server.tree("job"));
    assert!(server.content("job", "DONE").is_some());
}

/// A prefix that was given back is free at once, whoever comes.
#[test]
fn a_prefix_that_was_given_back_is_free_at_once() {
    let (first, second, server) = (Sandbox::new(), Sandbox::new(), DevS3::start());
    first.write("file", b"first");
    let mut watch = first.watch(server.place(), "job").args(["--pod-uid", "first-pod", "--grace", "2s"]).spawn();
    watch.wait_for_log("uploaded path=file");
    watch.signal(Signal::TERM);
    watch.wait().expect_code(3);
    second.write("file", b"second");
    second.done();
    // With the default lease of a minute: waiting for it would be seen.
    let mut watch = second.watch(server.place(), "job").args(["--pod-uid", "second-pod"]).spawn();
    watch.wait_for_log("the prefix is ours");
    assert!(!watch.log().contains("the prefix is held"), "it waited");
    eventually("it ends", || watch.has_ended());
    watch.wait().expect_code(0);
    assert_same_tree(&second.tree(), &server.tree("job"));
}
