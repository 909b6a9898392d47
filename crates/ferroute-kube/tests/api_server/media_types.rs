//! Negotiation of media types.

use ferroute_config::{ClientConnectionConfiguration, MediaType};
use ferroute_kube::testing::{FakeApiServer, Fault, Streaming};
use ferroute_source::Resource;

use crate::{Consumer, MEDIA_TYPES, STREAM, connection, connection_in, service, service_requests, timing};

async fn with_a_service() -> FakeApiServer {
    let fake = FakeApiServer::start().await;
    fake.apply(Resource::Services, service("a", "10.0.0.1"));
    fake
}

/// Runs until all kinds are listed and a change has arrived, and returns the distinct headers `accept`.
async fn accept_headers(fake: &FakeApiServer, connection: &ClientConnectionConfiguration) -> Vec<String> {
    let mut consumer = Consumer::start_configured(fake, connection, timing()).await;
    consumer.until_synced().await;
    consumer.catch_up(fake).await;
    assert_eq!(consumer.take_log(), ["Services default/a 10.0.0.1"]);
    let mut headers = fake.accept_headers();
    headers.sort_unstable();
    headers.dedup();
    headers
}

#[tokio::test]
async fn configured_media_type_is_requested_and_with_protobuf_json_too() {
    let fake = with_a_service().await;
    let both =
        "application/vnd.kubernetes.protobuf;drop=metadata.managedFields,application/json;drop=metadata.managedFields";
    assert_eq!(accept_headers(&fake, &connection_in(MediaType::Protobuf)).await, [both]);
    let fake = with_a_service().await;
    assert_eq!(
        accept_headers(&fake, &connection_in(MediaType::Json)).await,
        ["application/json;drop=metadata.managedFields"]
    );
    let fake = with_a_service().await;
    let accept_content_types = "application/json,application/vnd.kubernetes.protobuf".to_owned();
    let connection = ClientConnectionConfiguration { accept_content_types, ..connection() };
    assert_eq!(
        accept_headers(&fake, &connection).await,
        [
            "application/json;drop=metadata.managedFields,application/vnd.kubernetes.protobuf;drop=metadata.managedFields"
        ]
    );
}

#[tokio::test]
async fn json_responses_are_accepted_where_protobuf_is_preferred() {
    for streaming in [Streaming::Yes, Streaming::Rejected] {
        let fake = with_a_service().await;
        fake.behave(|behaviour| (behaviour.protobuf, behaviour.streaming) = (false, streaming));
        let both = "application/vnd.kubernetes.protobuf;drop=metadata.managedFields,application/json;drop=metadata.managedFields";
        assert_eq!(accept_headers(&fake, &connection()).await, [both]);
    }
}

#[tokio::test]
async fn json_is_requested_if_the_only_media_type_is_not_supported() {
    let fake = with_a_service().await;
    fake.behave(|behaviour| behaviour.protobuf = false);
    let accept_content_types = MediaType::Protobuf.as_str().to_owned();
    let connection = ClientConnectionConfiguration { accept_content_types, ..connection() };
    let headers = accept_headers(&fake, &connection).await;
    assert_eq!(headers, ["application/json", "application/vnd.kubernetes.protobuf;drop=metadata.managedFields"]);
    assert_eq!(service_requests(&fake), [STREAM, STREAM], "each kind falls back once");
}

#[tokio::test]
async fn server_without_a_supported_media_type_is_reported() {
    for media_type in MEDIA_TYPES {
        let fake = with_a_service().await;
        Resource::ALL.iter().for_each(|_| fake.inject(Fault::Status(406)));
        // The second request of each kind.
        Resource::ALL.iter().for_each(|_| fake.inject(Fault::Status(406)));
        let mut consumer = Consumer::start_in(media_type, &fake).await;
        consumer.until_synced().await;
        consumer.catch_up(&fake).await;
        let problems = consumer.take_log().into_iter().filter(|line| line.starts_with("problem: ")).collect::<Vec<_>>();
        assert!(problems.iter().any(|line| line.contains("returns 406 Not Acceptable")), "{problems:?}");
    }
}
