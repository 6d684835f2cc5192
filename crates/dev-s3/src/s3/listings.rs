//! Listings of objects, in both of S3's dialects.

use super::{Api, size};
use crate::listing::{Page, Position, Query, page, url_encode};
use crate::store::Object as StoredObject;
use s3s::dto::*;
use s3s::{S3Response, S3Result, s3_error};
use std::sync::Arc;

/// The most that S3 shows on one page.
const MAX_PAGE: i32 = 1000;

/// A page as both dialects need it.
struct Shown {
    contents: Vec<Object>,
    common_prefixes: Vec<CommonPrefix>,
    next: Option<Position>,
}

impl Api {
    pub(super) fn list_objects_v2_now(&self, input: ListObjectsV2Input) -> S3Result<S3Response<ListObjectsV2Output>> {
        let after = match (&input.continuation_token, &input.start_after) {
            (Some(token), _) => {
                let position = Position::parse(token);
                Some(
                    position
                        .ok_or_else(|| s3_error!(InvalidArgument, "The continuation token provided is incorrect"))?,
                )
            }
            (None, Some(key)) if !key.is_empty() => Some(Position::Key(key.clone())),
            _ => None,
        };
        let naming = Naming::of(&input.encoding_type);
        let max_keys = page_size(input.max_keys)?;
        let (prefix, delimiter) = (input.prefix.unwrap_or_default(), input.delimiter.unwrap_or_default());
        let query = Query { prefix: &prefix, delimiter: &delimiter, after, limit: max_keys as usize };
        let shown = self.show(&input.bucket, &query, naming)?;
        let count = shown.contents.len() + shown.common_prefixes.len();
        Ok(S3Response::new(ListObjectsV2Output {
            name: Some(input.bucket),
            prefix: Some(naming.name(&prefix)),
            delimiter: (!delimiter.is_empty()).then(|| naming.name(&delimiter)),
            start_after: input.start_after.map(|key| naming.name(&key)),
            encoding_type: input.encoding_type,
            max_keys: Some(max_keys),
            key_count: i32::try_from(count).ok(),
            continuation_token: input.continuation_token,
            is_truncated: Some(shown.next.is_some()),
            next_continuation_token: shown.next.as_ref().map(Position::token),
            contents: Some(shown.contents),
            common_prefixes: Some(shown.common_prefixes),
            request_charged: None,
        }))
    }

    pub(super) fn list_objects_v1(&self, input: ListObjectsInput) -> S3Result<S3Response<ListObjectsOutput>> {
        let naming = Naming::of(&input.encoding_type);
        let max_keys = page_size(input.max_keys)?;
        let (prefix, delimiter) = (input.prefix.unwrap_or_default(), input.delimiter.unwrap_or_default());
        // A marker that is a common prefix stands for everything below it.
        let after = input.marker.clone().filter(|marker| !marker.is_empty()).map(|marker| {
            let is_prefix = !delimiter.is_empty() && marker.ends_with(&delimiter);
            if is_prefix { Position::CommonPrefix(marker) } else { Position::Key(marker) }
        });
        let query = Query { prefix: &prefix, delimiter: &delimiter, after, limit: max_keys as usize };
        let shown = self.show(&input.bucket, &query, naming)?;
        Ok(S3Response::new(ListObjectsOutput {
            name: Some(input.bucket),
            prefix: Some(naming.name(&prefix)),
            delimiter: (!delimiter.is_empty()).then(|| naming.name(&delimiter)),
            marker: Some(naming.name(&input.marker.unwrap_or_default())),
            encoding_type: input.encoding_type,
            max_keys: Some(max_keys),
            is_truncated: Some(shown.next.is_some()),
            next_marker: shown.next.as_ref().map(|next| naming.name(next.text())),
            contents: Some(shown.contents),
            common_prefixes: Some(shown.common_prefixes),
            request_charged: None,
        }))
    }

    fn show(&self, bucket: &str, query: &Query<'_>, naming: Naming) -> S3Result<Shown> {
        self.store.with_objects(bucket, |objects| {
            let Page { entries, common_prefixes, next } = page(objects, query);
            let contents = entries.into_iter().map(|(key, object)| self.entry(key, object, naming)).collect();
            let prefixes = common_prefixes.iter().map(|prefix| CommonPrefix { prefix: Some(naming.name(prefix)) });
            Shown { contents, common_prefixes: prefixes.collect(), next }
        })
    }

    fn entry(&self, key: &str, object: &Arc<StoredObject>, naming: Naming) -> Object {
        let info = &object.info;
        let checksum = self.shown(&info.checksum);
        Object {
            key: Some(naming.name(key)),
            size: Some(size(info.size)),
            e_tag: Some(self.shown_etag(info)),
            last_modified: Some(info.modified.into()),
            checksum_algorithm: checksum.map(|sum| vec![ChecksumAlgorithm::from_static(sum.algorithm.name())]),
            checksum_type: checksum.map(|sum| ChecksumType::from_static(sum.kind())),
            storage_class: Some(ObjectStorageClass::from_static(ObjectStorageClass::STANDARD)),
            owner: None,
            restore_status: None,
        }
    }
}

/// How names are written: as they are, or encoded so that XML can hold them.
#[derive(Clone, Copy)]
pub(super) enum Naming {
    Plain,
    Url,
}

impl Naming {
    pub fn of(encoding: &Option<EncodingType>) -> Naming {
        match encoding {
            Some(encoding) if encoding.as_str() == EncodingType::URL => Naming::Url,
            _ => Naming::Plain,
        }
    }

    pub fn name(self, name: &str) -> String {
        match self {
            Naming::Plain => name.to_owned(),
            Naming::Url => url_encode(name),
        }
    }
}

/// How much a page may hold, from what was asked.
pub(super) fn page_size(asked: Option<i32>) -> S3Result<i32> {
    match asked {
        Some(asked) if asked < 0 => Err(s3_error!(InvalidArgument, "a page can't hold {} entries", asked)),
        asked => Ok(asked.unwrap_or(MAX_PAGE).min(MAX_PAGE)),
    }
}
