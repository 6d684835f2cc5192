//! Digests: what a request claims about its body, and what the body turns out to be.
//!
//! Nothing is stored before every claim holds. The SHA-256 of a body is computed once, whether the signature
//! (`x-amz-content-sha256`), the checksum header, or both ask for it.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::HeaderMap;
use s3s::checksum::ChecksumHasher;
use s3s::crypto::{Checksum as _, Crc32, Crc32c, Crc64Nvme, Md5, Sha1, Sha256};
use s3s::{S3Error, S3ErrorCode, S3Result, s3_error};
use serde::{Deserialize, Serialize};

/// A checksum algorithm of S3.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Algorithm {
    /// CRC-32
    Crc32,
    /// CRC-32C
    Crc32c,
    /// CRC-64/NVME
    Crc64nvme,
    /// SHA-1
    Sha1,
    /// SHA-256
    Sha256,
}

impl Algorithm {
    const ALL: [Algorithm; 5] =
        [Algorithm::Crc32, Algorithm::Crc32c, Algorithm::Crc64nvme, Algorithm::Sha1, Algorithm::Sha256];

    /// The name as S3 writes it, `SHA256` for example.
    pub fn name(self) -> &'static str {
        match self {
            Algorithm::Crc32 => "CRC32",
            Algorithm::Crc32c => "CRC32C",
            Algorithm::Crc64nvme => "CRC64NVME",
            Algorithm::Sha1 => "SHA1",
            Algorithm::Sha256 => "SHA256",
        }
    }

    /// The header that carries its value.
    pub fn header(self) -> &'static str {
        match self {
            Algorithm::Crc32 => "x-amz-checksum-crc32",
            Algorithm::Crc32c => "x-amz-checksum-crc32c",
            Algorithm::Crc64nvme => "x-amz-checksum-crc64nvme",
            Algorithm::Sha1 => "x-amz-checksum-sha1",
            Algorithm::Sha256 => "x-amz-checksum-sha256",
        }
    }

    pub(crate) fn parse(name: &str) -> S3Result<Algorithm> {
        Algorithm::ALL
            .into_iter()
            .find(|algorithm| algorithm.name().eq_ignore_ascii_case(name))
            .ok_or_else(|| s3_error!(NotImplemented, "checksum algorithm {} is not implemented", name))
    }

    /// A hasher that computes this algorithm and no other.
    pub(crate) fn hasher(self) -> ChecksumHasher {
        let mut hasher = ChecksumHasher::default();
        self.enable(&mut hasher);
        hasher
    }

    fn enable(self, hasher: &mut ChecksumHasher) {
        match self {
            Algorithm::Crc32 => hasher.crc32 = Some(Crc32::new()),
            Algorithm::Crc32c => hasher.crc32c = Some(Crc32c::new()),
            Algorithm::Crc64nvme => hasher.crc64nvme = Some(Crc64Nvme::new()),
            Algorithm::Sha1 => hasher.sha1 = Some(Sha1::new()),
            Algorithm::Sha256 => hasher.sha256 = Some(Sha256::new()),
        }
    }

    /// The value of this algorithm among all that S3's structures have a field for.
    pub(crate) fn value_in(self, fields: &s3s::dto::Checksum) -> Option<String> {
        match self {
            Algorithm::Crc32 => fields.checksum_crc32.clone(),
            Algorithm::Crc32c => fields.checksum_crc32c.clone(),
            Algorithm::Crc64nvme => fields.checksum_crc64nvme.clone(),
            Algorithm::Sha1 => fields.checksum_sha1.clone(),
            Algorithm::Sha256 => fields.checksum_sha256.clone(),
        }
    }
}

/// A checksum as it is stored with an object or a part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checksum {
    /// What computed it.
    pub algorithm: Algorithm,
    /// Base64, followed by `-N` for a composite of N parts.
    pub value: String,
    /// Of the parts' checksums rather than of the content.
    pub composite: bool,
}

