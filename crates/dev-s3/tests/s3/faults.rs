//! Each fault does what it says, to those whom it is for.

use crate::client::*;
use aws_sdk_s3::Client;
use aws_sdk_s3::primitives::ByteStream;
use dev_s3::{Fault, Gate, Hold, Operation, Options, Server, When};
use std::time::{Duration, SystemTime};

async fn try_put(client: &Client, key: &str, body: Vec<u8>) -> String {
    code(client.put_object().bucket(BUCKET).key(key).body(ByteStream::from(body)).send().await)
}

fn statuses(server: &Server) -> Vec<u16> {
    server.requests().into_iter().map(|request| request.status).collect()
}

#[tokio::test]
async fn answers_instead_of_deeds() {
    let (server, client) = start(Options::memory()).await;
    for (fault, expected, status) in [
        (Fault::SlowDown, "SlowDown", 503),
        (Fault::InternalError, "InternalError", 500),
        (Fault::ExpiredToken, "ExpiredToken", 400),
        (Fault::RequestTimeTooSkewed, "RequestTimeTooSkewed", 403),
        (Fault::AccessDenied, "AccessDenied", 403),
        (Fault::NoSuchBucket, "NoSuchBucket", 404),
        (Fault::Answer { status: 409, code: "OperationAborted" }, "OperationAborted", 409),
    ] {
        server.clear_requests();
        let rule = server.faults().add(When::operation(Operation::PutObject).times(1), fault);
        assert_eq!(try_put(&client, "a", vec![1; 2_000_000]).await, expected);
        assert_eq!((rule.hits(), statuses(&server)), (1, vec![status]));
        assert_eq!(server.requests()[0].bytes, 2_000_000, "the body is read, so that the answer can be");
        assert!(server.keys(BUCKET).is_empty());
        assert_eq!(try_put(&client, "a", vec![1]).await, "ok", "once only");
        server.delete(BUCKET, "a").expect("the delete succeeds");
        rule.remove();
    }
}

#[tokio::test]
async fn rules_choose_by_operation_key_and_count() {
    let (server, client) = start(Options::memory()).await;
    server.faults().add(When::operation(Operation::PutObject).key("ckpt").nth(2), Fault::SlowDown);
    let mut seen = Vec::new();
    for key in ["ckpt-1", "log", "ckpt-2", "ckpt-3"] {
        seen.push(try_put(&client, key, vec![1]).await);
    }
    assert_eq!(seen, ["ok", "ok", "SlowDown", "ok"]);
}

#[tokio::test]
async fn denied_operations() {
    let (server, client) = start(Options::memory()).await;
    put(&client, "a", "x").await;
    server.faults().deny(Operation::ListObjectsV2);
    assert_eq!(code(client.list_objects_v2().bucket(BUCKET).send().await), "AccessDenied");
    assert_eq!(get(&client, "a").await, b"x");
    server.faults().allow(Operation::ListObjectsV2);
    assert_eq!(code(client.list_objects_v2().bucket(BUCKET).send().await), "ok");
}

#[tokio::test]
async fn a_reset_in_the_middle_of_a_body() {
    let (server, client) = start(Options::memory()).await;
    server.faults().add(When::operation(Operation::PutObject).times(1), Fault::ResetRequest { after_bytes: 1_000_000 });
    assert_eq!(try_put(&client, "a", vec![1; 9_000_000]).await, "no answer");
    let request = server.requests().remove(0);
    assert_eq!(request.status, 0);
    assert!((1_000_000..9_000_000).contains(&request.bytes), "{} bytes", request.bytes);
    assert!(server.keys(BUCKET).is_empty());
}

#[tokio::test]
async fn a_reset_in_the_middle_of_an_answer() {
    let (server, client) = start(Options::memory()).await;
    put(&client, "a", vec![1; 9_000_000]).await;
    server.faults().add(When::operation(Operation::GetObject).times(1), Fault::ResetAnswer { after_bytes: 2_000_000 });
    let got = client.get_object().bucket(BUCKET).key("a").send().await.expect("the answer begins");
    assert!(got.body.collect().await.is_err());
    assert_eq!(get(&client, "a").await.len(), 9_000_000);
}

