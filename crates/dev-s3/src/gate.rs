//! Holding a request for a while, or until a test says so.

use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// How long something is held.
#[derive(Clone, Debug)]
pub enum Hold {
    /// For a fixed time.
    For(Duration),
    /// Until the gate opens.
    Until(Gate),
}

impl Hold {
    pub(crate) async fn wait(&self) {
        match self {
            Hold::For(duration) => tokio::time::sleep(*duration).await,
            Hold::Until(gate) => gate.pass().await,
        }
    }
}

/// A gate that requests wait at. It counts them, so that a test knows when one has arrived without guessing at
/// times. Clones are the same gate; once open it stays open.
#[derive(Clone, Debug)]
pub struct Gate(Arc<State>);

#[derive(Debug)]
struct State {
    open: watch::Sender<bool>,
    arrived: watch::Sender<u64>,
}

impl Default for Gate {
    fn default() -> Gate {
        Gate::new()
    }
}

impl Gate {
    /// A closed gate.
    pub fn new() -> Gate {
        Gate(Arc::new(State { open: watch::Sender::new(false), arrived: watch::Sender::new(0) }))
    }

    /// Lets everyone through, now and later.
    pub fn open(&self) {
        self.0.open.send_replace(true);
    }

    /// How many have come to the gate so far.
    pub fn arrivals(&self) -> u64 {
        *self.0.arrived.borrow()
    }

    /// Waits until so many have come.
    pub async fn arrived(&self, count: u64) {
        // The sender lives as long as the gate: this can't fail.
        let _ = self.0.arrived.subscribe().wait_for(|arrived| *arrived >= count).await;
    }

    /// The same for a thread without a runtime.
    pub fn arrived_blocking(&self, count: u64) {
        tokio::runtime::Builder::new_current_thread()
            .build()
            .expect("a runtime without drivers needs nothing that could be missing")
            .block_on(self.arrived(count));
    }

    async fn pass(&self) {
        self.0.arrived.send_modify(|arrived| *arrived += 1);
        let _ = self.0.open.subscribe().wait_for(|open| *open).await;
    }
}
