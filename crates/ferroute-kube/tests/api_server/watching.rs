use ferroute_config::MediaType;
use ferroute_kube::testing::{FakeApiServer, Streaming};
use ferroute_source::Resource;
use serde_json::json;

use crate::{Consumer, MEDIA_TYPES, STREAM, service, service_requests, slice, watch_from};

/// Starts with two Services and a slice, all observed.
async fn started() -> (FakeApiServer, Consumer) {
    started_in(MediaType::Protobuf).await
}

async fn started_in(media_type: MediaType) -> (FakeApiServer, Consumer) {
    let fake = FakeApiServer::start().await;
    fake.apply(Resource::Services, service("a", "10.0.0.1"));
    fake.apply(Resource::Services, service("b", "10.0.0.2"));
    fake.apply(Resource::EndpointSlices, slice("a-1", "10.1.0.1"));
    let mut consumer = Consumer::start_in(media_type, &fake).await;
    consumer.until_synced().await;
    consumer.catch_up(&fake).await;
    consumer.take_log();
    (fake, consumer)
}

#[tokio::test]
async fn changes_are_emitted_as_they_arrive() {
    for media_type in MEDIA_TYPES {
        let (fake, mut consumer) = started_in(media_type).await;
        fake.apply(Resource::Services, service("a", "10.0.0.9"));
        fake.apply(Resource::EndpointSlices, slice("a-2", "10.1.0.2"));
        fake.delete(Resource::Services, "default", "b");
        fake.delete(Resource::EndpointSlices, "default", "a-1");
        consumer.catch_up(&fake).await;
        assert_eq!(
            consumer.take_log(),
            [
                "EndpointSlices default/a-1 deleted",
                "EndpointSlices default/a-2 10.1.0.2",
                "Services default/a 10.0.0.9",
                "Services default/b deleted",
            ]
        );
    }
}

#[tokio::test]
async fn watch_that_is_cut_within_an_object_resumes_from_the_last_version() {
    for media_type in MEDIA_TYPES {
        let (fake, mut consumer) = started_in(media_type).await;
        let version = fake.apply(Resource::Services, service("a", "10.0.0.9"));
        consumer.until_service("a", "10.0.0.9").await;
        fake.cut_watches();
        consumer.catch_up(&fake).await;
        assert_eq!(consumer.take_log(), ["Services default/a 10.0.0.9"]);
        assert_eq!(service_requests(&fake), [STREAM, &watch_from(version)]);
    }
}

#[tokio::test]
async fn changes_between_watches_are_not_lost() {
    let (fake, mut consumer) = started().await;
    fake.end_watches();
    fake.apply(Resource::Services, service("a", "10.0.0.7"));
    fake.delete(Resource::Services, "default", "b");
    consumer.catch_up(&fake).await;
    assert_eq!(consumer.take_log(), ["Services default/a 10.0.0.7", "Services default/b deleted"]);
}

#[tokio::test]
async fn bookmarks_advance_the_version() {
    for media_type in MEDIA_TYPES {
        let (fake, mut consumer) = started_in(media_type).await;
        // Changes of another kind, so that only a bookmark advances the watch of Services.
        for number in 0..10 {
            fake.apply(Resource::EndpointSlices, slice("a-1", &format!("10.1.1.{number}")));
        }
        let version = fake.apply(Resource::EndpointSlices, slice("a-1", "10.1.2.0"));
        fake.bookmark();
        let has_slice = |observed: &crate::Observed| observed.has(Resource::EndpointSlices, "default/a-1", "10.1.2.0");
        consumer.until("the last slice", has_slice).await;
        fake.end_watches();
        consumer.catch_up(&fake).await;
        assert_eq!(*service_requests(&fake).last().unwrap(), watch_from(version));
    }
}

#[tokio::test]
async fn expired_version_leads_to_a_list_that_emits_only_changes() {
    for media_type in MEDIA_TYPES {
        for in_watch in [false, true] {
            for streaming in [Streaming::Yes, Streaming::Rejected] {
                let (fake, mut consumer) = started_in(media_type).await;
                fake.behave(|behaviour| {
                    (behaviour.streaming, behaviour.expires_in_watch) = (streaming, in_watch);
                });
                fake.end_watches();
                fake.apply(Resource::Services, service("c", "10.0.0.3"));
                fake.delete(Resource::Services, "default", "b");
                fake.delete(Resource::EndpointSlices, "default", "a-1");
                fake.compact();
                consumer.until("a second list", |observed| observed.is_synced(2)).await;
                consumer.catch_up(&fake).await;
                let changes =
                    ["EndpointSlices default/a-1 deleted", "Services default/b deleted", "Services default/c 10.0.0.3"];
                assert_eq!(consumer.take_log(), changes, "{in_watch} {streaming:?}");
            }
        }
    }
}