#[tokio::test]
async fn an_answer_lost_after_the_deed() {
    let (server, client) = start(Options::memory()).await;
    server.faults().add(When::operation(Operation::PutObject).times(1), Fault::LoseAnswer);
    assert_eq!(try_put(&client, "a", b"content".to_vec()).await, "no answer");
    assert_eq!(server.object(BUCKET, "a"), Some(b"content".to_vec()));
    assert_eq!(statuses(&server), [0]);
}

#[tokio::test]
async fn a_byte_flipped_on_its_way_in_is_found_by_who_checks() {
    let (server, client) = start(Options::memory()).await;
    let put = || client.put_object().bucket(BUCKET).key("a").body(ByteStream::from_static(b"content"));
    server.faults().add(When::operation(Operation::PutObject).times(4), Fault::FlipReceived { at: 2 });
    assert_eq!(code(put().checksum_sha256(sha256(b"content")).send().await), "BadDigest");
    // The SDK signs the hash of a body that it has in memory.
    assert_eq!(code(put().send().await), "XAmzContentSHA256Mismatch");
    let framed = connect_eager(&server).put_object().bucket(BUCKET).key("a").body(ByteStream::from_static(b"content"));
    assert_eq!(code(framed.send().await), "BadDigest");
    assert!(server.keys(BUCKET).is_empty());
    let unsigned = put().customize().disable_payload_signing().send().await;
    unsigned.expect("nobody could know");
    assert_eq!(server.object(BUCKET, "a"), Some(b"cootent".to_vec()));
    assert_eq!(code(put().checksum_sha256(sha256(b"content")).send().await), "ok");
}

#[tokio::test]
async fn a_byte_flipped_on_its_way_out() {
    let (server, client) = start(Options::memory()).await;
    let body = noise(1_000_000, 1);
    put(&client, "a", &body).await;
    server.faults().add(When::operation(Operation::GetObject).times(1), Fault::FlipServed { at: 700_000 });
    let got = get(&client, "a").await;
    let differing: Vec<_> = (0..body.len()).filter(|index| got[*index] != body[*index]).collect();
    assert_eq!(differing, [700_000]);
    assert_eq!(get(&client, "a").await, body);
}

#[tokio::test]
async fn a_stalled_request_waits_for_its_gate() {
    let (server, client) = start(Options::memory()).await;
    let gate = Gate::new();
    server.faults().add(When::operation(Operation::PutObject).times(1), Fault::Stall(Hold::Until(gate.clone())));
    let waiting = tokio::spawn({
        let client = client.clone();
        async move { try_put(&client, "a", b"content".to_vec()).await }
    });
    gate.arrived(1).await;
    assert!(server.keys(BUCKET).is_empty() && !waiting.is_finished());
    assert_eq!(try_put(&client, "b", vec![1]).await, "ok", "the others go on");
    gate.open();
    assert_eq!(waiting.await.expect("the writer ran"), "ok");
    assert_eq!(server.keys(BUCKET), ["a", "b"]);
}

#[tokio::test]
async fn a_stalled_answer_comes_after_the_deed() {
    let (server, client) = start(Options::memory()).await;
    let gate = Gate::new();
    server.faults().add(When::operation(Operation::PutObject).times(1), Fault::StallAnswer(Hold::Until(gate.clone())));
    let waiting = tokio::spawn(async move { try_put(&client, "a", b"content".to_vec()).await });
    gate.arrived(1).await;
    assert_eq!(server.object(BUCKET, "a"), Some(b"content".to_vec()));
    assert!(!waiting.is_finished());
    gate.open();
    assert_eq!(waiting.await.expect("the writer ran"), "ok");
}

