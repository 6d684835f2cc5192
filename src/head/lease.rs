//! Our hold on the head: taking it, changing it, giving it back, and finding out that it is ours no more.
//!
//! Invariants: every write is a compare-and-swap over the version that was read (or, without fence, checked before and
//! after); nobody's clock but our monotonic one is asked; an answer that got lost is settled by reading the head again,
//! never by assuming.

use bytes::Bytes;

use super::{Head, Holder, MAX_HEAD_BYTES};
use crate::clock::{self, Duration, Stopwatch};
use crate::key::{CONTROL_DIR, Key};
use crate::store::{
    Body, Condition, ETag, ErrorKind, ListFrom, RetryReason, SharedStore, Store, StoreError, WriteOptions, put_intact,
};

/// Looks at a head that another one holds come this often within its time to live.
const LOOKS: u32 = 10;

/// A body that broke off on its way down is fetched again this often: the store's own retries end with its answer.
const READS: u32 = 4;

/// Races are lost to somebody who won, so that a few rounds settle everything; more mean a store that refuses for no reason.
const MAX_ROUNDS: u32 = 20;

/// How a head is taken.
#[derive(Clone, Copy, Debug)]
pub struct TakeOptions {
    /// How long another one's head may stay unchanged before we take it over.
    pub time_to_live: Duration,
    /// Whether writes are conditional; without that, two writers that start at the same moment may miss each other once.
    pub fence: bool,
}

/// Our hold on the head.
pub struct Lease {
    store: SharedStore,
    me: Holder,
    fence: bool,
    head: Head,
    etag: ETag,
    /// A write ended without an answer: the head may be one step ahead of what we know.
    unsure: bool,
}

/// Why the head is not ours, or can't be told.
#[derive(Debug, thiserror::Error)]
pub enum LeaseError {
    /// Somebody else holds it and shows signs of life.
    #[error("the destination is held by {0}")]
    Owned(Box<Holder>),
    /// Somebody else took it from us; `None` when that one is gone again or the head was removed.
    #[error("the destination was taken over by {}", .0.as_ref().map_or_else(|| "somebody else".to_owned(), ToString::to_string))]
    Superseded(Option<Box<Holder>>),
    /// There is something under the head's name that can't be read. It is left as it is.
    #[error("{target} can't be read: {why}")]
    Garbled {
        /// The object, as a URL.
        target: String,
        /// What is wrong with it.
        why: String,
    },
    /// The store's own error.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl LeaseError {
    /// What a person can do about it.
    pub fn hint(&self) -> Option<String> {
        match self {
            LeaseError::Owned(_) => {
                Some("let the other writer end, or choose another prefix: one writer a prefix".to_owned())
            }
            LeaseError::Superseded(_) => Some("one writer a prefix: what the other one writes counts now".to_owned()),
            LeaseError::Garbled { target, .. } => Some(format!(
                "look at it; if it is lost, set it aside as {target}.bad, and the next run makes a new one"
            )),
            LeaseError::Store(error) => error.hint.clone(),
        }
    }
}

impl Lease {
    /// The head as it is in the bucket; `None` when there is none.
    ///
    /// # Errors
    /// [`LeaseError::Garbled`] for something that is no head, else the store's.
    pub async fn read(store: &dyn Store) -> Result<Option<(Head, ETag)>, LeaseError> {
        let garbled = |why| LeaseError::Garbled { target: url_of(store, &Head::key()), why };
        let Some((bytes, etag)) = read_control(store, &Head::key(), MAX_HEAD_BYTES).await? else { return Ok(None) };
        let bytes = bytes.ok_or_else(|| garbled(format!("it is larger than {MAX_HEAD_BYTES} bytes")))?;
        Ok(Some((Head::parse(&bytes).map_err(garbled)?, etag)))
    }