impl Checksum {
    /// The checksum of checksums, `base64(hash(concat(part digests)))-N`.
    pub(crate) fn composite<'a>(
        algorithm: Algorithm,
        parts: impl ExactSizeIterator<Item = &'a Checksum>,
    ) -> S3Result<Checksum> {
        let count = parts.len();
        let mut hasher = algorithm.hasher();
        for part in parts {
            hasher.update(&decode(&part.value)?);
        }
        let value = algorithm.value_in(&hasher.finalize()).unwrap_or_default();
        Ok(Checksum { algorithm, value: format!("{value}-{count}"), composite: true })
    }

    pub(crate) fn kind(&self) -> &'static str {
        if self.composite { s3s::dto::ChecksumType::COMPOSITE } else { s3s::dto::ChecksumType::FULL_OBJECT }
    }

    /// The structure that S3's XML answers carry; empty without a checksum.
    pub(crate) fn fields(checksum: Option<&Checksum>) -> s3s::dto::Checksum {
        let mut fields = s3s::dto::Checksum::default();
        let Some(checksum) = checksum else {
            return fields;
        };
        let value = Some(checksum.value.clone());
        match checksum.algorithm {
            Algorithm::Crc32 => fields.checksum_crc32 = value,
            Algorithm::Crc32c => fields.checksum_crc32c = value,
            Algorithm::Crc64nvme => fields.checksum_crc64nvme = value,
            Algorithm::Sha1 => fields.checksum_sha1 = value,
            Algorithm::Sha256 => fields.checksum_sha256 = value,
        }
        fields.checksum_type = Some(s3s::dto::ChecksumType::from_static(checksum.kind()));
        fields
    }

    /// The same as headers, for the answers that carry no XML.
    pub(crate) fn headers(checksum: Option<&Checksum>) -> HeaderMap {
        let mut headers = HeaderMap::new();
        if let Some(checksum) = checksum
            && let Ok(value) = checksum.value.parse()
        {
            headers.insert(checksum.algorithm.header(), value);
            headers.insert("x-amz-checksum-type", http::HeaderValue::from_static(checksum.kind()));
        }
        headers
    }
}

/// What the head of a request says about the body that follows.
#[derive(Debug, Default)]
pub(crate) struct Claims {
    md5: Option<Vec<u8>>,
    payload_sha256: Option<String>,
    /// The value comes later where a trailer announces it.
    checksum: Option<(Algorithm, Option<String>)>,
}

impl Claims {
    pub fn of(headers: &HeaderMap) -> S3Result<Claims> {
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let mut claims = Claims::default();
        if let Some(md5) = text("content-md5") {
            let digest = decode(md5)?;
            if digest.len() != 16 {
                return Err(S3ErrorCode::InvalidDigest.into());
            }
            claims.md5 = Some(digest);
        }
        claims.payload_sha256 = text("x-amz-content-sha256").filter(|hash| hash.len() == 64).map(str::to_lowercase);
        for algorithm in Algorithm::ALL {
            let Some(value) = text(algorithm.header()) else {
                continue;
            };
            if claims.checksum.is_some() {
                return Err(s3_error!(InvalidRequest, "Expecting a single x-amz-checksum- header"));
            }
            claims.checksum = Some((algorithm, Some(value.to_owned())));
        }
        if let Some(trailer) = text("x-amz-trailer") {
            let announced =
                Algorithm::ALL.into_iter().find(|algorithm| trailer.eq_ignore_ascii_case(algorithm.header()));
            claims.checksum = Some((announced.ok_or(S3ErrorCode::NotImplemented)?, None));
        }
        Ok(claims)
    }

    /// No claim, but the wish that this algorithm be computed.
    pub fn wishing(algorithm: Option<Algorithm>) -> Claims {
        Claims { checksum: algorithm.map(|algorithm| (algorithm, None)), ..Claims::default() }
    }

