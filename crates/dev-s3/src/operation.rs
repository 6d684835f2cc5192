//! What a request asks for, read from its head alone.
//!
//! Faults, counters and the discarding shortcut need to know the operation before (or instead of) s3s, so this
//! mirrors the routing table of S3 for the operations that the server has.

use http::request::Parts;
use http::{HeaderMap, Method, Uri};
use percent_encoding::percent_decode_str;

/// An S3 operation as the API reference names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Operation {
    /// `GET /`
    ListBuckets,
    /// `PUT /bucket`
    CreateBucket,
    /// `HEAD /bucket`
    HeadBucket,
    /// `DELETE /bucket`
    DeleteBucket,
    /// `GET /bucket?location`
    GetBucketLocation,
    /// `GET /bucket`
    ListObjects,
    /// `GET /bucket?list-type=2`
    ListObjectsV2,
    /// `GET /bucket?uploads`
    ListMultipartUploads,
    /// `POST /bucket?delete`
    DeleteObjects,
    /// `PUT /bucket/key`
    PutObject,
    /// `PUT /bucket/key` with `x-amz-copy-source`
    CopyObject,
    /// `GET /bucket/key`
    GetObject,
    /// `HEAD /bucket/key`
    HeadObject,
    /// `DELETE /bucket/key`
    DeleteObject,
    /// `POST /bucket/key?uploads`
    CreateMultipartUpload,
    /// `PUT /bucket/key?partNumber&uploadId`
    UploadPart,
    /// `PUT /bucket/key?partNumber&uploadId` with `x-amz-copy-source`
    UploadPartCopy,
    /// `GET /bucket/key?uploadId`
    ListParts,
    /// `POST /bucket/key?uploadId`
    CompleteMultipartUpload,
    /// `DELETE /bucket/key?uploadId`
    AbortMultipartUpload,
    /// Anything else: answered by s3s, mostly with `NotImplemented`.
    Other,
}

/// The operation and what it is about.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub operation: Operation,
    /// Empty for operations on the account.
    pub bucket: String,
    /// Empty for operations on a bucket.
    pub key: String,
    /// Set for the operations on one upload.
    pub upload: Option<String>,
    /// Set for `UploadPart` and `UploadPartCopy`.
    pub part: Option<i32>,
}

impl Target {
    pub fn of(head: &Parts) -> Target {
        let (bucket, key) = split_path(&head.uri);
        let query = Query::of(&head.uri);
        Target {
            operation: classify(&head.method, &bucket, &key, &query, &head.headers),
            bucket,
            key,
            upload: query.value("uploadId"),
            part: query.value("partNumber").and_then(|number| number.parse().ok()),
        }
    }
}

fn split_path(uri: &Uri) -> (String, String) {
    let path = uri.path().strip_prefix('/').unwrap_or(uri.path());
    let (bucket, key) = path.split_once('/').unwrap_or((path, ""));
    let decode = |text: &str| percent_decode_str(text).decode_utf8_lossy().into_owned();
    (decode(bucket), decode(key))
}

fn classify(method: &Method, bucket: &str, key: &str, query: &Query, headers: &HeaderMap) -> Operation {
    let copies = headers.contains_key("x-amz-copy-source");
    if query.is_subresource() {
        return Operation::Other;
    }
    match (method.as_str(), bucket.is_empty(), key.is_empty()) {
        ("GET", true, _) => Operation::ListBuckets,
        ("PUT", false, true) => Operation::CreateBucket,
        ("HEAD", false, true) => Operation::HeadBucket,
        ("DELETE", false, true) => Operation::DeleteBucket,
        ("POST", false, true) if query.has("delete") => Operation::DeleteObjects,
        ("GET", false, true) if query.has("location") => Operation::GetBucketLocation,
        ("GET", false, true) if query.has("uploads") => Operation::ListMultipartUploads,
        ("GET", false, true) if query.value("list-type").as_deref() == Some("2") => Operation::ListObjectsV2,
        ("GET", false, true) => Operation::ListObjects,
        ("PUT", false, false) => match (query.has("partNumber") && query.has("uploadId"), copies) {
            (true, true) => Operation::UploadPartCopy,
            (true, false) => Operation::UploadPart,
            (false, true) => Operation::CopyObject,
            (false, false) => Operation::PutObject,
        },
        ("GET", false, false) if query.has("uploadId") => Operation::ListParts,
        ("GET", false, false) => Operation::GetObject,
        ("HEAD", false, false) => Operation::HeadObject,
        ("POST", false, false) if query.has("uploads") => Operation::CreateMultipartUpload,
        ("POST", false, false) if query.has("uploadId") => Operation::CompleteMultipartUpload,
        ("DELETE", false, false) if query.has("uploadId") => Operation::AbortMultipartUpload,
        ("DELETE", false, false) => Operation::DeleteObject,
        _ => Operation::Other,
    }
}