    /// Takes the head for `me`: at once when there is none, when it was given back, or when it is held by the same holder
    /// (an earlier process with the same journal) or pod; from anybody else only after it has not changed for the time to
    /// live, counted from our first look. `on_wait` is told once who is waited for, and how long at most.
    ///
    /// # Errors
    /// [`LeaseError::Owned`] as soon as the other one shows a sign of life.
    pub async fn take(
        store: SharedStore,
        me: Holder,
        options: TakeOptions,
        mut on_wait: impl FnMut(&Holder, Duration),
    ) -> Result<Lease, LeaseError> {
        let mut seen: Option<(ETag, Head, Stopwatch)> = None;
        let mut rounds = 0;
        loop {
            let (mut head, condition) = match Lease::read(&*store).await? {
                None => (Head::first(next_run(&*store).await?), Condition::Absent),
                Some((head, etag)) => {
                    if let Some(other) = head.holder.as_ref().filter(|other| !is_same(other, &me)) {
                        match &seen {
                            Some((seen_etag, seen_head, since)) if *seen_etag == etag && *seen_head == head => {
                                if since.elapsed() < options.time_to_live {
                                    clock::sleep(options.time_to_live / LOOKS).await;
                                    continue;
                                }
                            }
                            Some(_) => return Err(LeaseError::Owned(Box::new(other.clone()))),
                            None => {
                                on_wait(other, options.time_to_live);
                                seen = Some((etag, head, Stopwatch::start()));
                                continue;
                            }
                        }
                    }
                    (head, Condition::Matches(etag))
                }
            };
            head.generation += 1;
            head.holder = Some(me.clone());
            let condition = if options.fence { condition } else { Condition::None };
            let written = write(&*store, &head, condition).await;
            let lost = match written {
                Ok(etag) if options.fence => {
                    return Ok(Lease { store, me, fence: true, head, etag, unsure: false });
                }
                Ok(_) => None,
                Err(error) if may_have_happened(&error) || is_lost(&error) => Some(error),
                Err(error) => return Err(error.into()),
            };
            // Ours after all? An answer may have been lost, and then our own second try is refused.
            if let Some((found, etag)) = Lease::read(&*store).await?
                && found == head
            {
                return Ok(Lease { store, me, fence: options.fence, head, etag, unsure: false });
            }
            rounds += 1;
            if rounds == MAX_ROUNDS {
                let error =
                    || StoreError::new(ErrorKind::Stop, "PutObject", url_of(&*store, &Head::key()), "never holds");
                return Err(LeaseError::Store(lost.unwrap_or_else(error)));
            }
        }
    }

    /// The head as we know it.
    pub fn head(&self) -> &Head {
        &self.head
    }

    /// Ours.
    pub fn generation(&self) -> u64 {
        self.head.generation
    }

    /// Changes the head, which commits whatever `change` says.
    ///
    /// # Errors
    /// [`LeaseError::Superseded`] when it is ours no more; else the store's. After one that is worth another try the change
    /// may have happened or not: calling again reads the head first and changes what is there, so `change` says what shall
    /// be and not what to add.
    pub async fn update(&mut self, change: impl FnOnce(&mut Head) + Send) -> Result<(), LeaseError> {
        self.swap(|head| {
            change(head);
            head.sequence += 1;
        })
        .await
    }

    /// Shows a sign of life.
    ///
    /// # Errors
    /// As [`Lease::update`].
    pub async fn renew(&mut self) -> Result<(), LeaseError> {
        self.swap(|head| head.renewals += 1).await
    }

    /// Whether the head is still ours.
    ///
    /// # Errors
    /// What reading it ended with.
    pub async fn check(&self) -> Result<bool, LeaseError> {
        Ok(Lease::read(&*self.store).await?.is_some_and(|(head, _)| self.holds(&head)))
    }

    /// Changes the head a last time and gives it back.
    ///
    /// # Errors
    /// As [`Lease::update`].
    pub async fn release(mut self, change: impl FnOnce(&mut Head) + Send) -> Result<(), LeaseError> {
        self.update(|head| {
            change(head);
            head.holder = None;
        })
        .await
    }

    fn holds(&self, head: &Head) -> bool {
        head.is_held_by(&self.me.id, self.head.generation)
    }

    async fn swap(&mut self, change: impl FnOnce(&mut Head) + Send) -> Result<(), LeaseError> {
        if self.unsure || !self.fence {
            self.catch_up().await?;
        }
        let mut next = self.head.clone();
        change(&mut next);
        let condition = if self.fence { Condition::Matches(self.etag.clone()) } else { Condition::None };
        // A caller that is dropped while the request is under way leaves it open what became of it.
        self.unsure = true;
        let error = match write(&*self.store, &next, condition).await {
            Ok(etag) if self.fence => {
                self.arrived(next, etag);
                return Ok(());
            }
            Ok(_) => None,
            Err(error) if may_have_happened(&error) || is_lost(&error) => Some(error),
            Err(error) => {
                self.unsure = false;
                return Err(error.into());
            }
        };
        let (found, etag) = match Lease::read(&*self.store).await {
            Ok(Some(found)) => found,
            Ok(None) => return Err(LeaseError::Superseded(None)),
            // The first error says more than the one of asking about it.
            Err(second) => return Err(error.map_or(second, LeaseError::Store)),
        };
        if found == next {
            self.arrived(next, etag);
            Ok(())
        } else if self.holds(&found) {
            // Still ours, but not what we know: an earlier write of ours arrived late. The caller's next try catches up.
            Err(LeaseError::Store(error.filter(StoreError::is_retry).unwrap_or_else(|| self.unsettled())))
        } else {
            Err(LeaseError::Superseded(found.holder.map(Box::new)))
        }
    }

