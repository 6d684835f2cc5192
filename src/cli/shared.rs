//! The flags that `watch` and `sync` share, and what they mean together.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::path::{Component, Path, PathBuf};

use clap::Args;

use chiefsync::clock::Duration;
use chiefsync::config::{
    self, Config, Destination, LEAST_BYTES, Placeholders, memory_budget, parse_duration, show_size,
};
use chiefsync::disk;
use chiefsync::exit::{Ending, UsageError};
use chiefsync::key::CONTROL_DIR;

use super::globs::Globs;

/// Where the kubelet looks for a container's last word unless the pod says otherwise.
const TERMINATION_LOG: &str = "/dev/termination-log";

/// What an exit needs of the grace period for itself.
const EXIT_TAKES: Duration = Duration::from_secs(3);

/// Flags of both commands.
#[derive(Debug, Args)]
pub struct Shared {
    /// The output directory.
    #[arg(value_name = "SRC", env = "CHIEFSYNC_SRC")]
    pub source: PathBuf,
    /// Where it goes: s3://bucket/prefix or file:///dir, with placeholders {namespace} {job} {replica_type}
    /// {replica_index} {pod_uid} {run}.
    #[arg(value_name = "DEST", env = "CHIEFSYNC_DEST")]
    destination: String,

    #[command(flatten)]
    pub globs: Globs,

    /// What still changes this long after the end is listed as incomplete.
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = parse_duration, env = "CHIEFSYNC_QUIET", help_heading = "Times")]
    quiet: Duration,
    /// The pod's terminationGracePeriodSeconds: what a first SIGTERM or SIGINT leaves, less 3 s for the exit itself.
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_duration, env = "CHIEFSYNC_GRACE", help_heading = "Times")]
    grace: Duration,

    /// Where journal, lock and proof are kept; SRC/.chiefsync if not given, memory if it can't be written.
    #[arg(long, value_name = "DIR", env = "CHIEFSYNC_CONTROL", help_heading = "Surroundings")]
    control: Option<PathBuf>,
    /// How much memory to stay within; if not given, three quarters of the container's limit, at most 512 MiB, or 64 MiB
    /// without a limit.
    #[arg(long, value_name = "SIZE", value_parser = parse_memory, env = "CHIEFSYNC_MEMORY", help_heading = "Surroundings")]
    memory: Option<u64>,
    /// Serves /metrics for Prometheus and /healthz here.
    #[arg(long, value_name = "ADDR", value_parser = parse_address, env = "CHIEFSYNC_METRICS_ADDR", help_heading = "Surroundings")]
    pub metrics_addr: Option<SocketAddr>,
    /// Where the last word goes for Kubernetes; /dev/termination-log where it exists, if not given.
    #[arg(long, value_name = "FILE", env = "CHIEFSYNC_TERMINATION_MESSAGE", help_heading = "Surroundings")]
    termination_message: Option<PathBuf>,

    /// Takes the bucket's or the file system's root as DEST.
    #[arg(long, env = "CHIEFSYNC_ALLOW_ROOT", help_heading = "Destination")]
    allow_root: bool,
    /// Writes without conditions, for stores that ignore them: nothing then stops a second writer.
    #[arg(long, env = "CHIEFSYNC_NO_FENCE", help_heading = "Destination")]
    no_fence: bool,
    /// How long a head that doesn't change still belongs to its holder.
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = parse_lease, env = "CHIEFSYNC_LEASE", help_heading = "Destination")]
    lease: Duration,

    #[command(flatten)]
    identity: Identity,
}

/// Who this pod is: fills DEST's placeholders.
#[derive(Debug, Args)]
#[command(next_help_heading = "Placeholders (by the downward API)")]
pub struct Identity {
    /// Fills {namespace}.
    #[arg(long, value_name = "TEXT", env = "CHIEFSYNC_NAMESPACE")]
    namespace: Option<String>,
    /// Fills {job}; if not given, the hostname less -chief-0, -master-0 or -worker-0.
    #[arg(long, value_name = "TEXT", env = "CHIEFSYNC_JOB")]
    job: Option<String>,
    /// Fills {replica_type}.
    #[arg(long, value_name = "TEXT", env = "CHIEFSYNC_REPLICA_TYPE")]
    replica_type: Option<String>,
    /// Fills {replica_index}.
    #[arg(long, value_name = "TEXT", env = "CHIEFSYNC_REPLICA_INDEX")]
    replica_index: Option<String>,
    /// Fills {pod_uid}, and tells this pod's markers from another's.
    #[arg(long, value_name = "TEXT", env = "CHIEFSYNC_POD_UID")]
    pod_uid: Option<String>,
    /// Fills {run}.
    #[arg(long, value_name = "TEXT", env = "CHIEFSYNC_RUN")]
    run: Option<String>,
}

