use std::sync::Arc;

use ferroute_core::IpFamily;
use hyper::StatusCode;
use serde::Serialize;

use crate::{
    health::{FamilyReport, Health, HealthReport},
    http::{Handler, Request, Response, json, not_found},
    metrics::Metrics,
    time::go_time,
};

/// Serves `/healthz` and `/livez` for any method and counts the answers.
#[derive(Clone, Debug)]
pub struct HealthzHandler {
    health: Arc<Health>,
    metrics: Arc<Metrics>,
}

impl HealthzHandler {
    /// Creates a handler that reports `health` and counts its answers in `metrics`.
    pub fn new(health: Arc<Health>, metrics: Arc<Metrics>) -> Self {
        Self { health, metrics }
    }
}

impl Handler for HealthzHandler {
    fn answer(&self, request: &Request) -> Response {
        let (response, counter) = match request.uri.path() {
            "/healthz" => (self.health.report().healthz(), &self.metrics.healthz),
            "/livez" => (self.health.report().livez(), &self.metrics.livez),
            _ => return not_found(),
        };
        counter.with_label_values(&[response.status().as_str()]).inc();
        response
    }
}

impl HealthReport {
    /// Returns the answer to `/healthz`, which load balancers check: 200 if the proxy is healthy and the node eligible,
    /// otherwise 503.
    fn healthz(&self) -> Response {
        self.response(self.healthy && self.node_eligible, Some(self.node_eligible))
    }

    /// Returns the answer to `/livez`, which the kubelet checks: 200 if the proxy is healthy, otherwise 503.
    /// Eligibility of the node does not matter, because a restart of the proxy would not change it.
    fn livez(&self) -> Response {
        self.response(self.healthy, None)
    }

    fn response(&self, good: bool, node_eligible: Option<bool>) -> Response {
        // Earlier kube-proxies showed the time of the last sync, which was always recent in a healthy proxy. Clients rely
        // on that.
        let last_updated = if good { Some(self.now) } else { self.last_updated() };
        let family = |family| self.families.iter().find(|report| report.family == family).map(FamilyBody::from);
        let body = Body {
            last_updated: go_time(last_updated),
            current_time: go_time(Some(self.now)),
            node_eligible,
            healthy: self.healthy,
            status: (!self.families.is_empty())
                .then(|| StatusBody { ipv4: family(IpFamily::V4), ipv6: family(IpFamily::V6) }),
        };
        let status = if good { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
        json(status, serde_json::to_string(&body).expect("text and booleans under text keys are always JSON"))
    }
}

/// Fields in kube-proxy's order.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Body {
    last_updated: String,
    current_time: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    node_eligible: Option<bool>,
    /// Health of the families, without the node's eligibility.
    healthy: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<StatusBody>,
}

#[derive(Serialize)]
struct StatusBody {
    #[serde(rename = "IPv4", skip_serializing_if = "Option::is_none")]
    ipv4: Option<FamilyBody>,
    #[serde(rename = "IPv6", skip_serializing_if = "Option::is_none")]
    ipv6: Option<FamilyBody>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct FamilyBody {
    last_updated: String,
    healthy: bool,
}

impl From<&FamilyReport> for FamilyBody {
    fn from(report: &FamilyReport) -> Self {
        Self { last_updated: go_time(Some(report.last_updated)), healthy: report.healthy }
    }
}

#[cfg(test)]
mod tests;