    /// The checksum of the claim, kept unverified: for the discarding server.
    pub fn unverified(&self) -> Option<Checksum> {
        let (algorithm, value) = self.checksum.as_ref()?;
        Some(Checksum { algorithm: *algorithm, value: value.clone()?, composite: false })
    }

    /// The MD5 of the claim: an ETag that costs nothing.
    pub fn md5(&self) -> Option<&[u8]> {
        self.md5.as_deref()
    }

    pub fn algorithm(&self) -> Option<Algorithm> {
        self.checksum.as_ref().map(|(algorithm, _)| *algorithm)
    }

    pub fn digester(&self) -> Digester {
        let mut hasher = ChecksumHasher::default();
        if let Some(algorithm) = self.algorithm() {
            algorithm.enable(&mut hasher);
        }
        if self.payload_sha256.is_some() {
            Algorithm::Sha256.enable(&mut hasher);
        }
        Digester { md5: Md5::new(), hasher }
    }

    /// Compares what was computed with what was claimed. `trailers` holds the value that came after the body.
    pub fn check(&self, digests: &Digests, trailers: Option<&HeaderMap>) -> S3Result<()> {
        if let Some((algorithm, value)) = &self.checksum {
            let trailed = || trailers?.get(algorithm.header())?.to_str().ok().map(str::to_owned);
            let claimed = value.clone().or_else(trailed);
            let computed = algorithm.value_in(&digests.checksums);
            if claimed.is_none() || claimed != computed {
                return Err(s3_error!(
                    BadDigest,
                    "The {} you specified did not match the calculated checksum.",
                    algorithm.name()
                ));
            }
        }
        if self.md5.as_deref().is_some_and(|md5| md5 != digests.md5) {
            return Err(s3_error!(BadDigest, "The Content-MD5 you specified did not match what we received."));
        }
        if let Some(claimed) = &self.payload_sha256 {
            let computed = digests.checksums.checksum_sha256.as_deref().map(decode).transpose()?;
            if computed.map(|digest| hex(&digest)).as_ref() != Some(claimed) {
                return Err(content_sha256_mismatch());
            }
        }
        Ok(())
    }
}

fn content_sha256_mismatch() -> S3Error {
    let mut error = S3Error::with_message(
        S3ErrorCode::Custom("XAmzContentSHA256Mismatch".into()),
        "The provided 'x-amz-content-sha256' header does not match what was computed.",
    );
    error.set_status_code(http::StatusCode::BAD_REQUEST);
    error
}

/// Computes what the claims need, and the MD5 that becomes the ETag.
pub(crate) struct Digester {
    md5: Md5,
    hasher: ChecksumHasher,
}

impl Digester {
    pub fn update(&mut self, data: &[u8]) {
        self.md5.update(data);
        self.hasher.update(data);
    }

    pub fn finish(self) -> Digests {
        Digests { md5: self.md5.finalize(), checksums: self.hasher.finalize() }
    }
}

/// What a body turned out to be.
pub(crate) struct Digests {
    pub md5: [u8; 16],
    pub checksums: s3s::dto::Checksum,
}

impl Digests {
    pub fn etag(&self) -> String {
        hex(&self.md5)
    }

    pub fn checksum(&self, algorithm: Algorithm) -> Option<Checksum> {
        Some(Checksum { algorithm, value: algorithm.value_in(&self.checksums)?, composite: false })
    }
}

/// The ETag of a whole object: the MD5 of its content.
pub(crate) fn etag_of(content: &[u8]) -> String {
    hex(&Md5::checksum(content))
}

