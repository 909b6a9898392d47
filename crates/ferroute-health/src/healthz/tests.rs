use std::time::{Duration, SystemTime};

use hyper::{HeaderMap, body::Body as _};

use super::*;

const HEADERS: [(&str, &str); 2] = [("content-type", "application/json"), ("x-content-type-options", "nosniff")];

fn time(nanoseconds: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_nanos(1_767_366_245_000_000_000 + nanoseconds)
}

fn family(family: IpFamily, healthy: bool) -> FamilyReport {
    let last_updated = if family == IpFamily::V4 { time(5) } else { time(1_500_000_000) };
    FamilyReport { family, last_updated, healthy }
}

fn report(families: &[FamilyReport], node_eligible: bool) -> Report {
    Report {
        now: time(123_456_789),
        healthy: families.iter().all(|family| family.healthy),
        node_eligible,
        families: families.to_vec(),
    }
}

/// Status and body; the headers are always the same.
fn shown(response: Response) -> (u16, String) {
    let headers: HeaderMap = HEADERS
        .into_iter()
        .map(|(name, value)| (name.parse().expect("a name"), value.parse().expect("a value")))
        .collect();
    assert_eq!(response.headers(), &headers);
    let status = response.status().as_u16();
    let mut body = Box::pin(response.into_body());
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    let std::task::Poll::Ready(Some(Ok(frame))) = body.as_mut().poll_frame(&mut context) else {
        panic!("a body in memory is there at once")
    };
    let bytes = frame.into_data().expect("data").to_vec();
    (status, String::from_utf8(bytes).expect("text"))
}

#[test]
fn a_healthy_proxy_shows_now_as_its_last_update() {
    let report = report(&[family(IpFamily::V4, true), family(IpFamily::V6, true)], true);
    let families = r#"{"IPv4":{"lastUpdated":"2026-01-02T15:04:05.000000005Z","healthy":true},"IPv6":{"lastUpdated":"2026-01-02T15:04:06.5Z","healthy":true}}"#;
    let times = r#""lastUpdated":"2026-01-02T15:04:05.123456789Z","currentTime":"2026-01-02T15:04:05.123456789Z""#;
    let healthz = format!(r#"{{{times},"nodeEligible":true,"healthy":true,"status":{families}}}"#);
    let livez = format!(r#"{{{times},"healthy":true,"status":{families}}}"#);
    assert_eq!(shown(report.healthz()), (200, healthz));
    assert_eq!(shown(report.livez()), (200, livez));
}

#[test]
fn an_unhealthy_proxy_shows_its_latest_update() {
    let report = report(&[family(IpFamily::V4, false), family(IpFamily::V6, true)], true);
    let families = r#"{"IPv4":{"lastUpdated":"2026-01-02T15:04:05.000000005Z","healthy":false},"IPv6":{"lastUpdated":"2026-01-02T15:04:06.5Z","healthy":true}}"#;
    let times = r#""lastUpdated":"2026-01-02T15:04:06.5Z","currentTime":"2026-01-02T15:04:05.123456789Z""#;
    let healthz = format!(r#"{{{times},"nodeEligible":true,"healthy":false,"status":{families}}}"#);
    let livez = format!(r#"{{{times},"healthy":false,"status":{families}}}"#);
    assert_eq!(shown(report.healthz()), (503, healthz));
    assert_eq!(shown(report.livez()), (503, livez));
}

#[test]
fn a_node_about_to_go_is_no_target_but_its_proxy_lives() {
    let report = report(&[family(IpFamily::V4, true)], false);
    let families = r#"{"IPv4":{"lastUpdated":"2026-01-02T15:04:05.000000005Z","healthy":true}}"#;
    let healthz = format!(
        r#"{{"lastUpdated":"2026-01-02T15:04:05.000000005Z","currentTime":"2026-01-02T15:04:05.123456789Z","nodeEligible":false,"healthy":true,"status":{families}}}"#
    );
    let livez = format!(
        r#"{{"lastUpdated":"2026-01-02T15:04:05.123456789Z","currentTime":"2026-01-02T15:04:05.123456789Z","healthy":true,"status":{families}}}"#
    );
    assert_eq!(shown(report.healthz()), (503, healthz));
    assert_eq!(shown(report.livez()), (200, livez));
}

#[test]
fn before_the_first_sync_there_is_no_status() {
    let livez = r#"{"lastUpdated":"2026-01-02T15:04:05.123456789Z","currentTime":"2026-01-02T15:04:05.123456789Z","healthy":true}"#;
    let healthz = r#"{"lastUpdated":"0001-01-01T00:00:00Z","currentTime":"2026-01-02T15:04:05.123456789Z","nodeEligible":false,"healthy":true}"#;
    assert_eq!(shown(report(&[], true).livez()), (200, livez.to_owned()));
    assert_eq!(shown(report(&[], false).healthz()), (503, healthz.to_owned()));
}
