//! More at once than the kernel's queue holds, and than the memory could.

use std::io::Write as _;

use crate::harness::{DevS3, Sandbox, assert_same_tree, content, eventually};

const FILES: u64 = 20_000;

/// Events are hints, scans are truth: an overflow of the kernel's queue costs a rescan, not a file.
#[test]
fn twenty_thousand_files_in_a_burst_all_arrive_though_the_queue_overflows() {
    let (sandbox, server) = (Sandbox::new(), DevS3::start());
    sandbox.mkdir("burst");
    let cli = sandbox.watch(server.place(), "job").args(["--rescan", "1h", "--metrics-addr", "127.0.0.1:0"]);
    let mut watch = cli.spawn();
    sandbox.write("first", b"first");
    watch.wait_for_log("uploaded path=first");

    // Nobody reads the queue while the files come: it overflows for certain.
    watch.freeze();
    for n in 0..FILES {
        sandbox.write(&format!("burst/{n}"), &n.to_le_bytes());
    }
    let limit = std::fs::read_to_string("/proc/sys/fs/inotify/max_queued_events").unwrap();
    let limit: u64 = limit.trim().parse().unwrap();
    // A queue that holds several events a file is filled by further ones; two in a row that are the same count once.
    let mut logs = [sandbox.open_append("burst/log-a"), sandbox.open_append("burst/log-b")];
    for n in 0..limit.saturating_sub(FILES) {
        logs[usize::from(n % 2 == 0)].write_all(b"x").unwrap();
    }
    watch.thaw();

    eventually("all but the open ones arrive by the rescan", || {
        watch.metric("chiefsync_uploaded_files_total") >= FILES as f64
    });
    assert!(watch.metric("chiefsync_queue_overflows_total") >= 1.0, "the queue did not overflow");
    drop(logs);
    sandbox.done();
    watch.wait().expect_code(0);
    assert_same_tree(&sandbox.tree(), &server.tree("job"));
}

/// Memory is bounded by what the container was given, not by what the trainer produced.
#[test]
fn half_a_gibibyte_goes_through_the_memory_that_was_given() {
    let sandbox = Sandbox::new();
    let server = DevS3::on_disk(&sandbox.outside("store"));
    for n in 0..500 {
        sandbox.write(&format!("small/{n}"), &content(n, 5_000));
    }
    sandbox.write_large("model.bin", 1, 512 << 20);
    let mut watch = sandbox.watch(server.place(), "job").args(["--memory", "32MiB"]).spawn();
    watch.wait_for_log("uploaded path=model.bin");
    let peak_mib = watch.peak_memory_bytes() >> 20;
    assert!(peak_mib <= 32, "{peak_mib} MiB at its peak");
    sandbox.done();
    watch.wait().expect_code(0);
    assert_same_tree(&sandbox.tree(), &server.tree("job"));
}
