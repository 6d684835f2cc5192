//! Order on the way up: data, then indexes, then pointers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use dev_s3::{Fault, Gate, Hold, Operation, When};

use crate::harness::{DevS3, Sandbox, assert_same_tree, content, eventually};

/// Pointers go up only when what they point at is up: a reader who follows one at any moment finds the data, whole.
#[test]
fn a_pointer_is_never_in_the_bucket_before_the_data_that_it_names() {
    let (sandbox, server) = (Sandbox::new(), Arc::new(DevS3::start()));
    // Data and indexes are slow, now and then very; pointers are not.
    let data = || When::operation(Operation::PutObject).or_operation(Operation::UploadPart).key("ckpt-");
    for (chance, seed, ms) in [(0.1, 1, 400), (0.5, 2, 60)] {
        server.faults().add(data().chance(chance, seed), Fault::Stall(Hold::For(Duration::from_millis(ms))));
    }
    let over = Arc::new(AtomicBool::new(false));
    let reader = {
        let (server, over) = (Arc::clone(&server), Arc::clone(&over));
        std::thread::spawn(move || {
            let (mut seen, mut looks) = (Vec::<String>::new(), 0_u64);
            while !over.load(Ordering::Relaxed) {
                looks += 1;
                let Some(pointer) = server.content("job", "tf/checkpoint") else { continue };
                let step: u64 = String::from_utf8(pointer).unwrap().trim().parse().unwrap();
                for (seed, file) in [(step, "data-00000-of-00001"), (100 + step, "index")] {
                    let there = server.content("job", &format!("tf/ckpt-{step}.{file}"));
                    let whole = there == Some(content(seed, 50_000));
                    assert!(whole, "checkpoint names step {step}, and {file} is not there; look {looks}");
                }
                if seen.last() != Some(&step.to_string()) {
                    seen.push(step.to_string());
                }
            }
            seen
        })
    };
    let watch = sandbox.watch(server.place(), "job").spawn();
    for step in 1..=12_u64 {
        // As TensorFlow saves: data, index, then the pointer by rename.
        sandbox.write(&format!("tf/ckpt-{step}.data-00000-of-00001"), &content(step, 50_000));
        sandbox.write(&format!("tf/ckpt-{step}.index"), &content(100 + step, 50_000));
        sandbox.write("tf/checkpoint.tmp", format!("{step}\n").as_bytes());
        sandbox.rename("tf/checkpoint.tmp", "tf/checkpoint");
        if step % 3 == 0 {
            let wanted = format!("{step}\n");
            eventually("the pointer arrives", || {
                server.content("job", "tf/checkpoint").as_deref() == Some(wanted.as_bytes())
            });
        }
    }
    sandbox.done();
    watch.wait().expect_code(0);
    over.store(true, Ordering::Relaxed);
    let seen = reader.join().expect("no pointer was ahead of its data");
    assert!(seen.len() >= 4, "the reader saw only {seen:?}");
    assert_same_tree(&sandbox.tree(), &server.tree("job"));
}

/// The same after DONE, when nothing waits to settle any more: the data is held back, and so is the pointer.
#[test]
fn a_pointer_waits_for_its_data_after_done_too() {
    let (sandbox, server) = (Sandbox::new(), DevS3::start());
    let gate = Gate::new();
    let data = When::operation(Operation::PutObject).key("ckpt-1.data");
    server.faults().add(data, Fault::Stall(Hold::Until(gate.clone())));
    sandbox.write("tf/ckpt-1.data-00000-of-00001", &content(1, 50_000));
    sandbox.write("tf/ckpt-1.index", &content(2, 1000));
    sandbox.write("tf/checkpoint", b"1\n");
    sandbox.write("other", b"other");
    sandbox.done();
    let mut watch = sandbox.watch(server.place(), "job").spawn();
    gate.arrived_blocking(1);
    watch.wait_for_log("uploaded path=other");
    assert_eq!(server.tree("job").into_keys().collect::<Vec<_>>(), ["other"]);
    gate.open();
    watch.wait().expect_code(0);
    let at = |key: &str| server.written_at(&format!("job/{key}"));
    assert!(at("tf/ckpt-1.data-00000-of-00001") < at("tf/ckpt-1.index") && at("tf/ckpt-1.index") < at("tf/checkpoint"));
    assert_same_tree(&sandbox.tree(), &server.tree("job"));
}
