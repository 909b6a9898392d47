//! Silent connections, endless responses, and the return of a server that was away.

use std::{io::Write, net::TcpListener, time::Duration};

use ferroute_kube::{
    ApiServer, Timing,
    testing::{FakeApiServer, Fault},
};
use ferroute_source::Resource;

use crate::{Consumer, MEDIA_TYPES, NODE, connection, connection_in, service, service_requests, timing};

/// A delay that no test waits for.
const NEVER: Duration = Duration::from_secs(3600);

#[tokio::test]
async fn watch_that_falls_silent_is_replaced() {
    for media_type in MEDIA_TYPES {
        let fake = FakeApiServer::start().await;
        // Long enough that a busy machine does not lose a working watch between the bookmark and the change.
        let timing = Timing { watch_idle: Duration::from_millis(300), ..timing() };
        let mut consumer = Consumer::start_configured(&fake, &connection_in(media_type), timing).await;
        consumer.until_synced().await;
        fake.bookmark();
        consumer.catch_up(&fake).await;
        fake.stall_watches();
        fake.apply(Resource::Services, service("a", "10.0.0.1"));
        consumer.until_service("a", "10.0.0.1").await;
        assert_eq!(consumer.observed.synced[&Resource::Services], 1, "it resumes from the last version");
        assert_eq!(consumer.observed.problems.len(), 0);
    }
}

#[tokio::test]
async fn watch_is_not_replaced_where_the_server_sends_no_bookmarks() {
    let fake = FakeApiServer::start().await;
    let timing = Timing { watch_idle: Duration::from_millis(20), ..timing() };
    let mut consumer = Consumer::start_with(&fake, timing).await;
    consumer.until_synced().await;
    consumer.receive_for(Duration::from_millis(200)).await;
    consumer.catch_up(&fake).await;
    assert_eq!(service_requests(&fake).len(), 1);
}

#[tokio::test]
async fn list_that_stalls_is_retried() {
    for media_type in MEDIA_TYPES {
        let fake = FakeApiServer::start().await;
        fake.apply(Resource::Services, service("a", "10.0.0.1"));
        Resource::ALL.iter().for_each(|_| fake.inject(Fault::Stall(20)));
        let timing = Timing { streaming_list_timeout: Duration::from_millis(200), ..timing() };
        let mut consumer = Consumer::start_configured(&fake, &connection_in(media_type), timing).await;
        consumer.until_synced().await;
        consumer.until_service("a", "10.0.0.1").await;
    }
}

#[tokio::test]
async fn endless_object_is_abandoned_after_some_megabytes() {
    for media_type in MEDIA_TYPES {
        for bytes in [1 << 30, 8 << 20] {
            let fake = FakeApiServer::start().await;
            fake.apply(Resource::Services, service("a", "10.0.0.1"));
            Resource::ALL.iter().for_each(|_| fake.inject(Fault::Endless(bytes)));
            let mut consumer = Consumer::start_in(media_type, &fake).await;
            consumer.until_synced().await;
            consumer.catch_up(&fake).await;
            let problems: Vec<_> =
                consumer.take_log().into_iter().filter(|line| line.starts_with("problem: ")).collect();
            assert_eq!(problems.len(), Resource::ALL.len(), "{problems:?}");
            assert!(problems.iter().all(|line| line.contains("invalid response from")), "{problems:?}");
            assert_eq!(consumer.observed.problems.len(), 0, "all are resolved");
            // The data in buffers of sockets is added to the limit.
            let most = Resource::ALL.len() as u64 * (24 << 20);
            assert!(fake.bytes_sent() < most, "{} bytes for {media_type:?}", fake.bytes_sent());
        }
    }
}

#[tokio::test]
async fn garbage_is_an_invalid_response() {
    for media_type in MEDIA_TYPES {
        for seed in 0..5 {
            let fake = FakeApiServer::start().await;
            fake.apply(Resource::Services, service("a", "10.0.0.1"));
            Resource::ALL.iter().for_each(|_| fake.inject(Fault::Garbage { bytes: 100_000, seed }));
            let mut consumer = Consumer::start_in(media_type, &fake).await;
            consumer.until_synced().await;
            consumer.catch_up(&fake).await;
            assert_eq!(consumer.observed.objects.len(), 1 + Resource::ALL.len(), "nothing but the objects");
            assert_eq!(consumer.observed.problems.len(), 0, "all are resolved");
        }
    }
}

