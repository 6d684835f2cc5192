//! The one place where an outcome becomes an exit code and a hint.
//!
//! Invariants: every way to end is an [`Ending`]; what it shows holds no control characters, so that a file's name can
//! neither forge a line nor drive a terminal; the termination message stays within what Kubernetes keeps.

use std::fmt::Write as _;
use std::io;
use std::path::Path;

use serde::Serialize;

use crate::clock;
use crate::disk::AppendFile;
use crate::stage::Stage;
use crate::store::{ErrorKind, StoreError};

/// What Kubernetes keeps of a termination message, in bytes.
pub const TERMINATION_MESSAGE_BYTES: usize = 4096;

/// The exit codes: part of the contract with scripts and pipelines.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[repr(u8)]
pub enum ExitCode {
    /// The promise holds.
    Proven = 0,
    /// A fault of chiefsync itself.
    Fault = 1,
    /// Usage or configuration.
    Usage = 2,
    /// Something that should be in the bucket isn't.
    Incomplete = 3,
    /// Verification found a difference.
    Differs = 4,
    /// The destination refuses for good.
    Refused = 5,
    /// Another writer owns the prefix.
    Fenced = 6,
    /// The trainer wrote FAILED.
    TrainerFailed = 7,
    /// The trainer went away without a marker.
    TrainerLost = 8,
    /// A second SIGINT.
    Interrupted = 130,
    /// A second SIGTERM.
    Terminated = 143,
}

impl ExitCode {
    /// Every code, in order.
    pub const ALL: [ExitCode; 11] = [
        ExitCode::Proven,
        ExitCode::Fault,
        ExitCode::Usage,
        ExitCode::Incomplete,
        ExitCode::Differs,
        ExitCode::Refused,
        ExitCode::Fenced,
        ExitCode::TrainerFailed,
        ExitCode::TrainerLost,
        ExitCode::Interrupted,
        ExitCode::Terminated,
    ];

    /// The number that the process ends with.
    pub fn number(self) -> u8 {
        self as u8
    }

    /// The word for logs.
    pub fn name(self) -> &'static str {
        match self {
            ExitCode::Proven => "proven",
            ExitCode::Fault => "fault",
            ExitCode::Usage => "usage",
            ExitCode::Incomplete => "incomplete",
            ExitCode::Differs => "differs",
            ExitCode::Refused => "refused",
            ExitCode::Fenced => "fenced",
            ExitCode::TrainerFailed => "trainer failed",
            ExitCode::TrainerLost => "trainer lost",
            ExitCode::Interrupted => "interrupted",
            ExitCode::Terminated => "terminated",
        }
    }

    /// What it means, for the reference.
    pub fn meaning(self) -> &'static str {
        match self {
            ExitCode::Proven => {
                "the promise holds: DONE was there (for `watch`) and everything is in the bucket, checked"
            }
            ExitCode::Fault => "an unexpected fault of chiefsync itself",
            ExitCode::Usage => "usage or configuration",
            ExitCode::Incomplete => {
                "incomplete: something that should be in the bucket isn't, whatever the cause (deadline, signal, \
                 unreadable file, key too long); listed"
            }
            ExitCode::Differs => "verification found a difference",
            ExitCode::Refused => "the destination refuses for good: credentials, permission, no such bucket",
            ExitCode::Fenced => "another writer owns the prefix (named)",
            ExitCode::TrainerFailed => "the trainer failed (FAILED); what it left has been uploaded",
            ExitCode::TrainerLost => {
                "the trainer was lost without a marker (crash, OOM); what it left has been uploaded"
            }
            ExitCode::Interrupted => "a second SIGINT: ended at once",
            ExitCode::Terminated => "a second SIGTERM: ended at once",
        }
    }
}

impl From<ExitCode> for std::process::ExitCode {
    fn from(code: ExitCode) -> std::process::ExitCode {
        code.number().into()
    }
}

/// What the outside asks of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Signal {
    /// Nothing: go on.
    #[default]
    Run,
    /// A first SIGTERM ([`ExitCode::Terminated`]) or SIGINT ([`ExitCode::Interrupted`]): come to an end within the grace.
    Stop(ExitCode),
}

/// What was typed or set can't be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct UsageError {
    /// What is wrong, and where.
    pub message: String,
    /// What to do instead.
    pub hint: Option<String>,
}

impl UsageError {
    /// An error with what to do instead.
    pub fn new(message: impl Into<String>, hint: impl Into<String>) -> UsageError {
        UsageError { message: message.into(), hint: Some(hint.into()) }
    }
}

/// How a run ended: the code, and what a person needs to go on from there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ending {
    /// The exit code.
    pub code: ExitCode,
    /// One sentence: what happened, and where.
    pub summary: String,
    /// One line each: the files that are missing, the differences.
    pub details: Vec<String>,
    /// What to do about it.
    pub hint: Option<String>,
}

impl Ending {
    /// How to end when the head isn't ours.
    pub fn from_lease_error(error: &crate::head::LeaseError) -> Ending {
        use crate::head::LeaseError;
        let code = match error {
            LeaseError::Store(error) => return Ending::from_store_error(error),
            LeaseError::Owned(_) | LeaseError::Superseded(_) => ExitCode::Fenced,
            LeaseError::Garbled { .. } => ExitCode::Differs,
        };
        Ending { hint: error.hint(), ..Ending::new(code, error.to_string()) }
    }

