//! DEST as typed: its placeholders filled, its form checked.

use std::path::{Component, Path, PathBuf};

use super::Destination;
use crate::exit::UsageError;
use crate::key::{CONTROL_DIR, MAX_KEY_BYTES, Prefix};

/// The longest prefix: what chiefsync itself writes below it still has to fit.
const MAX_PREFIX_BYTES: usize = MAX_KEY_BYTES - 256;

/// What a hostname in a training job ends in, after the job's name.
const REPLICA_SUFFIXES: [&str; 3] = ["-chief-0", "-master-0", "-worker-0"];

/// What stands for the placeholders in DEST. An empty text is no value.
#[derive(Clone, Debug, Default)]
pub struct Placeholders {
    /// `{namespace}`
    pub namespace: Option<String>,
    /// `{job}`; falls back to the hostname less `-chief-0`, `-master-0`, `-worker-0`.
    pub job: Option<String>,
    /// `{replica_type}`
    pub replica_type: Option<String>,
    /// `{replica_index}`
    pub replica_index: Option<String>,
    /// `{pod_uid}`
    pub pod_uid: Option<String>,
    /// `{run}`
    pub run: Option<String>,
    /// The machine's name.
    pub hostname: Option<String>,
}

impl Placeholders {
    fn value(&self, name: &str) -> Option<Option<&str>> {
        let typed = match name {
            "namespace" => &self.namespace,
            "job" => &self.job,
            "replica_type" => &self.replica_type,
            "replica_index" => &self.replica_index,
            "pod_uid" => &self.pod_uid,
            "run" => &self.run,
            _ => return None,
        };
        let typed = typed.as_deref().filter(|value| !value.is_empty());
        Some(typed.or_else(|| if name == "job" { self.job_by_hostname() } else { None }))
    }

    fn job_by_hostname(&self) -> Option<&str> {
        let hostname = self.hostname.as_deref()?;
        let job = REPLICA_SUFFIXES.iter().find_map(|suffix| hostname.strip_suffix(suffix)).unwrap_or(hostname);
        (!job.is_empty()).then_some(job)
    }

    /// `text` with every placeholder filled.
    fn fill(&self, text: &str) -> Result<String, UsageError> {
        let mut filled = String::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once('{') {
            filled += before;
            let Some((name, tail)) = after.split_once('}') else {
                return Err(UsageError::new(format!("DEST {text:?} has a {{ without a }}"), KNOWN_PLACEHOLDERS));
            };
            match self.value(name) {
                Some(Some(value)) => filled += value,
                Some(None) => {
                    let variable = format!("CHIEFSYNC_{}", name.to_uppercase());
                    return Err(UsageError::new(
                        format!("DEST {text:?} has the placeholder {{{name}}}, and nothing fills it"),
                        format!("set {variable} (in a pod by the downward API) or --{}", name.replace('_', "-")),
                    ));
                }
                None => {
                    return Err(UsageError::new(
                        format!("DEST {text:?} has a placeholder {{{name}}} that is not known"),
                        KNOWN_PLACEHOLDERS,
                    ));
                }
            }
            rest = tail;
        }
        Ok(filled + rest)
    }
}

const KNOWN_PLACEHOLDERS: &str =
    "the placeholders are {namespace} {job} {replica_type} {replica_index} {pod_uid} {run}";

impl Destination {
    /// Reads `s3://bucket/prefix` or `file:///dir`, with placeholders. The bucket's or the disk's root needs `allow_root`.
    ///
    /// # Errors
    /// What is wrong with it, and how it is written.
    pub fn parse(text: &str, placeholders: &Placeholders, allow_root: bool) -> Result<Destination, UsageError> {
        let filled = placeholders.fill(text)?;
        let root_refused = |what: &str, instead: &str| {
            UsageError::new(
                format!("DEST {filled:?} is {what} itself"),
                format!("name {instead}, or add --allow-root if that is what you want"),
            )
        };
        let destination = match filled.split_once("://") {
            Some(("s3", rest)) => parse_s3(&filled, rest)?,
            Some(("file", rest)) => parse_file(&filled, rest)?,
            _ => return Err(wrong_scheme(&filled)),
        };
        match &destination {
            Destination::S3 { bucket, prefix } if prefix.is_root() && !allow_root => {
                Err(root_refused("the bucket's root", &format!("a prefix, like s3://{bucket}/my-job")))
            }
            Destination::File { directory } if directory == Path::new("/") && !allow_root => {
                Err(root_refused("the file system's root", "a directory, like file:///data/my-job"))
            }
            _ => Ok(destination),
        }
    }
}

