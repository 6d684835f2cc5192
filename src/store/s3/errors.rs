//! From what the SDK and the server say to what the caller does next, with a hint for the person who reads the log.
//!
//! The server's code decides; where there is none (a HEAD has no body), the status does. Nothing that is put into a
//! message can hold a secret: the server's code and message, our own names, and the root cause of a connection's failure.

use std::error::Error;

use aws_credential_types::provider::error::CredentialsError;
use aws_sdk_s3::config::http::HttpResponse;
use aws_sdk_s3::error::{ProvideErrorMetadata, SdkError};

use super::transport::CA_BUNDLE_VARIABLE;
use crate::store::{ErrorKind, RetryReason, StoreError};

/// What the hints need to know of the place.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) bucket: String,
    /// The custom endpoint; `None` for AWS.
    pub(super) endpoint: Option<String>,
    pub(super) region: String,
}

/// What is left of an SDK error once its type is gone.
#[derive(Debug, Default)]
pub(super) struct Failure {
    pub(super) status: Option<u16>,
    pub(super) code: Option<String>,
    message: Option<String>,
    /// `x-amz-bucket-region`: the answer to a request that went to the wrong one.
    bucket_region: Option<String>,
    transport: Option<Transport>,
    /// The answer's body could not be read.
    is_torn: bool,
}

/// Where a request without an answer failed.
#[derive(Debug)]
enum Transport {
    NoCredentials,
    CredentialsBroken(String),
    CredentialsLate(String),
    Timeout(String),
    Tls(String),
    Connection(String),
    Ours(String),
}

impl Failure {
    pub(super) fn of<E>(error: SdkError<E, HttpResponse>) -> Failure
    where
        E: ProvideErrorMetadata + Error + 'static,
    {
        let mut failure = Failure::default();
        if let Some(raw) = error.raw_response() {
            failure.status = Some(raw.status().as_u16());
            failure.bucket_region = raw.headers().get("x-amz-bucket-region").map(str::to_owned);
            // MinIO answers a HEAD with the code that a body would hold.
            failure.code = raw.headers().get("x-minio-error-code").map(str::to_owned);
            failure.message = raw.headers().get("x-minio-error-desc").map(|text| text.trim_matches('"').to_owned());
        }
        match &error {
            SdkError::ServiceError(service) => {
                let meta = service.err().meta();
                if let Some(code) = meta.code() {
                    failure.code = Some(code.to_owned());
                }
                if let Some(message) = meta.message() {
                    failure.message = Some(message.to_owned());
                } else if failure.code.is_none() {
                    failure.message = service.raw().body().bytes().and_then(first_words);
                }
            }
            SdkError::ResponseError(response) => {
                failure.message = response.raw().body().bytes().and_then(first_words);
                failure.is_torn = failure.message.is_none();
                // An answer that broke off; an error status speaks for itself.
                if failure.status.is_some_and(|status| status < 400) {
                    failure.transport = Some(transport(&error));
                }
            }
            _ => failure.transport = Some(transport(&error)),
        }
        failure
    }
}

/// The start of a body that is no S3 error, on one line: a proxy's page, Go's "Client sent an HTTP request to an HTTPS server".
fn first_words(body: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(&body[..body.len().min(200)]);
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    (!line.is_empty()).then_some(line)
}

