//! `chiefsync ls`: what the head lists.

use std::io::{self, Write};
use std::sync::Arc;

use clap::Args;
use serde::Serialize;

use chiefsync::config::{Destination, show_size};
use chiefsync::exit::{Ending, ExitCode, Signal, one_line};
use chiefsync::head::{CheckpointRow, CheckpointState, Head, Holder, Lease, RunEnd};
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
                Session::reading().run(screen, move |metrics, mut signals| async move {
                    tokio::select! {
                        ending = list(destination, options, json, metrics) => ending,
                        Ok(_) = signals.wait_for(|signal| *signal != Signal::Run) => {
                            Ending::new(ExitCode::Incomplete, "stopped before the store answered")
                        }
                    }
                })
            }
            Err(error) => error.into(),
        }
    }
}

/// Reads the head, and prints its table.
async fn list(destination: Destination, options: OpenOptions, json: bool, metrics: Arc<Metrics>) -> Ending {
    let store = match reach_for_reading(&destination, &options, &metrics).await {
        Ok(store) => store,
        Err(ending) => return ending,
    };
    let head = match Lease::read(store.as_ref()).await {
        Ok(Some((head, _))) => head,
        Ok(None) => {
            return Ending::new(ExitCode::Incomplete, format!("there is no head below {}", destination.url()))
                .with_hint("is that the right prefix? `chiefsync watch` and `sync` write the head when they begin");
        }
        Err(error) => return Ending::from_lease_error(&error),
    };
    let listing = Listing::of(&head);
    let mut stdout = io::stdout().lock();
    let printed = if json { print_json(&mut stdout, &listing) } else { listing.print(&mut stdout) };
    match printed {
        // The table is the answer; there is nothing to add.
        Ok(()) => Ending::new(ExitCode::Proven, ""),
        Err(error) => Ending::fault(format!("stdout: {error}")),
    }
}

/// The head for readers.
#[derive(Debug, Serialize)]
struct Listing<'a> {
    run: u64,
    generation: u64,
    sequence: u64,
    holder: Option<&'a Holder>,
    ended: Option<&'a RunEnd>,
    /// Newest last, where a terminal shows it: in the order of (generation, sequence).
    checkpoints: Vec<Row<'a>>,
}

/// A checkpoint as the head lists it.
#[derive(Debug, Serialize)]
struct Row<'a> {
    id: &'a str,
    step: Option<u64>,
    state: CheckpointState,
    generation: u64,
    sequence: u64,
    files: u64,
    bytes: u64,
    record: Option<&'a str>,
}

impl<'a> Row<'a> {
    fn of(row: &'a CheckpointRow) -> Row<'a> {
        let CheckpointRow { id, step, generation, sequence, state, record, files, bytes, .. } = row;
        Row {
            id,
            step: *step,
            state: *state,
            generation: *generation,
            sequence: *sequence,
            files: *files,
            bytes: *bytes,
            record: record.as_deref(),
        }
    }
}

impl Listing<'_> {
    fn of(head: &Head) -> Listing<'_> {
        let mut checkpoints: Vec<_> = head.checkpoints.iter().map(Row::of).collect();
        checkpoints.sort_by_key(|row| (row.generation, row.sequence));
        Listing {
            run: head.run,
            generation: head.generation,
            sequence: head.sequence,
            holder: head.holder.as_ref(),
            ended: head.ended.as_ref(),
            checkpoints,
        }
    }

    fn print(&self, to: &mut impl Write) -> io::Result<()> {
        let state = match (self.ended, self.holder) {
            (Some(end), _) => format!("{} at {}", end.outcome.name(), end.at),
            (None, Some(holder)) => format!("open, held by {holder}"),
            (None, None) => "open, held by nobody: its last writer stopped before the end".to_owned(),
        };
        print_text(to, &format!("run {}: {} (generation {})\n", self.run, one_line(&state), self.generation))?;
        if self.checkpoints.is_empty() {
            return print_text(to, "no checkpoint is listed\n");
        }
        let mut table = Table::new(&["CHECKPOINT", "STEP", "STATE", "FILES", "SIZE", "SEQUENCE"]).right(&[1, 3, 4, 5]);
        for row in &self.checkpoints {
            table.row([
                row.id.to_owned(),
                row.step.map_or_else(|| "-".to_owned(), |step| step.to_string()),
                row.state.name().to_owned(),
                row.files.to_string(),
                show_size(row.bytes),
                format!("{}.{}", row.generation, row.sequence),
            ]);
        }
        table.print(to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use chiefsync::head::Outcome;
    use chiefsync::store::ETag;

    fn printed(head: &Head) -> String {
        let mut text = Vec::new();
        Listing::of(head).print(&mut text).unwrap();
        String::from_utf8(text).unwrap()
    }

    fn checkpoint(id: &str, generation: u64, sequence: u64, state: CheckpointState) -> CheckpointRow {
        CheckpointRow {
            id: id.to_owned(),
            step: Some(sequence * 100),
            generation,
            sequence,
            state,
            record: None,
            files: 3,
            bytes: 3 << 29,
            unknown: Default::default(),
        }
    }

    #[test]
    fn a_run_is_open_held_or_ended() {
        let mut head = Head::first(3);
        assert!(printed(&head).starts_with("run 3: open, held by nobody"), "{}", printed(&head));
        head.holder = Some(Holder {
            id: "1".to_owned(),
            host: "job-chief-0".to_owned(),
            pod_uid: None,
            version: "0.1.0".to_owned(),
            since: "2026-01-01T00:00:00Z".to_owned(),
        });
        head.generation = 7;
        assert_eq!(
            printed(&head),
            "run 3: open, held by job-chief-0 since 2026-01-01T00:00:00Z, chiefsync 0.1.0 (generation 7)\n\
             no checkpoint is listed\n"
        );
        head.ended = Some(RunEnd {
            outcome: Outcome::Succeeded,
            manifest: ETag::new("x"),
            marker: None,
            pod_uid: None,
            at: "2026-01-02T00:00:00Z".to_owned(),
        });
        assert!(printed(&head).starts_with("run 3: succeeded at 2026-01-02T00:00:00Z (generation 7)\n"));
    }

    /// Neither steps nor times order checkpoints: a run that was rolled back to an earlier step goes on from what it wrote
    /// last.
    #[test]
    fn the_newest_checkpoint_comes_last() {
        let mut head = Head::first(1);
        head.checkpoints = vec![
            checkpoint("step-200", 2, 2, CheckpointState::Committed),
            checkpoint("step-900", 1, 9, CheckpointState::Pruned),
        ];
        let text = printed(&head);
        let (_, table) = text.split_once('\n').unwrap();
        assert_eq!(
            table,
            "CHECKPOINT  STEP  STATE      FILES     SIZE  SEQUENCE\n\
             step-900     900  pruned         3  1.5 GiB       1.9\n\
             step-200     200  committed      3  1.5 GiB       2.2\n"
        );
        let json = serde_json::to_value(Listing::of(&head)).unwrap();
        assert_eq!(
            json["checkpoints"][1],
            serde_json::json!({
                "id": "step-200", "step": 200, "state": "committed", "generation": 2, "sequence": 2, "files": 3,
                "bytes": 3_u64 << 29, "record": null
            })
        );
        assert_eq!((&json["run"], &json["holder"], &json["ended"]), (&1.into(), &().into(), &().into()));
    }
}
