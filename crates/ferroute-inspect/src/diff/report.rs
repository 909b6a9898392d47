use std::{borrow::Cow, collections::HashSet, net::SocketAddr};

use ferroute_admin::history::{Unapplied, UnappliedPort};
use ferroute_core::{Frontend, IpFamily};
use serde::{Deserialize, Serialize};

use super::{Client, RulesKind};

/// The differences between the actual and the expected rules of one IP family.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DiffReport {
    /// The IP family.
    pub family: IpFamily,
    /// The format of the expected rules.
    pub expected: RulesKind,
    /// Format of the actual rules; `None` if there are none.
    pub actual: Option<RulesKind>,
    /// The extent of the comparison.
    pub coverage: Coverage,
    /// The differences, by service port and frontend.
    pub findings: Vec<Finding>,
    /// Frontends in the rules that no Service has.
    pub stale: Vec<StaleFrontend>,
    /// Missing or modified chains, sets and jumps.
    pub structure: Vec<String>,
    /// Comparisons that could not be made.
    pub undetermined: Vec<Undetermined>,
    /// Parts that are not compared in rules of this format.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limitation: Option<Cow<'static, str>>,
    /// The traits of the modes that explain differences between outcomes of packets, which are therefore intended.
    pub intended: Vec<ModeDifference>,
}

/// The extent of a comparison.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Coverage {
    /// Service ports.
    pub service_ports: usize,
    /// Their frontends.
    pub frontends: usize,
    /// Packets that were traced through both sets of rules.
    pub packets: usize,
}

/// A difference at one frontend.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Finding {
    /// The service port: `namespace/name:port`.
    pub service_port: String,
    /// Frontend; `None` for all frontends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub frontend: Option<Frontend>,
    /// The affected clients; empty for all clients.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub clients: Vec<Client>,
    /// Reason why the running proxy has not applied the rules of the service port, if it has not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_applied: Option<Unapplied>,
    /// The difference.
    #[serde(flatten)]
    pub mismatch: Mismatch,
}

/// An expected and an actual value that differ.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "difference")]
pub enum Mismatch {
    /// Different endpoints receive connections.
    Endpoints {
        /// Expected endpoints that receive none.
        missing: Vec<SocketAddr>,
        /// Unexpected endpoints that receive some.
        extra: Vec<SocketAddr>,
    },
    /// The same endpoints receive connections, but in different proportions.
    Shares {
        /// The endpoint with the largest difference.
        endpoint: SocketAddr,
        /// Expected share, 0 to 1.
        expected: f64,
        /// Actual share.
        actual: f64,
    },
    /// Endpoints see a different source address, because of missing or unexpected masquerading.
    Source {
        /// The expected source address.
        expected: SourceAddress,
        /// The actual source address.
        actual: SourceAddress,
    },
    /// Connections are handled in another way.
    Answer {
        /// The expected handling.
        expected: Answer,
        /// The actual handling.
        actual: Answer,
    },
    /// The session affinity timeouts differ.
    Affinity {
        /// Expected timeout in seconds; `None` for no affinity.
        expected: Option<u32>,
        /// The actual timeout in seconds.
        actual: Option<u32>,
    },
}

/// The source address that endpoints see.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum SourceAddress {
    /// The client's.
    Client,
    /// The node's: connections are masqueraded.
    Node,
}

/// Handling of connections to a frontend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Answer {
    /// Served by this number of endpoints.
    Served(usize),
    /// Rejected.
    Rejected,
    /// Dropped.
    Dropped,
    /// Not handled by any rule of a service proxy.
    Untouched,
    /// Not delivered, because there is no route to the destination.
    Unreachable,
    /// Served in some cases only.
    Mixed,
}

/// A frontend in the rules that no Service has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StaleFrontend {
    /// The frontend.
    pub frontend: Frontend,
    /// The service port in the comment of the rule or element.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// A comparison that could not be made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Undetermined {
    /// The service port, if only one is affected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_port: Option<String>,
    /// The reason.
    pub reason: String,
}

/// A trait in which two modes differ, as a row of the table in `docs/modes.md`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ModeDifference {
    /// The name of the trait.
    #[serde(rename = "trait")]
    pub name: Cow<'static, str>,
    /// Description.
    pub title: Cow<'static, str>,
    /// Value in the expected mode.
    pub expected: String,
    /// Value in the actual mode.
    pub actual: String,
    /// Number of packets with different outcomes because of it.
    pub packets: usize,
}

/// The result of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Conclusion {
    /// There are no differences except intended ones.
    Equal,
    /// There are no known differences, but some comparisons could not be made.
    Unclear,
    /// There are differences.
    Different,
}

impl DiffReport {
    /// Removes the differences that an earlier report of the same rules does not have. The values of one may have changed.
    pub(super) fn confirm(&mut self, earlier: &Self) {
        let places: HashSet<_> =
            earlier.findings.iter().map(|finding| (finding.service_port.as_str(), finding.frontend)).collect();
        self.findings.retain(|finding| places.contains(&(finding.service_port.as_str(), finding.frontend)));
        let stale: HashSet<_> = earlier.stale.iter().map(|stale| stale.frontend).collect();
        self.stale.retain(|other| stale.contains(&other.frontend));
        let structure: HashSet<_> = earlier.structure.iter().collect();
        self.structure.retain(|text| structure.contains(text));
    }

    /// Marks the findings at service ports that the proxy has not applied.
    pub(super) fn mark_unapplied(&mut self, unapplied: &[UnappliedPort]) {
        for finding in &mut self.findings {
            let is_same = |port: &&UnappliedPort| {
                let is_of_protocol = finding.frontend.is_none_or(|frontend| frontend.protocol == port.protocol);
                port.family == self.family && port.service_port == finding.service_port && is_of_protocol
            };
            finding.not_applied = unapplied.iter().find(is_same).map(|port| port.state.clone());
        }
    }

    /// Returns the result of the comparison.
    pub fn conclusion(&self) -> Conclusion {
        if !(self.findings.is_empty() && self.stale.is_empty() && self.structure.is_empty()) {
            Conclusion::Different
        } else if self.undetermined.is_empty() {
            Conclusion::Equal
        } else {
            Conclusion::Unclear
        }
    }
}
