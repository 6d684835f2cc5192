//! Digests: one SHA-256 a part, and the list of parts that stands for a file.
//!
//! Invariants: the part size is a function of the file's size alone, the same in trainer and sidecar, so that a digest made
//! on one side is the upload's checksum on the other. Pure: no I/O.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use sha2::Digest as _;

/// The smallest part, in bytes; files up to this size are one part.
pub const MIN_PART_BYTES: u64 = 8 * 1024 * 1024;

/// The most parts that S3 takes for one object (Amazon S3 user guide, "Multipart upload limits").
pub const MAX_PARTS: u64 = 10_000;

/// The part size for a file of `size_bytes`: 8 MiB, doubled until 10,000 parts suffice.
pub fn part_size_bytes(size_bytes: u64) -> u64 {
    let mut part = MIN_PART_BYTES;
    while size_bytes.div_ceil(part) > MAX_PARTS {
        part *= 2;
    }
    part
}

/// How many parts a file of `size_bytes` has: an empty file has one, of no bytes.
pub fn part_count(size_bytes: u64) -> u32 {
    let count = size_bytes.div_ceil(part_size_bytes(size_bytes)).max(1);
    u32::try_from(count).expect("at most 10,000 parts")
}

/// Offset and length, in bytes, of the part with this index (from 0) in a file of `size_bytes`.
pub fn part_range(size_bytes: u64, index: u32) -> (u64, u64) {
    let part = part_size_bytes(size_bytes);
    let offset = u64::from(index) * part;
    (offset, part.min(size_bytes.saturating_sub(offset)))
}

/// A SHA-256 (FIPS 180-4).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Sha256([u8; 32]);

impl Sha256 {
    /// The digest of `bytes`.
    pub fn of(bytes: &[u8]) -> Sha256 {
        Sha256(sha2::Sha256::digest(bytes).into())
    }

    /// From its 32 bytes.
    pub const fn from_bytes(bytes: [u8; 32]) -> Sha256 {
        Sha256(bytes)
    }

    /// Its 32 bytes.
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// As S3's `x-amz-checksum-sha256` writes it.
    pub fn to_base64(self) -> String {
        STANDARD.encode(self.0)
    }

    /// From the text of a checksum header; `None` when it isn't 32 bytes of base64.
    pub fn from_base64(text: &str) -> Option<Sha256> {
        Some(Sha256(STANDARD.decode(text).ok()?.try_into().ok()?))
    }

    /// As SigV4's `x-amz-content-sha256` and `sha256sum` write it.
    pub fn to_hex(self) -> String {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        self.0.iter().flat_map(|b| [DIGITS[usize::from(b >> 4)] as char, DIGITS[usize::from(b & 15)] as char]).collect()
    }

    /// From 64 hexadecimal digits.
    pub fn from_hex(text: &str) -> Option<Sha256> {
        let digits = text.as_bytes();
        if digits.len() != 64 {
            return None;
        }
        let mut bytes = [0; 32];
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            let digit = |d: u8| char::from(d).to_digit(16);
            *byte = u8::try_from(digit(pair[0])? * 16 + digit(pair[1])?).ok()?;
        }
        Some(Sha256(bytes))
    }
}

impl fmt::Display for Sha256 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_hex())
    }
}

impl fmt::Debug for Sha256 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sha256:{self}")
    }
}

impl From<Sha256> for String {
    fn from(digest: Sha256) -> String {
        digest.to_hex()
    }
}

impl TryFrom<String> for Sha256 {
    type Error = String;
    fn try_from(text: String) -> Result<Sha256, String> {
        Sha256::from_hex(&text).ok_or_else(|| format!("{text:?} is not a SHA-256 in hexadecimal"))
    }
}

/// A SHA-256 over bytes that come piece by piece.
#[derive(Clone, Default)]
pub struct Hasher(sha2::Sha256);

impl Hasher {
    /// Takes the next bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The digest of everything taken.
    pub fn finish(self) -> Sha256 {
        Sha256(self.0.finalize().into())
    }
}

/// A file's digest: the SHA-256 of each of its parts, in order.
///
/// The parts' lengths follow from the file's size ([`part_range`]); a file of one part has one entry.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(from = "Vec<Sha256>", into = "Vec<Sha256>")]
pub enum Digest {
    /// A file of one part.
    One(Sha256),
    /// A file of several parts.
    Many(Box<[Sha256]>),
}

impl Digest {
    /// The parts' digests.
    pub fn parts(&self) -> &[Sha256] {
        match self {
            Digest::One(part) => std::slice::from_ref(part),
            Digest::Many(parts) => parts,
        }
    }

    /// What S3 reports as `ChecksumSHA256`: the digest itself for one part, `base64(sha256(digests))-N` for several.
    pub fn checksum(&self) -> String {
        match self {
            Digest::One(part) => part.to_base64(),
            Digest::Many(parts) => {
                let mut hasher = Hasher::default();
                for part in parts {
                    hasher.update(part.as_bytes());
                }
                format!("{}-{}", hasher.finish().to_base64(), parts.len())
            }
        }
    }
}

impl From<Vec<Sha256>> for Digest {
    fn from(parts: Vec<Sha256>) -> Digest {
        match parts.as_slice() {
            [one] => Digest::One(*one),
            _ => Digest::Many(parts.into_boxed_slice()),
        }
    }
}

impl From<Digest> for Vec<Sha256> {
    fn from(digest: Digest) -> Vec<Sha256> {
        digest.parts().to_vec()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_part_size_doubles_until_ten_thousand_suffice() {
        const MIB: u64 = 1024 * 1024;
        for (size, part, count) in [
            (0, 8 * MIB, 1),
            (1, 8 * MIB, 1),
            (8 * MIB, 8 * MIB, 1),
            (8 * MIB + 1, 8 * MIB, 2),
            (80_000 * MIB, 8 * MIB, 10_000),
            (80_000 * MIB + 1, 16 * MIB, 5_001),
            (5 * 1024 * 1024 * MIB, 1024 * MIB, 5_120),
        ] {
            assert_eq!((part_size_bytes(size), part_count(size)), (part, count), "{size}");
        }
        assert_eq!(part_range(8 * MIB + 1, 1), (8 * MIB, 1));
        assert_eq!(part_range(0, 0), (0, 0));
    }

    #[test]
    fn a_digest_reads_as_the_tools_write_it() {
        let digest = Sha256::of(b"abc");
        let hex = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(digest.to_hex(), hex);
        assert_eq!(Sha256::from_hex(hex), Some(digest));
        assert_eq!(Sha256::from_base64(&digest.to_base64()), Some(digest));
        assert_eq!(Sha256::from_hex("zz"), None);
        let parts = Digest::from(vec![digest, digest]);
        assert!(parts.checksum().ends_with("-2"));
        assert_eq!(serde_json::from_str::<Digest>(&serde_json::to_string(&parts).unwrap()).unwrap(), parts);
    }
}