impl Identity {
    fn placeholders(&self) -> Placeholders {
        Placeholders {
            namespace: self.namespace.clone(),
            job: self.job.clone(),
            replica_type: self.replica_type.clone(),
            replica_index: self.replica_index.clone(),
            pod_uid: self.pod_uid.clone(),
            run: self.run.clone(),
            hostname: rustix::system::uname().nodename().to_str().ok().map(str::to_owned),
        }
    }
}

/// DEST and what it needs, for the commands that only read.
#[derive(Debug, Args)]
pub struct Reading {
    /// Where the results are: s3://bucket/prefix or file:///dir, with the placeholders of watch.
    #[arg(value_name = "DEST", env = "CHIEFSYNC_DEST")]
    destination: String,
    /// Takes the bucket's or the file system's root as DEST.
    #[arg(long, env = "CHIEFSYNC_ALLOW_ROOT")]
    allow_root: bool,
    #[command(flatten)]
    identity: Identity,
}

impl Reading {
    /// DEST, its placeholders filled.
    pub fn destination(&self) -> Result<Destination, UsageError> {
        Destination::parse(&self.destination, &self.identity.placeholders(), self.allow_root)
    }
}

/// A time limit, or `off`.
#[derive(Debug, Clone, Copy)]
pub struct Limit(pub Option<Duration>);

/// `off`, or a time span.
pub fn parse_limit(text: &str) -> Result<Limit, UsageError> {
    if text == "off" { Ok(Limit(None)) } else { Ok(Limit(Some(parse_duration(text)?))) }
}

/// A time span of a second or more: what happens again and again must leave time for the rest.
pub fn parse_interval(text: &str) -> Result<Duration, UsageError> {
    at_least(Duration::from_secs(1), text)
}

fn parse_lease(text: &str) -> Result<Duration, UsageError> {
    at_least(Duration::from_secs(5), text)
}

fn at_least(least: Duration, text: &str) -> Result<Duration, UsageError> {
    let span = parse_duration(text)?;
    if span >= least {
        return Ok(span);
    }
    let hint = format!("write at least {}", config::show_duration(least));
    Err(UsageError::new(format!("{text:?} is too short"), hint))
}

fn parse_memory(text: &str) -> Result<u64, UsageError> {
    let bytes = config::parse_size(text)?;
    if bytes >= LEAST_BYTES {
        return Ok(bytes);
    }
    let hint = format!("give at least {}", show_size(LEAST_BYTES));
    Err(UsageError::new(format!("{} is too little to work with", show_size(bytes)), hint))
}

fn parse_address(text: &str) -> Result<SocketAddr, UsageError> {
    let everywhere = format!("[::]{text}");
    let full = if text.starts_with(':') { &everywhere } else { text };
    full.parse().map_err(|_| {
        UsageError::new(
            format!("{text:?} is no address to listen on"),
            "write host:port or :port, like 127.0.0.1:9400 or :9400",
        )
    })
}

