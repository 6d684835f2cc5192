//! Conditional requests hold, also against each other.

use crate::client::*;
use aws_sdk_s3::primitives::ByteStream;
use dev_s3::Options;

#[tokio::test]
async fn a_write_goes_through_only_on_its_condition() {
    let (server, client) = start(Options::memory()).await;
    let put =
        |text: &'static str| client.put_object().bucket(BUCKET).key("a").body(ByteStream::from_static(text.as_bytes()));
    assert_eq!(code(put("0").if_match("\"x\"").send().await), "NoSuchKey");
    let first = put("1").if_none_match("*").send().await.expect("nothing is there");
    assert_eq!(code(put("2").if_none_match("*").send().await), "PreconditionFailed");
    put("3").if_match(first.e_tag().expect("an ETag")).send().await.expect("it is unchanged");
    assert_eq!(code(put("4").if_match(first.e_tag().expect("an ETag")).send().await), "PreconditionFailed");
    assert_eq!(server.object(BUCKET, "a"), Some(b"3".to_vec()));
}

#[tokio::test]
async fn a_read_goes_through_only_on_its_condition() {
    let (_server, client) = start(Options::memory()).await;
    let etag = put(&client, "a", "x").await;
    let get = || client.get_object().bucket(BUCKET).key("a");
    assert_eq!(code(get().if_match(&etag).send().await), "ok");
    assert_eq!(code(get().if_match("\"other\"").send().await), "PreconditionFailed");
    let head = client.head_object().bucket(BUCKET).key("a").if_none_match(&etag).send().await;
    assert_eq!(head.expect_err("unchanged").raw_response().map(|response| response.status().as_u16()), Some(304));
}

#[tokio::test]
async fn a_delete_goes_through_only_on_its_condition() {
    let (server, client) = start(Options::memory()).await;
    put(&client, "a", "x").await;
    let delete = || client.delete_object().bucket(BUCKET).key("a");
    assert_eq!(code(delete().if_match("\"other\"").send().await), "PreconditionFailed");
    assert_eq!(server.keys(BUCKET), ["a"]);
}

/// Of many writers that all want to be the first, one is; of many swaps from one state, one succeeds.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_many_conditional_writers_one_wins() {
    let (server, client) = start(Options::memory()).await;
    for round in 0..10 {
        let key = format!("head-{round}");
        let create = |writer: u32| {
            let (client, key) = (client.clone(), key.clone());
            tokio::spawn(async move {
                let body = ByteStream::from(writer.to_string().into_bytes());
                code(client.put_object().bucket(BUCKET).key(key).if_none_match("*").body(body).send().await)
            })
        };
        let creations: Vec<_> = (0..8).map(create).collect();
        assert_eq!(winners(creations).await, 1);

        let etag = server.objects(BUCKET).into_iter().find(|object| object.key == key).expect("the winner's").etag;
        let swap = |writer: u32| {
            let (client, key, etag) = (client.clone(), key.clone(), format!("\"{etag}\""));
            tokio::spawn(async move {
                let body = ByteStream::from(format!("swap {writer}").into_bytes());
                code(client.put_object().bucket(BUCKET).key(key).if_match(etag).body(body).send().await)
            })
        };
        let swaps: Vec<_> = (0..8).map(swap).collect();
        assert_eq!(winners(swaps).await, 1);
    }
}

async fn winners(writers: Vec<tokio::task::JoinHandle<String>>) -> usize {
    let mut won = 0;
    for writer in writers {
        match writer.await.expect("the writer ran").as_str() {
            "ok" => won += 1,
            other => assert_eq!(other, "PreconditionFailed"),
        }
    }
    won
}
