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

    /// Sends what the store doesn't hold yet, several parts at a time; returns all parts, the digest, and how many
    /// leading parts were read young.
    pub(super) async fn send_parts(
        &self,
        job: &Job,
        file: &Arc<ReadFile>,
        id: &UploadId,
        stored: BTreeMap<u32, StoredPart>,
        progress: &Arc<FileProgress>,
    ) -> Result<(Vec<StoredPart>, Digest, u32), Stop> {
        let count = digest::part_count(job.stat.size);
        let mut digests = vec![None; count as usize];
        let mut parts = BTreeMap::new();
        let mut young_parts = 0;
        let mut sending: JoinSet<Result<(u32, Sha256, StoredPart), StoreError>> = JoinSet::new();
        let mut index = 0;
        loop {
            // Reading waits for a buffer; meanwhile what has arrived is taken in, so that nothing piles up.
            while let Some(done) = sending.try_join_next() {
                self.part_arrived(job, done, &mut parts, &mut digests).await?;
            }
            if index == count {
                match sending.join_next().await {
                    Some(done) => self.part_arrived(job, done, &mut parts, &mut digests).await?,
                    None => break,
                }
                continue;
            }
            let part = self.read_part(job, file, index).await?;
            let (number, sha256, len) = (index + 1, part.body.sha256, part.body.len_bytes);
            if part.young {
                young_parts = number;
            }
            index += 1;
            match stored.get(&number) {
                Some(there) if there.size_bytes == len && there.sha256 == Some(sha256) => {
                    progress.advance(len);
                    digests[number as usize - 1] = Some(sha256);
                    parts.insert(number, there.clone());
                }
                _ => {
                    let (store, key, id) = (Arc::clone(&self.store), job.key.clone(), id.clone());
                    let (metrics, progress) = (Arc::clone(&self.metrics), Arc::clone(progress));
                    sending.spawn(async move {
                        let started = clock::now();
                        let done = send_part(&store, &key, &id, number, &part.body).await?;
                        metrics.send_time(started.elapsed());
                        metrics.sent(len);
                        progress.advance(len);
                        drop(part.room);
                        Ok((number, sha256, done))
                    });
                }
            }
        }
        let digests: Vec<Sha256> = digests.into_iter().flatten().collect();
        Ok((parts.into_values().collect(), Digest::from(digests), young_parts))
    }

    pub(super) async fn part_arrived(
        &self,
        job: &Job,
        done: Result<Result<(u32, Sha256, StoredPart), StoreError>, tokio::task::JoinError>,
        parts: &mut BTreeMap<u32, StoredPart>,
        digests: &mut [Option<Sha256>],
    ) -> Result<(), Stop> {
        let (number, sha256, part) =
            done.map_err(|e| Stop::Io(io::Error::other(format!("a part's task ended early: {e}"))))??;
        digests[number as usize - 1] = Some(sha256);
        self.tell(Progress::Part(job.key.clone(), part.clone(), sha256)).await;
        parts.insert(number, part);
        Ok(())
    }

    /// Reads and hashes one part: into a buffer, or, if none is large enough, only hashed, to be streamed.
    pub(super) async fn read_part(&self, job: &Job, file: &Arc<ReadFile>, index: u32) -> Result<Part, Stop> {
        let (offset, len) = digest::part_range(job.stat.size, index);
        let young_until_ns = job.stat.ctime_ns.saturating_add(YOUNG_NS);
        let (file, metrics) = (Arc::clone(file), Arc::clone(&self.metrics));
        if self.buffers.fits(len) {
            let mut buffer = self.buffers.take(len).await;
            blocking(move || {
                let (started, young) = (clock::now(), clock::wall_ns() < young_until_ns);
                let sha256 = fill(&file, buffer.as_mut_slice(), offset)?;
                metrics.read_time(started.elapsed());
                Ok(Part { body: Body::bytes(buffer.into_bytes(), sha256), young, room: None })
            })
            .await
        } else {
            let room = Some(self.buffers.take(STREAM_BYTES).await);
            blocking(move || {
                let (started, young) = (clock::now(), clock::wall_ns() < young_until_ns);
                let sha256 = hash(&file, offset, len)?;
                metrics.hash_time(started.elapsed());
                Ok(Part {
                    body: Body { source: BodySource::File { file, offset }, len_bytes: len, sha256 },
                    young,
                    room,
                })
            })
            .await
        }
    }
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
