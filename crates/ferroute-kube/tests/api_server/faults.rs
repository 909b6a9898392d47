use std::{net::TcpListener, time::Duration};

use ferroute_config::MediaType;
use ferroute_kube::{
    ApiServer, Timing,
    testing::{FakeApiServer, Fault, Streaming},
};
use ferroute_source::Resource;

use crate::{Consumer, MEDIA_TYPES, NODE, connection, connection_in, service, service_requests, timing};

async fn with_a_service() -> FakeApiServer {
    let fake = FakeApiServer::start().await;
    fake.apply(Resource::Services, service("a", "10.0.0.1"));
    fake
}

/// Injects a fault into the first request of each kind.
fn inject_all(fake: &FakeApiServer, fault: &Fault) {
    Resource::ALL.iter().for_each(|_| fake.inject(fault.clone()));
}

/// Runs until all kinds are listed and all problems are resolved, and returns the problems.
async fn problems(fake: &FakeApiServer, media_type: MediaType, timing: Timing) -> Vec<String> {
    let mut consumer = Consumer::start_configured(fake, &connection_in(media_type), timing).await;
    consumer.until_synced().await;
    consumer.catch_up(fake).await;
    assert!(consumer.observed.has(Resource::Services, "default/a", "10.0.0.1"));
    assert_eq!(consumer.observed.problems.len(), 0, "all problems are resolved");
    consumer.take_log().into_iter().filter(|line| line.starts_with("problem: ")).collect()
}

#[tokio::test]
async fn server_errors_are_reported_and_retried() {
    for media_type in MEDIA_TYPES {
        let fake = with_a_service().await;
        inject_all(&fake, &Fault::Status(500));
        let url = fake.url();
        let observed = problems(&fake, media_type, timing()).await;
        let expected = ["endpointslices", "nodes", "servicecidrs", "services"].map(|resource| {
            format!("problem: the API server at {url} returns 500 Internal Server Error for {resource}: fake error 500")
        });
        assert_eq!(observed, expected);
    }
}

#[tokio::test]
async fn forbidden_requests_name_the_required_rule() {
    for media_type in MEDIA_TYPES {
        let fake = with_a_service().await;
        inject_all(&fake, &Fault::Status(403));
        let observed = problems(&fake, media_type, timing()).await;
        assert_eq!(
            observed[0],
            "problem: not allowed to watch endpointslices: fake error 403. A ClusterRole bound to this account needs \
             the rule {apiGroups: [\"discovery.k8s.io\"], resources: [\"endpointslices\"], verbs: [\"list\", \"watch\"]}"
        );
        assert!(observed[3].contains("{apiGroups: [\"\"], resources: [\"services\"]"), "{}", observed[3]);
    }
}

#[tokio::test]
async fn old_server_without_service_cidrs_is_not_a_problem() {
    let fake = with_a_service().await;
    fake.behave(|behaviour| behaviour.service_cidrs = 404);
    let mut consumer = Consumer::start(&fake).await;
    consumer.until_synced().await;
    assert_eq!(consumer.take_log(), ["Services default/a 10.0.0.1"]);
    // After an upgrade they are listed.
    fake.behave(|behaviour| behaviour.service_cidrs = 200);
    consumer.catch_up(&fake).await;
}

#[tokio::test]
async fn forbidden_service_cidrs_are_reported_with_the_required_rule_and_do_not_block_the_rest() {
    let fake = with_a_service().await;
    fake.behave(|behaviour| behaviour.service_cidrs = 403);
    let mut consumer = Consumer::start(&fake).await;
    consumer.until("a problem", |observed| observed.is_synced(1) && !observed.problems.is_empty()).await;
    let problem = "not allowed to watch servicecidrs: fake error 403. A ClusterRole bound to this account needs the \
                   rule {apiGroups: [\"networking.k8s.io\"], resources: [\"servicecidrs\"], verbs: [\"list\", \"watch\"]}. \
                   Until then connections to addresses of no Service are not refused";
    assert_eq!(consumer.take_log(), ["Services default/a 10.0.0.1".to_owned(), format!("problem: {problem}")]);
    fake.behave(|behaviour| behaviour.service_cidrs = 200);
    consumer.catch_up(&fake).await;
    assert_eq!(consumer.take_log(), [format!("resolved: {problem}")]);
}