#[tokio::test]
async fn a_stalled_body_goes_on_where_it_stopped() {
    let (server, client) = start(Options::memory()).await;
    let body = noise(1_000_000, 1);
    put(&client, "a", &body).await;
    let gate = Gate::new();
    let stall = Fault::StallBody { after_bytes: 300_000, hold: Hold::Until(gate.clone()) };
    server.faults().add(When::operation(Operation::GetObject).times(1), stall);
    let mut got = client.get_object().bucket(BUCKET).key("a").send().await.expect("the answer begins");
    let mut read = Vec::new();
    while read.len() < 300_000 {
        read.extend_from_slice(&got.body.next().await.expect("more").expect("a block"));
    }
    assert_eq!(read.len(), 300_000);
    gate.arrived(1).await;
    gate.open();
    while let Some(block) = got.body.next().await {
        read.extend_from_slice(&block.expect("a block"));
    }
    assert_eq!(read, body);
}

#[tokio::test]
async fn a_client_that_gives_up_is_booked_without_an_answer() {
    let (server, client) = start(Options::memory()).await;
    let gate = Gate::new();
    server.faults().add(When::operation(Operation::PutObject), Fault::Stall(Hold::Until(gate.clone())));
    let waiting = tokio::spawn(async move { try_put(&client, "a", b"content".to_vec()).await });
    gate.arrived(1).await;
    waiting.abort();
    let _ = waiting.await;
    server.stop();
    server.stopped().await;
    assert_eq!(statuses(&server), [0]);
}

/// Who signs by another clock than the server's is refused, and told the server's time.
#[tokio::test]
async fn a_skewed_clock() {
    let (server, client) = start(Options::memory()).await;
    server.faults().set_clock_skew(3 * 3600);
    let refused = client.list_buckets().send().await.expect_err("the clocks differ");
    let response = refused.raw_response().expect("an answer");
    assert_eq!(response.status().as_u16(), 403);
    let date = response.headers().get("date").expect("a date").to_owned();
    assert_eq!(code(Err::<(), _>(refused)), "RequestTimeTooSkewed");
    let ahead = server.time().duration_since(SystemTime::now()).expect("it is ahead");
    assert!((ahead + Duration::from_secs(60)).as_secs() > 3 * 3600);
    assert!(date.ends_with("GMT"), "{date}");

    let later = client.list_buckets().send().await;
    later.expect("the SDK has learned the server's time from the answer, and signs by it");
    server.faults().set_clock_skew(0);
    let fresh = connect(&server).list_buckets().send().await;
    fresh.expect("the clocks agree");
}

#[tokio::test]
async fn an_outage_ends_connections_and_lets_nobody_in() {
    let (server, client) = start(Options::memory()).await;
    put(&client, "a", "x").await;
    let gate = Gate::new();
    server.faults().add(When::operation(Operation::GetObject).times(1), Fault::Stall(Hold::Until(gate.clone())));
    let waiting = tokio::spawn({
        let client = client.clone();
        async move { code(client.get_object().bucket(BUCKET).key("a").send().await) }
    });
    gate.arrived(1).await;
    server.faults().set_outage(true);
    assert_eq!(waiting.await.expect("the reader ran"), "no answer");
    assert_eq!(code(client.get_object().bucket(BUCKET).key("a").send().await), "no answer");
    server.faults().set_outage(false);
    assert_eq!(get(&client, "a").await, b"x");
}

/// Complete may answer 200 and say in the body that it failed.
#[tokio::test]
async fn an_error_inside_a_success() {
    let (server, client) = start(Options::memory()).await;
    let fault = Fault::Answer { status: 200, code: "InternalError" };
    server.faults().add(When::operation(Operation::CompleteMultipartUpload), fault);
    let created = client.create_multipart_upload().bucket(BUCKET).key("a").send().await.expect("the upload begins");
    let complete = client.complete_multipart_upload().bucket(BUCKET).key("a");
    let complete = complete.upload_id(created.upload_id().expect("an id")).send().await;
    assert_eq!(code(complete), "InternalError");
    assert_eq!(statuses(&server), [200, 200]);
}