fn parse_s3(typed: &str, rest: &str) -> Result<Destination, UsageError> {
    let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
    if let Some(problem) = bucket_problem(bucket) {
        return Err(UsageError::new(
            format!("DEST {typed:?}: the bucket's name {bucket:?} {problem}"),
            "write s3://bucket/prefix; a bucket's name has 3 to 63 lower-case letters, digits, dots and hyphens",
        ));
    }
    let prefix = Prefix::new(prefix).map_err(|_| {
        UsageError::new(
            format!("DEST {typed:?}: the prefix {prefix:?} has an empty, `.` or `..` segment"),
            "write plain names with one / between them",
        )
    })?;
    if prefix.as_str().split('/').any(|segment| segment == CONTROL_DIR) {
        return Err(UsageError::new(
            format!("DEST {typed:?} lies within a {CONTROL_DIR} directory, which belongs to chiefsync"),
            format!("name the prefix above {CONTROL_DIR}"),
        ));
    }
    if prefix.as_str().len() > MAX_PREFIX_BYTES {
        return Err(UsageError::new(
            format!("DEST {typed:?}: the prefix has {} bytes", prefix.as_str().len()),
            format!("keep it below {MAX_PREFIX_BYTES}: S3 takes {MAX_KEY_BYTES} for prefix and name together"),
        ));
    }
    Ok(Destination::S3 { bucket: bucket.to_owned(), prefix })
}

/// What is wrong with a bucket's name (Amazon S3 user guide, "Bucket naming rules").
fn bucket_problem(bucket: &str) -> Option<&'static str> {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    if bucket.is_empty() {
        Some("is empty")
    } else if bucket.contains(|c: char| c.is_ascii_uppercase()) {
        Some("has upper-case letters")
    } else if !bucket.chars().all(|c| plain(c) || c == '-' || c == '.') {
        Some("has characters that S3 doesn't take")
    } else if !(3..=63).contains(&bucket.len()) {
        Some("is shorter than 3 or longer than 63 characters")
    } else if !bucket.starts_with(plain) || !bucket.ends_with(plain) {
        Some("doesn't start and end with a letter or a digit")
    } else if bucket.contains("..") {
        Some("has two dots side by side")
    } else if bucket.parse::<std::net::Ipv4Addr>().is_ok() {
        Some("is an IP address")
    } else {
        None
    }
}

fn parse_file(typed: &str, rest: &str) -> Result<Destination, UsageError> {
    let path = Path::new(rest);
    if !path.is_absolute() {
        return Err(UsageError::new(
            format!("DEST {typed:?} has no absolute path"),
            format!("write file:///dir with three slashes, like file:///{}", rest.trim_start_matches("./")),
        ));
    }
    if rest.contains('\0') || path.components().any(|part| matches!(part, Component::ParentDir)) {
        return Err(UsageError::new(
            format!("DEST {typed:?} has a `..` or a NUL in its path"),
            "write the path plainly",
        ));
    }
    // Collecting the components drops doubled and trailing slashes.
    Ok(Destination::File { directory: path.components().collect::<PathBuf>() })
}

