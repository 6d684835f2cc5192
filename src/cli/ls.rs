//! `chiefsync ls`: what is in the bucket.

use std::io;
use std::sync::Arc;

use clap::Args;
use serde::Serialize;

use chiefsync::config::{Destination, show_size};
use chiefsync::exit::{Ending, ExitCode, one_line};
use chiefsync::head::{CheckpointState, Head, Lease};
use chiefsync::metrics::Metrics;
use chiefsync::store::OpenOptions;

use super::screen::Screen;
use super::session::{Session, reach_for_reading};
use super::shared::Reading;
use super::table::{Table, print_json, print_text};

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
        self.run_with(screen, OpenOptions::default())
    }

    /// Lists what is in a store that is opened in this way.
    pub fn run_with(&self, screen: &Screen, options: OpenOptions) -> Ending {
        match self.reading.destination() {
            Ok(destination) => {
                let json = self.json;
                Session::reading().run(screen, move |metrics, _| list(destination, options, json, metrics))
            }
            Err(error) => error.into(),
        }
    }
}

async fn list(destination: Destination, options: OpenOptions, json: bool, metrics: Arc<Metrics>) -> Ending {
    let store = match reach_for_reading(&destination, &options, &metrics).await {
        Ok(store) => store,
        Err(ending) => return ending,
    };
    let head = match Lease::read(store.as_ref()).await {
        Ok(head) => head.map(|(head, _)| head),
        Err(error) => return Ending::from_lease_error(&error),
    };
    match print(&Shown { destination: destination.url(), head: head.as_ref() }, json) {
        // The table says it all.
        Ok(()) => Ending::new(ExitCode::Proven, ""),
        Err(error) => Ending::fault(format!("stdout: {error}")),
    }
}

/// What is listed: the head as it is, for programs.
#[derive(Serialize)]
struct Shown<'a> {
    destination: String,
    head: Option<&'a Head>,
}

fn print(shown: &Shown<'_>, json: bool) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    if json {
        return print_json(&mut stdout, shown);
    }
    let Some(head) = shown.head else {
        return print_text(&mut stdout, &format!("{}: nothing was brought here by chiefsync\n", shown.destination));
    };
    print_text(&mut stdout, &format!("{}: {}\n", shown.destination, run_text(head)))?;
    if head.checkpoints.is_empty() {
        return Ok(());
    }
    let mut table = Table::new(&["STEP", "STATE", "FILES", "SIZE", "CHECKPOINT"]).right(&[0, 2, 3]);
    let mut rows: Vec<_> = head.checkpoints.iter().collect();
    // The newest last, where a terminal shows it: newest is the highest (generation, sequence), not the highest step.
    rows.sort_by_key(|row| (row.generation, row.sequence));
    for row in rows {
        table.row([
            row.step.map_or_else(|| "-".to_owned(), |step| step.to_string()),
            state_text(row.state).to_owned(),
            row.files.to_string(),
            show_size(row.bytes),
            row.id.clone(),
        ]);
    }
    table.print(&mut stdout)
}

fn run_text(head: &Head) -> String {
    let end = match (&head.ended, &head.holder) {
        (Some(end), _) => format!("{} at {}", end.outcome.name(), end.at),
        (None, Some(holder)) => format!("under way, held by {holder}"),
        (None, None) => "not ended, and nobody is at it".to_owned(),
    };
    format!("run {}, {}", head.run, one_line(&end))
}

fn state_text(state: CheckpointState) -> &'static str {
    match state {
        CheckpointState::Committed => "committed",
        CheckpointState::Uploading => "uploading",
        CheckpointState::Retracted => "retracted",
        CheckpointState::Pruning => "pruning",
        CheckpointState::Pruned => "pruned",
    }
}
