//! What surrounds a run of the engine: threads, signals, the live view and the metrics server.

use std::net::SocketAddr;
use std::num::NonZero;
use std::sync::Arc;

use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch::Receiver;

use chiefsync::clock::{self, Duration};
use chiefsync::config::Destination;
use chiefsync::exit::{Ending, Signal};
use chiefsync::metrics::Metrics;
use chiefsync::store::retry::{Patience, Retry, Until};
use chiefsync::store::{self, OpenOptions, SharedStore, StoreError};
use chiefsync::sync::Outside;

use super::screen::Screen;
use super::{live, serve, signals};

/// For commands that only read: they stream, so their memory doesn't depend on what they read.
const READING_BYTES: u64 = 64 << 20;

/// How long commands that only read go on trying: somebody waits for them.
const READING_TAKES: Duration = Duration::from_secs(30);

/// The store behind DEST, which tries again for as long as `patience` says; each further try is counted.
///
/// # Errors
/// What is configured can't work.
pub async fn reach(
    destination: &Destination,
    options: &OpenOptions,
    patience: Patience,
    metrics: &Arc<Metrics>,
) -> Result<SharedStore, StoreError> {
    let store = store::open(destination, options).await?;
    let metrics = Arc::clone(metrics);
    Ok(Arc::new(Retry::new(store, patience, Arc::new(move |reason, _| metrics.retry(reason.name())))))
}

/// What the engine needs from outside; a run tries again for as long as the engine wants it to.
///
/// # Errors
/// How to end when what is configured can't work.
pub async fn outside(
    destination: &Destination,
    options: &OpenOptions,
    metrics: Arc<Metrics>,
    signals: Receiver<Signal>,
) -> Result<Outside, Ending> {
    let patience = Patience::new(Until::Forever);
    match reach(destination, options, patience.clone(), &metrics).await {
        Ok(store) => Ok(Outside { store, patience, metrics, signals }),
        Err(error) => Err(Ending::from_store_error(&error)),
    }
}

/// The store for commands that only read.
///
/// # Errors
/// How to end when what is configured can't work.
pub async fn reach_for_reading(
    destination: &Destination,
    options: &OpenOptions,
    metrics: &Arc<Metrics>,
) -> Result<SharedStore, Ending> {
    let patience = Patience::new(Until::Deadline(clock::now() + READING_TAKES));
    reach(destination, options, patience, metrics).await.map_err(|error| Ending::from_store_error(&error))
}

/// What a run is given.
pub struct Session {
    /// The memory to stay within.
    pub memory_bytes: u64,
    /// Where to serve the metrics.
    pub metrics_addr: Option<SocketAddr>,
    /// Whether there is something to see while it runs.
    pub live: bool,
}

impl Session {
    /// For commands that only read.
    pub fn reading() -> Session {
        Session { memory_bytes: READING_BYTES, metrics_addr: None, live: false }
    }

    /// Runs `engine` to its end. A panic in it is an ending too.
    pub fn run<F>(self, screen: &Screen, engine: impl FnOnce(Arc<Metrics>, Receiver<Signal>) -> F) -> Ending
    where
        F: Future<Output = Ending> + Send + 'static,
    {
        let (runtime, signal) = match self.runtime().and_then(|runtime| Ok((runtime, signals::listen(screen)?))) {
            Ok(both) => both,
            Err(error) => return Ending::fault(format!("threads and signals can't be set up: {error}")),
        };
        let metrics = Arc::clone(screen.metrics());
        let ending = runtime.block_on(async {
            if let Some(address) = self.metrics_addr {
                match serve::bind(address).await {
                    Ok(listener) => drop(tokio::spawn(serve::serve(listener, Arc::clone(&metrics)))),
                    Err(error) => return error.into(),
                }
            }
            let view = screen
                .bars()
                .filter(|_| self.live)
                .map(|bars| tokio::spawn(live::show(bars.clone(), Arc::clone(&metrics))));
            let ended = tokio::spawn(engine(metrics, signal)).await;
            if let Some(view) = view {
                view.abort();
                // Aborted is how it ends.
                let _ = view.await;
            }
            ended.unwrap_or_else(|error| Ending::fault(format!("the engine stopped: {error}")))
        });
        screen.clear();
        // A thread that hangs in a read of a dead volume must not keep the process.
        runtime.shutdown_background();
        ending
    }

    fn runtime(&self) -> std::io::Result<Runtime> {
        let cores = std::thread::available_parallelism().map_or(2, NonZero::get);
        // A thread that reads files holds a part; as many as the memory holds are enough.
        let reading = usize::try_from(self.memory_bytes / (8 << 20)).unwrap_or(usize::MAX);
        Builder::new_multi_thread()
            .worker_threads(cores.clamp(2, 4))
            .max_blocking_threads(reading.clamp(4, 32))
            .thread_name("chiefsync")
            .enable_all()
            .build()
    }
}