fn wrong_scheme(typed: &str) -> UsageError {
    let written = "write s3://bucket/prefix or file:///dir";
    let (message, hint) = if typed.is_empty() {
        ("DEST is empty".to_owned(), written.to_owned())
    } else if let Some(rest) = typed.strip_prefix("s3:") {
        (format!("DEST {typed:?} lacks a slash"), format!("write s3://{}", rest.trim_start_matches('/')))
    } else if let Some(rest) = typed.strip_prefix("file:") {
        (format!("DEST {typed:?} lacks a slash"), format!("write file:///{}", rest.trim_start_matches('/')))
    } else if typed.starts_with("http://") || typed.starts_with("https://") {
        (
            format!("DEST {typed:?} is a web address"),
            "write s3://bucket/prefix, and set AWS_ENDPOINT_URL to the server's address".to_owned(),
        )
    } else if let Some((scheme, _)) = typed.split_once("://") {
        (format!("DEST {typed:?}: the scheme {scheme:?} is not known"), written.to_owned())
    } else if typed.starts_with('/') {
        (format!("DEST {typed:?} has no scheme"), format!("write file://{typed} for a directory"))
    } else {
        (
            format!("DEST {typed:?} has no scheme"),
            format!("write s3://{} for a bucket, or file:///dir for a directory", typed.trim_start_matches("./")),
        )
    };
    UsageError::new(message, hint)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(text: &str, placeholders: &Placeholders) -> String {
        Destination::parse(text, placeholders, false).unwrap().url()
    }

    #[test]
    fn a_destination_ends_in_one_slash() {
        let none = Placeholders::default();
        for (typed, means) in [
            ("s3://bucket/job", "s3://bucket/job/"),
            ("s3://bucket/a/b/", "s3://bucket/a/b/"),
            ("s3://my.bucket-1/ä b%20?x#y", "s3://my.bucket-1/ä b%20?x#y/"),
            ("file:///data/out", "file:///data/out/"),
            ("file:///data//out/", "file:///data/out/"),
        ] {
            assert_eq!(url(typed, &none), means);
        }
    }

    #[test]
    fn the_root_needs_to_be_asked_for() {
        for typed in ["s3://bucket", "s3://bucket/", "s3://bucket//", "file:///", "file:////"] {
            let error = Destination::parse(typed, &Placeholders::default(), false).unwrap_err();
            assert!(error.hint.unwrap().contains("--allow-root"), "{typed}");
            assert!(Destination::parse(typed, &Placeholders::default(), true).is_ok(), "{typed}");
        }
    }

    #[test]
    fn placeholders_are_filled() {
        let all = Placeholders {
            namespace: Some("team".to_owned()),
            job: Some("bert".to_owned()),
            replica_type: Some("chief".to_owned()),
            replica_index: Some("0".to_owned()),
            pod_uid: Some("u-1".to_owned()),
            run: Some("7".to_owned()),
            hostname: Some("elsewhere".to_owned()),
        };
        assert_eq!(
            url("s3://{namespace}-out/{job}/{replica_type}-{replica_index}/{pod_uid}/{run}", &all),
            "s3://team-out/bert/chief-0/u-1/7/"
        );
    }

    #[test]
    fn a_job_falls_back_to_the_hostname() {
        for (hostname, job) in [
            ("bert-chief-0", "bert"),
            ("bert-master-0", "bert"),
            ("bert-worker-0", "bert"),
            ("bert-worker-1", "bert-worker-1"),
            ("laptop", "laptop"),
        ] {
            let here = Placeholders { hostname: Some(hostname.to_owned()), ..Placeholders::default() };
            assert_eq!(url("s3://bucket/{job}", &here), format!("s3://bucket/{job}/"));
        }
        let nameless = Placeholders { hostname: Some("-chief-0".to_owned()), ..Placeholders::default() };
        assert!(Destination::parse("s3://bucket/{job}", &nameless, false).is_err());
    }

    /// What is wrong is named, and so is what to do.
    #[test]
    fn errors_name_the_fault_and_the_way_out() {
        let none = Placeholders { run: Some(String::new()), ..Placeholders::default() };
        let long = format!("s3://bucket/{}", "x".repeat(800));
        for (typed, message, hint) in [
            ("", "is empty", "s3://bucket/prefix"),
            ("bucket/job", "has no scheme", "s3://bucket/job"),
            ("/data/out", "has no scheme", "file:///data/out"),
            ("s3:/bucket/job", "lacks a slash", "s3://bucket/job"),
            ("s3:bucket/job", "lacks a slash", "s3://bucket/job"),
            ("file:/data", "lacks a slash", "file:///data"),
            ("file://data/out", "absolute", "file:///data/out"),
            ("file:///a/../b", "`..`", "plainly"),
            ("https://minio:9000/bucket", "web address", "AWS_ENDPOINT_URL"),
            ("gs://bucket/job", "\"gs\"", "s3://bucket/prefix"),
            ("s3:///job", "is empty", "3 to 63"),
            ("s3://ab/job", "shorter", "3 to 63"),
            ("s3://My-Bucket/job", "upper-case", "lower-case"),
            ("s3://my_bucket/job", "characters", "hyphens"),
            ("s3://-bucket/job", "start and end", "3 to 63"),
            ("s3://a..b/job", "two dots", "3 to 63"),
            ("s3://10.0.0.1/job", "IP address", "3 to 63"),
            ("s3://bucket/a//b", "segment", "one /"),
            ("s3://bucket/../b", "segment", "plain"),
            ("s3://bucket/job/.chiefsync/x", ".chiefsync", "above"),
            (&long, "801 bytes", "below 768"),
            ("s3://bucket/{namespace}", "{namespace}", "CHIEFSYNC_NAMESPACE"),
            ("s3://bucket/{replica_type}", "{replica_type}", "--replica-type"),
            ("s3://bucket/{run}", "nothing fills it", "CHIEFSYNC_RUN"),
            ("s3://bucket/{pod}", "{pod} that is not known", "{pod_uid}"),
            ("s3://bucket/{job", "without a }", "{job}"),
        ] {
            let error = Destination::parse(typed, &none, false).unwrap_err();
            assert!(error.message.contains(message), "{typed:?}: {}", error.message);
            let found = error.hint.unwrap();
            assert!(found.contains(hint), "{typed:?}: {found}");
        }
    }
}
