//! The [`Store`] over S3's operations, one request each (a listing of parts or uploads: one a page).

use std::collections::HashSet;
use std::sync::{MutexGuard, PoisonError};

use async_trait::async_trait;
use aws_sdk_s3::operation::get_object::builders::GetObjectFluentBuilder;
use aws_sdk_s3::operation::get_object::{GetObjectError, GetObjectOutput};
use aws_sdk_s3::types::{
    ChecksumAlgorithm, ChecksumMode, CompletedMultipartUpload, CompletedPart, EncodingType, MetadataDirective,
};
use futures_util::{FutureExt as _, StreamExt as _};

use super::body::{ReadFault, time_limit, to_stream};
use super::names::{copy_source, decode_listed};
use super::signing::SignWithDigest;
use super::{S3Store, errors};
use crate::clock::Duration;
use crate::digest::Sha256;
use crate::key::{Key, Prefix};
use crate::store::{
    Body, Condition, Download, ETag, ErrorKind, ListFrom, Listed, Meta, OpenUpload, Page, RetryReason, Store,
    StoreError, StoredPart, UploadId, WriteOptions, Written,
};

/// A request without a body worth speaking of.
const SMALL: Duration = Duration::from_secs(60);

/// Assembling or copying a large object takes the server minutes; it keeps the connection alive meanwhile.
const SERVER_SIDE: Duration = Duration::from_secs(15 * 60);

impl S3Store {
    /// Uploads that were begun without checksums, because parts of them are copies.
    fn undeclared(&self) -> MutexGuard<'_, HashSet<String>> {
        self.undeclared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn full(&self, key: &Key) -> String {
        self.prefix.join(key)
    }

    /// S3 answers a failing If-Match on a missing object with 404: for us the condition did not hold.
    fn with_condition(error: StoreError, condition: &Condition) -> StoreError {
        let is_missing_object = error.kind == ErrorKind::Missing && !error.message.starts_with("NoSuchUpload");
        if is_missing_object && matches!(condition, Condition::Matches(_)) {
            StoreError { kind: ErrorKind::Fenced, ..error }
        } else {
            error
        }
    }

    /// A fault of the local file, where there is one, is the true cause of a request that failed.
    fn with_read_fault(error: StoreError, fault: &ReadFault) -> StoreError {
        match fault.get() {
            Some((kind, message)) => StoreError { kind, message, hint: None, ..error },
            None => error,
        }
    }

    /// An answer that lacks what the protocol promises.
    fn incomplete(&self, operation: &'static str, key: &Key, what: &str) -> StoreError {
        let message = format!("the answer has no {what}");
        StoreError::new(ErrorKind::Retry(RetryReason::Server), operation, self.target(Some(key)), message)
    }

    fn etag(&self, operation: &'static str, key: &Key, etag: Option<String>) -> Result<ETag, StoreError> {
        // Asking again changes nothing about that: some stores have none.
        etag.map(|text| ETag::new(&text)).ok_or_else(|| {
            let hint = "nothing tells one version of an object from another there: chiefsync needs a store with ETags";
            let message = "the answer has no ETag";
            StoreError::new(ErrorKind::Unsupported, operation, self.target(Some(key)), message).with_hint(hint)
        })
    }

    fn get_request(&self, key: &Key) -> GetObjectFluentBuilder {
        self.client.get_object().bucket(&self.place.bucket).key(self.full(key))
    }

    /// The answer to a HEAD has no body, and 400 or 403 alone may be an expired token, a clock or a permission: one byte
    /// asked for by GET brings the code.
    async fn explain_head(&self, key: &Key, error: StoreError) -> StoreError {
        let is_bare = ["HTTP 400", "HTTP 403"].contains(&error.message.as_str());
        if !is_bare {
            return error;
        }
        let request = self.get_request(key).range("bytes=0-0").send();
        match self.answer("HeadObject", Some(key), SMALL, request).await {
            Ok(_) => error,
            Err(explained) => explained,
        }
    }