#[tokio::test]
async fn rejected_credentials_are_reported_once_for_all_kinds() {
    let fake = with_a_service().await;
    fake.behave(|behaviour| behaviour.authorization = Some("Bearer right".to_owned()));
    let mut consumer = Consumer::start(&fake).await;
    let problem = format!("the API server at {} rejects the credentials: fake error 401", fake.url());
    consumer.until("a problem", |observed| observed.problems.contains(&problem)).await;
    fake.behave(|behaviour| behaviour.authorization = None);
    consumer.until_synced().await;
    consumer.catch_up(&fake).await;
    let is_about_credentials = |line: &String| line.contains("credentials");
    assert_eq!(consumer.take_log().into_iter().filter(is_about_credentials).count(), 2, "reported, and resolved");
}

#[tokio::test]
async fn retry_after_is_reported_and_honoured() {
    for media_type in MEDIA_TYPES {
        let fake = with_a_service().await;
        inject_all(&fake, &Fault::RetryAfter(1));
        let observed = problems(&fake, media_type, timing()).await;
        assert!(observed.iter().all(|line| line.contains("429 Too Many Requests")), "{observed:?}");
    }
}

#[tokio::test]
async fn invalid_responses_are_reported() {
    for media_type in MEDIA_TYPES {
        for streaming in [Streaming::Yes, Streaming::Rejected] {
            let fake = with_a_service().await;
            fake.behave(|behaviour| behaviour.streaming = streaming);
            inject_all(&fake, &Fault::Html);
            let observed = problems(&fake, media_type, timing()).await;
            let expected =
                format!("problem: invalid response from {} to a request for endpointslices: not JSON", fake.url());
            assert_eq!(observed[0], expected);
        }
    }
}

#[tokio::test]
async fn missing_responses_are_reported() {
    let fake = with_a_service().await;
    inject_all(&fake, &Fault::NoResponse);
    let response_timeout = Duration::from_millis(500);
    let observed = problems(&fake, MediaType::Protobuf, Timing { response_timeout, ..timing() }).await;
    assert_eq!(observed, [format!("problem: no response from the API server at {} for 0 s", fake.url())]);
}

#[tokio::test]
async fn unreachable_server_is_reported_once_and_resolved() {
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let url = format!("http://{address}");
    let mut consumer =
        Consumer::from_source(ApiServer::new(&connection(), Some(&url), NODE).await.unwrap().with_timing(timing()));
    let problem = format!("cannot reach the API server at {url}: Connection refused (os error 111)");
    consumer.until("a problem", |observed| observed.problems.contains(&problem)).await;
    let fake = FakeApiServer::start_at(address).await;
    fake.apply(Resource::Services, service("a", "10.0.0.1"));
    consumer.until_synced().await;
    consumer.until_service("a", "10.0.0.1").await;
    consumer.catch_up(&fake).await;
    let log: Vec<_> = consumer.take_log().into_iter().filter(|line| line.contains("reach")).collect();
    assert_eq!(log, [format!("problem: {problem}"), format!("resolved: {problem}")]);
}

#[tokio::test]
async fn errors_within_a_watch_lead_to_a_list_only_for_expired_versions() {
    for media_type in MEDIA_TYPES {
        let fake = with_a_service().await;
        let mut consumer = Consumer::start_in(media_type, &fake).await;
        consumer.until_synced().await;
        consumer.catch_up(&fake).await;
        fake.fail_watches(500);
        consumer.catch_up(&fake).await;
        assert_eq!(consumer.observed.synced[&Resource::Services], 1);
        fake.fail_watches(410);
        consumer.until("a second list", |observed| observed.is_synced(2)).await;
        consumer.catch_up(&fake).await;
        assert!(service_requests(&fake)[2].contains("sendInitialEvents"));
    }
}

#[tokio::test]
async fn list_of_an_unavailable_version_is_retried_without_a_version() {
    for media_type in MEDIA_TYPES {
        for streaming in [Streaming::Yes, Streaming::Rejected] {
            let fake = with_a_service().await;
            let mut consumer = Consumer::start_in(media_type, &fake).await;
            consumer.until_synced().await;
            consumer.catch_up(&fake).await;
            fake.behave(|behaviour| behaviour.streaming = streaming);
            // Restored from a backup, the server has not reached the version that a list requests.
            fake.restore(1);
            fake.fail_watches(410);
            consumer.until("a second list", |observed| observed.is_synced(2)).await;
            assert!(consumer.observed.has(Resource::Services, "default/a", "10.0.0.1"));
            assert!(!consumer.observed.objects.contains_key(&(Resource::Services, "default/mark".to_owned())));
        }
    }
}
