use ferroute_config::MediaType;
use ferroute_kube::testing::{ApiDouble, Streaming};
use ferroute_source::Resource;
use serde_json::json;

use crate::{FORMS, Following, STREAM, service, service_requests, slice, watch_from};

/// Two services and a slice, all told.
async fn followed() -> (ApiDouble, Following) {
    followed_in(MediaType::Protobuf).await
}

async fn followed_in(media_type: MediaType) -> (ApiDouble, Following) {
    let double = ApiDouble::start().await;
    double.apply(Resource::Services, service("a", "10.0.0.1"));
    double.apply(Resource::Services, service("b", "10.0.0.2"));
    double.apply(Resource::EndpointSlices, slice("a-1", "10.1.0.1"));
    let mut following = Following::start_in(media_type, &double).await;
    following.until_synced().await;
    following.settle(&double).await;
    following.news();
    (double, following)
}

#[tokio::test]
async fn changes_are_told_as_they_come() {
    for media_type in FORMS {
        let (double, mut following) = followed_in(media_type).await;
        double.apply(Resource::Services, service("a", "10.0.0.9"));
        double.apply(Resource::EndpointSlices, slice("a-2", "10.1.0.2"));
        double.delete(Resource::Services, "default", "b");
        double.delete(Resource::EndpointSlices, "default", "a-1");
        following.settle(&double).await;
        assert_eq!(
            following.news(),
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
async fn a_watch_that_is_cut_within_an_object_goes_on_from_the_last_version() {
    for media_type in FORMS {
        let (double, mut following) = followed_in(media_type).await;
        let version = double.apply(Resource::Services, service("a", "10.0.0.9"));
        following.until_service("a", "10.0.0.9").await;
        double.cut();
        following.settle(&double).await;
        assert_eq!(following.news(), ["Services default/a 10.0.0.9"]);
        assert_eq!(service_requests(&double), [STREAM, &watch_from(version)]);
    }
}

#[tokio::test]
async fn nothing_is_lost_while_no_watch_is_open() {
    let (double, mut following) = followed().await;
    double.end_watches();
    double.apply(Resource::Services, service("a", "10.0.0.7"));
    double.delete(Resource::Services, "default", "b");
    following.settle(&double).await;
    assert_eq!(following.news(), ["Services default/a 10.0.0.7", "Services default/b deleted"]);
}

#[tokio::test]
async fn bookmarks_move_the_version_on() {
    for media_type in FORMS {
        let (double, mut following) = followed_in(media_type).await;
        // Of other kinds, so that only a bookmark tells the watch of services.
        for number in 0..10 {
            double.apply(Resource::EndpointSlices, slice("a-1", &format!("10.1.1.{number}")));
        }
        let version = double.apply(Resource::EndpointSlices, slice("a-1", "10.1.2.0"));
        double.bookmark();
        let is_told = |told: &crate::Told| told.has(Resource::EndpointSlices, "default/a-1", "10.1.2.0");
        following.until("the last slice", is_told).await;
        double.end_watches();
        following.settle(&double).await;
        assert_eq!(*service_requests(&double).last().unwrap(), watch_from(version));
    }
}

#[tokio::test]
async fn a_version_that_is_too_old_leads_to_a_list_that_tells_only_what_is_new() {
    for media_type in FORMS {
        for in_watch in [false, true] {
            for streaming in [Streaming::Yes, Streaming::Refused] {
                let (double, mut following) = followed_in(media_type).await;
                double.behave(|behaviour| {
                    (behaviour.streaming, behaviour.expires_in_watch) = (streaming, in_watch);
                });
                double.end_watches();
                double.apply(Resource::Services, service("c", "10.0.0.3"));
                double.delete(Resource::Services, "default", "b");
                double.delete(Resource::EndpointSlices, "default", "a-1");
                double.forget();
                following.until("a second list", |told| told.is_synced(2)).await;
                following.settle(&double).await;
                let news =
                    ["EndpointSlices default/a-1 deleted", "Services default/b deleted", "Services default/c 10.0.0.3"];
                assert_eq!(following.news(), news, "{in_watch} {streaming:?}");
            }
        }
    }
}

#[tokio::test]
async fn what_is_sent_again_is_not_told_again() {
    for media_type in FORMS {
        let (double, mut following) = followed_in(media_type).await;
        double.behave(|behaviour| behaviour.repeats = true);
        double.end_watches();
        for number in 0..30 {
            double.apply(Resource::Services, service("a", &format!("10.0.1.{number}")));
            double.delete(Resource::Services, "default", "b");
            double.apply(Resource::Services, service("b", &format!("10.0.2.{number}")));
        }
        double.delete(Resource::Services, "default", "b");
        following.settle(&double).await;
        // `Told` checks each event.
        assert!(following.told.has(Resource::Services, "default/a", "10.0.1.29"));
        assert!(!following.told.objects.contains_key(&(Resource::Services, "default/b".to_owned())));
    }
}

#[tokio::test]
async fn a_server_that_goes_back_in_time_is_listed_anew() {
    for media_type in FORMS {
        let (double, mut following) = followed_in(media_type).await;
        let before = double.apply(Resource::Services, service("a", "10.0.0.8"));
        double.delete(Resource::Services, "default", "b");
        let last = double.apply(Resource::Services, service("c", "10.0.0.3"));
        following.until_service("c", "10.0.0.3").await;
        assert!(last > before);
        following.news();
        double.restore(before);
        double.bookmark();
        following.until("a second list of services", |told| told.synced[&Resource::Services] == 2).await;
        assert_eq!(following.news(), ["Services default/b 10.0.0.2", "Services default/c deleted"]);
    }
}

#[tokio::test]
async fn a_bad_object_is_passed_over_and_told_until_it_is_good() {
    for media_type in FORMS {
        let (double, mut following) = followed_in(media_type).await;
        let mut bad = service("a", "10.0.0.1");
        bad["spec"]["ports"] = json!([{"port": 80}, {"port": "http"}]);
        double.apply(Resource::Services, bad.clone());
        double.apply(Resource::Services, service("b", "10.0.0.3"));
        following.settle(&double).await;
        let field = match media_type {
            MediaType::Json => "spec.ports[1].port: invalid type: string \"http\", expected i32",
            MediaType::Protobuf => "spec.ports.port: invalid wire type: LengthDelimited (expected Varint)",
        };
        let problem = format!("Service default/a is passed over, what was known before stays in force: {field}");
        assert_eq!(following.news(), ["Services default/b 10.0.0.3".to_owned(), format!("problem: {problem}")]);
        assert!(following.told.has(Resource::Services, "default/a", "10.0.0.1"));

        // Another list, or another change that is just as bad, are no news.
        double.apply(Resource::Services, bad);
        double.forget();
        double.end_watches();
        following.until("a second list", |told| told.synced[&Resource::Services] == 2).await;
        following.settle(&double).await;
        assert_eq!(following.news(), [""; 0]);

        double.apply(Resource::Services, service("a", "10.0.0.4"));
        following.settle(&double).await;
        assert_eq!(following.news(), ["Services default/a 10.0.0.4".to_owned(), format!("solved: {problem}")]);
    }
}

#[tokio::test]
async fn a_bad_object_that_was_never_told_is_not_told_as_deleted() {
    for media_type in FORMS {
        let (double, mut following) = followed_in(media_type).await;
        double.apply(
            Resource::EndpointSlices,
            json!({"metadata": {"namespace": "default", "name": "bad"}, "endpoints": 7}),
        );
        following.settle(&double).await;
        double.delete(Resource::EndpointSlices, "default", "bad");
        following.settle(&double).await;
        let field = match media_type {
            MediaType::Json => "endpoints: invalid type: integer `7`, expected a sequence",
            MediaType::Protobuf => "endpoints: invalid wire type: Varint (expected LengthDelimited)",
        };
        let problem =
            format!("EndpointSlice default/bad is passed over, what was known before stays in force: {field}");
        assert_eq!(following.news(), [format!("problem: {problem}"), format!("solved: {problem}")]);
    }
}

#[tokio::test]
async fn an_object_without_a_name_does_not_stop_the_watch() {
    for media_type in FORMS {
        let (double, mut following) = followed_in(media_type).await;
        for metadata in [json!({}), json!({"name": 7}), json!("x")] {
            double.send("ADDED", json!({"metadata": metadata}));
            following.settle(&double).await;
        }
        let news = following.news();
        assert_eq!(news.len(), Resource::ALL.len(), "once for each kind: {news:?}");
        assert!(news.iter().all(|line| line.contains("without a name, which are passed over")), "{news:?}");
    }
}

#[tokio::test]
async fn messages_of_unknown_types_mean_nothing() {
    for media_type in FORMS {
        let (double, mut following) = followed_in(media_type).await;
        double.send("GREETING", json!({"hello": "world"}));
        following.settle(&double).await;
        assert_eq!(following.news(), [""; 0]);
        assert_eq!(service_requests(&double), [STREAM]);
    }
}

#[tokio::test]
async fn following_ends_when_nobody_takes_what_it_tells() {
    let (double, following) = followed().await;
    let Following { batches, task, .. } = following;
    drop(batches);
    task.await.unwrap();
    drop(double);
}
