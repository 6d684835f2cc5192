//! Uploads in parts: begun, filled in any order, completed in one step or aborted.

use super::blob::{Blob, Draft, Reader};
use super::directory::Record;
use super::{Headers, NewObject, Object, Shelf, Store, io_error};
use crate::checksum::{Algorithm, Checksum, composite_etag};
use crate::clock::now;
use crate::conditions::Conditions;
use s3s::{S3ErrorCode, S3Result, s3_error};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::SystemTime;

/// An upload that is under way.
#[derive(Clone, Debug)]
pub(crate) struct Upload {
    pub info: UploadInfo,
    pub parts: BTreeMap<i32, Part>,
}

/// What an upload was begun with; what the directory's log holds for it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct UploadInfo {
    pub key: String,
    pub initiated: SystemTime,
    pub headers: Headers,
    /// The algorithm that every part's checksum must have.
    pub algorithm: Option<Algorithm>,
    /// The whole gets a checksum of its content rather than of its parts' checksums.
    pub full_object: bool,
}

/// A part that has arrived.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    pub info: PartInfo,
    pub blob: Blob,
}

/// What is known about a part besides its content.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct PartInfo {
    pub size: u64,
    pub etag: String,
    pub modified: SystemTime,
    pub checksum: Option<Checksum>,
}

/// A part that is to be stored.
#[derive(Debug)]
pub(crate) struct NewPart {
    pub draft: Draft,
    pub size: u64,
    pub etag: String,
    pub checksum: Option<Checksum>,
}

/// A part as the request to complete names it.
#[derive(Debug)]
pub(crate) struct CompletedPart {
    pub number: i32,
    pub etag: String,
    pub checksums: s3s::dto::Checksum,
}

/// A request to complete an upload.
#[derive(Debug)]
pub(crate) struct Completion {
    pub parts: Vec<CompletedPart>,
    /// `x-amz-mp-object-size`
    pub size: Option<i64>,
    /// What the whole's checksum is claimed to be.
    pub claimed: s3s::dto::Checksum,
}

impl Store {
    pub fn create_upload(
        &self,
        bucket: &str,
        key: &str,
        headers: Headers,
        algorithm: Option<Algorithm>,
        full_object: bool,
    ) -> S3Result<String> {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        // Sorts by age, and stays unique over a restart.
        let id = format!("{:024x}{:08x}", since.as_nanos(), self.next_serial());
        let info = UploadInfo { key: key.into(), initiated: now(), headers, algorithm, full_object };
        let mut state = self.lock();
        let uploads = &mut state.bucket_mut(bucket)?.uploads;
        if let Shelf::Directory(directory) = &self.shelf {
            let record = Record::Upload { id: id.clone(), info: info.clone() };
            directory.record(bucket, &record).map_err(io_error)?;
        }
        uploads.insert(id.clone(), Upload { info, parts: BTreeMap::new() });
        Ok(id)
    }

    /// Looks an upload up; a wrong key is as wrong as a wrong id.
    pub fn upload(&self, bucket: &str, key: &str, id: &str) -> S3Result<Upload> {
        let state = self.lock();
        let upload = state.bucket(bucket)?.uploads.get(id).filter(|upload| upload.info.key == key);
        upload.cloned().ok_or_else(|| S3ErrorCode::NoSuchUpload.into())
    }

    /// What the parts of an upload must be checked by, without copying the upload.
    pub fn upload_algorithm(&self, bucket: &str, key: &str, id: &str) -> S3Result<Option<Algorithm>> {
        let state = self.lock();
        let upload = state.bucket(bucket)?.uploads.get(id).filter(|upload| upload.info.key == key);
        upload.map(|upload| upload.info.algorithm).ok_or_else(|| S3ErrorCode::NoSuchUpload.into())
    }

    /// All uploads of a bucket, by key and then by age.
    pub fn uploads(&self, bucket: &str) -> S3Result<Vec<(String, Upload)>> {
        let state = self.lock();
        let uploads = state.bucket(bucket)?.uploads.iter();
        let mut uploads: Vec<_> = uploads.map(|(id, upload)| (id.clone(), upload.clone())).collect();
        uploads.sort_by(|(a_id, a), (b_id, b)| (&a.info.key, a_id).cmp(&(&b.info.key, b_id)));
        Ok(uploads)
    }

