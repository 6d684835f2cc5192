//! The journal's lines: `crc32 SPACE json NEWLINE`, one change each.
//!
//! The first line is the [`Header`]; every other one is a [`Line`]. Names are short because a journal holds a hundred
//! thousand of them: `u` a file is up, `f` forget it, `b` an upload has begun, `p` one of its parts is up, `e` it has
//! ended, `r` the run has ended. Inside: `k` key, `s` stat as (inode, size, mtime, ctime), `d` digests in base64 one
//! behind the other, `e` ETag, `y` young parts, `l` link, `p` partial.
//! Pure: bytes in, values out.

use std::borrow::Cow;
use std::collections::BTreeMap;

use base64::Engine as _;
use base64::display::Base64Display;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use serde::de::{Error as _, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{Ended, OpenUpload, Uploaded};
use crate::digest::{Digest, Sha256};
use crate::disk::Stat;
use crate::head::Outcome;
use crate::key::Key;
use crate::store::{ETag, StoredPart, UploadId};

/// The version of the lines' format; another one is set aside, never guessed at.
pub(super) const SCHEMA: u32 = 1;

/// The longest line that is read. A file of 10,000 parts takes 420 KiB.
pub(super) const MAX_LINE_BYTES: usize = 1024 * 1024;

/// The first line: whose journal this is.
#[derive(Serialize, Deserialize)]
pub(super) struct Header<'a> {
    pub schema: u32,
    #[serde(borrow)]
    pub destination: Cow<'a, str>,
    #[serde(borrow)]
    pub holder: Cow<'a, str>,
    #[serde(borrow)]
    pub created_at: Cow<'a, str>,
}

/// One change.
#[derive(Serialize, Deserialize)]
pub(super) enum Line<'a> {
    #[serde(rename = "u", borrow)]
    Uploaded(UploadedLine<'a>),
    #[serde(rename = "f", borrow)]
    Forgotten(Cow<'a, str>),
    #[serde(rename = "b", borrow)]
    Begun(BegunLine<'a>),
    #[serde(rename = "p", borrow)]
    Part(PartLine<'a>),
    #[serde(rename = "e", borrow)]
    UploadEnded(Cow<'a, str>),
    #[serde(rename = "r", borrow)]
    RunEnded(Option<EndedLine<'a>>),
}

#[derive(Serialize, Deserialize)]
pub(super) struct UploadedLine<'a> {
    #[serde(borrow)]
    k: Cow<'a, str>,
    s: (u64, u64, i64, i64),
    #[serde(with = "digests")]
    d: Cow<'a, Digest>,
    #[serde(borrow)]
    e: Cow<'a, str>,
    #[serde(default, skip_serializing_if = "is_default")]
    y: u32,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    l: Option<Cow<'a, str>>,
    #[serde(default, skip_serializing_if = "is_default")]
    p: bool,
}

#[derive(Serialize, Deserialize)]
pub(super) struct BegunLine<'a> {
    #[serde(borrow)]
    k: Cow<'a, str>,
    s: (u64, u64, i64, i64),
    /// The upload's id.
    #[serde(borrow)]
    i: Cow<'a, str>,
    /// The nonce in the object's metadata.
    #[serde(borrow)]
    n: Cow<'a, str>,
}

#[derive(Serialize, Deserialize)]
pub(super) struct PartLine<'a> {
    #[serde(borrow)]
    k: Cow<'a, str>,
    /// The part's number.
    n: u32,
    /// Its length in bytes.
    z: u64,
    #[serde(borrow)]
    e: Cow<'a, str>,
    #[serde(with = "digests")]
    d: Cow<'a, Digest>,
    /// The checksum that the store returned, where it returned one.
    #[serde(with = "maybe_digest", default, skip_serializing_if = "Option::is_none")]
    c: Option<Sha256>,
}

#[derive(Serialize, Deserialize)]
pub(super) struct EndedLine<'a> {
    run: u64,
    #[serde(borrow)]
    manifest: Cow<'a, str>,
    #[serde(with = "digests")]
    tree: Cow<'a, Digest>,
    outcome: Outcome,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

fn stat_fields(stat: &Stat) -> (u64, u64, i64, i64) {
    (stat.ino, stat.size, stat.mtime_ns, stat.ctime_ns)
}

fn stat_from((ino, size, mtime_ns, ctime_ns): (u64, u64, i64, i64)) -> Stat {
    Stat { dev: 0, ino, size, mtime_ns, ctime_ns }
}

impl<'a> Line<'a> {
    pub fn uploaded(key: &'a Key, file: &'a Uploaded) -> Line<'a> {
        Line::Uploaded(UploadedLine {
            k: key.as_str().into(),
            s: stat_fields(&file.stat),
            d: Cow::Borrowed(&file.digest),
            e: file.etag.as_str().into(),
            y: file.young_parts,
            l: file.link.as_ref().map(|link| link.as_str().into()),
            p: file.partial,
        })
    }

    pub fn begun(key: &'a Key, upload: &'a OpenUpload) -> Line<'a> {
        Line::Begun(BegunLine {
            k: key.as_str().into(),
            s: stat_fields(&upload.stat),
            i: upload.id.0.as_str().into(),
            n: upload.nonce.as_str().into(),
        })
    }

    pub fn part(key: &'a str, part: &'a StoredPart, sha256: Sha256) -> Line<'a> {
        Line::Part(PartLine {
            k: key.into(),
            n: part.number,
            z: part.size_bytes,
            e: part.etag.as_str().into(),
            d: Cow::Owned(Digest::One(sha256)),
            c: part.sha256,
        })
    }

    pub fn run_ended(ended: Option<&'a Ended>) -> Line<'a> {
        Line::RunEnded(ended.map(|ended| EndedLine {
            run: ended.run,
            manifest: ended.manifest_etag.as_str().into(),
            tree: Cow::Owned(Digest::One(ended.tree)),
            outcome: ended.outcome,
        }))
    }

    /// How many bytes it takes in the file.
    pub fn len_bytes(&self) -> u64 {
        let mut counter = Counter(0);
        write_json(&mut counter, self);
        FRAME_BYTES + counter.0
    }
}