    /// An ending of one sentence.
    pub fn new(code: ExitCode, summary: impl Into<String>) -> Ending {
        Ending { code, summary: summary.into(), details: Vec::new(), hint: None }
    }

    /// What was typed or set can't be used.
    pub fn usage(summary: impl Into<String>, hint: impl Into<String>) -> Ending {
        Ending::new(ExitCode::Usage, summary).with_hint(hint)
    }

    /// A fault of chiefsync itself.
    pub fn fault(summary: impl Into<String>) -> Ending {
        Ending::new(ExitCode::Fault, summary)
            .with_hint("this is a bug in chiefsync: please report it with the log of the same run under -vv")
    }

    /// The same with what to do about it.
    pub fn with_hint(mut self, hint: impl Into<String>) -> Ending {
        self.hint = Some(hint.into());
        self
    }

    /// The same with a line for each thing that is missing or different.
    pub fn with_details(mut self, details: Vec<String>) -> Ending {
        self.details = details;
        self
    }

    /// The ending that an error of the store leads to, once nobody tries any more.
    pub fn from_store_error(error: &StoreError) -> Ending {
        let code = match error.kind {
            // A store that can't do what is needed refuses as much as one that doesn't want to.
            ErrorKind::Stop | ErrorKind::Unsupported => ExitCode::Refused,
            ErrorKind::Corrupt => ExitCode::Differs,
            ErrorKind::Fenced => ExitCode::Fenced,
            ErrorKind::Retry(_) | ErrorKind::Missing | ErrorKind::Refused => ExitCode::Incomplete,
        };
        let hint = error.hint.clone().or_else(|| {
            let hint = match error.kind {
                ErrorKind::Stop => "check the bucket's name, the credentials and what they may do",
                ErrorKind::Unsupported => "the store lacks an operation that chiefsync needs",
                ErrorKind::Corrupt => "bytes changed on their way: run it again, and suspect the network or the store",
                ErrorKind::Fenced => "one writer a prefix: give each run a prefix of its own, or end the other one",
                ErrorKind::Retry(_) => "the store didn't answer in time: run it again, what is uploaded stays",
                ErrorKind::Missing | ErrorKind::Refused => return None,
            };
            Some(hint.to_owned())
        });
        Ending { code, summary: error.to_string(), details: Vec::new(), hint }
    }

    /// Writes the ending for people: what happened, the lines of detail, the hint last.
    ///
    /// # Errors
    /// The stream's own.
    pub fn report(&self, stderr: &mut dyn io::Write) -> io::Result<()> {
        let mut text = String::new();
        let word = if self.code == ExitCode::Proven { "ok" } else { "error" };
        let _ = writeln!(text, "{word}: {}", one_line(&self.summary));
        for detail in &self.details {
            let _ = writeln!(text, "  {}", one_line(detail));
        }
        if let Some(hint) = &self.hint {
            let _ = writeln!(text, "hint: {}", one_line(hint));
        }
        stderr.write_all(text.as_bytes())?;
        stderr.flush()
    }

    /// Writes the ending as one line of JSON: the last line of a JSON log.
    ///
    /// # Errors
    /// The stream's own.
    pub fn report_json(&self, stderr: &mut dyn io::Write) -> io::Result<()> {
        let mut line = self.to_json().into_bytes();
        line.push(b'\n');
        stderr.write_all(&line)?;
        stderr.flush()
    }

    /// The ending as one JSON object, for programs.
    pub fn to_json(&self) -> String {
        let line = LastLine {
            time: clock::timestamp(),
            level: if self.code == ExitCode::Proven { "info" } else { "error" },
            stage: Stage::Exit.name(),
            message: &self.summary,
            code: self.code.number(),
            ending: self.code.name(),
            details: &self.details,
            hint: self.hint.as_deref(),
        };
        serde_json::to_string(&line).expect("text and numbers are always JSON")
    }

    /// What Kubernetes shows as the container's last word: at most 4 KiB, in whole lines; the hint stands before the
    /// details, because these are what gets cut.
    pub fn termination_message(&self) -> String {
        let head = format!("exit {} ({}): {}", self.code.number(), self.code.name(), one_line(&self.summary));
        let hint = self.hint.iter().map(|hint| format!("hint: {}", one_line(hint)));
        let lines = std::iter::once(head).chain(hint).chain(self.details.iter().map(|detail| one_line(detail)));
        whole_lines(lines.collect(), TERMINATION_MESSAGE_BYTES)
    }

    /// Writes the termination message. The file is written in place: the kubelet mounts it, so it can't be replaced.
    ///
    /// # Errors
    /// The file's own.
    pub fn write_termination_message(&self, path: &Path) -> io::Result<()> {
        let mut file = AppendFile::open(path)?;
        file.truncate(0)?;
        file.append(self.termination_message().as_bytes())
    }
}

