//! A store in memory whose answers can be lost, whose writes can arrive late, and that can die after any number of calls.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Mutex;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::{FutureExt as _, StreamExt as _};

use crate::digest::Sha256;
use crate::key::{Key, Prefix};
use crate::store::*;

/// What happens to the next PUT.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Fault {
    /// It is carried out, and the answer is lost.
    LoseAnswer,
    /// As a retrying client sees that: it is carried out, then tried again, and the second try is refused.
    FenceItself,
    /// It never arrives.
    LoseRequest,
    /// It arrives only when [`MemoryStore::deliver`] is called.
    Delay,
}

type Hook = Box<dyn FnOnce(&MemoryStore) + Send>;

/// See the file's first line.
#[derive(Default)]
pub struct MemoryStore {
    prefix: Prefix,
    objects: Mutex<BTreeMap<Key, Bytes>>,
    faults: Mutex<VecDeque<Fault>>,
    late: Mutex<Option<(Key, Bytes, Condition)>>,
    calls_left: Mutex<Option<u32>>,
    before_put: Mutex<Option<Hook>>,
    pub ignores_conditions: bool,
    pub cannot_copy: bool,
}

impl MemoryStore {
    pub fn set(&self, key: &str, content: impl Into<Bytes>) {
        self.objects.lock().unwrap().insert(Key::new(key).unwrap(), content.into());
    }

    pub fn text(&self, key: &str) -> Option<String> {
        Some(String::from_utf8(self.objects.lock().unwrap().get(key)?.to_vec()).unwrap())
    }

    pub fn keys(&self) -> Vec<String> {
        self.objects.lock().unwrap().keys().map(ToString::to_string).collect()
    }

    pub fn remove(&self, key: &str) {
        self.objects.lock().unwrap().remove(key);
    }

    pub fn fail_next(&self, fault: Fault) {
        self.faults.lock().unwrap().push_back(fault);
    }

    /// After this many calls every one fails, as if the process had died.
    pub fn die_after(&self, calls: Option<u32>) {
        *self.calls_left.lock().unwrap() = calls;
    }

    /// Somebody else acts between the next PUT's sending and its arrival.
    pub fn before_next_put(&self, act: impl FnOnce(&MemoryStore) + Send + 'static) {
        *self.before_put.lock().unwrap() = Some(Box::new(act));
    }

    /// The delayed PUT arrives.
    pub fn deliver(&self) -> Result<Written, StoreError> {
        let (key, bytes, condition) = self.late.lock().unwrap().take().unwrap();
        self.write(&key, bytes, &condition)
    }