/// The messages of an error and its causes, outermost first.
fn causes(error: &(dyn Error + 'static)) -> Vec<String> {
    let mut found = Vec::new();
    let mut next = Some(error);
    while let Some(error) = next {
        found.push(error.to_string());
        next = error.source();
    }
    found
}

fn transport<E: Error + 'static>(error: &SdkError<E, HttpResponse>) -> Transport {
    let mut next: Option<&(dyn Error + 'static)> = Some(error);
    while let Some(cause) = next {
        if let Some(credentials) = cause.downcast_ref::<CredentialsError>() {
            let why = causes(credentials).pop().unwrap_or_default();
            return match credentials {
                CredentialsError::CredentialsNotLoaded(_) => Transport::NoCredentials,
                CredentialsError::InvalidConfiguration(_) => Transport::CredentialsBroken(why),
                _ => Transport::CredentialsLate(why),
            };
        }
        next = cause.source();
    }
    let causes = causes(error);
    let root = causes.last().cloned().unwrap_or_default();
    let all = causes.join(": ");
    let timed_out = matches!(error, SdkError::TimeoutError(_))
        || matches!(error, SdkError::DispatchFailure(failure) if failure.is_timeout());
    if timed_out {
        Transport::Timeout(root)
    } else if ["certificate", "corrupt message", "InvalidContentType", "received fatal alert", "UnknownIssuer"]
        .iter()
        .any(|sign| all.contains(sign))
    {
        Transport::Tls(root)
    } else if matches!(error, SdkError::ConstructionFailure(_)) {
        Transport::Ours(root)
    } else {
        Transport::Connection(root)
    }
}

/// What the caller does about a server's answer.
pub(super) fn classify(code: Option<&str>, status: u16) -> ErrorKind {
    use ErrorKind::{Corrupt, Fenced, Missing, Refused, Retry, Stop, Unsupported};
    use RetryReason as Why;
    match code.unwrap_or("") {
        "InvalidAccessKeyId"
        | "SignatureDoesNotMatch"
        | "AccessDenied"
        | "AccountProblem"
        | "AllAccessDisabled"
        | "InvalidSecurity"
        | "InvalidToken"
        | "NotSignedUp"
        | "NoSuchBucket"
        | "InvalidBucketName"
        | "PermanentRedirect"
        | "AuthorizationHeaderMalformed"
        | "IllegalLocationConstraintException" => Stop,
        "ExpiredToken" | "ExpiredTokenException" | "TokenRefreshRequired" => Retry(Why::Expired),
        "RequestTimeTooSkewed" | "RequestExpired" | "RequestInTheFuture" => Retry(Why::Skew),
        "SlowDown"
        | "SlowDownRead"
        | "SlowDownWrite"
        | "ServiceUnavailable"
        | "Throttling"
        | "ThrottlingException"
        | "RequestThrottled"
        | "RequestLimitExceeded"
        | "BandwidthLimitExceeded"
        | "TooManyRequests"
        | "Busy" => Retry(Why::SlowDown),
        "InternalError"
        | "InternalServerError"
        | "TemporaryRedirect"
        | "XMinioStorageFull"
        | "InsufficientStorage"
        | "XMinioServerNotInitialized"
        | "XMinioBackendDown"
        | "QuotaExceeded"
        | "XMinioAdminBucketQuotaExceeded" => Retry(Why::Server),
        "RequestTimeout" | "RequestTimedOut" => Retry(Why::Timeout),
        "IncompleteBody" => Retry(Why::Connection),
        "ConditionalRequestConflict" | "OperationAborted" => Retry(Why::Conflict),
        "PreconditionFailed" => Fenced,
        "BadDigest" | "InvalidDigest" | "XAmzContentSHA256Mismatch" | "XAmzContentChecksumMismatch" => Corrupt,
        "NoSuchKey" | "NotFound" | "NoSuchUpload" | "NoSuchVersion" => Missing,
        "NotImplemented" | "MethodNotAllowed" => Unsupported,
        "EntityTooLarge"
        | "EntityTooSmall"
        | "InvalidArgument"
        | "InvalidObjectState"
        | "InvalidPart"
        | "InvalidPartOrder"
        | "InvalidRange"
        | "InvalidRequest"
        | "InvalidURI"
        | "KeyTooLong"
        | "KeyTooLongError"
        | "MetadataTooLarge"
        | "XMinioInvalidObjectName"
        | "XMinioObjectExistsAsDirectory"
        | "XMinioParentIsObject"
        | "DirectoryObjectContainsData"
        | "ExistingObjectIsDirectory"
        | "ObjectParentIsFile" => Refused,
        _ => match status {
            200..=299 => Retry(Why::Server),
            301 | 307 | 308 | 401 | 403 => Stop,
            404 => Missing,
            405 | 501 => Unsupported,
            408 => Retry(Why::Timeout),
            409 => Retry(Why::Conflict),
            412 => Fenced,
            429 | 503 => Retry(Why::SlowDown),
            500..=599 => Retry(Why::Server),
            _ => Refused,
        },
    }
}

/// The permission that an operation needs, as IAM writes it.
fn permission(operation: &str) -> &'static str {
    match operation {
        "AbortMultipartUpload" => "s3:AbortMultipartUpload",
        "ListParts" => "s3:ListMultipartUploadParts",
        "ListMultipartUploads" => "s3:ListBucketMultipartUploads",
        "ListObjectsV2" => "s3:ListBucket",
        "HeadObject" | "GetObject" => {
            "s3:GetObject (and s3:ListBucket, without which a missing object looks forbidden)"
        }
        "CopyObject" | "UploadPartCopy" => "s3:GetObject and s3:PutObject",
        "DeleteObject" => "s3:DeleteObject",
        _ => "s3:PutObject",
    }
}