    async fn next_listed_page(&self, from: &ListFrom) -> Result<Page, StoreError> {
        let prefix = format!("{}{}", self.prefix, from.starts_with);
        let mut request = self
            .client
            .list_objects_v2()
            .bucket(&self.place.bucket)
            .max_keys(self.page_size)
            .encoding_type(EncodingType::Url)
            .set_continuation_token(from.token.clone());
        if !prefix.is_empty() {
            request = request.prefix(prefix);
        }
        if let (Some(after), None) = (&from.after, &from.token) {
            request = request.start_after(format!("{}{after}", self.prefix));
        }
        let answer = self.answer("ListObjectsV2", None, SMALL, request.send()).await?;
        let encoded = answer.encoding_type == Some(EncodingType::Url);
        let mut page = Page::default();
        for object in answer.contents.unwrap_or_default() {
            let Some(wire) = object.key else { continue };
            let name = if encoded { decode_listed(&wire) } else { Some(wire.clone()) };
            let Some(full) = name else {
                page.foreign.push(wire);
                continue;
            };
            let Some(below) = full.strip_prefix(self.prefix.as_str()) else { continue };
            match (Key::new(below), object.e_tag, object.size) {
                (Ok(key), Some(etag), Some(size)) => page.objects.push(Listed {
                    key,
                    size_bytes: u64::try_from(size).unwrap_or(0),
                    etag: ETag::new(&etag),
                }),
                // What some tools leave for the "directory" that the prefix itself is.
                _ if below.is_empty() => {}
                _ => page.foreign.push(below.to_owned()),
            }
        }
        if answer.is_truncated == Some(true) {
            page.next = answer.next_continuation_token;
        }
        Ok(page)
    }
}

fn if_match(condition: &Condition) -> Option<String> {
    match condition {
        Condition::Matches(etag) => Some(etag.quoted()),
        Condition::None | Condition::Absent => None,
    }
}

fn if_none_match(condition: &Condition) -> Option<String> {
    matches!(condition, Condition::Absent).then(|| "*".to_owned())
}

fn metadata_of(options: &WriteOptions) -> Option<std::collections::HashMap<String, String>> {
    (!options.metadata.is_empty()).then(|| options.metadata.iter().cloned().collect())
}

fn sorted(metadata: Option<std::collections::HashMap<String, String>>) -> Vec<(String, String)> {
    let mut pairs: Vec<_> =
        metadata.unwrap_or_default().into_iter().map(|(name, value)| (name.to_ascii_lowercase(), value)).collect();
    pairs.sort();
    pairs
}

fn length(len: Option<i64>) -> u64 {
    len.and_then(|len| u64::try_from(len).ok()).unwrap_or(0)
}

/// The whole object's length from `bytes 0-9/100`.
fn total_length(output: &GetObjectOutput) -> u64 {
    let total = output.content_range().and_then(|range| range.rsplit('/').next()?.parse().ok());
    total.unwrap_or_else(|| length(output.content_length()))
}

#[async_trait]
impl Store for S3Store {
    fn url(&self) -> String {
        self.target(None)
    }

    fn prefix(&self) -> &Prefix {
        &self.prefix
    }

    async fn put(&self, key: &Key, body: Body, options: WriteOptions) -> Result<Written, StoreError> {
        let (len_bytes, sha256) = (body.len_bytes, body.sha256);
        let (stream, fault) = to_stream(body);
        let request = self
            .client
            .put_object()
            .bucket(&self.place.bucket)
            .key(self.full(key))
            .content_length(i64::try_from(len_bytes).unwrap_or(i64::MAX))
            .checksum_sha256(sha256.to_base64())
            .set_if_match(if_match(&options.condition))
            .set_if_none_match(if_none_match(&options.condition))
            .set_metadata(metadata_of(&options))
            .set_content_type(options.content_type.map(str::to_owned))
            .body(stream)
            .send();
        let answer = self
            .answer("PutObject", Some(key), time_limit(len_bytes), request)
            .await
            .map_err(|e| Self::with_read_fault(Self::with_condition(e, &options.condition), &fault))?;
        Ok(Written { etag: self.etag("PutObject", key, answer.e_tag)?, checksum: answer.checksum_sha256 })
    }