impl UploadedLine<'_> {
    pub fn into_parts(self) -> Option<(Key, Uploaded)> {
        let link = match self.l {
            None => None,
            Some(link) => Some(Key::new(link).ok()?),
        };
        let uploaded = Uploaded {
            stat: stat_from(self.s),
            digest: self.d.into_owned(),
            etag: ETag::new(&self.e),
            young_parts: self.y,
            link,
            partial: self.p,
        };
        Some((Key::new(self.k).ok()?, uploaded))
    }
}

impl BegunLine<'_> {
    pub fn into_parts(self) -> Option<(Key, OpenUpload)> {
        let upload = OpenUpload {
            stat: stat_from(self.s),
            id: UploadId(self.i.into_owned()),
            nonce: self.n.into_owned(),
            parts: BTreeMap::new(),
        };
        Some((Key::new(self.k).ok()?, upload))
    }
}

impl<'a> PartLine<'a> {
    pub fn into_parts(self) -> Option<(Cow<'a, str>, StoredPart, Sha256)> {
        let part = StoredPart { number: self.n, size_bytes: self.z, etag: ETag::new(&self.e), sha256: self.c };
        Some((self.k, part, *single(&self.d)?))
    }
}

impl EndedLine<'_> {
    pub fn into_ended(self) -> Option<Ended> {
        Some(Ended {
            run: self.run,
            manifest_etag: ETag::new(&self.manifest),
            tree: *single(&self.tree)?,
            outcome: self.outcome,
        })
    }
}

fn single(digest: &Digest) -> Option<&Sha256> {
    match digest {
        Digest::One(sha256) => Some(sha256),
        Digest::Many(_) => None,
    }
}

/// The CRC, the space and the newline around the JSON.
const FRAME_BYTES: u64 = 10;

/// Appends `value` as one line.
pub(super) fn append_line(out: &mut Vec<u8>, value: &impl Serialize) {
    let start = out.len();
    out.extend_from_slice(b"00000000 ");
    write_json(&mut *out, value);
    let crc = crc32fast::hash(&out[start + 9..]);
    for (index, digit) in out[start..start + 8].iter_mut().enumerate() {
        let nibble = (crc >> (28 - 4 * index)) & 15;
        *digit = b"0123456789abcdef"[nibble as usize];
    }
    out.push(b'\n');
}

fn write_json(out: impl std::io::Write, value: &impl Serialize) {
    serde_json::to_writer(out, value).expect("a line has only plain fields, and memory does not fail");
}

/// The JSON of a line (without its newline), if the CRC in front says that it is whole.
pub(super) fn checked_json(line: &[u8]) -> Option<&[u8]> {
    let (crc, json) = (line.get(..8)?, line.get(9..)?);
    let mut expected = 0;
    for &digit in crc {
        expected = expected << 4 | char::from(digit).to_digit(16)?;
    }
    (line[8] == b' ' && crc32fast::hash(json) == expected).then_some(json)
}

/// Counts what is written and throws it away.
struct Counter(u64);

impl std::io::Write for Counter {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0 += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Digests one behind the other, in base64 without padding.
mod digests {
    use super::*;

    pub fn serialize<S: Serializer>(digest: &Digest, serializer: S) -> Result<S::Ok, S::Error> {
        match digest {
            Digest::One(one) => serializer.collect_str(&Base64Display::new(one.as_bytes(), &STANDARD_NO_PAD)),
            Digest::Many(many) => {
                let bytes: Vec<u8> = many.iter().flat_map(|part| *part.as_bytes()).collect();
                serializer.collect_str(&Base64Display::new(&bytes, &STANDARD_NO_PAD))
            }
        }
    }

    pub fn deserialize<'a, 'de, D: Deserializer<'de>>(deserializer: D) -> Result<Cow<'a, Digest>, D::Error> {
        deserializer.deserialize_str(Base64Digest).map(Cow::Owned)
    }
}

/// One digest that need not be there.
mod maybe_digest {
    use super::*;

    pub fn serialize<S: Serializer>(digest: &Option<Sha256>, serializer: S) -> Result<S::Ok, S::Error> {
        match digest {
            Some(digest) => digests::serialize(&Digest::One(*digest), serializer),
            None => serializer.serialize_none(),
        }
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Sha256>, D::Error> {
        let digest = deserializer.deserialize_str(Base64Digest)?;
        single(&digest).copied().map(Some).ok_or_else(|| D::Error::custom("not one SHA-256"))
    }
}

struct Base64Digest;

impl Visitor<'_> for Base64Digest {
    type Value = Digest;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SHA-256 digests in base64")
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Digest, E> {
        let mut one = [0; 32];
        // The usual case, without an allocation.
        if text.len() == 43 && STANDARD_NO_PAD.decode_slice(text, &mut one) == Ok(32) {
            return Ok(Digest::One(Sha256::from_bytes(one)));
        }
        let bytes = STANDARD_NO_PAD.decode(text).map_err(E::custom)?;
        if bytes.is_empty() || bytes.len() % 32 != 0 {
            return Err(E::custom("not a list of SHA-256 digests"));
        }
        let parts = bytes.chunks_exact(32).map(|part| Sha256::from_bytes(part.try_into().expect("32 bytes")));
        Ok(Digest::from(parts.collect::<Vec<_>>()))
    }
}
