//! Commit: our hold on the prefix, kept and changed by one task.
//!
//! Invariants: nobody but this task writes the head; it renews the hold well within its time to live, also while the engine
//! is busy; once a swap fails, nothing of ours is committed any more.

use tokio::sync::{mpsc, oneshot, watch};

use crate::clock::Duration;
use crate::head::{Head, Lease, LeaseError, archive_verdict};
use crate::store::SharedStore;

type Change = Box<dyn FnOnce(&mut Head) + Send>;

enum Command {
    Head(oneshot::Sender<Result<(), LeaseError>>, oneshot::Sender<Head>),
    Check(oneshot::Sender<Result<(), LeaseError>>),
    Update(Change, oneshot::Sender<Result<(), LeaseError>>),
    Archive(oneshot::Sender<Result<(), LeaseError>>, oneshot::Sender<Option<u64>>),
    Release(Change, oneshot::Sender<Result<(), LeaseError>>),
}

/// A handle on the task that holds the head.
#[derive(Clone)]
pub struct Hold {
    commands: mpsc::Sender<Command>,
    lost: watch::Receiver<Option<String>>,
}

impl Hold {
    /// Keeps `lease`, renewing it three times within `time_to_live`.
    pub fn keep(lease: Lease, store: SharedStore, time_to_live: Duration) -> Hold {
        let (commands, receiver) = mpsc::channel(8);
        let (lost_sender, lost) = watch::channel(None);
        tokio::spawn(keep(lease, store, time_to_live / 3, receiver, lost_sender));
        Hold { commands, lost }
    }

    /// Asks the store whether the prefix is still ours.
    ///
    /// # Errors
    /// Who owns it now, or why nobody can tell.
    pub async fn check(&self) -> Result<(), String> {
        self.ask(Command::Check).await.map_err(|e| e.to_string())
    }

    /// The head as we wrote it last.
    pub async fn head(&self) -> Result<Head, LeaseError> {
        let (sender, head) = oneshot::channel();
        self.ask(|answer| Command::Head(answer, sender)).await?;
        head.await.map_err(|_| self.gone())
    }

    /// Swaps a changed head in.
    pub async fn update(&self, change: impl FnOnce(&mut Head) + Send + 'static) -> Result<(), LeaseError> {
        self.ask(|answer| Command::Update(Box::new(change), answer)).await
    }

    /// Moves the verdict of an earlier run out of the way; returns the number of the run that begins, or `None` where there
    /// was no verdict.
    pub async fn archive(&self) -> Result<Option<u64>, LeaseError> {
        let (sender, run) = oneshot::channel();
        self.ask(|answer| Command::Archive(answer, sender)).await?;
        run.await.map_err(|_| self.gone())
    }

    /// Gives the head back, with a last change.
    pub async fn release(&self, change: impl FnOnce(&mut Head) + Send + 'static) -> Result<(), LeaseError> {
        self.ask(|answer| Command::Release(Box::new(change), answer)).await
    }

    /// Ends when the prefix is somebody else's; says whose.
    pub async fn lost(&mut self) -> String {
        let by = self.lost.wait_for(Option::is_some).await.map(|by| by.clone().unwrap_or_default());
        match by {
            Ok(by) => by,
            // The task ended because the head was given back: nothing more can be lost.
            Err(_) => std::future::pending().await,
        }
    }

    async fn ask(
        &self,
        command: impl FnOnce(oneshot::Sender<Result<(), LeaseError>>) -> Command,
    ) -> Result<(), LeaseError> {
        let (sender, answer) = oneshot::channel();
        if self.commands.send(command(sender)).await.is_err() {
            return Err(self.gone());
        }
        answer.await.unwrap_or_else(|_| Err(self.gone()))
    }

    fn gone(&self) -> LeaseError {
        LeaseError::Superseded(None)
    }
}

async fn keep(
    mut lease: Lease,
    store: SharedStore,
    interval: Duration,
    mut commands: mpsc::Receiver<Command>,
    lost: watch::Sender<Option<String>>,
) {
    let mut renewal = tokio::time::interval(interval.max(Duration::from_millis(10)));
    renewal.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    renewal.tick().await;
    loop {
        let (result, answer) = tokio::select! {
            command = commands.recv() => match command {
                None => return,
                Some(Command::Check(answer)) => {
                    let ours = match lease.check().await {
                        Ok(true) => Ok(()),
                        Ok(false) => Err(LeaseError::Superseded(None)),
                        Err(error) => Err(error),
                    };
                    (ours, Some(answer))
                }
                Some(Command::Head(answer, head)) => {
                    let _ = head.send(lease.head().clone());
                    (Ok(()), Some(answer))
                }
                Some(Command::Update(change, answer)) => (lease.update(change).await, Some(answer)),
                Some(Command::Archive(answer, run)) => {
                    let archived = archive_verdict(store.as_ref(), &mut lease).await;
                    let begins = archived.as_ref().is_ok_and(Option::is_some).then(|| lease.head().run);
                    let _ = run.send(begins);
                    (archived.map(drop), Some(answer))
                }
                Some(Command::Release(change, answer)) => {
                    let released = lease.release(change).await;
                    // Nobody listens when the engine is gone already.
                    let _ = answer.send(released);
                    return;
                }
            },
            _ = renewal.tick() => (lease.renew().await, None),
        };
        if let Err(error @ (LeaseError::Owned(_) | LeaseError::Superseded(_))) = &result {
            lost.send_replace(Some(error.to_string()));
        }
        match answer {
            Some(answer) => {
                let _ = answer.send(result);
            }
            None => {
                if let Err(error) = result {
                    tracing::warn!(%error, "the hold on the prefix could not be renewed");
                }
            }
        }
    }
}