    async fn create_upload(&self, key: &Key, options: WriteOptions) -> Result<UploadId, StoreError> {
        let request = self
            .client
            .create_multipart_upload()
            .bucket(&self.place.bucket)
            .key(self.full(key))
            .set_checksum_algorithm((!options.for_copies).then_some(ChecksumAlgorithm::Sha256))
            .set_metadata(metadata_of(&options))
            .set_content_type(options.content_type.map(str::to_owned))
            .send();
        let answer = self.answer("CreateMultipartUpload", Some(key), SMALL, request).await?;
        let id = answer.upload_id.ok_or_else(|| self.incomplete("CreateMultipartUpload", key, "UploadId"))?;
        if options.for_copies {
            self.undeclared().insert(id.clone());
        }
        Ok(UploadId(id))
    }

    async fn put_part(&self, key: &Key, id: &UploadId, number: u32, body: Body) -> Result<StoredPart, StoreError> {
        let (len_bytes, sha256) = (body.len_bytes, body.sha256);
        let declared = !self.undeclared().contains(&id.0);
        let (stream, fault) = to_stream(body);
        let request = self
            .client
            .upload_part()
            .bucket(&self.place.bucket)
            .key(self.full(key))
            .upload_id(&id.0)
            .part_number(i32::try_from(number).unwrap_or(i32::MAX))
            .content_length(i64::try_from(len_bytes).unwrap_or(i64::MAX))
            .set_checksum_sha256(declared.then(|| sha256.to_base64()))
            .body(stream);
        // Without the header it is the signature alone that binds the bytes to the digest.
        let request = if declared {
            request.send().left_future()
        } else {
            request.customize().interceptor(SignWithDigest(sha256)).send().right_future()
        };
        let answer = self
            .answer("UploadPart", Some(key), time_limit(len_bytes), request)
            .await
            .map_err(|e| Self::with_read_fault(e, &fault))?;
        Ok(StoredPart {
            number,
            size_bytes: len_bytes,
            etag: self.etag("UploadPart", key, answer.e_tag)?,
            sha256: answer.checksum_sha256.as_deref().and_then(Sha256::from_base64),
        })
    }

    async fn copy_part(
        &self,
        key: &Key,
        id: &UploadId,
        number: u32,
        source: &Key,
        source_etag: &ETag,
        offset: u64,
        len_bytes: u64,
    ) -> Result<StoredPart, StoreError> {
        let request = self
            .client
            .upload_part_copy()
            .bucket(&self.place.bucket)
            .key(self.full(key))
            .upload_id(&id.0)
            .part_number(i32::try_from(number).unwrap_or(i32::MAX))
            .copy_source(copy_source(&self.place.bucket, &self.full(source)))
            .copy_source_if_match(source_etag.quoted())
            .copy_source_range(format!("bytes={offset}-{}", (offset + len_bytes).saturating_sub(1)))
            .send();
        let answer = self.answer("UploadPartCopy", Some(key), SERVER_SIDE, request).await?;
        let copied = answer.copy_part_result.ok_or_else(|| self.incomplete("UploadPartCopy", key, "CopyPartResult"))?;
        Ok(StoredPart {
            number,
            size_bytes: len_bytes,
            etag: self.etag("UploadPartCopy", key, copied.e_tag)?,
            sha256: copied.checksum_sha256.as_deref().and_then(Sha256::from_base64),
        })
    }

