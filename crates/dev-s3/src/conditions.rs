//! Conditional requests, decided purely: headers and the object of the moment in, verdict out.
//!
//! The store calls these while it holds its lock, which is what makes a conditional write atomic.

use crate::clock;
use http::HeaderMap;
use s3s::dto::ETagCondition;
use s3s::{S3Error, S3ErrorCode, S3Result, s3_error};
use std::time::SystemTime;

/// The conditions of one request, by where they look.
#[derive(Clone, Debug, Default)]
pub(crate) struct Conditions {
    pub if_match: Option<ETagCondition>,
    pub if_none_match: Option<ETagCondition>,
    pub if_modified_since: Option<SystemTime>,
    pub if_unmodified_since: Option<SystemTime>,
}

impl Conditions {
    /// The conditions on the object that the request names.
    pub fn of(headers: &HeaderMap) -> S3Result<Conditions> {
        Conditions::with_prefix(headers, "")
    }

    /// The conditions on the object that is copied from.
    pub fn of_copy_source(headers: &HeaderMap) -> S3Result<Conditions> {
        Conditions::with_prefix(headers, "x-amz-copy-source-")
    }

    fn with_prefix(headers: &HeaderMap, prefix: &str) -> S3Result<Conditions> {
        // Most requests carry none: four lookups are all they pay.
        let etag = |name: &str| match headers.get(format!("{prefix}{name}")) {
            Some(value) => ETagCondition::parse_http_header(value.as_bytes())
                .map(Some)
                .map_err(|_| s3_error!(InvalidArgument, "{}{} is not an ETag", prefix, name)),
            None => Ok(None),
        };
        // A date that can't be read is ignored, as HTTP asks.
        let date = |name: &str| clock::parse_http_date(headers.get(format!("{prefix}{name}"))?.to_str().ok()?);
        Ok(Conditions {
            if_match: etag("if-match")?,
            if_none_match: etag("if-none-match")?,
            if_modified_since: date("if-modified-since"),
            if_unmodified_since: date("if-unmodified-since"),
        })
    }

    /// May the object be replaced (or removed)? `current` is its ETag, if it is there.
    pub fn check_write(&self, current: Option<&str>) -> S3Result<()> {
        match (&self.if_none_match, current) {
            (Some(ETagCondition::Any), Some(_)) => return Err(failed("If-None-Match")),
            // S3 knows only the star here; a silent "yes" would look like a fence that isn't one.
            (Some(ETagCondition::ETag(_)), _) => return Err(S3ErrorCode::NotImplemented.into()),
            _ => {}
        }
        match (&self.if_match, current) {
            (Some(_), None) => Err(S3ErrorCode::NoSuchKey.into()),
            (Some(condition), Some(etag)) if !matches(condition, etag) => Err(failed("If-Match")),
            _ => Ok(()),
        }
    }

    /// May the object be read? Dates count only where no ETag condition of the same direction is given.
    pub fn check_read(&self, etag: &str, modified: SystemTime) -> S3Result<()> {
        match (&self.if_match, self.if_unmodified_since) {
            (Some(condition), _) if !matches(condition, etag) => return Err(failed("If-Match")),
            (None, Some(date)) if modified > date => return Err(failed("If-Unmodified-Since")),
            _ => {}
        }
        match (&self.if_none_match, self.if_modified_since) {
            (Some(condition), _) if matches(condition, etag) => Err(S3ErrorCode::NotModified.into()),
            (None, Some(date)) if modified <= date => Err(S3ErrorCode::NotModified.into()),
            _ => Ok(()),
        }
    }

    /// The same for a source of a copy, where every refusal is a 412.
    pub fn check_copy(&self, etag: &str, modified: SystemTime) -> S3Result<()> {
        self.check_read(etag, modified).map_err(|error| match error.code() {
            S3ErrorCode::NotModified => failed("x-amz-copy-source-if-none-match"),
            _ => error,
        })
    }
}

fn matches(condition: &ETagCondition, etag: &str) -> bool {
    match condition {
        ETagCondition::Any => true,
        ETagCondition::ETag(wanted) => wanted.value() == etag,
    }
}

fn failed(condition: &'static str) -> S3Error {
    s3_error!(PreconditionFailed, "At least one of the pre-conditions you specified did not hold: {}", condition)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn conditions(pairs: &[(&'static str, &str)]) -> Conditions {
        let headers =
            pairs.iter().map(|(name, value)| (http::HeaderName::from_static(name), value.parse().expect("a value")));
        Conditions::of(&headers.collect()).expect("valid conditions")
    }

    fn code(result: S3Result<()>) -> Option<String> {
        result.err().map(|error| error.code().as_str().to_owned())
    }

    #[test]
    fn writes() {
        for (header, value, current, expected) in [
            ("if-none-match", "*", None, None),
            ("if-none-match", "*", Some("a"), Some("PreconditionFailed")),
            ("if-none-match", "\"b\"", Some("a"), Some("NotImplemented")),
            ("if-match", "\"a\"", Some("a"), None),
            ("if-match", "a", Some("a"), None),
            ("if-match", "\"b\"", Some("a"), Some("PreconditionFailed")),
            ("if-match", "\"a\"", None, Some("NoSuchKey")),
            ("if-match", "*", Some("a"), None),
        ] {
            let found = code(conditions(&[(header, value)]).check_write(current));
            assert_eq!(found.as_deref(), expected, "{header}: {value} on {current:?}");
        }
    }

    #[test]
    fn reads() {
        let modified = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777);
        let at = "Sun, 06 Nov 1994 08:49:37 GMT";
        let before = "Sun, 06 Nov 1994 08:49:36 GMT";
        for (pairs, expected) in [
            (vec![("if-match", "\"a\"")], None),
            (vec![("if-match", "\"b\"")], Some("PreconditionFailed")),
            (vec![("if-none-match", "\"a\"")], Some("NotModified")),
            (vec![("if-none-match", "\"b\"")], None),
            (vec![("if-modified-since", at)], Some("NotModified")),
            (vec![("if-modified-since", before)], None),
            (vec![("if-unmodified-since", before)], Some("PreconditionFailed")),
            (vec![("if-unmodified-since", at)], None),
            (vec![("if-match", "\"a\""), ("if-unmodified-since", before)], None),
        ] {
            let found = code(conditions(&pairs).check_read("a", modified));
            assert_eq!(found.as_deref(), expected, "{pairs:?}");
        }
    }
}
