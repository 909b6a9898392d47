use std::{collections::BTreeMap, net::SocketAddr};

use ferroute_core::{Frontend, IpFamily};
use serde::Serialize;

use super::{Client, Mode, ModeDifference};

/// How the rules of one family differ from those that should be there.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// The family.
    #[serde(serialize_with = "crate::text")]
    pub family: IpFamily,
    /// How the wanted rules are written.
    pub wanted: Mode,
    /// How the others are; `None` if there are none.
    pub found: Option<Mode>,
    /// What was looked at.
    pub compared: Compared,
    /// Where they differ, by service port and frontend.
    pub findings: Vec<Finding>,
    /// Frontends that no Service has (any more).
    pub leftovers: Vec<Leftover>,
    /// Chains, sets and jumps that are not there, or not as they should be.
    pub structure: Vec<String>,
    /// What could not be told.
    pub doubts: Vec<Doubt>,
    /// What is not looked at in such rules.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blind_spot: Option<&'static str>,
    /// Differences between the modes that are meant, and how many packets met them.
    pub named: Vec<Named>,
}

/// What was looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Compared {
    /// Service ports.
    pub service_ports: usize,
    /// Their frontends.
    pub frontends: usize,
    /// Packets that were walked through both.
    pub packets: usize,
}

/// A difference at one frontend.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Finding {
    /// The service port: `namespace/name:port`.
    pub service_port: String,
    /// The frontend; `None` where it is about all of them.
    #[serde(serialize_with = "crate::optional_text", skip_serializing_if = "Option::is_none")]
    pub frontend: Option<Frontend>,
    /// Who meets it; empty where everybody does.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub clients: Vec<Client>,
    /// What differs.
    #[serde(flatten)]
    pub change: Change,
}

/// How something differs from what is wanted.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", tag = "difference")]
pub enum Change {
    /// Other endpoints are reached.
    Endpoints {
        /// Those that should be and are not.
        missing: Vec<SocketAddr>,
        /// Those that should not be and are.
        extra: Vec<SocketAddr>,
    },
    /// The same endpoints are reached, but not as often.
    Shares {
        /// The endpoint for which it differs most.
        endpoint: SocketAddr,
        /// The share that it should have, 0 to 1.
        wanted: f64,
        /// The share that it has.
        found: f64,
    },
    /// Endpoints see another source: it is masqueraded and should not be, or the other way round.
    Source {
        /// Whose address they should see.
        wanted: Seen,
        /// Whose they see.
        found: Seen,
    },
    /// What becomes of connections is of another kind.
    Answer {
        /// What should become of them.
        wanted: Answer,
        /// What does.
        found: Answer,
    },
    /// Clients are remembered for another time.
    Affinity {
        /// Seconds that they should be; `None` for not at all.
        wanted: Option<u32>,
        /// Seconds that they are.
        found: Option<u32>,
    },
}

/// Whose address endpoints see.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Seen {
    /// The client's.
    Client,
    /// The node's: it is masqueraded.
    Node,
}

/// What becomes of connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Answer {
    /// They get to so many endpoints.
    Served(usize),
    /// They are refused.
    Refused,
    /// They are dropped.
    Dropped,
    /// No rule has to do with them.
    Ignored,
    /// There is no way to where they should go.
    Unreachable,
    /// Some get to an endpoint and some do not.
    Mixed,
}

/// A frontend that should not be there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Leftover {
    /// The frontend.
    #[serde(serialize_with = "crate::text")]
    pub frontend: Frontend,
    /// Whose it was, by the comment of the rule or element.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// Something that cannot be told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Doubt {
    /// The service port, if it is about one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service_port: Option<String>,
    /// Why not.
    pub why: String,
}

/// A difference between the modes that is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Named {
    /// Which.
    pub difference: ModeDifference,
    /// How many packets met it.
    pub packets: usize,
}

/// What a report comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Conclusion {
    /// Nothing differs that should not.
    Equal,
    /// Nothing is known to differ, but not everything could be told.
    Unclear,
    /// Something differs.
    Different,
}

impl Report {
    /// What it comes to.
    pub fn conclusion(&self) -> Conclusion {
        if !(self.findings.is_empty() && self.leftovers.is_empty() && self.structure.is_empty()) {
            Conclusion::Different
        } else if self.doubts.is_empty() {
            Conclusion::Equal
        } else {
            Conclusion::Unclear
        }
    }
}

pub(super) fn named(counts: &BTreeMap<ModeDifference, usize>) -> Vec<Named> {
    counts.iter().map(|(difference, packets)| Named { difference: *difference, packets: *packets }).collect()
}