impl Shared {
    /// What was typed as what holds; says on the log what the user should know about it. Unless `source_exists`, SRC may
    /// appear later.
    ///
    /// # Errors
    /// What can't be used, and what to do instead.
    pub fn config(&self, deadline: Option<Duration>, source_exists: bool) -> Result<Config, UsageError> {
        let source = std::path::absolute(&self.source)
            .map_err(|e| UsageError::new(format!("SRC {}: {e}", super::shown(&self.source)), "name a directory"))?;
        let problem = match disk::metadata(&source) {
            Ok(meta) if meta.is_dir() => None,
            Ok(_) => Some("it is not a directory".to_owned()),
            // The trainer may make it later.
            Err(error) if error.kind() == ErrorKind::NotFound && !source_exists => None,
            Err(error) => Some(error.to_string()),
        };
        if let Some(problem) = problem {
            let hint = "name the directory that the trainer writes into";
            return Err(UsageError::new(format!("SRC {}: {problem}", super::shown(&source)), hint));
        }
        let destination = Destination::parse(&self.destination, &self.identity.placeholders(), self.allow_root)?;
        if let Destination::File { directory } = &destination {
            refuse_nesting(&source, directory)?;
        }
        let control = match &self.control {
            Some(typed) => std::path::absolute(typed).unwrap_or_else(|_| typed.clone()),
            None => source.join(CONTROL_DIR),
        };
        refuse_control(&source, &control)?;
        let filter = self.globs.filter()?;
        let (memory_bytes, from) = memory_budget(self.memory);
        tracing::info!(
            version = env!("CARGO_PKG_VERSION"),
            source = super::shown(&source),
            destination = destination.url(),
            memory = show_size(memory_bytes),
            memory_from = %from,
            "chiefsync starts"
        );
        Ok(Config {
            control,
            source,
            destination,
            filter,
            memory_bytes,
            fence: !self.no_fence,
            lease: self.lease,
            pod_uid: self.identity.pod_uid.clone(),
            deadline,
            quiet: self.quiet,
            grace: self.grace - EXIT_TAKES.min(self.grace / 2),
            termination_message: self.termination_message(),
        })
    }

    /// Where the last word goes.
    pub fn termination_message(&self) -> Option<PathBuf> {
        self.termination_message.clone().or_else(default_termination_message)
    }
}

/// `/dev/termination-log`, where it exists.
pub fn default_termination_message() -> Option<PathBuf> {
    let path = PathBuf::from(TERMINATION_LOG);
    disk::metadata(&path).is_ok().then_some(path)
}

/// Writes the last word where Kubernetes looks for it. What can't be written is said, and changes nothing.
pub fn leave_last_word(ending: &Ending, path: Option<&Path>) {
    let Some(path) = path else { return };
    if let Err(error) = ending.write_termination_message(path) {
        tracing::warn!(path = super::shown(path), %error, "the termination message can't be written");
    }
}

/// A tree that is copied into itself never ends.
fn refuse_nesting(source: &Path, directory: &Path) -> Result<(), UsageError> {
    let (source, directory) = (real(source), real(directory));
    let hint = "let SRC and DEST be two trees side by side";
    if directory.starts_with(&source) {
        let (inner, outer) = (super::shown(&directory), super::shown(&source));
        return Err(UsageError::new(format!("DEST {inner} lies within SRC {outer}"), hint));
    }
    if source.starts_with(&directory) {
        let (inner, outer) = (super::shown(&source), super::shown(&directory));
        return Err(UsageError::new(format!("SRC {inner} lies within DEST {outer}"), hint));
    }
    Ok(())
}

/// What is kept in SRC is uploaded, and each upload changes the journal: only `.chiefsync` is not.
fn refuse_control(source: &Path, control: &Path) -> Result<(), UsageError> {
    let (inner, outer) = (real(control), real(source));
    if !inner.starts_with(&outer) || inner.starts_with(outer.join(CONTROL_DIR)) {
        return Ok(());
    }
    Err(UsageError::new(
        format!("--control {} lies within SRC {}", super::shown(control), super::shown(source)),
        "leave it at SRC/.chiefsync, or let it be outside of SRC",
    ))
}

/// The path with the links resolved as far as it exists.
fn real(path: &Path) -> PathBuf {
    for existing in path.ancestors() {
        if let Ok(real) = disk::canonicalize(existing) {
            let missing = path.strip_prefix(existing).unwrap_or(Path::new(""));
            return real.join(missing).components().filter(|part| *part != Component::CurDir).collect();
        }
    }
    path.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_may_lack_its_host() {
        assert_eq!(parse_address("127.0.0.1:9400").unwrap().to_string(), "127.0.0.1:9400");
        assert_eq!(parse_address(":9400").unwrap().to_string(), "[::]:9400");
        assert!(parse_address("9400").is_err() && parse_address("localhost").is_err());
    }

    #[test]
    fn a_tree_is_not_copied_into_itself() {
        let root = tempfile::tempdir().unwrap();
        let source = root.path().join("out");
        disk::create_dir_all(&source).unwrap();
        for (inner, refused) in [("out/copy", true), ("out", true), ("", true), ("out-2", false), ("copy", false)] {
            assert_eq!(refuse_nesting(&source, &root.path().join(inner)).is_err(), refused, "{inner}");
        }
    }
}