const WHERE_CREDENTIALS_ARE_LOOKED_FOR: &str = "looked for in AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, the profile \
     (AWS_PROFILE, ~/.aws), web identity (IRSA: AWS_WEB_IDENTITY_TOKEN_FILE, AWS_ROLE_ARN), Pod Identity or ECS \
     (AWS_CONTAINER_CREDENTIALS_FULL_URI) and the instance's metadata";

fn hint(code: &str, failure: &Failure, operation: &str, place: &Place) -> Option<String> {
    let Place { bucket, endpoint, region } = place;
    let at = endpoint.as_deref().unwrap_or("AWS");
    Some(match code {
        "InvalidAccessKeyId" => {
            format!("{at} does not know this access key: check AWS_ACCESS_KEY_ID, or the profile or role it comes from")
        }
        "SignatureDoesNotMatch" => {
            "the secret key does not belong to the access key (check AWS_SECRET_ACCESS_KEY), or a proxy changes requests on \
             their way"
                .to_owned()
        }
        "AccessDenied" => format!(
            "{operation} needs {} on arn:aws:s3:::{bucket}{}",
            permission(operation),
            if operation.starts_with("ListObjects") || operation == "ListMultipartUploads" { "" } else { "/*" }
        ),
        "NoSuchBucket" => {
            let endpoint = endpoint.as_ref().map(|url| format!(" --endpoint-url {url}")).unwrap_or_default();
            format!("create it first (aws s3 mb s3://{bucket}{endpoint}) or correct the destination")
        }
        "PermanentRedirect" | "AuthorizationHeaderMalformed" | "IllegalLocationConstraintException" => {
            match failure.bucket_region.as_deref().filter(|there| there != region) {
                Some(there) => format!("the bucket is in {there}: set AWS_REGION={there}"),
                None => format!("the region {region} is not the bucket's: set AWS_REGION"),
            }
        }
        "ExpiredToken" | "ExpiredTokenException" | "TokenRefreshRequired" | "InvalidToken" => {
            "the session token is refused; fresh credentials are fetched where their source can give them (static ones in \
             AWS_SESSION_TOKEN can't be renewed)"
                .to_owned()
        }
        "RequestTimeTooSkewed" | "RequestExpired" | "RequestInTheFuture" => {
            "this machine's clock and the server's differ by minutes: set the clock (the server's time is used meanwhile)"
                .to_owned()
        }
        "EntityTooLarge" => "the store takes no object or part of this size".to_owned(),
        "KeyTooLong" | "KeyTooLongError" | "XMinioInvalidObjectName" => {
            "the store takes no object of this name (S3: 1,024 bytes; a store on a file system: 255 a segment)".to_owned()
        }
        "XMinioParentIsObject"
        | "XMinioObjectExistsAsDirectory"
        | "ExistingObjectIsDirectory"
        | "ObjectParentIsFile" => {
            "a store on a file system can't hold an object a and an object a/b at once, nor a segment of a name above 255 \
             bytes: rename or exclude it"
                .to_owned()
        }
        "XMinioStorageFull" | "InsufficientStorage" | "QuotaExceeded" | "XMinioAdminBucketQuotaExceeded" => {
            "the store is full: free space there; uploads go on when there is room".to_owned()
        }
        _ => return None,
    })
}

