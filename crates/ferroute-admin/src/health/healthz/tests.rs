use std::time::{Duration, SystemTime};

use hyper::HeaderMap;

use super::*;
use crate::http::testing::body;

const HEADERS: [(&str, &str); 2] = [("content-type", "application/json"), ("x-content-type-options", "nosniff")];

fn time(nanoseconds: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_nanos(1_767_366_245_000_000_000 + nanoseconds)
}

fn family(family: IpFamily, healthy: bool) -> FamilyReport {
    let last_updated = if family == IpFamily::V4 { time(5) } else { time(1_500_000_000) };
    FamilyReport { family, last_updated, healthy }
}

fn report(families: &[FamilyReport], node_eligible: bool) -> HealthReport {
    HealthReport {
        now: time(123_456_789),
        healthy: families.iter().all(|family| family.healthy),
        node_eligible,
        families: families.to_vec(),
    }
}

/// Returns status and body, and checks the headers.
fn parts(response: Response) -> (u16, String) {
    let headers: HeaderMap = HEADERS
        .into_iter()
        .map(|(name, value)| (name.parse().expect("a name"), value.parse().expect("a value")))
        .collect();
    assert_eq!(response.headers(), &headers);
    (response.status().as_u16(), body(response))
}

#[test]
fn healthy_proxy_reports_current_time_as_last_update() {
    let report = report(&[family(IpFamily::V4, true), family(IpFamily::V6, true)], true);
    let families = r#"{"IPv4":{"lastUpdated":"2026-01-02T15:04:05.000000005Z","healthy":true},"IPv6":{"lastUpdated":"2026-01-02T15:04:06.5Z","healthy":true}}"#;
    let times = r#""lastUpdated":"2026-01-02T15:04:05.123456789Z","currentTime":"2026-01-02T15:04:05.123456789Z""#;
    let healthz = format!(r#"{{{times},"nodeEligible":true,"healthy":true,"status":{families}}}"#);
    let livez = format!(r#"{{{times},"healthy":true,"status":{families}}}"#);
    assert_eq!(parts(report.healthz()), (200, healthz));
    assert_eq!(parts(report.livez()), (200, livez));
}

#[test]
fn unhealthy_proxy_reports_its_last_update() {
    let report = report(&[family(IpFamily::V4, false), family(IpFamily::V6, true)], true);
    let families = r#"{"IPv4":{"lastUpdated":"2026-01-02T15:04:05.000000005Z","healthy":false},"IPv6":{"lastUpdated":"2026-01-02T15:04:06.5Z","healthy":true}}"#;
    let times = r#""lastUpdated":"2026-01-02T15:04:06.5Z","currentTime":"2026-01-02T15:04:05.123456789Z""#;
    let healthz = format!(r#"{{{times},"nodeEligible":true,"healthy":false,"status":{families}}}"#);
    let livez = format!(r#"{{{times},"healthy":false,"status":{families}}}"#);
    assert_eq!(parts(report.healthz()), (503, healthz));
    assert_eq!(parts(report.livez()), (503, livez));
}

#[test]
fn ineligible_node_fails_healthz_but_not_livez() {
    let report = report(&[family(IpFamily::V4, true)], false);
    let families = r#"{"IPv4":{"lastUpdated":"2026-01-02T15:04:05.000000005Z","healthy":true}}"#;
    let healthz = format!(
        r#"{{"lastUpdated":"2026-01-02T15:04:05.000000005Z","currentTime":"2026-01-02T15:04:05.123456789Z","nodeEligible":false,"healthy":true,"status":{families}}}"#
    );
    let livez = format!(
        r#"{{"lastUpdated":"2026-01-02T15:04:05.123456789Z","currentTime":"2026-01-02T15:04:05.123456789Z","healthy":true,"status":{families}}}"#
    );
    assert_eq!(parts(report.healthz()), (503, healthz));
    assert_eq!(parts(report.livez()), (200, livez));
}

#[test]
fn status_is_absent_before_first_sync() {
    let livez = r#"{"lastUpdated":"2026-01-02T15:04:05.123456789Z","currentTime":"2026-01-02T15:04:05.123456789Z","healthy":true}"#;
    let healthz = r#"{"lastUpdated":"0001-01-01T00:00:00Z","currentTime":"2026-01-02T15:04:05.123456789Z","nodeEligible":false,"healthy":true}"#;
    assert_eq!(parts(report(&[], true).livez()), (200, livez.to_owned()));
    assert_eq!(parts(report(&[], false).healthz()), (503, healthz.to_owned()));
}