#[tokio::test]
async fn repeated_changes_are_ignored() {
    for media_type in MEDIA_TYPES {
        let (fake, mut consumer) = started_in(media_type).await;
        fake.behave(|behaviour| behaviour.repeats = true);
        fake.end_watches();
        for number in 0..30 {
            fake.apply(Resource::Services, service("a", &format!("10.0.1.{number}")));
            fake.delete(Resource::Services, "default", "b");
            fake.apply(Resource::Services, service("b", &format!("10.0.2.{number}")));
        }
        fake.delete(Resource::Services, "default", "b");
        consumer.catch_up(&fake).await;
        // `Observed` checks each event.
        assert!(consumer.observed.has(Resource::Services, "default/a", "10.0.1.29"));
        assert!(!consumer.observed.objects.contains_key(&(Resource::Services, "default/b".to_owned())));
    }
}

#[tokio::test]
async fn rolled_back_server_is_listed_again() {
    for media_type in MEDIA_TYPES {
        let (fake, mut consumer) = started_in(media_type).await;
        let before = fake.apply(Resource::Services, service("a", "10.0.0.8"));
        fake.delete(Resource::Services, "default", "b");
        let last = fake.apply(Resource::Services, service("c", "10.0.0.3"));
        consumer.until_service("c", "10.0.0.3").await;
        assert!(last > before);
        consumer.take_log();
        fake.restore(before);
        fake.bookmark();
        consumer.until("a second list of services", |observed| observed.synced[&Resource::Services] == 2).await;
        assert_eq!(consumer.take_log(), ["Services default/b 10.0.0.2", "Services default/c deleted"]);
    }
}

#[tokio::test]
async fn invalid_object_is_ignored_and_reported_until_it_is_valid() {
    for media_type in MEDIA_TYPES {
        let (fake, mut consumer) = started_in(media_type).await;
        let mut bad = service("a", "10.0.0.1");
        bad["spec"]["ports"] = json!([{"port": 80}, {"port": "http"}]);
        fake.apply(Resource::Services, bad.clone());
        fake.apply(Resource::Services, service("b", "10.0.0.3"));
        consumer.catch_up(&fake).await;
        let field = match media_type {
            MediaType::Json => "spec.ports[1].port: invalid type: string \"http\", expected i32",
            MediaType::Protobuf => "spec.ports.port: invalid wire type: LengthDelimited (expected Varint)",
        };
        let problem = format!("ignoring invalid Service default/a; keeping its last valid version: {field}");
        assert_eq!(consumer.take_log(), ["Services default/b 10.0.0.3".to_owned(), format!("problem: {problem}")]);
        assert!(consumer.observed.has(Resource::Services, "default/a", "10.0.0.1"));

        // Another list, or another change with the same error, is not reported.
        fake.apply(Resource::Services, bad);
        fake.compact();
        fake.end_watches();
        consumer.until("a second list", |observed| observed.synced[&Resource::Services] == 2).await;
        consumer.catch_up(&fake).await;
        assert_eq!(consumer.take_log(), [""; 0]);

        fake.apply(Resource::Services, service("a", "10.0.0.4"));
        consumer.catch_up(&fake).await;
        assert_eq!(consumer.take_log(), ["Services default/a 10.0.0.4".to_owned(), format!("resolved: {problem}")]);
    }
}

#[tokio::test]
async fn deletion_of_an_object_that_was_never_valid_is_not_emitted() {
    for media_type in MEDIA_TYPES {
        let (fake, mut consumer) = started_in(media_type).await;
        fake.apply(
            Resource::EndpointSlices,
            json!({"metadata": {"namespace": "default", "name": "bad"}, "endpoints": 7}),
        );
        consumer.catch_up(&fake).await;
        fake.delete(Resource::EndpointSlices, "default", "bad");
        consumer.catch_up(&fake).await;
        let field = match media_type {
            MediaType::Json => "endpoints: invalid type: integer `7`, expected a sequence",
            MediaType::Protobuf => "endpoints: invalid wire type: Varint (expected LengthDelimited)",
        };
        let problem = format!("ignoring invalid EndpointSlice default/bad; keeping its last valid version: {field}");
        assert_eq!(consumer.take_log(), [format!("problem: {problem}"), format!("resolved: {problem}")]);
    }
}

#[tokio::test]
async fn object_without_a_name_does_not_end_the_watch() {
    for media_type in MEDIA_TYPES {
        let (fake, mut consumer) = started_in(media_type).await;
        for metadata in [json!({}), json!({"name": 7}), json!("x")] {
            fake.send("ADDED", json!({"metadata": metadata}));
            consumer.catch_up(&fake).await;
        }
        let log = consumer.take_log();
        assert_eq!(log.len(), Resource::ALL.len(), "once for each kind: {log:?}");
        assert!(log.iter().all(|line| line.contains("without a name")), "{log:?}");
    }
}

#[tokio::test]
async fn events_of_unknown_types_are_ignored() {
    for media_type in MEDIA_TYPES {
        let (fake, mut consumer) = started_in(media_type).await;
        fake.send("GREETING", json!({"hello": "world"}));
        consumer.catch_up(&fake).await;
        assert_eq!(consumer.take_log(), [""; 0]);
        assert_eq!(service_requests(&fake), [STREAM]);
    }
}

#[tokio::test]
async fn source_ends_when_the_receiver_is_closed() {
    let (fake, consumer) = started().await;
    let Consumer { batches, task, .. } = consumer;
    drop(batches);
    task.await.unwrap();
    drop(fake);
}