    fn arrived(&mut self, head: Head, etag: ETag) {
        self.head = head;
        self.etag = etag;
        self.unsure = false;
    }

    /// Reads the head and takes over what an earlier write of ours made of it.
    async fn catch_up(&mut self) -> Result<(), LeaseError> {
        match Lease::read(&*self.store).await? {
            Some((head, etag)) if self.holds(&head) => {
                self.arrived(head, etag);
                Ok(())
            }
            found => Err(LeaseError::Superseded(found.and_then(|(head, _)| head.holder).map(Box::new))),
        }
    }

    fn unsettled(&self) -> StoreError {
        let target = url_of(&*self.store, &Head::key());
        StoreError::new(
            ErrorKind::Retry(RetryReason::Conflict),
            "PutObject",
            target,
            "the head changed while it was being written",
        )
    }
}

/// Whether `other` is an earlier process of ours: with the same journal, or in the same pod, where it has ended before the
/// kubelet started us.
fn is_same(other: &Holder, me: &Holder) -> bool {
    other.id == me.id || (me.pod_uid.is_some() && other.pod_uid == me.pod_uid)
}

/// Whether a request that ended like this may have been carried out nevertheless.
fn may_have_happened(error: &StoreError) -> bool {
    error.is_retry()
}

/// Whether a condition did not hold; If-Match on an object that was removed ends as missing in some stores.
fn is_lost(error: &StoreError) -> bool {
    matches!(error.kind, ErrorKind::Fenced | ErrorKind::Missing)
}

async fn write(store: &dyn Store, head: &Head, condition: Condition) -> Result<ETag, StoreError> {
    let mut json = serde_json::to_vec(head).expect("a head has only plain fields");
    json.push(b'\n');
    let options = WriteOptions { content_type: Some("application/json"), ..WriteOptions::when(condition) };
    Ok(put_intact(store, &Head::key(), Body::hashed(json), options).await?.etag)
}

/// One small object whole, or `Some((None, _))` when it is larger than `limit_bytes`.
pub(crate) async fn read_control(
    store: &dyn Store,
    key: &Key,
    limit_bytes: u64,
) -> Result<Option<(Option<Bytes>, ETag)>, StoreError> {
    let mut reads = 0;
    loop {
        reads += 1;
        let download = match store.get(key, None, None).await {
            Err(error) if error.kind == ErrorKind::Missing => return Ok(None),
            other => other?,
        };
        let etag = download.meta.etag.clone();
        if download.meta.size_bytes > limit_bytes {
            return Ok(Some((None, etag)));
        }
        match download.collect(limit_bytes).await {
            Err(error) if error.is_retry() && reads < READS => {}
            Err(error) => return Err(error),
            Ok(bytes) => return Ok(Some((Some(bytes.into()), etag))),
        }
    }
}

/// The number for the first run under a new head: behind every run that an earlier head archived here, so that a head that
/// was lost costs no history.
async fn next_run(store: &dyn Store) -> Result<u64, StoreError> {
    let runs = format!("{CONTROL_DIR}/runs/");
    let mut from = ListFrom { starts_with: runs.clone(), ..ListFrom::default() };
    let mut last: u64 = 0;
    loop {
        let page = store.list(&from).await?;
        for listed in page.objects {
            let number = listed.key.as_str().strip_prefix(&runs).and_then(|rest| rest.split('/').next()?.parse().ok());
            last = last.max(number.unwrap_or(0));
        }
        match page.next {
            Some(token) => from.token = Some(token),
            None => return Ok(last.saturating_add(1)),
        }
    }
}

/// An object as a person would name it.
pub(crate) fn url_of(store: &dyn Store, key: &Key) -> String {
    format!("{}/{key}", store.url().trim_end_matches('/'))
}
