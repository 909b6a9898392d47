use std::{net::TcpListener, time::Duration};

use ferroute_config::MediaType;
use ferroute_kube::{
    ApiServer, Timing,
    testing::{ApiDouble, Fault, Streaming},
};
use ferroute_source::Resource;

use crate::{FORMS, Following, NODE, connection, connection_in, service, service_requests, timing};

async fn with_a_service() -> ApiDouble {
    let double = ApiDouble::start().await;
    double.apply(Resource::Services, service("a", "10.0.0.1"));
    double
}

/// Lets each of the first requests of all kinds meet with a fault.
fn fault_all(double: &ApiDouble, fault: &Fault) {
    Resource::ALL.iter().for_each(|_| double.fault(fault.clone()));
}

/// Follows until everything is listed and works again, and gives what was told about troubles.
async fn troubles(double: &ApiDouble, media_type: MediaType, timing: Timing) -> Vec<String> {
    let mut following = Following::start_by(double, &connection_in(media_type), timing).await;
    following.until_synced().await;
    following.settle(double).await;
    assert!(following.told.has(Resource::Services, "default/a", "10.0.0.1"));
    assert_eq!(following.told.problems.len(), 0, "all is well in the end");
    following.news().into_iter().filter(|line| line.starts_with("problem: ")).collect()
}

#[tokio::test]
async fn server_errors_are_told_and_tried_again() {
    for media_type in FORMS {
        let double = with_a_service().await;
        fault_all(&double, &Fault::Status(500));
        let url = double.url();
        let told = troubles(&double, media_type, timing()).await;
        let expected = ["endpointslices", "nodes", "servicecidrs", "services"].map(|resource| {
            format!(
                "problem: the API server at {url} answers 500 Internal Server Error when asked for {resource}: \
                 the double says 500"
            )
        });
        assert_eq!(told, expected);
    }
}

#[tokio::test]
async fn a_refusal_names_the_rule_that_is_needed() {
    for media_type in FORMS {
        let double = with_a_service().await;
        fault_all(&double, &Fault::Status(403));
        let told = troubles(&double, media_type, timing()).await;
        assert_eq!(
            told[0],
            "problem: not allowed to watch endpointslices: the double says 403. A ClusterRole bound to this account needs \
             the rule {apiGroups: [\"discovery.k8s.io\"], resources: [\"endpointslices\"], verbs: [\"list\", \"watch\"]}"
        );
        assert!(told[3].contains("{apiGroups: [\"\"], resources: [\"services\"]"), "{}", told[3]);
    }
}

#[tokio::test]
async fn an_old_server_without_service_cidrs_is_no_trouble() {
    let double = with_a_service().await;
    double.behave(|behaviour| behaviour.service_cidrs = 404);
    let mut following = Following::start(&double).await;
    following.until_synced().await;
    assert_eq!(following.news(), ["Services default/a 10.0.0.1"]);
    // Once it is a newer one, they are found.
    double.behave(|behaviour| behaviour.service_cidrs = 200);
    following.settle(&double).await;
}

#[tokio::test]
async fn without_the_right_to_see_service_cidrs_all_else_goes_on_and_the_rule_is_named() {
    let double = with_a_service().await;
    double.behave(|behaviour| behaviour.service_cidrs = 403);
    let mut following = Following::start(&double).await;
    following.until("a problem", |told| told.is_synced(1) && !told.problems.is_empty()).await;
    let problem = "not allowed to watch servicecidrs: the double says 403. A ClusterRole bound to this account needs the \
                   rule {apiGroups: [\"networking.k8s.io\"], resources: [\"servicecidrs\"], verbs: [\"list\", \"watch\"]}. \
                   Until then connections to addresses of no Service are not refused";
    assert_eq!(following.news(), ["Services default/a 10.0.0.1".to_owned(), format!("problem: {problem}")]);
    double.behave(|behaviour| behaviour.service_cidrs = 200);
    following.settle(&double).await;
    assert_eq!(following.news(), [format!("solved: {problem}")]);
}

