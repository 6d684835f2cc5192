//! A server with a client that neither retries nor adds anything to what it is told.

use aws_sdk_s3::Client;
use aws_sdk_s3::config::retry::RetryConfig;
use aws_sdk_s3::config::{
    BehaviorVersion, Config, Credentials, Region, RequestChecksumCalculation, ResponseChecksumValidation,
};
use aws_sdk_s3::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_s3::primitives::ByteStream;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use dev_s3::{Options, Server};
use s3s::crypto::{Checksum as _, Md5, Sha256};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

/// The bucket of every test.
pub const BUCKET: &str = "bucket";

pub async fn start(options: Options) -> (Server, Client) {
    let server = Server::start(options.bucket(BUCKET)).await.expect("the server starts");
    let client = connect(&server);
    (server, client)
}

pub fn connect(server: &Server) -> Client {
    connect_as(server, server.access_key(), server.secret_key())
}

/// A client as the SDK is by default: with checksums of its own choice, as trailers behind a framed body.
pub fn connect_eager(server: &Server) -> Client {
    let eager = connect(server).config().to_builder();
    Client::from_conf(eager.request_checksum_calculation(RequestChecksumCalculation::WhenSupported).build())
}

pub fn connect_as(server: &Server, access_key: &str, secret_key: &str) -> Client {
    let config = Config::builder()
        .behavior_version(BehaviorVersion::latest())
        .region(Region::new("us-east-1"))
        .endpoint_url(server.endpoint())
        .force_path_style(true)
        .credentials_provider(Credentials::new(access_key, secret_key, None, None, "test"))
        .request_checksum_calculation(RequestChecksumCalculation::WhenRequired)
        .response_checksum_validation(ResponseChecksumValidation::WhenRequired)
        .retry_config(RetryConfig::disabled())
        .build();
    Client::from_conf(config)
}

/// The code of an error answer; `"none"` for an answer without one, `"no answer"` for a broken connection.
pub fn code<T, E: ProvideErrorMetadata, R>(result: Result<T, SdkError<E, R>>) -> String {
    match result {
        Ok(_) => "ok".into(),
        Err(SdkError::ServiceError(error)) => error.err().code().unwrap_or("none").into(),
        Err(_) => "no answer".into(),
    }
}

pub async fn put(client: &Client, key: &str, body: impl AsRef<[u8]>) -> String {
    let body = ByteStream::from(body.as_ref().to_vec());
    let put = client.put_object().bucket(BUCKET).key(key).body(body).send().await.expect("the put succeeds");
    put.e_tag().expect("an ETag").to_owned()
}

pub async fn get(client: &Client, key: &str) -> Vec<u8> {
    let object = client.get_object().bucket(BUCKET).key(key).send().await.expect("the get succeeds");
    object.body.collect().await.expect("the whole body").to_vec()
}

pub fn sha256(data: &[u8]) -> String {
    STANDARD.encode(Sha256::checksum(data))
}

pub fn md5_hex(data: &[u8]) -> String {
    Md5::checksum(data).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Bytes that differ everywhere, from a seed.
pub fn noise(length: usize, seed: u32) -> Vec<u8> {
    let mut state = seed.wrapping_mul(2_654_435_761).max(1);
    let step = |_| {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state as u8
    };
    (0..length).map(step).collect()
}

/// Sends exactly these bytes and returns all that comes back.
pub async fn raw(server: &Server, request: &[u8]) -> String {
    let mut socket = tokio::net::TcpStream::connect(server.address()).await.expect("a connection");
    socket.write_all(request).await.expect("the request goes out");
    socket.shutdown().await.expect("the sending side closes");
    let mut answer = Vec::new();
    // A reset is an answer too.
    let _ = socket.read_to_end(&mut answer).await;
    String::from_utf8_lossy(&answer).into_owned()
}
