//! Requests and responses of readers of flows: one JSON object per line.

use serde::{Deserialize, Serialize};

use crate::{Flow, FlowState, FlowSummary};

/// Request of a reader.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct FlowRequest {
    /// Whether the reader receives the flows that are already known, before new ones.
    pub recent: bool,
    /// New flows and changes, until the reader leaves.
    pub follow: bool,
    /// Interval of a [`FlowSummary`] in seconds; 0 for none. The first one is sent after one interval.
    pub summary_seconds: u32,
    /// Service ports to include, or Services with all their ports; empty for all.
    pub services: Vec<String>,
    /// Only these states; empty for all.
    pub states: Vec<FlowState>,
}

/// One line that readers receive.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum FlowEvent {
    /// The first line.
    Start(FlowStart),
    /// A new or changed flow.
    Flow(Box<Flow>),
    /// The end of the flows that were already known.
    RecentEnd(RecentEnd),
    /// A loss of flows; the numbers are totals.
    Lost(Losses),
    /// The flows of the last minutes.
    Summary(FlowSummary),
}

/// End of the flows that were already known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RecentEnd {
    /// Number of these flows.
    pub flows: usize,
}

/// Data that the kernel provides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FlowStart {
    /// Whether packets and bytes are counted (`nf_conntrack_acct`).
    pub counts: bool,
    /// Whether times are the kernel's (`nf_conntrack_timestamp`), not those at which events were received.
    pub timestamps: bool,
    /// Whether rejected and dropped packets are reported.
    pub refusals: bool,
}

/// Numbers of events and flows that are missing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Losses {
    /// Number of times that the kernel has discarded events because they were not read in time.
    pub overruns: u64,
    /// Connections that were not followed because too many are open.
    pub untracked: u64,
    /// Refused packets that were not read in time. Older sources do not count them.
    #[serde(default)]
    pub unread: u64,
    /// Lines that this reader did not get because it was too slow.
    pub missed: u64,
}

impl Losses {
    /// Returns the sum of the numbers of two sources.
    #[must_use]
    pub fn plus(self, other: &Self) -> Self {
        Self {
            overruns: self.overruns + other.overruns,
            untracked: self.untracked + other.untracked,
            unread: self.unread + other.unread,
            missed: self.missed + other.missed,
        }
    }

    /// Reports whether nothing is missing.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl FlowRequest {
    /// Reports whether the reader wants a flow.
    pub fn wants(&self, flow: &Flow) -> bool {
        (self.states.is_empty() || self.states.contains(&flow.state)) && self.wants_port(flow.service_port.as_deref())
    }

    /// Reports whether the reader wants flows of a service port.
    pub fn wants_port(&self, service_port: Option<&str>) -> bool {
        self.services.is_empty()
            || service_port.is_some_and(|port| self.services.iter().any(|name| is_port_of(port, name)))
    }
}

/// Reports whether a service port is `name`, or a port of the Service `name`.
fn is_port_of(service_port: &str, name: &str) -> bool {
    service_port.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with(':'))
}

/// Times in RFC 3339 with microseconds.
pub(crate) mod optional_time {
    use std::time::SystemTime;

    use ferroute_core::rfc3339;
    use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

    #[expect(clippy::ref_option, reason = "serde defines this signature")]
    pub(crate) fn serialize<S: Serializer>(time: &Option<SystemTime>, serializer: S) -> Result<S::Ok, S::Error> {
        time.and_then(|time| rfc3339::format(time, 6)).serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<SystemTime>, D::Error> {
        let text = Option::<String>::deserialize(deserializer)?;
        text.map(|text| rfc3339::parse(&text).ok_or_else(|| D::Error::custom("not an RFC 3339 time"))).transpose()
    }
}