    async fn list_parts(&self, key: &Key, id: &UploadId) -> Result<Vec<StoredPart>, StoreError> {
        let mut parts = Vec::new();
        let mut marker: Option<String> = None;
        loop {
            let request = self
                .client
                .list_parts()
                .bucket(&self.place.bucket)
                .key(self.full(key))
                .upload_id(&id.0)
                .max_parts(self.page_size)
                .set_part_number_marker(marker.clone())
                .send();
            let answer = self.answer("ListParts", Some(key), SMALL, request).await?;
            for part in answer.parts.unwrap_or_default() {
                let number = part.part_number.and_then(|n| u32::try_from(n).ok());
                let number = number.ok_or_else(|| self.incomplete("ListParts", key, "PartNumber"))?;
                parts.push(StoredPart {
                    number,
                    size_bytes: length(part.size),
                    etag: self.etag("ListParts", key, part.e_tag)?,
                    sha256: part.checksum_sha256.as_deref().and_then(Sha256::from_base64),
                });
            }
            let next = answer.next_part_number_marker.filter(|next| marker.as_ref() != Some(next));
            match (answer.is_truncated, next) {
                (Some(true), Some(next)) => marker = Some(next),
                _ => break,
            }
        }
        parts.sort_by_key(|part| part.number);
        Ok(parts)
    }

    async fn list_uploads(&self, key: &Key) -> Result<Vec<OpenUpload>, StoreError> {
        let full = self.full(key);
        let mut uploads = Vec::new();
        let mut marker: (Option<String>, Option<String>) = (None, None);
        loop {
            let request = self
                .client
                .list_multipart_uploads()
                .bucket(&self.place.bucket)
                .prefix(&full)
                .encoding_type(EncodingType::Url)
                .set_key_marker(marker.0.clone())
                .set_upload_id_marker(marker.1.clone())
                .send();
            let answer = self.answer("ListMultipartUploads", Some(key), SMALL, request).await?;
            let encoded = answer.encoding_type == Some(EncodingType::Url);
            let decode = |wire: String| if encoded { decode_listed(&wire).unwrap_or(wire) } else { wire };
            for upload in answer.uploads.unwrap_or_default() {
                let (Some(name), Some(id)) = (upload.key.map(&decode), upload.upload_id) else { continue };
                if name == full {
                    uploads.push(OpenUpload { key: key.clone(), id: UploadId(id) });
                }
            }
            let next = (answer.next_key_marker.map(&decode), answer.next_upload_id_marker);
            // Further pages hold longer names, once the marker is past ours.
            let may_hold_more = next.0.as_deref().is_some_and(|name| name <= full.as_str()) && next != marker;
            if answer.is_truncated != Some(true) || !may_hold_more {
                return Ok(uploads);
            }
            marker = next;
        }
    }

    async fn complete(
        &self,
        key: &Key,
        id: &UploadId,
        parts: &[StoredPart],
        condition: Condition,
    ) -> Result<Written, StoreError> {
        // A checksum that the store did not return, it may not know: then naming it makes the whole request invalid.
        let completed = parts.iter().map(|part| {
            CompletedPart::builder()
                .part_number(i32::try_from(part.number).unwrap_or(i32::MAX))
                .e_tag(part.etag.quoted())
                .set_checksum_sha256(part.sha256.map(Sha256::to_base64))
                .build()
        });
        let request = self
            .client
            .complete_multipart_upload()
            .bucket(&self.place.bucket)
            .key(self.full(key))
            .upload_id(&id.0)
            .multipart_upload(CompletedMultipartUpload::builder().set_parts(Some(completed.collect())).build())
            .set_if_match(if_match(&condition))
            .set_if_none_match(if_none_match(&condition))
            .send();
        let answer = self
            .answer("CompleteMultipartUpload", Some(key), SERVER_SIDE, request)
            .await
            .map_err(|e| Self::with_condition(e, &condition))?;
        self.undeclared().remove(&id.0);
        // This answer is begun before the work is done, and may break off.
        let etag = answer.e_tag.ok_or_else(|| self.incomplete("CompleteMultipartUpload", key, "ETag"))?;
        Ok(Written { etag: ETag::new(&etag), checksum: answer.checksum_sha256 })
    }

