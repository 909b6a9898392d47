//! Request metrics.

use std::sync::{Arc, Mutex};

use ferroute_kube::{
    RequestCounter, RequestResult,
    testing::{Fault, Streaming},
};

use super::*;

/// Method, host and status of a request, and whether its latency was measured.
type Recorded = (String, String, Option<u16>, bool);

#[derive(Debug, Default)]
struct Recorder(Mutex<Vec<Recorded>>);

impl RequestCounter for Recorder {
    fn record(&self, request: &RequestResult<'_>) {
        let status = request.status.map(|status| status.as_u16());
        let recorded = (request.method.to_string(), request.host.to_owned(), status, request.took.is_some());
        self.0.lock().unwrap().push(recorded);
    }
}

#[tokio::test]
async fn every_request_is_recorded_and_only_the_latency_of_lists_is_measured() {
    let fake = FakeApiServer::start().await;
    fake.behave(|behaviour| behaviour.streaming = Streaming::Rejected);
    fake.inject(Fault::Status(500));
    let recorder = Arc::new(Recorder::default());
    let source = ApiServer::new(&connection(), Some(&fake.url()), NODE).await.unwrap();
    let mut consumer = Consumer::from_source(source.with_timing(timing()).with_counter(recorder.clone()));
    consumer.until_synced().await;
    consumer.catch_up(&fake).await;
    let host = fake.url().trim_start_matches("http://").to_owned();
    let requests = recorder.0.lock().unwrap().clone();
    assert!(requests.iter().all(|(method, to, ..)| method == "GET" && *to == host), "{requests:?}");
    let count = |status, timed| requests.iter().filter(|(.., code, is)| *code == status && *is == timed).count();
    assert_eq!(count(Some(500), false), 1, "{requests:?}");
    assert_eq!(count(Some(200), true), Resource::ALL.len(), "a list of each kind: {requests:?}");
    assert_eq!(requests.len(), fake.requests().len());
}

#[tokio::test]
async fn nodes_of_other_hosts_are_read_only_on_request() {
    for (all_nodes, other) in [(false, Vec::<String>::new()), (true, vec!["Nodes node-9 1".to_owned()])] {
        let fake = FakeApiServer::start().await;
        fake.apply(Resource::Nodes, node("node-9", "1"));
        let source = ApiServer::new(&connection(), Some(&fake.url()), NODE).await.unwrap();
        let mut consumer = Consumer::from_source(source.with_timing(timing()).with_all_nodes(all_nodes));
        consumer.until_synced().await;
        assert_eq!(consumer.take_log(), other);
        consumer.catch_up(&fake).await;
        let requests = fake.requests().into_iter().filter(|request| request.starts_with("/api/v1/nodes"));
        let requests: Vec<String> = requests.collect();
        let selects_one = |request: &String| request.contains("fieldSelector=metadata.name%3D");
        assert!(requests.iter().all(|request| selects_one(request) != all_nodes), "{requests:?}");
    }
}

#[tokio::test]
async fn requests_without_a_response_are_recorded() {
    let recorder = Arc::new(Recorder::default());
    let source = ApiServer::new(&connection(), Some("http://127.0.0.1:1"), NODE).await.unwrap();
    let mut consumer = Consumer::from_source(source.with_timing(timing()).with_counter(recorder.clone()));
    consumer.until("a problem", |observed| !observed.problems.is_empty()).await;
    let requests = recorder.0.lock().unwrap().clone();
    assert!(requests.iter().any(|(_, host, status, _)| host == "127.0.0.1:1" && status.is_none()), "{requests:?}");
}