#[tokio::test]
async fn expired_version_leads_to_a_list_without_the_back_off() {
    let fake = FakeApiServer::start().await;
    let timing = Timing { initial_backoff: NEVER, max_backoff: NEVER, ..timing() };
    let mut consumer = Consumer::start_with(&fake, timing).await;
    consumer.until_synced().await;
    consumer.catch_up(&fake).await;
    fake.fail_watches(410);
    consumer.until("a second list", |observed| observed.is_synced(2)).await;
}

#[tokio::test]
async fn response_to_one_request_ends_the_delays_of_all() {
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let url = format!("http://{address}");
    let source = ApiServer::new(&connection(), Some(&url), NODE).await.unwrap();
    let source = source.with_timing(Timing { initial_backoff: NEVER, max_backoff: NEVER, ..timing() });
    let writer = source.writer();
    let mut consumer = Consumer::from_source(source);
    let is_unreachable = |text: &String| text.starts_with("cannot reach the API server");
    consumer.until("a problem", |observed| observed.problems.iter().any(is_unreachable)).await;
    consumer.receive_for(Duration::from_millis(50)).await;
    let fake = FakeApiServer::start_at(address).await;
    fake.apply(Resource::Nodes, crate::node(NODE, "192.0.2.1"));
    writer.remove_taint("none").await.unwrap();
    consumer.until_synced().await;
    assert_eq!(consumer.observed.problems.len(), 0);
}

#[tokio::test]
async fn server_that_sends_interim_responses_only_is_reported_and_left_alone() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (ended, ends) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        while let Ok((mut stream, _)) = listener.accept() {
            // The other end closes the connection.
            while stream.write_all(&b"HTTP/1.1 102 Processing\r\n\r\n".repeat(100)).is_ok() {}
            if ended.send(()).is_err() {
                return;
            }
        }
    });
    let source = ApiServer::new(&connection(), Some(&url), NODE).await.unwrap();
    let timing = Timing { initial_backoff: NEVER, max_backoff: NEVER, response_timeout: NEVER, ..timing() };
    let mut consumer = Consumer::from_source(source.with_timing(timing));
    let is_reported = |text: &String| text.contains("interim responses (1xx), and no other one");
    consumer.until("a problem", |observed| observed.problems.iter().any(is_reported)).await;
    ends.recv_timeout(Duration::from_secs(60)).expect("the connection ends");
}

#[tokio::test]
async fn unreachable_server_is_resolved_by_its_first_response() {
    let fake = FakeApiServer::start().await;
    fake.behave(|behaviour| behaviour.down = true);
    let mut consumer = Consumer::start_with(&fake, Timing { response_timeout: NEVER, ..timing() }).await;
    let is_unreachable = |text: &String| text.starts_with("cannot reach the API server");
    consumer.until("a problem", |observed| observed.problems.iter().any(is_unreachable)).await;
    // One resource gets an error, and the others no response.
    fake.behave(|behaviour| behaviour.down = false);
    fake.clear_faults();
    fake.inject(Fault::Status(500));
    (1..Resource::ALL.len()).for_each(|_| fake.inject(Fault::NoResponse));
    consumer.until("a response", |observed| !observed.problems.iter().any(is_unreachable)).await;
    // Another outage is reported again.
    fake.behave(|behaviour| behaviour.down = true);
    consumer.until("a problem", |observed| observed.problems.iter().any(is_unreachable)).await;
}

#[tokio::test]
async fn requests_that_are_forbidden_for_a_moment_are_not_reported() {
    let fake = FakeApiServer::start().await;
    fake.behave(|behaviour| behaviour.status = Some((403, None)));
    let timing = Timing { forbidden_grace: NEVER, ..timing() };
    let mut consumer = Consumer::start_with(&fake, timing).await;
    while fake.requests().len() < 3 * Resource::ALL.len() {
        consumer.receive_for(Duration::from_millis(5)).await;
    }
    fake.behave(|behaviour| behaviour.status = None);
    consumer.until_synced().await;
    consumer.catch_up(&fake).await;
    assert_eq!(consumer.take_log(), [""; 0]);
}

#[tokio::test]
async fn requests_that_stay_forbidden_are_reported() {
    let fake = FakeApiServer::start().await;
    fake.behave(|behaviour| behaviour.status = Some((403, None)));
    let timing = Timing { forbidden_grace: Duration::from_millis(100), ..timing() };
    let mut consumer = Consumer::start_with(&fake, timing).await;
    let all = |observed: &crate::Observed| observed.problems.len() == Resource::ALL.len();
    consumer.until("a problem for each kind", all).await;
    assert!(fake.requests().len() > Resource::ALL.len(), "not for the first response");
    fake.behave(|behaviour| behaviour.status = None);
    consumer.catch_up(&fake).await;
    assert_eq!(consumer.observed.problems.len(), 0);
}
