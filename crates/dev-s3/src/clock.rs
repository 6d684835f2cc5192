//! Times as S3 tells and reads them.

use s3s::dto::{Timestamp, TimestampFormat};
use std::time::{Duration, SystemTime};

/// Requests signed further than this from the server's time are refused, as S3 does.
const TOLERANCE: Duration = Duration::from_secs(15 * 60);

/// The time in whole seconds: a listing and a HEAD then agree.
pub(crate) fn now() -> SystemTime {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    SystemTime::UNIX_EPOCH + Duration::from_secs(since.as_secs())
}

/// The time of a server whose clock is off by so many seconds.
pub(crate) fn skewed(seconds: i64) -> SystemTime {
    let by = Duration::from_secs(seconds.unsigned_abs());
    if seconds < 0 { now() - by } else { now() + by }
}

/// Whether a request signed at `x-amz-date` is too far from `server_time`. A date that can't be read is left to
/// the signature check.
pub(crate) fn is_too_far(amz_date: &str, server_time: SystemTime) -> bool {
    let Some(signed) = parse_amz_date(amz_date) else {
        return false;
    };
    let distance = match signed.duration_since(server_time) {
        Ok(ahead) => ahead,
        Err(behind) => behind.duration(),
    };
    distance > TOLERANCE
}

/// `20261120T182226Z`
fn parse_amz_date(text: &str) -> Option<SystemTime> {
    if text.len() != 16 || !text.is_ascii() {
        return None;
    }
    let (date, time) = (&text[..8], &text[9..15]);
    let rfc3339 =
        format!("{}-{}-{}T{}:{}:{}Z", &date[..4], &date[4..6], &date[6..], &time[..2], &time[2..4], &time[4..]);
    parse(TimestampFormat::DateTime, &rfc3339)
}

pub(crate) fn parse_http_date(text: &str) -> Option<SystemTime> {
    parse(TimestampFormat::HttpDate, text)
}

pub(crate) fn http_date(time: SystemTime) -> String {
    let mut text = Vec::new();
    // Any time that a clock can show has such a form.
    let _ = Timestamp::from(time).format(TimestampFormat::HttpDate, &mut text);
    String::from_utf8(text).unwrap_or_default()
}

fn parse(format: TimestampFormat, text: &str) -> Option<SystemTime> {
    let time: time::OffsetDateTime = Timestamp::parse(format, text).ok()?.into();
    Some(time.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quarter_of_an_hour_is_tolerated() {
        let server_time = parse_http_date("Fri, 20 Nov 2026 18:22:26 GMT").expect("a date");
        assert_eq!(http_date(server_time), "Fri, 20 Nov 2026 18:22:26 GMT");
        for (signed, refused) in [
            ("20261120T182226Z", false),
            ("20261120T183726Z", false),
            ("20261120T183727Z", true),
            ("20261120T180725Z", true),
            ("nonsense", false),
        ] {
            assert_eq!(is_too_far(signed, server_time), refused, "{signed}");
        }
    }
}
