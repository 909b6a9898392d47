//! Traces a packet through planned rules or the rules in this machine's kernel.
//!
//! ```text
//!   Desired --> rules (planned, the kernel's, or in files)
//!   Request --> packet and the interface it arrives on --> trace --> text, JSON
//!   host (from the objects, or this machine) --------'
//! ```
//!
//! `ferroute-trace` evaluates the rules.

mod dump;
mod node;
mod outline;
mod packet;
mod policy;
mod report;
mod router;
mod routes;
mod rules;

use std::{net::IpAddr, num::NonZeroU16, path::PathBuf};

use ferroute_config::flags::DesiredArgs;
use ferroute_core::Protocol;

pub(crate) use self::node::kernel_host;
pub use self::{
    dump::DumpedRules,
    node::TraceNode,
    outline::write_outline_into,
    packet::{Arrival, Unresolved, resolve},
    report::{RulesSource, TraceReport, TracedFrontend},
    rules::{Rules, load},
};

/// A request for a trace: the packet and the rules.
#[derive(Clone, Debug)]
pub struct Request {
    /// The source: an address, or the name of a node or pod.
    pub from: Option<String>,
    /// The destination: `ADDRESS:PORT`, or the name of a Service.
    pub to: String,
    /// Namespace of Services and pods whose name has none.
    pub namespace: Option<String>,
    /// The protocol; by default, that of the Service's port, or TCP.
    pub protocol: Option<Protocol>,
    /// Input interface; by default, the one with the route to the source.
    pub input: Option<String>,
    /// Whether the node itself sends the packet.
    pub local: bool,
    /// The source port.
    pub source_port: NonZeroU16,
    /// The desired state of the node.
    pub desired: DesiredArgs,
    /// Whether to use the rules in this machine's kernel.
    pub kernel: bool,
    /// The files with the rules of another host, if they are traced through.
    pub rules: Vec<PathBuf>,
    /// The file with the addresses and routes of that host.
    pub routes: Option<PathBuf>,
}

impl Request {
    /// Reports whether the source is given by a name, of a pod or node.
    fn names_source(&self) -> bool {
        self.from.as_ref().is_some_and(|from| from.parse::<IpAddr>().is_err())
    }

    /// Reports whether the rules are those that the proxy would write.
    fn plans_rules(&self) -> bool {
        !self.kernel && self.rules.is_empty()
    }
}