#[tokio::test]
async fn credentials_that_are_not_accepted_are_told_once_for_all_kinds() {
    let double = with_a_service().await;
    double.behave(|behaviour| behaviour.authorization = Some("Bearer right".to_owned()));
    let mut following = Following::start(&double).await;
    let problem = format!("the API server at {} does not accept the credentials: the double says 401", double.url());
    following.until("a problem", |told| told.problems.contains(&problem)).await;
    double.behave(|behaviour| behaviour.authorization = None);
    following.until_synced().await;
    following.settle(&double).await;
    let about = |line: &String| line.contains("credentials");
    assert_eq!(following.news().into_iter().filter(about).count(), 2, "told, and solved");
}

#[tokio::test]
async fn a_server_that_asks_to_wait_is_told_and_tried_again() {
    for media_type in FORMS {
        let double = with_a_service().await;
        fault_all(&double, &Fault::Wait(1));
        let told = troubles(&double, media_type, timing()).await;
        assert!(told.iter().all(|line| line.contains("429 Too Many Requests")), "{told:?}");
    }
}

#[tokio::test]
async fn what_is_no_api_server_is_told() {
    for media_type in FORMS {
        for streaming in [Streaming::Yes, Streaming::Refused] {
            let double = with_a_service().await;
            double.behave(|behaviour| behaviour.streaming = streaming);
            fault_all(&double, &Fault::Html);
            let told = troubles(&double, media_type, timing()).await;
            let expected = format!(
                "problem: cannot make sense of what {} sends when asked for endpointslices: it is no JSON",
                double.url()
            );
            assert_eq!(told[0], expected);
        }
    }
}

#[tokio::test]
async fn a_server_that_is_silent_is_told() {
    let double = with_a_service().await;
    fault_all(&double, &Fault::Silence);
    let answer = Duration::from_millis(500);
    let told = troubles(&double, MediaType::Protobuf, Timing { answer, ..timing() }).await;
    assert_eq!(told, [format!("problem: the API server at {} has not answered for 0 s", double.url())]);
}

#[tokio::test]
async fn a_server_that_is_away_is_told_once_and_found_again() {
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let url = format!("http://{address}");
    let mut following =
        Following::of(ApiServer::new(&connection(), Some(&url), NODE).await.unwrap().with_timing(timing()));
    let problem = format!("cannot reach the API server at {url}: Connection refused (os error 111)");
    following.until("a problem", |told| told.problems.contains(&problem)).await;
    let double = ApiDouble::start_at(address).await;
    double.apply(Resource::Services, service("a", "10.0.0.1"));
    following.until_synced().await;
    following.until_service("a", "10.0.0.1").await;
    following.settle(&double).await;
    let news: Vec<_> = following.news().into_iter().filter(|line| line.contains("reach")).collect();
    assert_eq!(news, [format!("problem: {problem}"), format!("solved: {problem}")]);
}

#[tokio::test]
async fn errors_within_a_watch_do_not_lead_to_a_list_unless_they_must() {
    for media_type in FORMS {
        let double = with_a_service().await;
        let mut following = Following::start_in(media_type, &double).await;
        following.until_synced().await;
        following.settle(&double).await;
        double.end_watches_with(500);
        following.settle(&double).await;
        assert_eq!(following.told.synced[&Resource::Services], 1);
        double.end_watches_with(410);
        following.until("a second list", |told| told.is_synced(2)).await;
        following.settle(&double).await;
        assert!(service_requests(&double)[2].contains("sendInitialEvents"));
    }
}

#[tokio::test]
async fn a_list_as_of_a_version_that_the_server_cannot_give_is_asked_for_without_it() {
    for media_type in FORMS {
        for streaming in [Streaming::Yes, Streaming::Refused] {
            let double = with_a_service().await;
            let mut following = Following::start_in(media_type, &double).await;
            following.until_synced().await;
            following.settle(&double).await;
            double.behave(|behaviour| behaviour.streaming = streaming);
            // The server starts anew from a backup, and does not know of the version that a list would ask for.
            double.restore(1);
            double.end_watches_with(410);
            following.until("a second list", |told| told.is_synced(2)).await;
            assert!(following.told.has(Resource::Services, "default/a", "10.0.0.1"));
            assert!(!following.told.objects.contains_key(&(Resource::Services, "default/mark".to_owned())));
        }
    }
}