/// The ETag of an object made of parts: the MD5 of the parts' MD5s, and how many there are.
pub(crate) fn composite_etag<'a>(part_etags: impl ExactSizeIterator<Item = &'a str>) -> String {
    let count = part_etags.len();
    let mut md5 = Md5::new();
    for etag in part_etags {
        match unhex(etag) {
            Some(digest) => md5.update(&digest),
            // The discarding server makes up its parts' ETags.
            None => md5.update(etag.as_bytes()),
        }
    }
    format!("{}-{count}", hex(&md5.finalize()))
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]).map(|digit| DIGITS[usize::from(digit)] as char).collect()
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| (byte as char).to_digit(16).map(|digit| digit as u8);
    if text.len() != 32 {
        return None;
    }
    text.as_bytes().chunks(2).map(|pair| Some(digit(pair[0])? << 4 | digit(pair[1])?)).collect()
}

fn decode(base64: &str) -> S3Result<Vec<u8>> {
    STANDARD.decode(base64).map_err(|_| S3ErrorCode::InvalidDigest.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs
            .iter()
            .map(|(name, value)| (http::HeaderName::from_static(name), value.parse().expect("a value")))
            .collect()
    }

    fn check(pairs: &[(&'static str, &str)], body: &[u8]) -> Result<(), String> {
        let claims = Claims::of(&headers(pairs)).map_err(|error| error.code().as_str().to_owned())?;
        let mut digester = claims.digester();
        digester.update(body);
        claims.check(&digester.finish(), None).map_err(|error| error.code().as_str().to_owned())
    }

    const HELLO_SHA256: &str = "LPJNul+wow4m6DsqxbninhsWHlwfp0JecwQzYpOLmCQ=";
    const HELLO_SHA256_HEX: &str = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824";

    #[test]
    fn every_claim_is_checked() {
        assert_eq!(check(&[("x-amz-checksum-sha256", HELLO_SHA256)], b"hello"), Ok(()));
        assert_eq!(check(&[("x-amz-checksum-sha256", HELLO_SHA256)], b"hellO"), Err("BadDigest".into()));
        assert_eq!(check(&[("x-amz-content-sha256", HELLO_SHA256_HEX)], b"hello"), Ok(()));
        assert_eq!(
            check(&[("x-amz-content-sha256", HELLO_SHA256_HEX)], b"hellO"),
            Err("XAmzContentSHA256Mismatch".into())
        );
        assert_eq!(check(&[("x-amz-content-sha256", "UNSIGNED-PAYLOAD")], b"hellO"), Ok(()));
        assert_eq!(check(&[("content-md5", "XUFAKrxLKna5cZ2REBfFkg==")], b"hello"), Ok(()));
        assert_eq!(check(&[("content-md5", "XUFAKrxLKna5cZ2REBfFkg==")], b"hellO"), Err("BadDigest".into()));
        assert_eq!(check(&[("content-md5", "short")], b"hello"), Err("InvalidDigest".into()));
        assert_eq!(check(&[("x-amz-checksum-crc32c", "mnG7TA==")], b"hello"), Ok(()));
        assert_eq!(check(&[("x-amz-checksum-crc32c", "mnG7TA==")], b"hellO"), Err("BadDigest".into()));
        assert_eq!(
            check(&[("x-amz-checksum-crc32c", "mnG7TA=="), ("x-amz-checksum-sha256", HELLO_SHA256)], b"hello"),
            Err("InvalidRequest".into())
        );
    }

    #[test]
    fn composites_are_hashes_of_hashes() {
        let part = Checksum { algorithm: Algorithm::Sha256, value: HELLO_SHA256.into(), composite: false };
        let whole = Checksum::composite(Algorithm::Sha256, [&part, &part].into_iter()).expect("valid parts");
        // Of the two digests one after the other, as any other tool computes it.
        assert_eq!(whole.value, "HSXBmho/tlx40BhWEFc2KRbBS/02t1qoyw9NaWKTsYM=-2");
        let md5 = etag_of(b"hello");
        assert_eq!(md5, "5d41402abc4b2a76b9719d911017c592");
        assert_eq!(composite_etag([md5.as_str(), md5.as_str()].into_iter()), "616b22817b80eed9f65c3aa38cd29054-2");
    }
}