/// The last line of a JSON log: an event's fields, then the ending's.
#[derive(Serialize)]
struct LastLine<'a> {
    time: String,
    level: &'static str,
    stage: &'static str,
    message: &'a str,
    code: u8,
    ending: &'static str,
    details: &'a [String],
    hint: Option<&'a str>,
}

impl From<UsageError> for Ending {
    fn from(error: UsageError) -> Ending {
        Ending { code: ExitCode::Usage, summary: error.message, details: Vec::new(), hint: error.hint }
    }
}

/// As many lines as fit into `limit_bytes`, and a last one that counts the others.
fn whole_lines(lines: Vec<String>, limit_bytes: usize) -> String {
    let total = lines.iter().map(|line| line.len() + 1).sum::<usize>();
    if total <= limit_bytes {
        return lines.iter().flat_map(|line| [line, "\n"]).collect();
    }
    let room_for_count = "… and 18446744073709551615 more\n".len();
    let count = lines.len();
    let mut text = String::new();
    for (index, line) in lines.into_iter().enumerate() {
        let room = limit_bytes - room_for_count - text.len();
        if line.len() < room {
            text += &line;
            text.push('\n');
            continue;
        }
        let mut left = count - index;
        if index == 0 {
            // The first line says what happened: part of it is better than none.
            text += cut(&line, room - 1);
            text.push('\n');
            left -= 1;
        }
        if left > 0 {
            let _ = writeln!(text, "… and {left} more");
        }
        break;
    }
    text
}

/// The longest start of `text` that has at most `limit_bytes` and ends between two characters.
fn cut(text: &str, limit_bytes: usize) -> &str {
    let mut end = limit_bytes.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// `text` with its control characters escaped: one line, whatever a file is called.
pub fn one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for character in text.chars() {
        if character.is_control() {
            line.extend(character.escape_default());
        } else {
            line.push(character);
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::RetryReason;

    fn shown(ending: &Ending) -> String {
        let mut text = Vec::new();
        ending.report(&mut text).unwrap();
        String::from_utf8(text).unwrap()
    }

    #[test]
    fn an_error_of_the_store_ends_by_what_the_caller_does_next() {
        for (kind, code) in [
            (ErrorKind::Stop, 5),
            (ErrorKind::Unsupported, 5),
            (ErrorKind::Corrupt, 4),
            (ErrorKind::Fenced, 6),
            (ErrorKind::Retry(RetryReason::Timeout), 3),
            (ErrorKind::Missing, 3),
            (ErrorKind::Refused, 3),
        ] {
            let ending = Ending::from_store_error(&StoreError::new(kind, "PutObject", "s3://b/k", "no"));
            assert_eq!(ending.code.number(), code, "{kind:?}");
            assert_eq!(ending.summary, "PutObject s3://b/k: no");
        }
        let error = StoreError::new(ErrorKind::Stop, "PutObject", "s3://b/k", "no").with_hint("say please");
        assert_eq!(Ending::from_store_error(&error).hint.as_deref(), Some("say please"));
    }

    #[test]
    fn a_report_is_lines_whatever_a_file_is_called() {
        let ending = Ending::new(ExitCode::Incomplete, "2 files are missing")
            .with_details(vec!["a\nerror: forged".to_owned(), "b\u{1b}[31m".to_owned()])
            .with_hint("run it again");
        assert_eq!(
            shown(&ending),
            "error: 2 files are missing\n  a\\nerror: forged\n  b\\u{1b}[31m\nhint: run it again\n"
        );
        assert_eq!(shown(&Ending::new(ExitCode::Proven, "all there")), "ok: all there\n");
    }

    #[test]
    fn a_termination_message_is_cut_between_lines() {
        let details = (0..1000).map(|n| format!("checkpoints/ä-{n}")).collect();
        let ending = Ending::new(ExitCode::Incomplete, "1000 files are missing").with_details(details).with_hint("hm");
        let text = ending.termination_message();
        assert!(text.len() <= TERMINATION_MESSAGE_BYTES);
        assert!(text.len() > TERMINATION_MESSAGE_BYTES - 80, "{}", text.len());
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[..3], ["exit 3 (incomplete): 1000 files are missing", "hint: hm", "checkpoints/ä-0"]);
        let listed = lines.len() - 3;
        assert_eq!(*lines.last().unwrap(), format!("… and {} more", 1000 - listed));
    }

    #[test]
    fn a_first_line_that_is_too_long_is_cut_between_characters() {
        let text = Ending::new(ExitCode::Fault, "ä".repeat(5000)).termination_message();
        assert!(text.len() <= TERMINATION_MESSAGE_BYTES && text.ends_with("ä\n"));
        let short = Ending::new(ExitCode::Proven, "all there");
        assert_eq!(short.termination_message(), "exit 0 (proven): all there\n");
    }

    #[test]
    fn a_termination_message_replaces_what_was_there() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        for summary in ["a longer sentence", "short"] {
            Ending::new(ExitCode::Proven, summary).write_termination_message(&path).unwrap();
        }
        let text = String::from_utf8(crate::disk::read_small(&path, 4096).unwrap()).unwrap();
        assert_eq!(text, "exit 0 (proven): short\n");
    }
}