    fn call(&self) -> Result<(), StoreError> {
        match &mut *self.calls_left.lock().unwrap() {
            Some(0) => Err(StoreError::new(ErrorKind::Stop, "Any", "", "the process is dead")),
            Some(n) => {
                *n -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn object(&self, key: &Key) -> Result<(Bytes, Meta), StoreError> {
        let objects = self.objects.lock().unwrap();
        let bytes =
            objects.get(key).ok_or_else(|| StoreError::new(ErrorKind::Missing, "GetObject", "", "NoSuchKey"))?;
        let etag = tag(bytes);
        let meta = Meta { size_bytes: bytes.len() as u64, etag, checksum: None, metadata: Vec::new() };
        Ok((bytes.clone(), meta))
    }

    fn write(&self, key: &Key, bytes: Bytes, condition: &Condition) -> Result<Written, StoreError> {
        let etag = tag(&bytes);
        let mut objects = self.objects.lock().unwrap();
        let there = objects.get(key).map(tag);
        let holds = match condition {
            Condition::None => true,
            Condition::Absent => there.is_none(),
            Condition::Matches(etag) => there.as_ref() == Some(etag),
        };
        if !holds && !self.ignores_conditions {
            return Err(StoreError::new(ErrorKind::Fenced, "PutObject", "", "PreconditionFailed"));
        }
        objects.insert(key.clone(), bytes);
        Ok(Written { etag, checksum: None })
    }
}

/// As S3: the same content has the same tag.
fn tag(bytes: &Bytes) -> ETag {
    ETag::new(&Sha256::of(bytes).to_hex()[..32])
}

fn lost() -> StoreError {
    StoreError::new(ErrorKind::Retry(RetryReason::Timeout), "PutObject", "", "no answer")
}

#[async_trait]
impl Store for MemoryStore {
    fn url(&self) -> String {
        "memory://test/".to_owned()
    }

    fn prefix(&self) -> &Prefix {
        &self.prefix
    }

    async fn put(&self, key: &Key, body: Body, options: WriteOptions) -> Result<Written, StoreError> {
        self.call()?;
        let BodySource::Bytes(bytes) = body.source else { unreachable!("control objects are bytes") };
        let hook = self.before_put.lock().unwrap().take();
        if let Some(act) = hook {
            act(self);
        }
        let fault = self.faults.lock().unwrap().pop_front();
        match fault {
            None => self.write(key, bytes, &options.condition),
            Some(Fault::LoseAnswer) => self.write(key, bytes, &options.condition).and(Err(lost())),
            Some(Fault::FenceItself) => {
                self.write(key, bytes.clone(), &options.condition)?;
                self.write(key, bytes, &options.condition)
            }
            Some(Fault::LoseRequest) => Err(lost()),
            Some(Fault::Delay) => {
                *self.late.lock().unwrap() = Some((key.clone(), bytes, options.condition));
                Err(lost())
            }
        }
    }

    async fn create_upload(&self, _: &Key, _: WriteOptions) -> Result<UploadId, StoreError> {
        unreachable!()
    }

    async fn put_part(&self, _: &Key, _: &UploadId, _: u32, _: Body) -> Result<StoredPart, StoreError> {
        unreachable!()
    }

    async fn copy_part(
        &self,
        _: &Key,
        _: &UploadId,
        _: u32,
        _: &Key,
        _: &ETag,
        _: u64,
        _: u64,
    ) -> Result<StoredPart, StoreError> {
        unreachable!()
    }

    async fn list_parts(&self, _: &Key, _: &UploadId) -> Result<Vec<StoredPart>, StoreError> {
        unreachable!()
    }

    async fn list_uploads(&self, _: &Key) -> Result<Vec<OpenUpload>, StoreError> {
        unreachable!()
    }

    async fn complete(&self, _: &Key, _: &UploadId, _: &[StoredPart], _: Condition) -> Result<Written, StoreError> {
        unreachable!()
    }

    async fn abort(&self, _: &Key, _: &UploadId) -> Result<(), StoreError> {
        unreachable!()
    }

    /// Two names a page.
    async fn list(&self, from: &ListFrom) -> Result<Page, StoreError> {
        self.call()?;
        let objects = self.objects.lock().unwrap();
        let after = from.token.as_deref().or(from.after.as_deref()).unwrap_or("");
        let mut rest = objects.iter().filter(|(key, _)| {
            let name = key.as_str();
            name.starts_with(&from.starts_with) && name > after
        });
        let listed = |(key, bytes): (&Key, &Bytes)| Listed {
            key: key.clone(),
            size_bytes: bytes.len() as u64,
            etag: tag(bytes),
        };
        let page: Vec<Listed> = rest.by_ref().take(2).map(listed).collect();
        let next = rest.next().and(page.last()).map(|last| last.key.to_string());
        Ok(Page { objects: page, foreign: Vec::new(), next })
    }

    async fn head(&self, key: &Key) -> Result<Meta, StoreError> {
        self.call()?;
        Ok(self.object(key)?.1)
    }

    async fn get(&self, key: &Key, _: Option<(u64, u64)>, _: Option<&ETag>) -> Result<Download, StoreError> {
        self.call()?;
        let (bytes, meta) = self.object(key)?;
        Ok(Download { meta, bytes: async { Ok(bytes) }.into_stream().boxed() })
    }

    async fn copy(&self, from: &Key, etag: &ETag, to: &Key, options: WriteOptions) -> Result<Written, StoreError> {
        self.call()?;
        if self.cannot_copy {
            return Err(StoreError::new(ErrorKind::Unsupported, "CopyObject", "", "NotImplemented"));
        }
        let (bytes, meta) = self.object(from)?;
        if meta.etag != *etag {
            return Err(StoreError::new(ErrorKind::Fenced, "CopyObject", "", "PreconditionFailed"));
        }
        self.write(to, bytes, &options.condition)
    }

    async fn delete(&self, key: &Key) -> Result<(), StoreError> {
        self.call()?;
        self.objects.lock().unwrap().remove(key);
        Ok(())
    }
}