    pub fn put_part(&self, bucket: &str, key: &str, id: &str, number: i32, new: NewPart) -> S3Result<PartInfo> {
        let info = PartInfo { size: new.size, etag: new.etag, modified: now(), checksum: new.checksum };
        let serial = self.next_serial();
        let mut state = self.lock();
        let upload = state.bucket_mut(bucket)?.uploads.get_mut(id).filter(|upload| upload.info.key == key);
        let upload = upload.ok_or(S3ErrorCode::NoSuchUpload)?;
        let blob = match (&self.shelf, new.draft) {
            (Shelf::Directory(directory), Draft::File(temp)) => {
                let old = upload.parts.get(&number).map(|part| &part.blob);
                directory.put_part(bucket, id, number, serial, temp, &info, old).map_err(io_error)?
            }
            (_, Draft::Memory(pieces)) => Blob::Memory(pieces),
            (_, Draft::Discarded) => Blob::Discarded,
            (_, Draft::File(_)) => {
                return Err(s3_error!(InternalError, "a file without a directory"));
            }
        };
        upload.parts.insert(number, Part { info: info.clone(), blob });
        Ok(info)
    }

    pub fn abort(&self, bucket: &str, key: &str, id: &str) -> S3Result<()> {
        let mut state = self.lock();
        let uploads = &mut state.bucket_mut(bucket)?.uploads;
        if uploads.get(id).is_none_or(|upload| upload.info.key != key) {
            return Err(S3ErrorCode::NoSuchUpload.into());
        }
        self.forget_upload(bucket, uploads, id)
    }

    /// Makes the parts one object. Content is put together before the lock is taken; under it the upload must
    /// still be what it was, and the conditions must hold.
    pub fn complete(
        &self,
        bucket: &str,
        key: &str,
        id: &str,
        completion: &Completion,
        conditions: &Conditions,
    ) -> S3Result<Arc<Object>> {
        let Completion { parts: completed, size, claimed } = completion;
        let upload = self.upload(bucket, key, id)?;
        let parts = self.chosen_parts(&upload, completed)?;
        let total: u64 = parts.iter().map(|part| part.info.size).sum();
        if size.is_some_and(|size| u64::try_from(size) != Ok(total)) {
            return Err(s3_error!(
                InvalidRequest,
                "The parts have {} bytes, not what x-amz-mp-object-size says",
                total
            ));
        }
        let (draft, full) = self.join(key, &upload, &parts)?;
        let checksum = match (upload.info.algorithm, upload.info.full_object) {
            (None, _) => None,
            (Some(_), true) => full,
            (Some(algorithm), false) => {
                let checksums: Vec<_> = parts.iter().filter_map(|part| part.info.checksum.as_ref()).collect();
                Some(Checksum::composite(algorithm, checksums.into_iter())?)
            }
        };
        if let Some(checksum) = &checksum
            && let Some(claim) = checksum.algorithm.value_in(claimed)
            // A composite may be claimed with or without the count behind it.
            && claim != checksum.value
            && Some(claim.as_str()) != checksum.value.rsplit_once('-').map(|(value, _)| value)
        {
            return Err(s3_error!(BadDigest, "The checksum you specified did not match the calculated checksum."));
        }
        let etags: Vec<_> = parts.iter().map(|part| part.info.etag.as_str()).collect();
        let new = NewObject {
            draft,
            size: total,
            etag: composite_etag(etags.into_iter()),
            checksum,
            headers: upload.info.headers.clone(),
            parts: parts.iter().map(|part| part.info.size).collect(),
        };

        let mut state = self.lock();
        let contents = state.bucket_mut(bucket)?;
        let current = contents.uploads.get(id).ok_or(S3ErrorCode::NoSuchUpload)?;
        let unchanged = completed.iter().all(|part| {
            let etag = |upload: &Upload| upload.parts.get(&part.number).map(|part| part.info.etag.clone());
            etag(current) == etag(&upload)
        });
        if !unchanged {
            return Err(S3ErrorCode::InvalidPart.into());
        }
        conditions.check_write(contents.objects.get(key).map(|object| object.info.etag.as_str()))?;
        let object = self.place(&mut contents.objects, bucket, key, new)?;
        self.forget_upload(bucket, &mut contents.uploads, id)?;
        Ok(object)
    }