/// The whole error.
pub(super) fn to_store_error(failure: Failure, operation: &'static str, target: String, place: &Place) -> StoreError {
    if let Some(transport) = &failure.transport {
        return transport_error(transport, operation, target, place);
    }
    let status = failure.status.unwrap_or(500);
    let code = failure.code.as_deref();
    let kind = classify(code, status);
    let mut message = match (code, &failure.message) {
        (Some(code), Some(message)) => format!("{code}: {message}"),
        (Some(code), None) => code.to_owned(),
        (None, Some(message)) => format!("HTTP {status}: {message}"),
        (None, None) => format!("HTTP {status}"),
    };
    message.truncate(message.floor_char_boundary(500));
    // Without a body only the status speaks.
    let code = code.unwrap_or(match status {
        301 | 307 | 308 => "PermanentRedirect",
        401 | 403 => "AccessDenied",
        _ => "",
    });
    let mut error = StoreError::new(kind, operation, target, message);
    error.hint = hint(code, &failure, operation, place);
    // Go's TLS servers answer plain HTTP with a 400 in words, and close so abruptly that the words are often lost.
    let is_plain = place.endpoint.as_ref().is_some_and(|url| url.starts_with("http:"));
    let in_words = error.message.contains("HTTP request to an HTTPS server");
    if is_plain && (in_words || (status == 400 && failure.is_torn)) {
        error.kind = ErrorKind::Stop;
        error.hint = Some("the endpoint seems to speak TLS: write https:// in AWS_ENDPOINT_URL".to_owned());
    }
    error
}

