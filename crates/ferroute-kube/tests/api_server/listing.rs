use std::time::Duration;

use ferroute_kube::{
    Timing,
    testing::{FakeApiServer, Fault, Streaming},
};
use ferroute_source::Resource;

use crate::{Consumer, MEDIA_TYPES, STREAM, node, service, service_requests, slice, timing, watch_from};

async fn small_cluster() -> FakeApiServer {
    let fake = FakeApiServer::start().await;
    for number in 1..=5 {
        fake.apply(Resource::Services, service(&format!("s{number}"), &format!("10.0.0.{number}")));
    }
    fake.apply(Resource::EndpointSlices, slice("s1-a", "10.1.0.1"));
    fake.apply(Resource::Nodes, node("node-1", "192.0.2.1"));
    fake.apply(Resource::Nodes, node("node-2", "192.0.2.2"));
    fake
}

const ALL: [&str; 7] = [
    "EndpointSlices default/s1-a 10.1.0.1",
    "Nodes node-1 192.0.2.1",
    "Services default/s1 10.0.0.1",
    "Services default/s2 10.0.0.2",
    "Services default/s3 10.0.0.3",
    "Services default/s4 10.0.0.4",
    "Services default/s5 10.0.0.5",
];

#[tokio::test]
async fn streaming_list_returns_each_object_once_and_continues_as_the_watch() {
    for media_type in MEDIA_TYPES {
        let fake = small_cluster().await;
        let mut consumer = Consumer::start_in(media_type, &fake).await;
        consumer.until_synced().await;
        assert_eq!(consumer.take_log(), ALL);
        fake.apply(Resource::Services, service("s6", "10.0.0.6"));
        consumer.until_service("s6", "10.0.0.6").await;
        assert_eq!(service_requests(&fake), [STREAM]);
    }
}

#[tokio::test]
async fn lists_are_in_pages_without_streaming_lists() {
    for media_type in MEDIA_TYPES {
        let fake = small_cluster().await;
        fake.behave(|behaviour| (behaviour.streaming, behaviour.max_page) = (Streaming::Rejected, 2));
        let mut consumer = Consumer::start_in(media_type, &fake).await;
        consumer.until_synced().await;
        assert_eq!(consumer.take_log(), ALL);
        consumer.catch_up(&fake).await;
        let pages = ["limit=500&resourceVersion=0", "limit=500&continue=8%3A2", "limit=500&continue=8%3A4"];
        assert_eq!(service_requests(&fake), [&[STREAM], &pages[..], &[watch_from(8).as_str()]].concat());
    }
}

#[tokio::test]
async fn lists_are_in_pages_if_the_server_ignores_the_parameters_of_streaming_lists() {
    let fake = small_cluster().await;
    fake.behave(|behaviour| behaviour.streaming = Streaming::Ignored);
    let streaming_list_timeout = Duration::from_millis(100);
    let mut consumer = Consumer::start_with(&fake, Timing { streaming_list_timeout, ..timing() }).await;
    consumer.until_synced().await;
    assert_eq!(consumer.take_log(), ALL);
    assert_eq!(service_requests(&fake)[..2], [STREAM, "limit=500&resourceVersion=0"]);
}