    /// Checks the list of a request to complete against what is there.
    fn chosen_parts<'a>(&self, upload: &'a Upload, completed: &[CompletedPart]) -> S3Result<Vec<&'a Part>> {
        if completed.is_empty() {
            return Err(s3_error!(MalformedXML, "You must specify at least one part"));
        }
        if !completed.is_sorted_by(|a, b| a.number < b.number) {
            return Err(S3ErrorCode::InvalidPartOrder.into());
        }
        let mut parts = Vec::with_capacity(completed.len());
        for (index, named) in completed.iter().enumerate() {
            let part = upload.parts.get(&named.number).ok_or(S3ErrorCode::InvalidPart)?;
            if part.info.etag != named.etag {
                return Err(s3_error!(InvalidPart, "part {} has another ETag", named.number));
            }
            if let Some(checksum) = &part.info.checksum {
                match checksum.algorithm.value_in(&named.checksums) {
                    Some(claimed) if claimed != checksum.value => {
                        return Err(s3_error!(InvalidPart, "part {} has another checksum", named.number));
                    }
                    None if upload.info.algorithm.is_some() && !upload.info.full_object => {
                        return Err(s3_error!(
                            InvalidRequest,
                            "The upload was created using a {} checksum. The complete request must include the \
                             checksum for each part. It was missing for part {} in the request.",
                            checksum.algorithm.name().to_lowercase(),
                            named.number
                        ));
                    }
                    _ => {}
                }
            }
            if index + 1 < completed.len() && part.info.size < self.min_part_bytes {
                return Err(s3_error!(EntityTooSmall, "part {} is too small", named.number));
            }
            parts.push(part);
        }
        Ok(parts)
    }

    /// Puts the parts' content together; where the whole needs a checksum of its own, reads it once for that.
    fn join(&self, key: &str, upload: &Upload, parts: &[&Part]) -> S3Result<(Draft, Option<Checksum>)> {
        let full = upload.info.algorithm.filter(|_| upload.info.full_object);
        let discarded = parts.iter().any(|part| matches!(part.blob, Blob::Discarded));
        if discarded {
            return Ok((Draft::Discarded, None));
        }
        let mut hasher = full.map(Algorithm::hasher);
        let draft = match &self.shelf {
            Shelf::Directory(_) => {
                let mut sink = self.sink(key, 0)?;
                for part in parts {
                    let mut reader = Reader::open(&part.blob, 0..part.info.size).map_err(io_error)?;
                    while let Some(block) = reader.next_block().map_err(io_error)? {
                        hasher.iter_mut().for_each(|hasher| hasher.update(&block));
                        sink.write(&block).map_err(io_error)?;
                    }
                }
                sink.finish().map_err(io_error)?
            }
            Shelf::Memory | Shelf::Discard { .. } => {
                let pieces = parts.iter().flat_map(|part| match &part.blob {
                    Blob::Memory(pieces) => pieces.clone(),
                    Blob::File(_) | Blob::Discarded => Vec::new(),
                });
                let pieces: Vec<_> = pieces.collect();
                if let Some(hasher) = &mut hasher {
                    pieces.iter().for_each(|piece| hasher.update(piece));
                }
                Draft::Memory(pieces)
            }
        };
        let checksum = hasher.zip(full).and_then(|(hasher, algorithm)| {
            let value = algorithm.value_in(&hasher.finalize())?;
            Some(Checksum { algorithm, value, composite: false })
        });
        Ok((draft, checksum))
    }

    fn forget_upload(&self, bucket: &str, uploads: &mut BTreeMap<String, Upload>, id: &str) -> S3Result<()> {
        if let Shelf::Directory(directory) = &self.shelf
            && let Some(upload) = uploads.get(id)
        {
            let blobs = upload.parts.values().map(|part| &part.blob);
            directory.forget_upload(bucket, id, blobs).map_err(io_error)?;
        }
        uploads.remove(id);
        Ok(())
    }
}