    async fn abort(&self, key: &Key, id: &UploadId) -> Result<(), StoreError> {
        let request =
            self.client.abort_multipart_upload().bucket(&self.place.bucket).key(self.full(key)).upload_id(&id.0).send();
        self.undeclared().remove(&id.0);
        match self.answer("AbortMultipartUpload", Some(key), SMALL, request).await {
            Ok(_) => Ok(()),
            Err(error) if error.kind == ErrorKind::Missing => Ok(()),
            Err(error) => Err(error),
        }
    }

    async fn list(&self, from: &ListFrom) -> Result<Page, StoreError> {
        self.next_listed_page(from).await
    }

    async fn head(&self, key: &Key) -> Result<Meta, StoreError> {
        let request = self
            .client
            .head_object()
            .bucket(&self.place.bucket)
            .key(self.full(key))
            .checksum_mode(ChecksumMode::Enabled)
            .send();
        let answer = match self.answer("HeadObject", Some(key), SMALL, request).await {
            Ok(answer) => answer,
            Err(error) => return Err(self.explain_head(key, error).await),
        };
        Ok(Meta {
            size_bytes: length(answer.content_length),
            etag: self.etag("HeadObject", key, answer.e_tag)?,
            checksum: answer.checksum_sha256,
            metadata: sorted(answer.metadata),
        })
    }

    async fn get(&self, key: &Key, range: Option<(u64, u64)>, if_match: Option<&ETag>) -> Result<Download, StoreError> {
        let last = range.map(|(offset, len_bytes)| (offset, (offset + len_bytes).saturating_sub(1)));
        let request = self
            .get_request(key)
            .set_if_match(if_match.map(ETag::quoted))
            .set_range(last.map(|(first, last)| format!("bytes={first}-{last}")))
            .send();
        let answer = self.answer::<GetObjectOutput, GetObjectError>("GetObject", Some(key), SMALL, request).await?;
        let meta = Meta {
            size_bytes: total_length(&answer),
            etag: self.etag("GetObject", key, answer.e_tag)?,
            checksum: answer.checksum_sha256,
            metadata: sorted(answer.metadata),
        };
        let target = self.target(Some(key));
        let bytes = futures_util::stream::unfold(Some(answer.body), move |body| {
            let target = target.clone();
            async move {
                let mut body = body?;
                match body.next().await? {
                    Ok(piece) => Some((Ok(piece), Some(body))),
                    Err(error) => Some((Err(errors::broken_download(&error, target)), None)),
                }
            }
        });
        Ok(Download { meta, bytes: bytes.boxed() })
    }

    async fn copy(
        &self,
        source: &Key,
        source_etag: &ETag,
        key: &Key,
        options: WriteOptions,
    ) -> Result<Written, StoreError> {
        let replaced = (!options.metadata.is_empty()).then_some(MetadataDirective::Replace);
        let request = self
            .client
            .copy_object()
            .bucket(&self.place.bucket)
            .key(self.full(key))
            .copy_source(copy_source(&self.place.bucket, &self.full(source)))
            .copy_source_if_match(source_etag.quoted())
            .set_if_match(if_match(&options.condition))
            .set_if_none_match(if_none_match(&options.condition))
            .set_metadata_directive(replaced)
            .set_metadata(metadata_of(&options))
            .set_content_type(options.content_type.map(str::to_owned))
            .send();
        let answer = self
            .answer("CopyObject", Some(key), SERVER_SIDE, request)
            .await
            .map_err(|e| Self::with_condition(e, &options.condition))?;
        let copied = answer.copy_object_result.ok_or_else(|| self.incomplete("CopyObject", key, "CopyObjectResult"))?;
        Ok(Written { etag: self.etag("CopyObject", key, copied.e_tag)?, checksum: copied.checksum_sha256 })
    }

    async fn delete(&self, key: &Key) -> Result<(), StoreError> {
        let request = self.client.delete_object().bucket(&self.place.bucket).key(self.full(key)).send();
        match self.answer("DeleteObject", Some(key), SMALL, request).await {
            Ok(_) => Ok(()),
            Err(error) if error.kind == ErrorKind::Missing => Ok(()),
            Err(error) => Err(error),
        }
    }
}
