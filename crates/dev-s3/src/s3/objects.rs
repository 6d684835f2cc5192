//! Objects: put, get, head, delete.

use super::{Api, shown_metadata, size, user_metadata};
use crate::checksum::Checksum;
use crate::conditions::Conditions;
use crate::ingest::Source;
use crate::store::{Headers, NewObject, ObjectInfo, Reader, io_error};
use futures_util::stream;
use s3s::dto::*;
use s3s::{S3ErrorCode, S3Request, S3Response, S3Result, s3_error};
use std::ops;

impl Api {
    pub(super) async fn put_object_now(
        &self,
        mut request: S3Request<PutObjectInput>,
    ) -> S3Result<S3Response<PutObjectOutput>> {
        let conditions = self.write_conditions(&request.headers)?;
        let body = request.input.body.take();
        let source = Source::of(&mut request, body);
        let input = request.input;
        let received = source.receive(&self.store, &input.key, self.faults.quirks()).await?;
        let algorithm = received.claims.algorithm();
        let new = NewObject {
            etag: received.digests.etag(),
            size: received.size,
            checksum: algorithm.and_then(|algorithm| received.digests.checksum(algorithm)),
            draft: received.draft,
            headers: Headers {
                content_type: input.content_type,
                content_encoding: input.content_encoding,
                content_language: input.content_language,
                content_disposition: input.content_disposition,
                cache_control: input.cache_control,
                user: user_metadata(input.metadata),
            },
            parts: Vec::new(),
        };
        let object = self.store.put(&input.bucket, &input.key, new, &conditions)?;
        let output = PutObjectOutput { e_tag: Some(ETag::Strong(object.info.etag.clone())), ..Default::default() };
        Ok(S3Response::with_headers(output, Checksum::headers(self.shown(&object.info.checksum))))
    }

    pub(super) fn get_object_now(&self, request: S3Request<GetObjectInput>) -> S3Result<S3Response<GetObjectOutput>> {
        let conditions = Conditions::of(&request.headers)?;
        let input = request.input;
        let mut selection = Selection::default();
        let (object, reader) = self.store.open_object(&input.bucket, &input.key, |info| {
            conditions.check_read(self.shown_etag(info).value(), info.modified)?;
            selection = select(info, input.range, input.part_number)?;
            Ok(selection.range.clone())
        })?;
        let info = &object.info;
        let headers = &info.headers;
        let asked = input.checksum_mode.is_some_and(|mode| mode.as_str() == ChecksumMode::ENABLED);
        // A checksum of the whole says nothing about a part of it.
        let checksum = self.shown(&info.checksum).filter(|_| asked && selection.content_range.is_none());
        let output = GetObjectOutput {
            accept_ranges: Some("bytes".into()),
            body: Some(stream_of(reader)),
            cache_control: headers.cache_control.clone(),
            content_disposition: headers.content_disposition.clone(),
            content_encoding: headers.content_encoding.clone(),
            content_language: headers.content_language.clone(),
            content_length: Some(size(selection.range.end - selection.range.start)),
            content_range: selection.content_range,
            content_type: Some(content_type(headers)),
            e_tag: Some(self.shown_etag(info)),
            last_modified: Some(info.modified.into()),
            metadata: shown_metadata(headers),
            parts_count: selection.parts_count,
            ..Default::default()
        };
        Ok(S3Response::with_headers(output, Checksum::headers(checksum)))
    }

    pub(super) fn head_object_now(
        &self,
        request: S3Request<HeadObjectInput>,
    ) -> S3Result<S3Response<HeadObjectOutput>> {
        let conditions = Conditions::of(&request.headers)?;
        let input = request.input;
        let object = self.store.get(&input.bucket, &input.key)?;
        let info = &object.info;
        conditions.check_read(self.shown_etag(info).value(), info.modified)?;
        let selection = select(info, input.range, input.part_number)?;
        let headers = &info.headers;
        let asked = input.checksum_mode.is_some_and(|mode| mode.as_str() == ChecksumMode::ENABLED);
        let checksum = self.shown(&info.checksum).filter(|_| asked && selection.content_range.is_none());
        let output = HeadObjectOutput {
            accept_ranges: Some("bytes".into()),
            cache_control: headers.cache_control.clone(),
            content_disposition: headers.content_disposition.clone(),
            content_encoding: headers.content_encoding.clone(),
            content_language: headers.content_language.clone(),
            content_length: Some(size(selection.range.end - selection.range.start)),
            content_type: Some(content_type(headers)),
            e_tag: Some(self.shown_etag(info)),
            last_modified: Some(info.modified.into()),
            metadata: shown_metadata(headers),
            parts_count: selection.parts_count,
            ..Default::default()
        };
        Ok(S3Response::with_headers(output, Checksum::headers(checksum)))
    }

