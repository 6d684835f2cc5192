//! Names on the wire: how a key is written into a copy's source, and read from a listing.

use std::fmt::Write as _;

/// `bucket/key` for `x-amz-copy-source`: everything but unreserved characters and `/` is percent-encoded, `+` too, because
/// some servers read a bare one as a space.
pub(super) fn copy_source(bucket: &str, full_key: &str) -> String {
    let mut encoded = format!("{bucket}/");
    for &byte in full_key.as_bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' | b'/' => {
                encoded.push(char::from(byte))
            }
            other => {
                let _ = write!(encoded, "%{other:02X}");
            }
        }
    }
    encoded
}

/// A key from a listing that was asked for with `encoding-type=url`; `None` when it isn't UTF-8.
///
/// S3 encodes as HTML forms do: a space is `+`.
pub(super) fn decode_listed(text: &str) -> Option<String> {
    if !text.contains(['%', '+']) {
        return Some(text.to_owned());
    }
    let plain = text.replace('+', " ");
    percent_encoding::percent_decode_str(&plain).decode_utf8().ok().map(|name| name.into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_survive_the_wire() {
        assert_eq!(copy_source("b", "a b/ä+%.x"), "b/a%20b/%C3%A4%2B%25.x");
        for (wire, name) in [
            ("plain/name", "plain/name"),
            ("a+b", "a b"),
            ("a%20b", "a b"),
            ("a%2Bb", "a+b"),
            ("100%25", "100%"),
            ("%C3%A4%0A", "ä\n"),
        ] {
            assert_eq!(decode_listed(wire).as_deref(), Some(name), "{wire}");
        }
        assert_eq!(decode_listed("%FF"), None);
    }
}
