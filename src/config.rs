//! What was typed and set, turned into one validated configuration.
//!
//! `cli` says what was typed; what stands here holds: placeholders are filled, globs compiled, sizes and times known.

use std::path::{Path, PathBuf};

use crate::clock::Duration;
use crate::key::Prefix;

mod destination;
mod memory;
pub mod units;

pub use destination::Placeholders;
pub use memory::{LEAST_BYTES, MemorySource, memory_budget};
pub use units::{parse_duration, parse_size, show_duration, show_size};

/// Where the results go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Destination {
    /// `s3://bucket/prefix/`
    S3 {
        /// The bucket.
        bucket: String,
        /// What stands in front of every key.
        prefix: Prefix,
    },
    /// `file:///dir`: the same layout without a server.
    File {
        /// The directory, absolute.
        directory: PathBuf,
    },
}

impl Destination {
    /// As a person would type it, with its last slash.
    pub fn url(&self) -> String {
        match self {
            Destination::S3 { bucket, prefix } => format!("s3://{bucket}/{prefix}"),
            Destination::File { directory } => format!("file://{}/", directory.display()),
        }
    }
}

/// What restarts a trainer that failed, as the job's `restartPolicy` says.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum RestartPolicy {
    /// Nobody: FAILED ends the run at once.
    Never,
    /// The operator makes a new pod: FAILED ends the run at once.
    ExitCode,
    /// The kubelet restarts the trainer in place, beside a sidecar that lives on.
    OnFailure,
    /// Not told: as OnFailure.
    #[default]
    Unknown,
}

impl RestartPolicy {
    /// Whether a failed trainer may start again beside this very sidecar.
    pub fn restarts_in_place(self) -> bool {
        matches!(self, RestartPolicy::OnFailure | RestartPolicy::Unknown)
    }
}

/// What `sync` and `watch` share.
#[derive(Clone, Debug)]
pub struct Config {
    /// SRC, absolute.
    pub source: PathBuf,
    /// DEST.
    pub destination: Destination,
    /// The control directory; the default is `SRC/.chiefsync`. Used where it can be written.
    pub control: PathBuf,
    /// What the user includes and excludes.
    pub filter: Filter,
    /// Bytes of memory that the process as a whole is meant to stay within.
    pub memory_bytes: u64,
    /// Whether writes are conditional (`--no-fence` turns it off).
    pub fence: bool,
    /// How long a head without change still counts as held by somebody else.
    pub lease: Duration,
    /// This pod, where it is known: a marker or a head of another pod is another run's.
    pub pod_uid: Option<String>,
    /// Stop trying this long after DONE or a signal; `None` in `sync` means while it takes.
    pub deadline: Option<Duration>,
    /// What still changes this long after the end marker is listed and given up.
    pub quiet: Duration,
    /// SIGTERM to SIGKILL, less what the exit itself needs.
    pub grace: Duration,
    /// Where the last word goes for Kubernetes (at most 4 KiB).
    pub termination_message: Option<PathBuf>,
}

/// What only `watch` needs.
#[derive(Clone, Debug)]
pub struct WatchConfig {
    /// The shared part.
    pub base: Config,
    /// A file without an event counts as settled after this long without change.
    pub settle: Duration,
    /// Full scans this far apart; `None` chooses by file system (60 s, 10 s on network file systems).
    pub rescan: Option<Duration>,
    /// A file that grows all the time goes up at most this often.
    pub growing_interval: Duration,
    /// What restarts a failed trainer.
    pub restart_policy: RestartPolicy,
    /// How long to follow after FAILED for a new attempt.
    pub restart_wait: Duration,
    /// Nothing changed for this long and no marker: the trainer is lost. `None`: wait for ever.
    pub idle_deadline: Option<Duration>,
    /// After the proof, idle until SIGTERM (native sidecars).
    pub stay: bool,
}

/// What only `sync` needs.
#[derive(Clone, Debug)]
pub struct SyncConfig {
    /// The shared part.
    pub base: Config,
    /// Print the plan, change nothing.
    pub dry_run: bool,
    /// Remove remote objects that are not local.
    pub delete: bool,
}

/// Include and exclude globs; the last one that matches a path decides, and what none matches is included.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    globs: globset::GlobSet,
    includes: Vec<bool>,
}

impl Filter {
    /// Compiles `(is_include, glob)` in the order they were typed. A glob without `/` matches the name in any directory;
    /// one that ends in `/` matches everything below.
    ///
    /// # Errors
    /// The glob that can't be compiled, with the reason.
    pub fn new(rules: &[(bool, String)]) -> Result<Filter, String> {
        let mut set = globset::GlobSetBuilder::new();
        let mut includes = Vec::new();
        for (include, text) in rules {
            let mut pattern = text.trim_start_matches('/').to_owned();
            if pattern.ends_with('/') {
                pattern.push_str("**");
            }
            if !text.trim_end_matches('/').contains('/') {
                pattern = format!("**/{pattern}");
            }
            let glob = globset::GlobBuilder::new(&pattern)
                .literal_separator(true)
                .build()
                .map_err(|e| format!("the glob {text:?} can't be read: {}", e.kind()))?;
            set.add(glob);
            includes.push(*include);
        }
        Ok(Filter { globs: set.build().map_err(|e| e.to_string())?, includes })
    }

    /// Whether a path relative to SRC is excluded.
    pub fn excludes(&self, path: &str) -> bool {
        if self.includes.is_empty() {
            return false;
        }
        self.globs.matches(Path::new(path)).last().is_some_and(|&last| !self.includes[last])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_glob_that_matches_decides() {
        let rules = [(false, "*.log"), (true, "keep/*.log"), (false, "cache/"), (false, "/only-here")];
        let rules = rules.map(|(include, glob)| (include, glob.to_owned()));
        let filter = Filter::new(&rules).unwrap();
        for (path, excluded) in [
            ("a.log", true),
            ("x/a.log", true),
            ("keep/a.log", false),
            ("cache/a", true),
            ("x/cache/y/z", true),
            ("cached", false),
            ("only-here", true),
            ("a", false),
        ] {
            assert_eq!(filter.excludes(path), excluded, "{path}");
        }
        assert!(Filter::new(&[(false, "a[".to_owned())]).unwrap_err().contains("a["));
    }
}
