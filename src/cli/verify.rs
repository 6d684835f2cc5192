//! `chiefsync verify`: what the head and the manifest say, against the bucket and the disk.

use std::io;
use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;

use chiefsync::config::{Destination, memory_budget, show_size};
use chiefsync::exit::{Ending, UsageError};
use chiefsync::store::OpenOptions;
use chiefsync::sync::Outside;
use chiefsync::verify::{Entry, Report, Verdict, VerifyConfig};

use super::globs::Globs;
use super::screen::Screen;
use super::session::{Session, outside};
use super::shared::Reading;
use super::table::{Table, print_json};

/// Compares head and manifest with the bucket, and with the disk where SRC is given.
///
/// Exit code 0 means that everything matches, 3 that there is nothing to compare with (no head, or a run that is still open
/// and no SRC), 4 that something differs.
#[derive(Debug, Args)]
#[command(allow_missing_positional = true)]
pub struct Verify {
    /// The directory to compare with.
    #[arg(value_name = "SRC")]
    source: Option<PathBuf>,
    /// Downloads every object and hashes it.
    #[arg(long, env = "CHIEFSYNC_DEEP")]
    deep: bool,
    /// Prints the result as JSON.
    #[arg(long, env = "CHIEFSYNC_JSON")]
    json: bool,
    #[command(flatten)]
    reading: Reading,
    #[command(flatten)]
    pub globs: Globs,
}

impl Verify {
    /// Compares.
    pub fn run(&self, screen: &Screen) -> Ending {
        self.run_with(screen, OpenOptions::default())
    }

    /// Compares with a store that is opened in this way.
    pub fn run_with(&self, screen: &Screen, options: OpenOptions) -> Ending {
        match self.config() {
            Ok((destination, config)) => {
                let print = if self.json { Print::Json } else { Print::Table { all: screen.verbose() } };
                let session = Session { memory_bytes: config.memory_bytes, metrics_addr: None, live: true };
                session.run(screen, move |metrics, signals| async move {
                    match outside(&destination, &options, metrics, signals).await {
                        Ok(outside) => compare(config, outside, print).await,
                        Err(ending) => print.answer(&Report::default(), &[], ending),
                    }
                })
            }
            Err(error) => error.into(),
        }
    }

    /// What was typed as what holds.
    pub fn config(&self) -> Result<(Destination, VerifyConfig), UsageError> {
        let destination = self.reading.destination()?;
        let source = self.source.as_deref().map(existing_directory).transpose()?;
        let (memory_bytes, _) = memory_budget(None);
        Ok((destination, VerifyConfig { source, filter: self.globs.filter()?, deep: self.deep, memory_bytes }))
    }
}

fn existing_directory(typed: &Path) -> Result<PathBuf, UsageError> {
    let problem = match chiefsync::disk::metadata(typed) {
        Ok(meta) if meta.is_dir() => return Ok(std::path::absolute(typed).unwrap_or_else(|_| typed.to_owned())),
        Ok(_) => "it is not a directory".to_owned(),
        Err(error) => error.to_string(),
    };
    Err(UsageError::new(format!("SRC {}: {problem}", super::shown(typed)), "name the directory to compare with"))
}

/// How the result is printed.
#[derive(Clone, Copy)]
enum Print {
    /// For people: what differs, or every entry.
    Table {
        /// Also what matches, and what nothing names.
        all: bool,
    },
    /// For programs.
    Json,
}

impl Print {
    fn answer(self, report: &Report, entries: &[Entry], ending: Ending) -> Ending {
        let mut stdout = io::stdout().lock();
        let printed = match self {
            Print::Json => print_json(&mut stdout, &Answer::of(report, &ending)),
            Print::Table { all } => print_table(&mut stdout, entries, if all { &report.extra } else { &[] }),
        };
        match printed {
            Ok(()) => ending,
            Err(error) => Ending::fault(format!("stdout: {error}")),
        }
    }
}

/// Verifies, and prints what was found.
async fn compare(config: VerifyConfig, outside: Outside, print: Print) -> Ending {
    let mut shown = Vec::new();
    let keep = |entry: &Entry| {
        let wanted = match print {
            Print::Table { all } => all || entry.verdict != Verdict::Match,
            Print::Json => false,
        };
        if wanted {
            shown.push(entry.clone());
        }
    };
    let (report, ending) = chiefsync::verify::verify(config, outside, keep).await;
    print.answer(&report, &shown, ending)
}

/// The report and the ending as one object.
#[derive(Serialize)]
struct Answer<'a> {
    code: u8,
    summary: &'a str,
    hint: Option<&'a str>,
    #[serde(flatten)]
    report: &'a Report,
}

impl<'a> Answer<'a> {
    fn of(report: &'a Report, ending: &'a Ending) -> Answer<'a> {
        Answer { code: ending.code.number(), summary: &ending.summary, hint: ending.hint.as_deref(), report }
    }
}

fn print_table(to: &mut impl io::Write, entries: &[Entry], extra: &[String]) -> io::Result<()> {
    if entries.is_empty() && extra.is_empty() {
        return Ok(());
    }
    let mut table = Table::new(&["VERDICT", "SIZE", "PATH", "WHY"]).right(&[1]);
    for entry in entries {
        let why = entry.why.clone().unwrap_or_default();
        table.row([entry.verdict.name().to_owned(), show_size(entry.bytes), entry.path.clone(), why]);
    }
    for path in extra {
        table.row([
            "extra".to_owned(),
            "-".to_owned(),
            path.clone(),
            "the manifest doesn't name it; it stays".to_owned(),
        ]);
    }
    table.print(to)
}

#[cfg(test)]
mod tests {
    use super::*;
    use chiefsync::exit::ExitCode;

    #[test]
    fn a_table_says_what_and_why() {
        let entry = |path: &str, verdict, why: Option<&str>| Entry {
            path: path.to_owned(),
            verdict,
            bytes: 1536,
            why: why.map(str::to_owned),
        };
        let entries =
            [entry("a", Verdict::Match, None), entry("b\n", Verdict::MissingRemotely, Some("it is not there"))];
        let mut text = Vec::new();
        print_table(&mut text, &entries, &["old".to_owned()]).unwrap();
        assert_eq!(
            String::from_utf8(text).unwrap(),
            "VERDICT              SIZE  PATH  WHY\n\
             match             1.5 KiB  a     \n\
             missing remotely  1.5 KiB  b\\n   it is not there\n\
             extra                   -  old   the manifest doesn't name it; it stays\n"
        );
    }

    /// What programs read: a name once given stays.
    #[test]
    fn the_answer_for_programs_has_stable_names() {
        let ending = Ending::new(ExitCode::Incomplete, "there is no head").with_hint("sync");
        let answer = serde_json::to_value(Answer::of(&Report::default(), &ending)).unwrap();
        assert_eq!(
            answer,
            serde_json::json!({
                "code": 3,
                "summary": "there is no head",
                "hint": "sync",
                "verdict": "unverified",
                "counts": {
                    "match": 0, "matching_bytes": 0, "differs": 0, "missing_locally": 0, "missing_remotely": 0,
                    "extra": 0, "skipped": 0
                },
                "entries": [],
                "extra": [],
                "head": null,
                "manifest": null
            })
        );
    }
}