/// The query string, looked through without an allocation for each pair.
struct Query<'a>(&'a str);

impl<'a> Query<'a> {
    fn of(uri: &'a Uri) -> Query<'a> {
        Query(uri.query().unwrap_or(""))
    }

    fn pairs(&self) -> impl Iterator<Item = (&'a str, &'a str)> {
        self.0.split('&').map(|pair| pair.split_once('=').unwrap_or((pair, "")))
    }

    fn has(&self, name: &str) -> bool {
        self.pairs().any(|(found, _)| found == name)
    }

    fn value(&self, name: &str) -> Option<String> {
        let (_, value) = self.pairs().find(|(found, _)| *found == name)?;
        Some(percent_decode_str(value).decode_utf8_lossy().into_owned())
    }

    /// Names that turn a request into an operation on a part of a bucket's or object's configuration.
    fn is_subresource(&self) -> bool {
        const SUBRESOURCES: [&str; 22] = [
            "acl",
            "tagging",
            "policy",
            "versioning",
            "versions",
            "lifecycle",
            "cors",
            "encryption",
            "logging",
            "notification",
            "replication",
            "website",
            "object-lock",
            "retention",
            "legal-hold",
            "attributes",
            "torrent",
            "restore",
            "inventory",
            "metrics",
            "analytics",
            "ownershipControls",
        ];
        self.pairs().any(|(name, _)| SUBRESOURCES.contains(&name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(method: &str, uri: &str, copies: bool) -> Target {
        let mut request = http::Request::builder().method(method).uri(uri);
        if copies {
            request = request.header("x-amz-copy-source", "bucket/other");
        }
        Target::of(&request.body(()).expect("a request").into_parts().0)
    }

    #[test]
    fn requests_are_told_apart() {
        use Operation::*;
        for (method, uri, copies, expected) in [
            ("GET", "/", false, ListBuckets),
            ("PUT", "/b", false, CreateBucket),
            ("PUT", "/b/", false, CreateBucket),
            ("HEAD", "/b", false, HeadBucket),
            ("GET", "/b?list-type=2&prefix=a%2F", false, ListObjectsV2),
            ("GET", "/b?uploads&prefix=x", false, ListMultipartUploads),
            ("GET", "/b?location", false, GetBucketLocation),
            ("GET", "/b?versioning", false, Other),
            ("POST", "/b?delete", false, DeleteObjects),
            ("PUT", "/b/k", false, PutObject),
            ("PUT", "/b/k?x-id=PutObject", false, PutObject),
            ("PUT", "/b/k", true, CopyObject),
            ("PUT", "/b/k?partNumber=3&uploadId=u", false, UploadPart),
            ("PUT", "/b/k?partNumber=3&uploadId=u", true, UploadPartCopy),
            ("GET", "/b/k?uploadId=u", false, ListParts),
            ("GET", "/b/k", false, GetObject),
            ("HEAD", "/b/k", false, HeadObject),
            ("POST", "/b/k?uploads", false, CreateMultipartUpload),
            ("POST", "/b/k?uploadId=u", false, CompleteMultipartUpload),
            ("DELETE", "/b/k?uploadId=u", false, AbortMultipartUpload),
            ("DELETE", "/b/k", false, DeleteObject),
            ("PUT", "/b/k?tagging", false, Other),
        ] {
            assert_eq!(target(method, uri, copies).operation, expected, "{method} {uri}");
        }
    }

    #[test]
    fn names_are_decoded() {
        let target = target("PUT", "/b/a%20b/%C3%A9%25%0A?partNumber=3&uploadId=u%2F1", false);
        assert_eq!((target.bucket.as_str(), target.key.as_str()), ("b", "a b/é%\n"));
        assert_eq!((target.upload.as_deref(), target.part), (Some("u/1"), Some(3)));
    }
}
