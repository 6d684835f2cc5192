//! What the scenarios are told with: a directory, a server, the real binary, and a reader that is none of ours.
//!
//! In reading order: `sandbox` (SRC on disk), `minio` and `dev_s3` (where to), `cli` (chiefsync as a process), `reader`
//! (boto3). Whatever is waited for is a condition, never a time; [`eventually`] has the only clock, and it only gives up.

mod cli;
mod dev_s3;
mod minio;
mod reader;
mod sandbox;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

pub use cli::{Cli, Finished, Running};
pub use dev_s3::{DevS3, is_output};
pub use minio::minio;
pub use reader::Reader;
pub use sandbox::{Content, Sandbox, content};

/// How long anything may take: generous, because a machine that runs tests is busy.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Where chiefsync is told to write: a bucket that belongs to one test.
#[derive(Clone, Debug)]
pub struct Place {
    /// The server's URL.
    pub endpoint: String,
    /// Its only key.
    pub access_key: String,
    /// The secret that belongs to it.
    pub secret_key: String,
    /// The bucket.
    pub bucket: String,
}

impl Place {
    /// DEST for a prefix.
    pub fn destination(&self, prefix: &str) -> String {
        format!("s3://{}/{prefix}", self.bucket)
    }

    /// What the AWS SDKs read.
    pub fn environment(&self) -> Vec<(&'static str, String)> {
        vec![
            ("AWS_ENDPOINT_URL", self.endpoint.clone()),
            ("AWS_ACCESS_KEY_ID", self.access_key.clone()),
            ("AWS_SECRET_ACCESS_KEY", self.secret_key.clone()),
            ("AWS_REGION", "us-east-1".to_owned()),
            ("AWS_DEFAULT_REGION", "us-east-1".to_owned()),
            ("AWS_EC2_METADATA_DISABLED", "true".to_owned()),
        ]
    }
}

/// Relative paths (or keys below a prefix) with the SHA-256 of what they hold, in hex.
pub type Tree = BTreeMap<String, String>;

/// Fails with the first differences, not with two long dumps.
#[track_caller]
pub fn assert_same_tree(disk: &Tree, bucket: &Tree) {
    let mut lines = Vec::new();
    for (path, sha256) in disk {
        match bucket.get(path) {
            Some(there) if there == sha256 => {}
            Some(_) => lines.push(format!("other content in the bucket: {path:?}")),
            None => lines.push(format!("not in the bucket: {path:?}")),
        }
    }
    lines
        .extend(bucket.keys().filter(|key| !disk.contains_key(*key)).map(|key| format!("only in the bucket: {key:?}")));
    let shown = lines.len().min(20);
    assert!(lines.is_empty(), "{} differences:\n  {}", lines.len(), lines[..shown].join("\n  "));
}

/// Asks until it is so; panics with `what` when it never is.
#[track_caller]
pub fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "waited {} s in vain: {what}", PATIENCE.as_secs());
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The path of a tool; the script installs it where it is missing, and says what to do where it can't.
pub fn tool(name: &str) -> PathBuf {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tools/get");
    let output = Command::new(&script)
        .arg(name)
        .stderr(Stdio::inherit())
        .output()
        .unwrap_or_else(|e| panic!("{} can't be run: {e}", script.display()));
    assert!(
        output.status.success(),
        "this test needs {name}: put it on PATH, or follow what {} says",
        script.display()
    );
    PathBuf::from(String::from_utf8(output.stdout).expect("a path").trim())
}

/// A temporary directory on a disk: large tests must not fill a /tmp that is memory.
pub fn temporary_directory() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a temporary directory")
}
