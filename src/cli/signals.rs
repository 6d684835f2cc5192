//! SIGTERM and SIGINT: the first asks the run to come to an end, the second ends it at once.
//!
//! Invariant: a second signal works whatever the run is doing. It is heard on a thread of its own, which waits for
//! nobody.

use std::sync::OnceLock;

use tokio::signal::unix::{Signal as Stream, SignalKind, signal};
use tokio::sync::watch::{self, Receiver};

use chiefsync::exit::{ExitCode, Signal};

use super::screen::Screen;

/// What was heard; a process listens once, however many commands it runs.
static HEARD: OnceLock<Receiver<Signal>> = OnceLock::new();

/// Begins to listen, if nobody does yet.
///
/// # Errors
/// The system's own.
pub fn listen(screen: &Screen) -> std::io::Result<Receiver<Signal>> {
    if let Some(receiver) = HEARD.get() {
        return Ok(receiver.clone());
    }
    let receiver = begin(screen)?;
    Ok(HEARD.get_or_init(|| receiver).clone())
}

fn begin(screen: &Screen) -> std::io::Result<Receiver<Signal>> {
    let (sender, receiver) = watch::channel(Signal::Run);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    let mut streams = {
        let _inside = runtime.enter();
        Streams { term: signal(SignalKind::terminate())?, int: signal(SignalKind::interrupt())? }
    };
    let screen = screen.clone();
    std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
        let first = runtime.block_on(streams.next());
        tracing::info!(signal = name(first), "signal heard; a second one ends at once");
        sender.send_replace(Signal::Stop(first));
        let second = runtime.block_on(streams.next());
        screen.clear();
        std::process::exit(second.number().into());
    })?;
    Ok(receiver)
}

struct Streams {
    term: Stream,
    int: Stream,
}

impl Streams {
    async fn next(&mut self) -> ExitCode {
        tokio::select! {
            _ = self.term.recv() => ExitCode::Terminated,
            _ = self.int.recv() => ExitCode::Interrupted,
        }
    }
}

fn name(code: ExitCode) -> &'static str {
    if code == ExitCode::Interrupted { "SIGINT" } else { "SIGTERM" }
}
