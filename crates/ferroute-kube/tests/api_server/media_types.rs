//! In which form the server is asked to answer, and in which it does.

use ferroute_config::{ClientConnectionConfiguration, MediaType};
use ferroute_kube::testing::{ApiDouble, Fault, Streaming};
use ferroute_source::Resource;

use crate::{FORMS, Following, STREAM, connection, connection_in, service, service_requests, timing};

async fn with_a_service() -> ApiDouble {
    let double = ApiDouble::start().await;
    double.apply(Resource::Services, service("a", "10.0.0.1"));
    double
}

/// Follows until everything is listed and a change has come, and gives what the requests had as `accept`, once each.
async fn accepted(double: &ApiDouble, connection: &ClientConnectionConfiguration) -> Vec<String> {
    let mut following = Following::start_by(double, connection, timing()).await;
    following.until_synced().await;
    following.settle(double).await;
    assert_eq!(following.news(), ["Services default/a 10.0.0.1"]);
    let mut accepted = double.accepted();
    accepted.sort_unstable();
    accepted.dedup();
    accepted
}

#[tokio::test]
async fn the_configured_form_is_asked_for_and_with_protobuf_json_too() {
    let double = with_a_service().await;
    let both = "application/vnd.kubernetes.protobuf,application/json";
    assert_eq!(accepted(&double, &connection_in(MediaType::Protobuf)).await, [both]);
    let double = with_a_service().await;
    assert_eq!(accepted(&double, &connection_in(MediaType::Json)).await, ["application/json"]);
    let double = with_a_service().await;
    let accept_content_types = "application/json,application/vnd.kubernetes.protobuf".to_owned();
    let connection = ClientConnectionConfiguration { accept_content_types, ..connection() };
    assert_eq!(accepted(&double, &connection).await, ["application/json,application/vnd.kubernetes.protobuf"]);
}

#[tokio::test]
async fn a_server_that_answers_in_json_anyway_is_understood() {
    for streaming in [Streaming::Yes, Streaming::Refused] {
        let double = with_a_service().await;
        double.behave(|behaviour| (behaviour.protobuf, behaviour.streaming) = (false, streaming));
        let both = "application/vnd.kubernetes.protobuf,application/json";
        assert_eq!(accepted(&double, &connection()).await, [both]);
    }
}

#[tokio::test]
async fn a_server_that_does_not_have_the_only_form_is_asked_for_json() {
    let double = with_a_service().await;
    double.behave(|behaviour| behaviour.protobuf = false);
    let accept_content_types = MediaType::Protobuf.as_str().to_owned();
    let connection = ClientConnectionConfiguration { accept_content_types, ..connection() };
    let accepted = accepted(&double, &connection).await;
    assert_eq!(accepted, ["application/json", "application/vnd.kubernetes.protobuf"]);
    assert_eq!(service_requests(&double), [STREAM, STREAM], "it is remembered");
}

#[tokio::test]
async fn a_server_that_has_no_form_at_all_is_a_trouble() {
    for media_type in FORMS {
        let double = with_a_service().await;
        Resource::ALL.iter().for_each(|_| double.fault(Fault::Status(406)));
        // The second question of each kind.
        Resource::ALL.iter().for_each(|_| double.fault(Fault::Status(406)));
        let mut following = Following::start_in(media_type, &double).await;
        following.until_synced().await;
        following.settle(&double).await;
        let told = following.news().into_iter().filter(|line| line.starts_with("problem: ")).collect::<Vec<_>>();
        assert!(told.iter().any(|line| line.contains("answers 406 Not Acceptable")), "{told:?}");
    }
}
