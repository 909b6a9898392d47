use std::time::Duration;

use ferroute_kube::{
    Timing,
    testing::{ApiDouble, Fault, Streaming},
};
use ferroute_source::Resource;

use crate::{FORMS, Following, STREAM, node, service, service_requests, slice, timing, watch_from};

async fn small_cluster() -> ApiDouble {
    let double = ApiDouble::start().await;
    for number in 1..=5 {
        double.apply(Resource::Services, service(&format!("s{number}"), &format!("10.0.0.{number}")));
    }
    double.apply(Resource::EndpointSlices, slice("s1-a", "10.1.0.1"));
    double.apply(Resource::Nodes, node("node-1", "192.0.2.1"));
    double.apply(Resource::Nodes, node("node-2", "192.0.2.2"));
    double
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
async fn a_streaming_list_tells_everything_once_and_becomes_the_watch() {
    for media_type in FORMS {
        let double = small_cluster().await;
        let mut following = Following::start_in(media_type, &double).await;
        following.until_synced().await;
        assert_eq!(following.news(), ALL);
        double.apply(Resource::Services, service("s6", "10.0.0.6"));
        following.until_service("s6", "10.0.0.6").await;
        assert_eq!(service_requests(&double), [STREAM]);
    }
}

#[tokio::test]
async fn a_server_without_streaming_lists_is_asked_for_pages() {
    for media_type in FORMS {
        let double = small_cluster().await;
        double.behave(|behaviour| (behaviour.streaming, behaviour.most_in_page) = (Streaming::Refused, 2));
        let mut following = Following::start_in(media_type, &double).await;
        following.until_synced().await;
        assert_eq!(following.news(), ALL);
        following.settle(&double).await;
        let pages = ["limit=500&resourceVersion=0", "limit=500&continue=8%3A2", "limit=500&continue=8%3A4"];
        assert_eq!(service_requests(&double), [&[STREAM], &pages[..], &[watch_from(8).as_str()]].concat());
    }
}

#[tokio::test]
async fn a_server_that_does_not_see_the_wish_for_a_streaming_list_is_asked_for_pages() {
    let double = small_cluster().await;
    double.behave(|behaviour| behaviour.streaming = Streaming::Ignored);
    let quiet = Duration::from_millis(100);
    let mut following = Following::start_with(&double, Timing { quiet, ..timing() }).await;
    following.until_synced().await;
    assert_eq!(following.news(), ALL);
    assert_eq!(service_requests(&double)[..2], [STREAM, "limit=500&resourceVersion=0"]);
}

#[tokio::test]
async fn a_server_that_gives_all_at_once_is_fine() {
    for media_type in FORMS {
        let double = small_cluster().await;
        double.behave(|behaviour| (behaviour.streaming, behaviour.pages) = (Streaming::Refused, false));
        let mut following = Following::start_in(media_type, &double).await;
        following.until_synced().await;
        assert_eq!(following.news(), ALL);
    }
}

#[tokio::test]
async fn every_kind_is_synced_where_there_is_nothing() {
    for media_type in FORMS {
        for streaming in [Streaming::Yes, Streaming::Refused] {
            let double = ApiDouble::start().await;
            double.behave(|behaviour| behaviour.streaming = streaming);
            let mut following = Following::start_in(media_type, &double).await;
            following.until_synced().await;
            assert_eq!(following.news(), [""; 0]);
            following.settle(&double).await;
        }
    }
}

#[tokio::test]
async fn objects_that_another_proxy_takes_care_of_are_not_told() {
    let double = small_cluster().await;
    let mut headless = service("s1", "None");
    headless["metadata"]["labels"]["service.kubernetes.io/headless"] = "".into();
    let mut other = slice("s1-a", "10.1.0.1");
    other["metadata"]["labels"]["service.kubernetes.io/service-proxy-name"] = "other".into();
    let mut following = Following::start(&double).await;
    following.until_synced().await;
    following.news();
    double.apply(Resource::Services, headless);
    double.apply(Resource::EndpointSlices, other);
    following.settle(&double).await;
    assert_eq!(following.news(), ["EndpointSlices default/s1-a deleted", "Services default/s1 deleted"]);
}

#[tokio::test]
async fn unknown_fields_mean_nothing() {
    for media_type in FORMS {
        for streaming in [Streaming::Yes, Streaming::Refused] {
            let double = small_cluster().await;
            double.behave(|behaviour| (behaviour.streaming, behaviour.unknown_fields) = (streaming, true));
            let mut following = Following::start_in(media_type, &double).await;
            following.until_synced().await;
            assert_eq!(following.news(), ALL);
        }
    }
}

#[tokio::test]
async fn a_list_may_come_a_few_bytes_at_a_time() {
    for media_type in FORMS {
        for streaming in [Streaming::Yes, Streaming::Refused] {
            let double = small_cluster().await;
            double.behave(|behaviour| {
                (behaviour.streaming, behaviour.piece, behaviour.pause) = (streaming, 7, Duration::from_micros(10));
            });
            let mut following = Following::start_in(media_type, &double).await;
            following.until_synced().await;
            assert_eq!(following.news(), ALL);
        }
    }
}

#[tokio::test]
async fn a_list_that_breaks_off_tells_nothing_twice() {
    for media_type in FORMS {
        for streaming in [Streaming::Yes, Streaming::Refused] {
            let double = small_cluster().await;
            double.behave(|behaviour| behaviour.streaming = streaming);
            for bytes in [1, 150, 300, 450] {
                Resource::ALL.iter().for_each(|_| double.fault(Fault::Cut(bytes)));
            }
            let mut following = Following::start_in(media_type, &double).await;
            following.until_synced().await;
            following.settle(&double).await;
            let news: Vec<_> = following.news().into_iter().filter(|line| line.starts_with("Services")).collect();
            assert_eq!(news, ALL[2..]);
        }
    }
}

#[tokio::test]
async fn pages_that_expire_are_asked_for_as_a_whole() {
    for media_type in FORMS {
        let double = small_cluster().await;
        double.behave(|behaviour| (behaviour.streaming, behaviour.most_in_page) = (Streaming::Refused, 2));
        double.behave(|behaviour| behaviour.lag = 3);
        // Each reading of the state of the past meets with a past that has just been forgotten.
        let mut following = Following::start_in(media_type, &double).await;
        double.forget();
        following.until_synced().await;
        following.settle(&double).await;
        let told = |name: &str, ip: &str| following.told.has(Resource::Services, name, ip);
        assert!((1..=5).all(|number| told(&format!("default/s{number}"), &format!("10.0.0.{number}"))));
    }
}

#[tokio::test]
async fn a_list_of_the_past_is_caught_up_with() {
    let double = small_cluster().await;
    double.behave(|behaviour| (behaviour.streaming, behaviour.lag) = (Streaming::Refused, 5));
    let mut following = Following::start(&double).await;
    following.until_service("s5", "10.0.0.5").await;
    following.settle(&double).await;
    assert!(following.told.has(Resource::EndpointSlices, "default/s1-a", "10.1.0.1"));
}
