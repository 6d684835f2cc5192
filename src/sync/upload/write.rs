//! The conditional write, and what a failed condition or damaged bytes mean.
//!
//! Invariant: nothing that somebody else wrote is overwritten before the store has said that the prefix is still ours.

use super::*;

impl Uploader {
    /// Writes under the condition that what is known to be there is there. A condition that fails is looked into: our own
    /// earlier try may have been carried out without an answer, somebody may have changed the object, or the whole prefix.
    pub(super) async fn write<'a, F>(
        &self,
        job: &Job,
        there: &Option<ETag>,
        digest: &Digest,
        nonce: Option<&str>,
        mut send: impl FnMut(Condition) -> F,
    ) -> Result<Written, Stop>
    where
        F: Future<Output = Result<Written, StoreError>> + 'a,
    {
        let mut there = there.clone();
        let mut last = None;
        let mut by_tag = self.fence;
        for _ in 0..TRIES {
            let condition = match (&there, by_tag) {
                (_, false) => Condition::None,
                (None, true) => Condition::Absent,
                (Some(etag), true) => Condition::Matches(etag.clone()),
            };
            let error = match send(condition).await {
                Ok(written) => match self.check_written(job, digest, &written).await {
                    Ok(()) => return Ok(written),
                    // Completing the same parts once more mends nothing.
                    Err(error) if nonce.is_some() => return Err(Stop::Damaged(written.etag, error)),
                    Err(error) => {
                        there = Some(written.etag);
                        error
                    }
                },
                Err(error) => error,
            };
            match error.kind {
                ErrorKind::Fenced | ErrorKind::Missing => match self.store.head(&job.key).await {
                    Ok(meta) if is_ours(&meta, job.stat.size, digest, nonce) => {
                        let intact = match self.verified_by_store {
                            true => Ok(()),
                            false => self.read_back(&job.key, job.stat.size, digest, &meta.etag).await,
                        };
                        match intact {
                            Ok(()) => return Ok(Written { etag: meta.etag, checksum: meta.checksum }),
                            Err(error) if nonce.is_some() => return Err(Stop::Damaged(meta.etag, error)),
                            Err(_) => there = Some(meta.etag),
                        }
                    }
                    // The source of a copy or the upload itself is missing, not our condition wrong.
                    _ if error.kind == ErrorKind::Missing && there.is_none() => return Err(error.into()),
                    // The very tag that was asked for is there: this store compares with another one than it shows.
                    Ok(meta) if there.as_ref() == Some(&meta.etag) => {
                        self.hold.check().await.map_err(Stop::Superseded)?;
                        by_tag = false;
                    }
                    Ok(meta) => {
                        self.still_ours(job, "changed by somebody else").await?;
                        there = Some(meta.etag);
                    }
                    Err(e) if e.kind == ErrorKind::Missing && there.is_some() => {
                        self.still_ours(job, "removed by somebody else").await?;
                        there = None;
                    }
                    Err(e) if e.kind == ErrorKind::Missing => return Err(error.into()),
                    Err(e) => return Err(e.into()),
                },
                ErrorKind::Corrupt => {
                    tracing::warn!(path = %job.key, error = %error, "bytes arrived damaged; sending them again");
                }
                _ => return Err(error.into()),
            }
            last = Some(error);
        }
        Err(Stop::Store(last.expect("there was a try")))
    }

    pub(super) async fn still_ours(&self, job: &Job, what: &str) -> Result<(), Stop> {
        self.hold.check().await.map_err(Stop::Superseded)?;
        tracing::warn!(path = %job.key, "the object was {what} while the prefix is ours; writing it again");
        Ok(())
    }

    /// Compares what the store says it wrote with what was sent; a store that checks nothing is read back.
    pub(super) async fn check_written(&self, job: &Job, digest: &Digest, written: &Written) -> Result<(), StoreError> {
        let corrupt = |message: String| StoreError::new(ErrorKind::Corrupt, "PutObject", job.key.as_str(), message);
        // A copy may come out as one part whatever its source was.
        if job.link.is_none()
            && let Some(checksum) = &written.checksum
            && *checksum != digest.checksum()
        {
            return Err(corrupt(format!("the store says {checksum}, sent was {}", digest.checksum())));
        }
        if !self.verified_by_store {
            self.read_back(&job.key, job.stat.size, digest, &written.etag).await?;
        }
        Ok(())
    }

    pub(super) async fn read_back(
        &self,
        key: &Key,
        size_bytes: u64,
        digest: &Digest,
        etag: &ETag,
    ) -> Result<(), StoreError> {
        for (index, expected) in digest.parts().iter().enumerate() {
            let range = digest::part_range(size_bytes, u32::try_from(index).unwrap_or(u32::MAX));
            if sha256_of_range(self.store.as_ref(), key, range, etag).await? != *expected {
                let message = format!("part {} reads back with other bytes", index + 1);
                return Err(StoreError::new(ErrorKind::Corrupt, "GetObject", key.as_str(), message));
            }
        }
        Ok(())
    }

    /// Whether an object that is listed under another tag than its write returned holds what was sent nevertheless: some
    /// stores answer Complete with a tag of their own. Returns the tag that the object itself goes by. Its checksum tells,
    /// where the store checks these; else its bytes do.
    pub async fn is_intact(&self, key: &Key, up: &Uploaded) -> Result<Option<ETag>, StoreError> {
        let meta = match self.store.head(key).await {
            Err(error) if error.kind == ErrorKind::Missing => return Ok(None),
            other => other?,
        };
        if meta.size_bytes != up.stat.size {
            return Ok(None);
        }
        let by_checksum = self.verified_by_store && meta.checksum.as_deref() == Some(up.digest.checksum().as_str());
        if meta.etag == up.etag || by_checksum {
            return Ok(Some(meta.etag));
        }
        match self.read_back(key, up.stat.size, &up.digest, &meta.etag).await {
            Ok(()) => Ok(Some(meta.etag)),
            Err(error) if matches!(error.kind, ErrorKind::Corrupt | ErrorKind::Fenced | ErrorKind::Missing) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// Whether an object is what a write of ours would have left.
pub(super) fn is_ours(meta: &Meta, size_bytes: u64, digest: &Digest, nonce: Option<&str>) -> bool {
    let by_nonce = nonce.is_some_and(|n| meta.metadata.iter().any(|(name, value)| name == NONCE && value == n));
    meta.size_bytes == size_bytes && (by_nonce || meta.checksum.as_deref() == Some(digest.checksum().as_str()))
}