/// A body that broke off on its way down.
pub(super) fn broken_download(error: &(dyn Error + 'static), target: String) -> StoreError {
    let causes = causes(error);
    let stalled = causes.iter().any(|cause| cause.contains("minimum throughput"));
    let reason = if stalled { RetryReason::Timeout } else { RetryReason::Connection };
    StoreError::new(ErrorKind::Retry(reason), "GetObject", target, causes.join(": "))
}

fn transport_error(transport: &Transport, operation: &'static str, target: String, place: &Place) -> StoreError {
    let at = match &place.endpoint {
        Some(url) => url.clone(),
        None => format!("S3 in {}", place.region),
    };
    let retry = |reason, message: String| StoreError::new(ErrorKind::Retry(reason), operation, target.clone(), message);
    let stop = |message: String| StoreError::new(ErrorKind::Stop, operation, target.clone(), message);
    match transport {
        Transport::NoCredentials => {
            stop("no credentials found".to_owned()).with_hint(WHERE_CREDENTIALS_ARE_LOOKED_FOR)
        }
        Transport::CredentialsBroken(why) => stop(format!("the credentials' configuration can't be used: {why}"))
            .with_hint("check the profile (AWS_PROFILE, ~/.aws/config)"),
        Transport::CredentialsLate(why) => {
            retry(RetryReason::Expired, format!("credentials could not be fetched: {why}"))
                .with_hint("the source of credentials (STS, the pod's identity agent, instance metadata) does not answer")
        }
        Transport::Timeout(why) => retry(RetryReason::Timeout, format!("no answer from {at} in time: {why}"))
            .with_hint("a firewall or network policy that drops packets looks like this"),
        Transport::Tls(why) if why.contains("corrupt message") || why.contains("InvalidContentType") => {
            stop(format!("no TLS at {at}: {why}"))
                .with_hint("the endpoint seems to speak plain HTTP: write http:// in AWS_ENDPOINT_URL")
        }
        Transport::Tls(why) => stop(format!("TLS with {at} failed: {why}")).with_hint(format!(
            "if its certificate is signed by an authority of your own, name that authority's PEM file in {CA_BUNDLE_VARIABLE}"
        )),
        Transport::Connection(why) => {
            let hint = if why.contains("lookup") || why.contains("resolve") || why.contains("Name or service") {
                format!("the name in {at} can't be resolved: check AWS_ENDPOINT_URL and the cluster's DNS")
            } else {
                format!("is {at} up, and AWS_ENDPOINT_URL right?")
            };
            retry(RetryReason::Connection, format!("no connection to {at}: {why}")).with_hint(hint)
        }
        Transport::Ours(why) => StoreError::new(ErrorKind::Refused, operation, target.clone(), why.clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_code_decides_then_the_status() {
        use ErrorKind::{Corrupt, Fenced, Missing, Refused, Retry, Stop, Unsupported};
        use RetryReason::{Conflict, Connection, Expired, Server, Skew, SlowDown, Timeout};
        let table: &[(Option<&str>, u16, ErrorKind)] = &[
            (Some("InvalidAccessKeyId"), 403, Stop),
            (Some("SignatureDoesNotMatch"), 403, Stop),
            (Some("AccessDenied"), 403, Stop),
            (Some("NoSuchBucket"), 404, Stop),
            (Some("PermanentRedirect"), 301, Stop),
            (Some("AuthorizationHeaderMalformed"), 400, Stop),
            (Some("ExpiredToken"), 400, Retry(Expired)),
            (Some("RequestTimeTooSkewed"), 403, Retry(Skew)),
            (Some("SlowDown"), 503, Retry(SlowDown)),
            (Some("SlowDownWrite"), 503, Retry(SlowDown)),
            (Some("InternalError"), 500, Retry(Server)),
            (Some("InternalError"), 200, Retry(Server)),
            (Some("RequestTimeout"), 400, Retry(Timeout)),
            (Some("IncompleteBody"), 400, Retry(Connection)),
            (Some("OperationAborted"), 409, Retry(Conflict)),
            (Some("ConditionalRequestConflict"), 409, Retry(Conflict)),
            (Some("PreconditionFailed"), 412, Fenced),
            (Some("BadDigest"), 400, Corrupt),
            (Some("XAmzContentSHA256Mismatch"), 400, Corrupt),
            (Some("NoSuchKey"), 404, Missing),
            (Some("NoSuchUpload"), 404, Missing),
            (Some("NoSuchUpload"), 200, Missing),
            (Some("NotImplemented"), 501, Unsupported),
            (Some("EntityTooLarge"), 400, Refused),
            (Some("KeyTooLongError"), 400, Refused),
            (Some("InvalidArgument"), 400, Refused),
            (Some("XMinioParentIsObject"), 400, Refused),
            (Some("XMinioStorageFull"), 507, Retry(Server)),
            (Some("SomethingNew"), 503, Retry(SlowDown)),
            (Some("SomethingNew"), 400, Refused),
            (None, 400, Refused),
            (None, 403, Stop),
            (None, 404, Missing),
            (None, 408, Retry(Timeout)),
            (None, 412, Fenced),
            (None, 429, Retry(SlowDown)),
            (None, 502, Retry(Server)),
            (None, 507, Retry(Server)),
            (None, 200, Retry(Server)),
        ];
        for (code, status, kind) in table {
            assert_eq!(classify(*code, *status), *kind, "{code:?} {status}");
        }
    }

    #[test]
    fn a_hint_says_what_to_do() {
        let place =
            Place { bucket: "b".to_owned(), endpoint: Some("http://h:1".to_owned()), region: "us-east-1".to_owned() };
        let hint_of = |code: &str, operation: &'static str, region: Option<&str>| {
            let failure = Failure {
                status: Some(400),
                code: Some(code.to_owned()),
                bucket_region: region.map(str::to_owned),
                ..Failure::default()
            };
            to_store_error(failure, operation, "s3://b/x".to_owned(), &place).hint.unwrap_or_default()
        };
        for (code, operation, region, words) in [
            ("AccessDenied", "PutObject", None, "s3:PutObject on arn:aws:s3:::b/*"),
            ("AccessDenied", "ListObjectsV2", None, "s3:ListBucket on arn:aws:s3:::b"),
            ("AccessDenied", "ListParts", None, "s3:ListMultipartUploadParts"),
            ("NoSuchBucket", "PutObject", None, "aws s3 mb s3://b --endpoint-url http://h:1"),
            ("PermanentRedirect", "PutObject", Some("eu-west-1"), "AWS_REGION=eu-west-1"),
            ("RequestTimeTooSkewed", "PutObject", None, "clock"),
            ("InvalidAccessKeyId", "PutObject", None, "AWS_ACCESS_KEY_ID"),
            ("SignatureDoesNotMatch", "PutObject", None, "AWS_SECRET_ACCESS_KEY"),
            ("XMinioParentIsObject", "PutObject", None, "a/b"),
            ("XMinioStorageFull", "PutObject", None, "full"),
        ] {
            let hint = hint_of(code, operation, region);
            assert!(hint.contains(words), "{code}: {hint}");
        }
    }
}
