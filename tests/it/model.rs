//! Random histories of a volume, a sidecar and a server, against the simplest model: at the end the bucket holds what the
//! disk holds.

use std::collections::BTreeSet;
use std::time::Duration;

use dev_s3::{Fault, Hold, Operation, Rule, When};

use crate::harness::{Content, DevS3, Running, Sandbox, assert_same_tree, content, eventually, is_output};

const STEPS: u64 = 60;

struct History {
    sandbox: Sandbox,
    server: DevS3,
    dice: Content,
    watch: Option<Running>,
    flips: Option<Rule>,
    /// Every path that was ever there: what the bucket may hold beyond the disk.
    names: BTreeSet<String>,
    said: Vec<String>,
}

impl History {
    fn new(seed: u64) -> History {
        History {
            sandbox: Sandbox::new(),
            server: DevS3::start(),
            dice: Content::new(seed),
            watch: None,
            flips: None,
            names: BTreeSet::new(),
            said: Vec::new(),
        }
    }

    fn start(&mut self) {
        let cli = self.sandbox.watch(self.server.place(), "job").args(["--pod-uid", "pod"]);
        self.watch = Some(cli.spawn());
    }

    fn say(&mut self, what: String) {
        self.said.push(what);
    }

    fn path(&mut self) -> String {
        let directory = ["", "a/", "a/b/", "c/", "c/d/e/"][self.dice.below(5) as usize];
        let name = ["one", "two", "three", "checkpoint", "x.index", "y.tmp"][self.dice.below(6) as usize];
        format!("{directory}{name}")
    }

    /// One of the files that are there.
    fn file(&mut self) -> Option<String> {
        let files: Vec<String> = self.sandbox.tree().into_keys().collect();
        let at = self.dice.below(files.len().max(1) as u64) as usize;
        files.into_iter().nth(at)
    }

    fn bytes(&mut self) -> Vec<u8> {
        let len = match self.dice.below(20) {
            0 => 0,
            1 => 9_000_000 + self.dice.below(9_000_000),
            2..6 => 300_000 + self.dice.below(300_000),
            _ => self.dice.below(10_000),
        };
        content(self.dice.next_u64(), usize::try_from(len).unwrap())
    }

    fn step(&mut self) {
        match self.dice.below(24) {
            0..8 => {
                let (path, bytes) = (self.path(), self.bytes());
                self.say(format!("write {path}, {} bytes", bytes.len()));
                self.sandbox.write(&path, &bytes);
            }
            8..10 => {
                if let Some(path) = self.file() {
                    self.say(format!("append to {path}"));
                    let bytes = content(self.dice.next_u64(), 500);
                    self.sandbox.append(&path, &bytes);
                }
            }
            10..12 => {
                if let Some(path) = self.file().filter(|path| self.sandbox.metadata(path).len() >= 8) {
                    self.say(format!("overwrite the start of {path}, and set its time back"));
                    let bytes = content(self.dice.next_u64(), 8);
                    self.sandbox.overwrite(&path, &bytes);
                    self.sandbox.set_mtime(&path, 1_700_000_000, 0);
                }
            }
            12..14 => {
                if let Some(from) = self.file() {
                    let to = self.path();
                    self.say(format!("rename {from} to {to}"));
                    self.sandbox.rename(&from, &to);
                }
            }
            14 => {
                let (from, to) = (["a", "c", "c/d"][self.dice.below(3) as usize], format!("moved-{}", self.said.len()));
                if self.sandbox.path(from).is_dir() {
                    self.say(format!("rename the directory {from} to {to}"));
                    self.sandbox.rename(from, &to);
                }
            }
            15..17 => {
                if let Some(path) = self.file() {
                    self.say(format!("remove {path}"));
                    self.sandbox.remove(&path);
                }
            }
            17 => {
                if self.sandbox.path("c").is_dir() {
                    self.say("remove the directory c".to_owned());
                    self.sandbox.remove("c");
                }
            }
            18..20 => {
                let forget = self.dice.below(3) == 0;
                self.say(format!("kill and start again{}", if forget { " without the journal" } else { "" }));
                self.watch.take().expect("it runs").kill();
                if forget {
                    // It may have been killed before it made one anew.
                    let _ = std::fs::remove_dir_all(self.sandbox.control());
                }
                self.start();
            }
            20..22 => {
                let fault = match self.dice.below(6) {
                    0 => Fault::SlowDown,
                    1 => Fault::InternalError,
                    2 => Fault::LoseAnswer,
                    3 => Fault::ResetRequest { after_bytes: 100 },
                    4 => Fault::FlipReceived { at: 10 },
                    _ => Fault::StallAnswer(Hold::For(Duration::from_millis(100))),
                };
                let when = match fault {
                    // What comes back from the head must not be believed; that is another test's.
                    Fault::FlipReceived { .. } => {
                        When::operation(Operation::PutObject).or_operation(Operation::UploadPart)
                    }
                    _ => When::any(),
                };
                let (times, seed) = (1 + self.dice.below(3), self.dice.next_u64());
                self.say(format!("{times} times {fault:?}"));
                let flips = matches!(fault, Fault::FlipReceived { .. });
                let rule = self.server.faults().add(when.chance(0.5, seed).times(times), fault);
                // A line that damages the same bytes again and again is given up for good reason: no two rules for that.
                if flips && let Some(earlier) = self.flips.replace(rule) {
                    earlier.remove();
                }
            }
            _ => {
                self.say("let something arrive".to_owned());
                let sent = self.server.count(Operation::PutObject).requests;
                let path = format!("beat-{}", self.said.len());
                self.sandbox.write(&path, path.as_bytes());
                let server = &self.server;
                eventually("something arrives", || server.count(Operation::PutObject).requests > sent);
            }
        }
        let now = self.sandbox.tree();
        self.names.extend(now.into_keys());
    }

    fn end(mut self) {
        self.say("DONE".to_owned());
        self.sandbox.done();
        self.watch.take().expect("it runs").wait().expect_code(0);
        let disk = self.sandbox.tree();
        let mut bucket = self.server.tree("job");
        // What vanished locally stays in the bucket, and nothing else comes in.
        bucket.retain(|key, _| disk.contains_key(key) || !self.names.contains(key));
        assert_same_tree(&disk, &bucket);
        assert!(self.server.content("job", "DONE").is_some());
        assert!(self.server.keys_below("job").iter().all(|key| is_output(key) || !key.contains("journal")));
    }
}

impl Drop for History {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("-- what happened\n{}\n--", self.said.join("\n"));
        }
    }
}

fn tell(seed: u64) {
    println!("seed {seed}");
    let mut history = History::new(seed);
    history.start();
    for _ in 0..STEPS {
        history.step();
    }
    history.end();
}

/// Whatever the trainer does, however often the sidecar is killed, whatever the network loses: exit 0 means that every file
/// that was there at DONE is in the bucket. `MODEL_SEED=n` tells one history alone.
#[test]
fn whatever_happens_the_bucket_holds_what_the_disk_holds() {
    if let Ok(seed) = std::env::var("MODEL_SEED") {
        return tell(seed.parse().expect("a number"));
    }
    (1..=8).for_each(tell);
}
