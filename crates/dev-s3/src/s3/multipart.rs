//! Uploads in parts.

use super::listings::{Naming, page_size};
use super::{Api, size, user_metadata};
use crate::checksum::{Algorithm, Checksum};
use crate::ingest::Source;
use crate::store::{CompletedPart as NamedPart, Completion, Headers, NewPart};
use s3s::dto::*;
use s3s::{S3ErrorCode, S3Request, S3Response, S3Result, s3_error};
use std::sync::Arc;

/// The highest number that a part can have.
const MAX_PART_NUMBER: i32 = 10_000;

pub(super) fn check_part_number(number: i32) -> S3Result<()> {
    if (1..=MAX_PART_NUMBER).contains(&number) {
        Ok(())
    } else {
        Err(s3_error!(InvalidArgument, "Part number must be an integer between 1 and 10000, inclusive"))
    }
}

impl Api {
    pub(super) fn create_upload_now(
        &self,
        request: S3Request<CreateMultipartUploadInput>,
    ) -> S3Result<S3Response<CreateMultipartUploadOutput>> {
        let input = request.input;
        let algorithm = input.checksum_algorithm.as_ref().map(|name| Algorithm::parse(name.as_str())).transpose()?;
        let full_object = match (&input.checksum_type, algorithm) {
            (Some(kind), _) => kind.as_str() == ChecksumType::FULL_OBJECT,
            (None, algorithm) => algorithm == Some(Algorithm::Crc64nvme),
        };
        if full_object && matches!(algorithm, Some(Algorithm::Sha1 | Algorithm::Sha256)) {
            return Err(s3_error!(
                InvalidRequest,
                "The FULL_OBJECT checksum type cannot be used with the SHA algorithms."
            ));
        }
        if !full_object && algorithm == Some(Algorithm::Crc64nvme) {
            return Err(s3_error!(InvalidRequest, "The COMPOSITE checksum type cannot be used with crc64nvme."));
        }
        let headers = Headers {
            content_type: input.content_type,
            content_encoding: input.content_encoding,
            content_language: input.content_language,
            content_disposition: input.content_disposition,
            cache_control: input.cache_control,
            user: user_metadata(input.metadata),
        };
        let hidden = self.faults.quirks().hide_checksums;
        // Who was told of no checksums can't repeat them to Complete.
        let declared = algorithm.filter(|_| !hidden);
        let id = self.store.create_upload(&input.bucket, &input.key, headers, declared, full_object)?;
        let kind = if full_object { ChecksumType::FULL_OBJECT } else { ChecksumType::COMPOSITE };
        Ok(S3Response::new(CreateMultipartUploadOutput {
            bucket: Some(input.bucket),
            key: Some(input.key),
            upload_id: Some(id),
            checksum_type: algorithm.filter(|_| !hidden).map(|_| ChecksumType::from_static(kind)),
            checksum_algorithm: input.checksum_algorithm.filter(|_| !hidden),
            ..Default::default()
        }))
    }

    pub(super) async fn upload_part_now(
        &self,
        mut request: S3Request<UploadPartInput>,
    ) -> S3Result<S3Response<UploadPartOutput>> {
        let body = request.input.body.take();
        let source = Source::of(&mut request, body);
        let input = request.input;
        check_part_number(input.part_number)?;
        let wanted = self.store.upload_algorithm(&input.bucket, &input.key, &input.upload_id)?;
        let received = source.receive(&self.store, &input.key, self.faults.quirks()).await?;
        let sent = received.claims.algorithm();
        if let Some(wanted) = wanted
            && sent != Some(wanted)
        {
            return Err(s3_error!(
                InvalidRequest,
                "Checksum Type mismatch occurred, expected checksum Type: {}, actual checksum Type: {}",
                wanted.name().to_lowercase(),
                sent.map_or("null".into(), |sent| sent.name().to_lowercase())
            ));
        }
        let part = NewPart {
            etag: received.digests.etag(),
            size: received.size,
            checksum: sent.and_then(|sent| received.digests.checksum(sent)),
            draft: received.draft,
        };
        let part = self.store.put_part(&input.bucket, &input.key, &input.upload_id, input.part_number, part)?;
        let output = UploadPartOutput { e_tag: Some(ETag::Strong(part.etag)), ..Default::default() };
        let mut headers = Checksum::headers(self.shown(&part.checksum));
        // A part's checksum has no type.
        headers.remove("x-amz-checksum-type");
        Ok(S3Response::with_headers(output, headers))
    }

    pub(super) async fn complete_upload_now(
        &self,
        request: S3Request<CompleteMultipartUploadInput>,
    ) -> S3Result<S3Response<CompleteMultipartUploadOutput>> {
        let conditions = self.write_conditions(&request.headers)?;
        let input = request.input;
        let parts = input.multipart_upload.and_then(|upload| upload.parts).unwrap_or_default();
        let parts = parts.into_iter().map(named_part).collect::<S3Result<Vec<_>>>()?;
        let claimed = s3s::dto::Checksum {
            checksum_crc32: input.checksum_crc32,
            checksum_crc32c: input.checksum_crc32c,
            checksum_crc64nvme: input.checksum_crc64nvme,
            checksum_sha1: input.checksum_sha1,
            checksum_sha256: input.checksum_sha256,
            checksum_type: input.checksum_type,
        };
        let store = Arc::clone(&self.store);
        let (bucket, key, id) = (input.bucket.clone(), input.key.clone(), input.upload_id);
        let completion = Completion { parts, size: input.mpu_object_size, claimed };
        // Putting gigabytes of parts together on disk takes a while: other requests go on meanwhile.
        let joined = tokio::task::spawn_blocking(move || store.complete(&bucket, &key, &id, &completion, &conditions));
        let object = joined.await.map_err(|error| s3_error!(error, InternalError))??;
        let fields = Checksum::fields(self.shown(&object.info.checksum));
        Ok(S3Response::new(CompleteMultipartUploadOutput {
            location: Some(format!("/{}/{}", input.bucket, input.key)),
            bucket: Some(input.bucket),
            key: Some(input.key),
            e_tag: Some(ETag::Strong(object.info.etag.clone())),
            checksum_crc32: fields.checksum_crc32,
            checksum_crc32c: fields.checksum_crc32c,
            checksum_crc64nvme: fields.checksum_crc64nvme,
            checksum_sha1: fields.checksum_sha1,
            checksum_sha256: fields.checksum_sha256,
            checksum_type: fields.checksum_type,
            ..Default::default()
        }))
    }

