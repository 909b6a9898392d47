//! `/healthz` and `/livez` over real connections.

#[allow(dead_code, reason = "each test program uses its part of it")]
mod common;

use std::{sync::Arc, time::Duration};

use common::{Client, get, own_address};
use ferroute_admin::{
    health::{Health, HealthzHandler},
    http::{Budget, HttpThread, Limits, ListenScope, listen},
    metrics::{Metrics, Sampled},
};
use ferroute_core::IpFamily;

/// Replaces times in UTC by `<time>`.
fn without_times(answer: &str) -> String {
    let mut parts = answer.split('"');
    let shown: Vec<&str> = parts
        .by_ref()
        .map(|part| {
            let is_time =
                part.len() >= 20 && part.starts_with("20") && part.ends_with('Z') && part.as_bytes()[10] == b'T';
            if is_time { "<time>" } else { part }
        })
        .collect();
    shown.join("\"")
}

#[test]
fn answers_equal_those_of_kube_proxy() {
    let health = Arc::new(Health::new(Duration::from_secs(60)));
    let metrics = Arc::new(Metrics::new(&[]));
    let address = own_address();
    let http = HttpThread::start(Budget::default()).expect("a thread");
    let listener = listen(ListenScope::Address(address.ip()), address.port()).expect("the port");
    let handler = Arc::new(HealthzHandler::new(Arc::clone(&health), Arc::clone(&metrics)));
    let _server = http.serve(listener, handler, Limits::default()).expect("a server");
    let head = |status: &str, length: usize| {
        format!(
            "HTTP/1.1 {status}\nContent-Type: application/json\nX-Content-Type-Options: nosniff\n\
             Content-Length: {length}\nDate: <date>\n\n"
        )
    };
    // The number of digits of times varies.
    let without_length = |answer: String| {
        let (before, after) = answer.split_once("Content-Length: ").expect("a length");
        let (_, after) = after.split_once('\n').expect("a line");
        format!("{before}Content-Length: 0\n{after}")
    };
    let shown = |path: &str| without_length(without_times(&get(address, path)));

    let starting = r#"{"lastUpdated":"<time>","currentTime":"<time>","nodeEligible":true,"healthy":true}"#;
    assert_eq!(shown("/healthz"), head("200 OK", 0) + starting);

    health.updated(IpFamily::V4);
    health.updated(IpFamily::V6);
    let status = r#""healthy":true,"status":{"IPv4":{"lastUpdated":"<time>","healthy":true},"IPv6":{"lastUpdated":"<time>","healthy":true}}}"#;
    let healthz = format!(r#"{{"lastUpdated":"<time>","currentTime":"<time>","nodeEligible":true,{status}"#);
    let livez = format!(r#"{{"lastUpdated":"<time>","currentTime":"<time>",{status}"#);
    assert_eq!(shown("/healthz"), head("200 OK", 0) + &healthz);
    assert_eq!(shown("/healthz?verbose"), head("200 OK", 0) + &healthz);
    assert_eq!(shown("/livez"), head("200 OK", 0) + &livez);

    health.set_node_eligible(false);
    let leaving = healthz.replace("\"nodeEligible\":true", "\"nodeEligible\":false");
    assert_eq!(shown("/healthz"), head("503 Service Unavailable", 0) + &leaving);
    assert_eq!(shown("/livez"), head("200 OK", 0) + &livez);

    let text = metrics.render(&Sampled::default());
    for line in [
        "kubeproxy_proxy_healthz_total{code=\"200\"} 3",
        "kubeproxy_proxy_healthz_total{code=\"503\"} 1",
        "kubeproxy_proxy_livez_total{code=\"200\"} 2",
    ] {
        assert!(text.lines().any(|found| found == line), "{line}\n{text}");
    }
}

#[test]
fn unknown_paths_are_not_found() {
    let address = own_address();
    let http = HttpThread::start(Budget::default()).expect("a thread");
    let listener = listen(ListenScope::Address(address.ip()), address.port()).expect("the port");
    let handler =
        Arc::new(HealthzHandler::new(Arc::new(Health::new(Duration::from_secs(60))), Arc::new(Metrics::new(&[]))));
    let _server = http.serve(listener, handler, Limits::default()).expect("a server");
    let mut client = Client::connect(address).expect("a connection");
    let not_found = "HTTP/1.1 404 Not Found\nContent-Type: text/plain; charset=utf-8\nX-Content-Type-Options: nosniff\n\
                     Content-Length: 19\nDate: <date>\n\n";
    for path in ["/other", "/", "/healthz/", "/livez/x", "/HEALTHZ"] {
        assert_eq!(client.request("GET", path), format!("{not_found}404 page not found\n"), "{path}");
    }
    assert_eq!(client.request("HEAD", "/other"), not_found);
}
