//! Compressed responses.

use std::fs;

use ferroute_config::{ClientConnectionConfiguration, MediaType};
use ferroute_kube::testing::{FakeApiServer, Fault, Streaming};
use ferroute_source::Resource;

use crate::{Consumer, MEDIA_TYPES, connection, connection_in, service, slice, timing};

const SERVICES: usize = 200;

async fn with_services(gzip: bool, streaming: Streaming) -> FakeApiServer {
    let fake = FakeApiServer::start().await;
    fake.behave(|behaviour| (behaviour.gzip, behaviour.streaming, behaviour.max_page) = (gzip, streaming, 50));
    for number in 0..SERVICES {
        fake.apply(Resource::Services, service(&format!("service-{number}"), "10.0.0.1"));
        fake.apply(Resource::EndpointSlices, slice(&format!("service-{number}"), "10.1.0.1"));
    }
    fake
}

/// Lists, and follows some changes. Returns the number of bytes that the server has sent.
async fn bytes(fake: &FakeApiServer, connection: &ClientConnectionConfiguration) -> u64 {
    let mut consumer = Consumer::start_configured(fake, connection, timing()).await;
    consumer.until_synced().await;
    for _ in 0..3 {
        consumer.catch_up(fake).await;
    }
    let last = format!("default/service-{}", SERVICES - 1);
    assert!(consumer.observed.has(Resource::Services, &last, "10.0.0.1"));
    assert!(consumer.take_log().iter().all(|line| !line.starts_with("problem: ")));
    fake.bytes_sent()
}

#[tokio::test]
async fn compressed_lists_and_watches_are_read() {
    for media_type in MEDIA_TYPES {
        for streaming in [Streaming::Yes, Streaming::Rejected] {
            let plain = bytes(&with_services(false, streaming).await, &connection_in(media_type)).await;
            let compressed = bytes(&with_services(true, streaming).await, &connection_in(media_type)).await;
            // In a streaming list each object is compressed alone, and small ones in protobuf become longer.
            assert_ne!(compressed, plain, "{media_type:?} {streaming:?}");
            if streaming == Streaming::Rejected {
                assert!(compressed * 3 < plain, "{media_type:?}: {compressed} of {plain} bytes");
            }
        }
    }
}

#[tokio::test]
async fn kubeconfig_can_disable_compression() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("kubeconfig");
    for (setting, is_compressed) in [(true, false), (false, true)] {
        let fake = with_services(true, Streaming::Rejected).await;
        let text = format!(
            "{{current-context: c, contexts: [{{name: c, context: {{cluster: k}}}}], \
             clusters: [{{name: k, cluster: {{server: '{}', disable-compression: {setting}}}}}]}}",
            fake.url()
        );
        fs::write(&path, text).unwrap();
        let kubeconfig = path.to_str().unwrap().to_owned();
        bytes(&fake, &ClientConnectionConfiguration { kubeconfig, ..connection() }).await;
        assert!(
            fake.encodings().iter().all(|encoding| (encoding == "gzip") == is_compressed),
            "{:?}",
            fake.encodings()
        );
    }
}

#[tokio::test]
async fn object_without_an_end_is_rejected_though_its_compressed_form_is_short() {
    let bytes = 64 << 20;
    for streaming in [Streaming::Yes, Streaming::Rejected] {
        let fake = with_services(true, streaming).await;
        Resource::ALL.iter().for_each(|_| fake.inject(Fault::Endless(bytes)));
        let mut consumer = Consumer::start_configured(&fake, &connection_in(MediaType::Json), timing()).await;
        consumer
            .until("a problem", |observed| {
                observed.problems.iter().any(|problem| problem.contains("an object is longer than"))
            })
            .await;
        consumer.until_synced().await;
    }
}
