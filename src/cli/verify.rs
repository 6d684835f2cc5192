//! `chiefsync verify`: what the head and the manifest say, against the bucket and the disk.

use std::io;
use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;

use chiefsync::config::{Destination, show_size};
use chiefsync::exit::{Ending, UsageError};
use chiefsync::store::{OpenOptions, SharedStore};

use super::screen::Screen;
use super::session::{Session, reach_for_reading};
use super::shared::Reading;
use super::table::{Table, print_json};

/// Compares head and manifest with the bucket, and with the disk where SRC is given.
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
}

impl Verify {
    /// Compares.
    pub fn run(&self, screen: &Screen) -> Ending {
        self.run_with(screen, OpenOptions::default())
    }

    /// Compares with a store that is opened in this way.
    pub fn run_with(&self, screen: &Screen, options: OpenOptions) -> Ending {
        match self.places() {
            Ok((source, destination)) => {
                let (deep, json) = (self.deep, self.json);
                Session::reading().run(screen, move |metrics, _| async move {
                    match reach_for_reading(&destination, &options, &metrics).await {
                        Ok(store) => compare(source, store, deep, json).await,
                        Err(ending) => ending,
                    }
                })
            }
            Err(error) => error.into(),
        }
    }

    /// SRC and DEST.
    pub fn places(&self) -> Result<(Option<PathBuf>, Destination), UsageError> {
        let destination = self.reading.destination()?;
        let source = self.source.as_deref().map(existing_directory).transpose()?;
        Ok((source, destination))
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

async fn compare(source: Option<PathBuf>, store: SharedStore, deep: bool, json: bool) -> Ending {
    let _ = (source, store, deep);
    match print(&[], json) {
        Ok(()) => Ending::fault("this build has no engine"),
        Err(error) => Ending::fault(format!("stdout: {error}")),
    }
}

/// What was found out about one path.
#[derive(Debug, Serialize)]
struct Row {
    verdict: &'static str,
    path: String,
    bytes: u64,
}

fn print(rows: &[Row], json: bool) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    if json {
        return print_json(&mut stdout, &rows);
    }
    let mut table = Table::new(&["VERDICT", "SIZE", "PATH"]).right(&[1]);
    for row in rows {
        table.row([row.verdict.to_owned(), show_size(row.bytes), row.path.clone()]);
    }
    table.print(&mut stdout)
}
