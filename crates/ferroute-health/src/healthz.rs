use std::sync::Arc;

use ferroute_core::IpFamily;
use hyper::StatusCode;
use serde::Serialize;

use crate::{FamilyReport, Handler, Health, Report, Request, Response, json, not_found, rfc3339};

/// Answers `/healthz` and `/livez`, whatever the method.
#[derive(Clone, Debug)]
pub struct HealthzHandler {
    health: Arc<Health>,
}

impl HealthzHandler {
    /// Answers with what `health` knows when it is asked.
    pub fn new(health: Arc<Health>) -> Self {
        Self { health }
    }
}

impl Handler for HealthzHandler {
    fn answer(&self, request: &Request) -> Response {
        match request.uri.path() {
            "/healthz" => self.health.report().healthz(),
            "/livez" => self.health.report().livez(),
            _ => not_found(),
        }
    }
}

impl Report {
    /// The answer to `/healthz`, for load balancers: 200 while the rules keep up and the node is eligible, else 503.
    pub fn healthz(&self) -> Response {
        self.response(self.healthy && self.node_eligible, Some(self.node_eligible))
    }

    /// The answer to `/livez`, for the kubelet: 200 while the rules keep up, else 503. Restarting the proxy would not
    /// make its node eligible, so that does not count.
    pub fn livez(&self) -> Response {
        self.response(self.healthy, None)
    }

    fn response(&self, good: bool, node_eligible: Option<bool>) -> Response {
        // Once this was the time of the last sync, which was always recent in a healthy proxy; readers rely on that.
        let last_updated = if good { Some(self.now) } else { self.last_updated() };
        let family = |family| self.families.iter().find(|report| report.family == family).map(FamilyBody::from);
        let body = Body {
            last_updated: rfc3339(last_updated),
            current_time: rfc3339(Some(self.now)),
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
    /// Of the families alone.
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
        Self { last_updated: rfc3339(Some(report.last_updated)), healthy: report.healthy }
    }
}

#[cfg(test)]
mod tests;