#[tokio::test]
async fn bookmarks_are_no_progress_of_a_list_that_does_not_end() {
    let fake = small_cluster().await;
    fake.behave(|behaviour| behaviour.streaming = Streaming::Ignored);
    let streaming_list_timeout = Duration::from_millis(200);
    let mut consumer = Consumer::start_with(&fake, Timing { streaming_list_timeout, ..timing() }).await;
    let bookmarks = async {
        loop {
            fake.bookmark();
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::select! {
        () = consumer.until_synced() => {}
        () = bookmarks => {}
    }
    assert_eq!(consumer.take_log(), ALL);
}

#[tokio::test]
async fn server_may_return_all_objects_in_one_page() {
    for media_type in MEDIA_TYPES {
        let fake = small_cluster().await;
        fake.behave(|behaviour| (behaviour.streaming, behaviour.pages) = (Streaming::Rejected, false));
        let mut consumer = Consumer::start_in(media_type, &fake).await;
        consumer.until_synced().await;
        assert_eq!(consumer.take_log(), ALL);
    }
}

#[tokio::test]
async fn every_kind_is_synced_without_objects() {
    for media_type in MEDIA_TYPES {
        for streaming in [Streaming::Yes, Streaming::Rejected] {
            let fake = FakeApiServer::start().await;
            fake.behave(|behaviour| behaviour.streaming = streaming);
            let mut consumer = Consumer::start_in(media_type, &fake).await;
            consumer.until_synced().await;
            assert_eq!(consumer.take_log(), [""; 0]);
            consumer.catch_up(&fake).await;
        }
    }
}

#[tokio::test]
async fn objects_of_other_proxies_are_deleted() {
    let fake = small_cluster().await;
    let mut other = service("s1", "10.0.0.1");
    other["metadata"]["labels"]["service.kubernetes.io/service-proxy-name"] = "other".into();
    let mut headless = slice("s1-a", "10.1.0.1");
    headless["metadata"]["labels"]["service.kubernetes.io/headless"] = "".into();
    let mut consumer = Consumer::start(&fake).await;
    consumer.until_synced().await;
    consumer.take_log();
    fake.apply(Resource::Services, other);
    fake.apply(Resource::EndpointSlices, headless);
    consumer.catch_up(&fake).await;
    assert_eq!(consumer.take_log(), ["EndpointSlices default/s1-a deleted", "Services default/s1 deleted"]);
}

#[tokio::test]
async fn unknown_fields_are_ignored() {
    for media_type in MEDIA_TYPES {
        for streaming in [Streaming::Yes, Streaming::Rejected] {
            let fake = small_cluster().await;
            fake.behave(|behaviour| (behaviour.streaming, behaviour.unknown_fields) = (streaming, true));
            let mut consumer = Consumer::start_in(media_type, &fake).await;
            consumer.until_synced().await;
            assert_eq!(consumer.take_log(), ALL);
        }
    }
}

#[tokio::test]
async fn list_may_arrive_in_small_chunks() {
    for media_type in MEDIA_TYPES {
        for streaming in [Streaming::Yes, Streaming::Rejected] {
            let fake = small_cluster().await;
            fake.behave(|behaviour| {
                (behaviour.streaming, behaviour.chunk, behaviour.pause) = (streaming, 7, Duration::from_micros(10));
            });
            let mut consumer = Consumer::start_in(media_type, &fake).await;
            consumer.until_synced().await;
            assert_eq!(consumer.take_log(), ALL);
        }
    }
}

#[tokio::test]
async fn interrupted_list_emits_no_event_twice() {
    for media_type in MEDIA_TYPES {
        for streaming in [Streaming::Yes, Streaming::Rejected] {
            let fake = small_cluster().await;
            fake.behave(|behaviour| behaviour.streaming = streaming);
            for bytes in [1, 150, 300, 450] {
                Resource::ALL.iter().for_each(|_| fake.inject(Fault::Cut(bytes)));
            }
            let mut consumer = Consumer::start_in(media_type, &fake).await;
            consumer.until_synced().await;
            consumer.catch_up(&fake).await;
            let log: Vec<_> = consumer.take_log().into_iter().filter(|line| line.starts_with("Services")).collect();
            assert_eq!(log, ALL[2..]);
        }
    }
}

#[tokio::test]
async fn expired_pages_lead_to_a_list_without_pages() {
    for media_type in MEDIA_TYPES {
        let fake = small_cluster().await;
        fake.behave(|behaviour| (behaviour.streaming, behaviour.max_page) = (Streaming::Rejected, 2));
        fake.behave(|behaviour| behaviour.lag = 3);
        // The version of the list is discarded while its pages are read.
        let mut consumer = Consumer::start_in(media_type, &fake).await;
        fake.compact();
        consumer.until_synced().await;
        consumer.catch_up(&fake).await;
        let observed = |name: &str, ip: &str| consumer.observed.has(Resource::Services, name, ip);
        assert!((1..=5).all(|number| observed(&format!("default/s{number}"), &format!("10.0.0.{number}"))));
    }
}

#[tokio::test]
async fn watch_catches_up_with_an_old_list() {
    let fake = small_cluster().await;
    fake.behave(|behaviour| (behaviour.streaming, behaviour.lag) = (Streaming::Rejected, 5));
    let mut consumer = Consumer::start(&fake).await;
    consumer.until_service("s5", "10.0.0.5").await;
    consumer.catch_up(&fake).await;
    assert!(consumer.observed.has(Resource::EndpointSlices, "default/s1-a", "10.1.0.1"));
}
