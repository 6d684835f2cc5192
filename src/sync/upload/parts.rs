//! Multipart uploads: begun or continued, several parts at a time.
//!
//! Invariant: a part that the store holds is not sent again if its digest is what the disk says.

use super::*;

impl Uploader {
    /// The upload to put parts into: one that an earlier try left, with the parts that the store holds, or a new one.
    pub(super) async fn open_upload(&self, job: &Job) -> Result<(UploadId, String, BTreeMap<u32, StoredPart>), Stop> {
        let mut left: Vec<(UploadId, Option<String>)> = Vec::new();
        if let Some(resume) = &job.resume {
            left.push((resume.id.clone(), Some(resume.nonce.clone())));
        } else {
            match self.store.list_uploads(&job.key).await {
                Ok(open) => left.extend(open.into_iter().map(|upload| (upload.id, None))),
                Err(e) if e.kind == ErrorKind::Unsupported => {}
                Err(e) => return Err(e.into()),
            }
        }
        // One of those that were left is continued; the head makes all of them ours, so the others are thrown away.
        let mut found = None;
        for (id, nonce) in left {
            if found.is_some() {
                self.store.abort(&job.key, &id).await?;
                continue;
            }
            match self.store.list_parts(&job.key, &id).await {
                Ok(parts) => {
                    let nonce = nonce.unwrap_or_else(|| id.0.clone());
                    found = Some((id, nonce, parts.into_iter().map(|p| (p.number, p)).collect::<BTreeMap<_, _>>()));
                }
                Err(e) if e.kind == ErrorKind::Missing => {}
                Err(e) => return Err(e.into()),
            }
        }
        let (id, nonce, mut stored) = match found {
            Some(found) => found,
            None => {
                let nonce = crate::journal::random_hex();
                let options =
                    WriteOptions { metadata: vec![(NONCE.to_owned(), nonce.clone())], ..WriteOptions::default() };
                (self.store.create_upload(&job.key, options).await?, nonce, BTreeMap::new())
            }
        };
        // A store that returns no checksums: the journal remembers which part had which digest, by the part's tag.
        if let Some(resume) = &job.resume {
            for (number, (part, sha256)) in &resume.parts {
                if let Some(there) = stored.get_mut(number)
                    && there.sha256.is_none()
                    && there.etag == part.etag
                {
                    there.sha256 = Some(*sha256);
                }
            }
        }
        let parts = job.resume.as_ref().filter(|resume| resume.id == id).map(|r| r.parts.clone()).unwrap_or_default();
        let upload = OpenUpload { stat: job.stat, id: id.clone(), nonce: nonce.clone(), parts };
        self.tell(Progress::Begun(job.key.clone(), upload)).await;
        Ok((id, nonce, stored))
    }

    /// Sends what the store doesn't hold yet, several parts at a time, each read, hashed and sent by a task of its own;
    /// returns all parts, the digest, and how many leading parts were read young.
    pub(super) async fn send_parts(
        &self,
        job: &Job,
        file: &Arc<ReadFile>,
        id: &UploadId,
        mut stored: BTreeMap<u32, StoredPart>,
        progress: &Arc<FileProgress>,
    ) -> Result<(Vec<StoredPart>, Digest, u32), Stop> {
        let count = digest::part_count(job.stat.size);
        let mut digests = vec![None; count as usize];
        let mut parts = BTreeMap::new();
        let mut young_parts = 0;
        let mut under_way: JoinSet<Result<Arrived, Stop>> = JoinSet::new();
        let mut index = 0;
        loop {
            let done = if index < count {
                // Waits for a buffer, in the order of the parts; what has arrived meanwhile is taken in first, so that
                // nothing piles up.
                match under_way.try_join_next() {
                    Some(done) => done,
                    None => {
                        let room = self.room(digest::part_range(job.stat.size, index).1).await;
                        under_way.spawn(self.carry_part(
                            job,
                            file,
                            id,
                            index,
                            room,
                            stored.remove(&(index + 1)),
                            progress,
                        ));
                        index += 1;
                        continue;
                    }
                }
            } else {
                match under_way.join_next().await {
                    Some(done) => done,
                    None => break,
                }
            };
            let arrived = done.map_err(|e| Stop::Io(io::Error::other(format!("a part's task ended early: {e}"))))??;
            let number = arrived.part.number;
            digests[number as usize - 1] = Some(arrived.sha256);
            if arrived.young {
                young_parts = young_parts.max(number);
            }
            if arrived.sent {
                self.tell(Progress::Part(job.key.clone(), arrived.part.clone(), arrived.sha256)).await;
            }
            parts.insert(number, arrived.part);
        }
        let digests: Vec<Sha256> = digests.into_iter().flatten().collect();
        Ok((parts.into_values().collect(), Digest::from(digests), young_parts))
    }