    pub(super) fn delete_object_now(
        &self,
        request: S3Request<DeleteObjectInput>,
    ) -> S3Result<S3Response<DeleteObjectOutput>> {
        let conditions = self.write_conditions(&request.headers)?;
        self.store.delete(&request.input.bucket, &request.input.key, &conditions)?;
        Ok(S3Response::new(DeleteObjectOutput::default()))
    }

    pub(super) fn delete_objects_now(&self, input: DeleteObjectsInput) -> S3Result<S3Response<DeleteObjectsOutput>> {
        self.store.has_bucket(&input.bucket)?;
        if input.delete.objects.len() > 1000 {
            return Err(S3ErrorCode::MalformedXML.into());
        }
        let (mut deleted, mut errors) = (Vec::new(), Vec::new());
        for object in input.delete.objects {
            let conditions = match object.e_tag {
                Some(etag) if !self.faults.quirks().ignore_conditions => {
                    Conditions { if_match: Some(ETagCondition::ETag(etag)), ..Conditions::default() }
                }
                _ => Conditions::default(),
            };
            match self.store.delete(&input.bucket, &object.key, &conditions) {
                Ok(_) => deleted.push(DeletedObject { key: Some(object.key), ..Default::default() }),
                Err(error) => errors.push(Error {
                    code: Some(error.code().as_str().to_owned()),
                    message: error.message().map(str::to_owned),
                    key: Some(object.key),
                    version_id: None,
                }),
            }
        }
        let deleted = (!input.delete.quiet.unwrap_or(false)).then_some(deleted);
        Ok(S3Response::new(DeleteObjectsOutput { deleted, errors: Some(errors), request_charged: None }))
    }
}

/// What of an object a request wants.
#[derive(Debug, Default)]
struct Selection {
    range: ops::Range<u64>,
    content_range: Option<String>,
    parts_count: Option<i32>,
}

fn select(info: &ObjectInfo, range: Option<Range>, part: Option<i32>) -> S3Result<Selection> {
    let (range, parts_count) = match (range, part) {
        (None, None) => {
            return Ok(Selection { range: 0..info.size, ..Selection::default() });
        }
        (Some(_), Some(_)) => {
            return Err(s3_error!(InvalidRequest, "Cannot specify both Range header and partNumber query parameter"));
        }
        (Some(range), None) => (range.check(info.size)?, None),
        (None, Some(part)) => {
            let whole = [info.size];
            let sizes = if info.parts.is_empty() { &whole[..] } else { &info.parts };
            let index = usize::try_from(part).ok().and_then(|part| part.checked_sub(1));
            let index = index.filter(|index| *index < sizes.len()).ok_or(S3ErrorCode::InvalidRange)?;
            let start: u64 = sizes[..index].iter().sum();
            let count = i32::try_from(info.parts.len()).ok().filter(|count| *count > 0);
            (start..start + sizes[index], count)
        }
    };
    let last = range.end.saturating_sub(1);
    let content_range = Some(format!("bytes {}-{last}/{}", range.start, info.size));
    Ok(Selection { range, content_range, parts_count })
}

fn content_type(headers: &Headers) -> String {
    headers.content_type.clone().unwrap_or_else(|| "binary/octet-stream".into())
}

fn stream_of(reader: Reader) -> StreamingBlob {
    StreamingBlob::wrap(stream::unfold(Some(reader), |reader| async move {
        let mut reader = reader?;
        match reader.next_block() {
            Ok(Some(block)) => Some((Ok(block), Some(reader))),
            Ok(None) => None,
            // The connection breaks, which is what a client sees of a failing disk; nothing comes after it.
            Err(error) => Some((Err(std::io::Error::other(io_error(error))), None)),
        }
    }))
}