    pub(super) fn list_parts_now(&self, input: ListPartsInput) -> S3Result<S3Response<ListPartsOutput>> {
        let upload = self.store.upload(&input.bucket, &input.key, &input.upload_id)?;
        let limit = page_size(input.max_parts)?;
        let after = input.part_number_marker.unwrap_or(0);
        let mut rest = upload.parts.range(after.saturating_add(1)..).peekable();
        let mut parts = Vec::new();
        while parts.len() < limit as usize
            && let Some((number, part)) = rest.next()
        {
            let fields = Checksum::fields(self.shown(&part.info.checksum));
            parts.push(Part {
                checksum_crc32: fields.checksum_crc32,
                checksum_crc32c: fields.checksum_crc32c,
                checksum_crc64nvme: fields.checksum_crc64nvme,
                checksum_sha1: fields.checksum_sha1,
                checksum_sha256: fields.checksum_sha256,
                e_tag: Some(ETag::Strong(part.info.etag.clone())),
                last_modified: Some(part.info.modified.into()),
                part_number: Some(*number),
                size: Some(size(part.info.size)),
            });
        }
        let algorithm = upload.info.algorithm.filter(|_| !self.faults.quirks().hide_checksums);
        let kind = if upload.info.full_object { ChecksumType::FULL_OBJECT } else { ChecksumType::COMPOSITE };
        Ok(S3Response::new(ListPartsOutput {
            bucket: Some(input.bucket),
            key: Some(input.key),
            upload_id: Some(input.upload_id),
            checksum_algorithm: algorithm.map(|algorithm| ChecksumAlgorithm::from_static(algorithm.name())),
            checksum_type: algorithm.map(|_| ChecksumType::from_static(kind)),
            is_truncated: Some(limit > 0 && rest.peek().is_some()),
            max_parts: Some(limit),
            part_number_marker: Some(after),
            next_part_number_marker: parts.last().and_then(|part| part.part_number),
            parts: Some(parts),
            storage_class: Some(StorageClass::from_static(StorageClass::STANDARD)),
            ..Default::default()
        }))
    }

    pub(super) fn list_uploads_now(
        &self,
        input: ListMultipartUploadsInput,
    ) -> S3Result<S3Response<ListMultipartUploadsOutput>> {
        if input.delimiter.as_ref().is_some_and(|delimiter| !delimiter.is_empty()) {
            return Err(s3_error!(NotImplemented, "uploads can't be grouped by a delimiter"));
        }
        let naming = Naming::of(&input.encoding_type);
        let limit = page_size(input.max_uploads)?;
        let prefix = input.prefix.clone().unwrap_or_default();
        let marker = input.key_marker.clone().unwrap_or_default();
        let id_marker = input.upload_id_marker.clone().unwrap_or_default();
        let uploads = self.store.uploads(&input.bucket)?.into_iter().filter(|(id, upload)| {
            let key = upload.info.key.as_str();
            let is_later = key > marker.as_str() || (key == marker && !id_marker.is_empty() && *id > id_marker);
            key.starts_with(&prefix) && (marker.is_empty() || is_later)
        });
        let mut rest = uploads.peekable();
        let mut uploads = Vec::new();
        let mut last = None;
        while uploads.len() < limit as usize
            && let Some((id, upload)) = rest.next()
        {
            last = Some((naming.name(&upload.info.key), id.clone()));
            uploads.push(MultipartUpload {
                initiated: Some(upload.info.initiated.into()),
                key: Some(naming.name(&upload.info.key)),
                upload_id: Some(id),
                storage_class: Some(StorageClass::from_static(StorageClass::STANDARD)),
                ..Default::default()
            });
        }
        let truncated = limit > 0 && rest.peek().is_some();
        let (next_key, next_id) = last.filter(|_| truncated).unzip();
        Ok(S3Response::new(ListMultipartUploadsOutput {
            bucket: Some(input.bucket),
            prefix: input.prefix.map(|prefix| naming.name(&prefix)),
            key_marker: Some(naming.name(&marker)),
            upload_id_marker: Some(id_marker),
            next_key_marker: next_key,
            next_upload_id_marker: next_id,
            encoding_type: input.encoding_type,
            max_uploads: Some(limit),
            is_truncated: Some(truncated),
            uploads: Some(uploads),
            ..Default::default()
        }))
    }
}

fn named_part(part: CompletedPart) -> S3Result<NamedPart> {
    Ok(NamedPart {
        number: part.part_number.ok_or(S3ErrorCode::MalformedXML)?,
        etag: part.e_tag.ok_or(S3ErrorCode::MalformedXML)?.into_value(),
        checksums: s3s::dto::Checksum {
            checksum_crc32: part.checksum_crc32,
            checksum_crc32c: part.checksum_crc32c,
            checksum_crc64nvme: part.checksum_crc64nvme,
            checksum_sha1: part.checksum_sha1,
            checksum_sha256: part.checksum_sha256,
            checksum_type: None,
        },
    })
}
