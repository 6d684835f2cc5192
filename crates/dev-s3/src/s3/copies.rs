//! Server-side copies: of objects, and of ranges into parts.

use super::{Api, user_metadata};
use crate::checksum::{Algorithm, Checksum, Claims};
use crate::conditions::Conditions;
use crate::store::{Draft, Headers, NewObject, NewPart, Object, Reader, io_error};
use s3s::dto::*;
use s3s::{S3ErrorCode, S3Request, S3Response, S3Result, s3_error};
use std::ops;
use std::sync::Arc;

/// Content copied to where it will be stored.
struct Copied {
    source: Arc<Object>,
    draft: Draft,
    size: u64,
    etag: String,
    checksum: Option<Checksum>,
}

impl Api {
    pub(super) fn copy_object_now(
        &self,
        request: S3Request<CopyObjectInput>,
    ) -> S3Result<S3Response<CopyObjectOutput>> {
        let destination = self.write_conditions(&request.headers)?;
        let source_conditions = Conditions::of_copy_source(&request.headers)?;
        let input = request.input;
        let source = named(&input.copy_source)?;
        let replace =
            input.metadata_directive.is_some_and(|directive| directive.as_str() == MetadataDirective::REPLACE);
        if source == (input.bucket.as_str(), input.key.as_str()) && !replace {
            return Err(s3_error!(
                InvalidRequest,
                "This copy request is illegal because it is trying to copy an object to itself without changing it."
            ));
        }
        let algorithm = input.checksum_algorithm.map(|name| Algorithm::parse(name.as_str())).transpose()?;
        let copied = self.copy(source, &source_conditions, &input.key, None, algorithm)?;
        let headers = if replace {
            Headers {
                content_type: input.content_type,
                content_encoding: input.content_encoding,
                content_language: input.content_language,
                content_disposition: input.content_disposition,
                cache_control: input.cache_control,
                user: user_metadata(input.metadata),
            }
        } else {
            copied.source.info.headers.clone()
        };
        let new = NewObject {
            draft: copied.draft,
            size: copied.size,
            etag: copied.etag,
            checksum: copied.checksum,
            headers,
            parts: Vec::new(),
        };
        let object = self.store.put(&input.bucket, &input.key, new, &destination)?;
        let fields = Checksum::fields(self.shown(&object.info.checksum));
        let result = CopyObjectResult {
            checksum_crc32: fields.checksum_crc32,
            checksum_crc32c: fields.checksum_crc32c,
            checksum_crc64nvme: fields.checksum_crc64nvme,
            checksum_sha1: fields.checksum_sha1,
            checksum_sha256: fields.checksum_sha256,
            checksum_type: fields.checksum_type,
            e_tag: Some(ETag::Strong(object.info.etag.clone())),
            last_modified: Some(object.info.modified.into()),
        };
        Ok(S3Response::new(CopyObjectOutput { copy_object_result: Some(result), ..Default::default() }))
    }

    pub(super) fn upload_part_copy_now(
        &self,
        request: S3Request<UploadPartCopyInput>,
    ) -> S3Result<S3Response<UploadPartCopyOutput>> {
        let source_conditions = Conditions::of_copy_source(&request.headers)?;
        let input = request.input;
        super::multipart::check_part_number(input.part_number)?;
        let algorithm = self.store.upload_algorithm(&input.bucket, &input.key, &input.upload_id)?;
        let source = named(&input.copy_source)?;
        let copied =
            self.copy(source, &source_conditions, &input.key, input.copy_source_range.as_deref(), algorithm)?;
        let part = NewPart { draft: copied.draft, size: copied.size, etag: copied.etag, checksum: copied.checksum };
        let part = self.store.put_part(&input.bucket, &input.key, &input.upload_id, input.part_number, part)?;
        let fields = Checksum::fields(self.shown(&part.checksum));
        let result = CopyPartResult {
            checksum_crc32: fields.checksum_crc32,
            checksum_crc32c: fields.checksum_crc32c,
            checksum_crc64nvme: fields.checksum_crc64nvme,
            checksum_sha1: fields.checksum_sha1,
            checksum_sha256: fields.checksum_sha256,
            e_tag: Some(ETag::Strong(part.etag)),
            last_modified: Some(part.modified.into()),
        };
        Ok(S3Response::new(UploadPartCopyOutput { copy_part_result: Some(result), ..Default::default() }))
    }

    /// Copies content, reading it once for its ETag and, where one is wanted, its checksum. Without a wish the
    /// copy has the kind of checksum that its source has.
    fn copy(
        &self,
        (bucket, key): (&str, &str),
        conditions: &Conditions,
        destination: &str,
        range: Option<&str>,
        algorithm: Option<Algorithm>,
    ) -> S3Result<Copied> {
        let mut selected = 0..0;
        let (source, mut reader) = self.store.open_object(bucket, key, |info| {
            conditions.check_copy(self.shown_etag(info).value(), info.modified)?;
            selected = copy_range(range, info.size)?;
            Ok(selected.clone())
        })?;
        let size = selected.end - selected.start;
        if matches!(reader, Reader::Zeros(_)) {
            // A discarding server has nothing to copy; what it makes up stays the same.
            let etag = source.info.etag.clone();
            return Ok(Copied { source, draft: Draft::Discarded, size, etag, checksum: None });
        }
        let inherited = source.info.checksum.as_ref().map(|checksum| checksum.algorithm).filter(|_| range.is_none());
        let algorithm = algorithm.or(inherited);
        let mut digester = Claims::wishing(algorithm).digester();
        let mut sink = self.store.sink(destination, size)?;
        while let Some(block) = reader.next_block().map_err(io_error)? {
            digester.update(&block);
            sink.write(&block).map_err(io_error)?;
        }
        let digests = digester.finish();
        let draft = sink.finish().map_err(io_error)?;
        let checksum = algorithm.and_then(|algorithm| digests.checksum(algorithm));
        Ok(Copied { source, draft, size, etag: digests.etag(), checksum })
    }
}

fn named(source: &CopySource) -> S3Result<(&str, &str)> {
    match source {
        CopySource::Bucket { bucket, key, version_id: None } => Ok((bucket, key)),
        _ => Err(S3ErrorCode::NotImplemented.into()),
    }
}

/// `bytes=first-last`, both given and both inside: S3 is stricter here than on GET.
fn copy_range(range: Option<&str>, size: u64) -> S3Result<ops::Range<u64>> {
    let Some(text) = range else {
        return Ok(0..size);
    };
    let malformed =
        || s3_error!(InvalidArgument, "The x-amz-copy-source-range value must be of the form bytes=first-last");
    match Range::parse(text).map_err(|_| malformed())? {
        Range::Int { first, last: Some(last) } if last < size => Ok(first..last + 1),
        Range::Int { last: Some(_), .. } => {
            Err(s3_error!(InvalidArgument, "Range specified is not valid for source object of size: {}", size))
        }
        _ => Err(malformed()),
    }
}
