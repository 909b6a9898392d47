//! Every request is counted.

use std::sync::{Arc, Mutex};

use ferroute_kube::{
    RequestCounter, RequestEnd,
    testing::{Fault, Streaming},
};

use super::*;

/// Method, host and status of a request, and whether it was timed.
type End = (String, String, Option<u16>, bool);

#[derive(Debug, Default)]
struct Counted(Mutex<Vec<End>>);

impl RequestCounter for Counted {
    fn ended(&self, request: &RequestEnd<'_>) {
        let status = request.status.map(|status| status.as_u16());
        let end = (request.method.to_string(), request.host.to_owned(), status, request.took.is_some());
        self.0.lock().unwrap().push(end);
    }
}

#[tokio::test]
async fn every_request_is_counted_with_the_answer_and_only_lists_are_timed() {
    let double = ApiDouble::start().await;
    double.behave(|behaviour| behaviour.streaming = Streaming::Refused);
    double.fault(Fault::Status(500));
    let counted = Arc::new(Counted::default());
    let source = ApiServer::new(&connection(), Some(&double.url()), NODE).await.unwrap();
    let mut following = Following::of(source.with_timing(timing()).with_counter(counted.clone()));
    following.until_synced().await;
    following.settle(&double).await;
    let host = double.url().trim_start_matches("http://").to_owned();
    let ends = counted.0.lock().unwrap().clone();
    assert!(ends.iter().all(|(method, at, ..)| method == "GET" && *at == host), "{ends:?}");
    let count = |status, timed| ends.iter().filter(|(.., code, is)| *code == status && *is == timed).count();
    assert_eq!(count(Some(500), false), 1, "{ends:?}");
    assert_eq!(count(Some(200), true), Resource::ALL.len(), "a list of each kind: {ends:?}");
    assert_eq!(ends.len(), double.requests().len());
}

#[tokio::test]
async fn a_request_without_an_answer_is_counted_too() {
    let counted = Arc::new(Counted::default());
    let source = ApiServer::new(&connection(), Some("http://127.0.0.1:1"), NODE).await.unwrap();
    let mut following = Following::of(source.with_timing(timing()).with_counter(counted.clone()));
    following.until("a problem", |told| !told.problems.is_empty()).await;
    let ends = counted.0.lock().unwrap().clone();
    assert!(ends.iter().any(|(_, host, status, _)| host == "127.0.0.1:1" && status.is_none()), "{ends:?}");
}
