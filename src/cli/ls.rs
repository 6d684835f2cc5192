//! `chiefsync ls`: what is in the bucket.

use std::io;

use clap::Args;
use serde::Serialize;

use chiefsync::config::{Destination, show_size};
use chiefsync::exit::Ending;

use super::screen::Screen;
use super::session::Session;
use super::shared::Reading;
use super::table::{Table, print_json};

/// Lists checkpoints, sizes and state.
#[derive(Debug, Args)]
pub struct Ls {
    /// Prints the result as JSON.
    #[arg(long, env = "CHIEFSYNC_JSON")]
    json: bool,
    #[command(flatten)]
    reading: Reading,
}

impl Ls {
    /// Lists.
    pub fn run(&self, screen: &Screen) -> Ending {
        match self.reading.destination() {
            Ok(destination) => {
                let json = self.json;
                Session::reading().run(screen, move |_, _| list(destination, json))
            }
            Err(error) => error.into(),
        }
    }
}

async fn list(destination: Destination, json: bool) -> Ending {
    let _ = destination;
    match print(&[], json) {
        Ok(()) => Ending::fault("this build has no engine"),
        Err(error) => Ending::fault(format!("stdout: {error}")),
    }
}

/// A checkpoint as the head lists it.
#[derive(Debug, Serialize)]
struct Row {
    id: String,
    step: Option<u64>,
    state: &'static str,
    files: u64,
    bytes: u64,
}

fn print(rows: &[Row], json: bool) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    if json {
        return print_json(&mut stdout, &rows);
    }
    let mut table = Table::new(&["STEP", "STATE", "FILES", "SIZE", "CHECKPOINT"]).right(&[0, 2, 3]);
    for row in rows {
        table.row([
            row.step.map_or_else(|| "-".to_owned(), |step| step.to_string()),
            row.state.to_owned(),
            row.files.to_string(),
            show_size(row.bytes),
            row.id.clone(),
        ]);
    }
    table.print(&mut stdout)
}