    /// One part's way: read, hashed, compared with what the store holds of it, sent if that is something else.
    #[allow(clippy::too_many_arguments)]
    fn carry_part(
        &self,
        job: &Job,
        file: &Arc<ReadFile>,
        id: &UploadId,
        index: u32,
        room: Room,
        there: Option<StoredPart>,
        progress: &Arc<FileProgress>,
    ) -> impl Future<Output = Result<Arrived, Stop>> + Send + 'static {
        let (store, key, id) = (Arc::clone(&self.store), job.key.clone(), id.clone());
        let (metrics, progress) = (Arc::clone(&self.metrics), Arc::clone(progress));
        let (file, stat) = (Arc::clone(file), job.stat);
        async move {
            let part = read_into(room, file, stat, index, Arc::clone(&metrics)).await?;
            let (sha256, len, young) = (part.body.sha256, part.body.len_bytes, part.young);
            if let Some(there) = there.filter(|there| there.size_bytes == len && there.sha256 == Some(sha256)) {
                progress.advance(len);
                return Ok(Arrived { part: there, sha256, young, sent: false });
            }
            let started = clock::now();
            let done = send_part(&store, &key, &id, index + 1, &part.body).await?;
            metrics.send_time(started.elapsed());
            metrics.sent(len);
            progress.advance(len);
            Ok(Arrived { part: done, sha256, young, sent: true })
        }
    }

    /// Memory for a part: a buffer that holds it, or, if none is large enough, what streaming it takes.
    pub(super) async fn room(&self, len_bytes: u64) -> Room {
        if self.buffers.fits(len_bytes) {
            Room::Whole(self.buffers.take(len_bytes).await)
        } else {
            Room::Stream(self.buffers.take(STREAM_BYTES).await)
        }
    }
}

/// Where a part is read to.
pub(super) enum Room {
    /// Into this buffer.
    Whole(Buffer),
    /// Nowhere: hashed now, and read again while it is sent. The buffer stands for what that takes.
    Stream(Buffer),
}

/// A part that the store holds.
struct Arrived {
    part: StoredPart,
    sha256: Sha256,
    young: bool,
    sent: bool,
}

/// Reads and hashes one part.
pub(super) async fn read_into(
    room: Room,
    file: Arc<ReadFile>,
    stat: Stat,
    index: u32,
    metrics: Arc<Metrics>,
) -> Result<Part, Stop> {
    let (offset, len) = digest::part_range(stat.size, index);
    let young_until_ns = stat.ctime_ns.saturating_add(YOUNG_NS);
    blocking(move || {
        let (started, young) = (clock::now(), clock::wall_ns() < young_until_ns);
        match room {
            Room::Whole(mut buffer) => {
                let sha256 = fill(&file, buffer.as_mut_slice(), offset)?;
                metrics.read_time(started.elapsed());
                Ok(Part { body: Body::bytes(buffer.into_bytes(), sha256), young, _room: None })
            }
            Room::Stream(buffer) => {
                let sha256 = hash(&file, offset, len)?;
                metrics.hash_time(started.elapsed());
                let body = Body { source: BodySource::File { file, offset }, len_bytes: len, sha256 };
                Ok(Part { body, young, _room: Some(buffer) })
            }
        }
    })
    .await
}

async fn send_part(
    store: &SharedStore,
    key: &Key,
    id: &UploadId,
    number: u32,
    body: &Body,
) -> Result<StoredPart, StoreError> {
    let mut tries = 1;
    loop {
        match store.put_part(key, id, number, body.clone()).await {
            Err(e) if e.kind == ErrorKind::Corrupt && tries < TRIES => {
                tracing::warn!(path = %key, part = number, error = %e, "a part arrived damaged; sending it again");
                tries += 1;
            }
            other => return other,
        }
    }
}
