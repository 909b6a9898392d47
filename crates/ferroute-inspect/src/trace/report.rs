//! The report of a trace.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use ferroute_admin::history::Unapplied;
use ferroute_core::{FrontendKind, ServicePortName};
use ferroute_trace::{Branch, Effect, Event, Outcome, Packet, Trace, Verdict};
use serde::{Deserialize, Serialize};

use super::{node::TraceNode, rules::Rules};

/// A trace with the context that is needed to understand it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TraceReport {
    /// The node on which the packet is traced.
    pub node: String,
    /// The mode of the rules.
    pub mode: String,
    /// The source of the rules.
    pub rules: RulesSource,
    /// The packet.
    pub packet: Packet,
    /// The frontend with the packet's destination.
    pub frontend: Option<TracedFrontend>,
    /// Reason why the running proxy has not applied the rules of this service port, if it has not: planned rules are not those
    /// in the kernel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_applied: Option<Unapplied>,
    /// The overall result.
    pub outcome: Outcome,
    /// Possible results for the packet.
    pub branches: Vec<Branch>,
    /// The known owners of addresses in the trace.
    pub names: BTreeMap<IpAddr, String>,
}

/// The source of rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum RulesSource {
    /// Planned from the desired state.
    Planned,
    /// Read from the kernel.
    Kernel,
    /// Read from files.
    Files,
}

/// The service port that owns the frontend of a packet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TracedFrontend {
    /// The namespace of the Service.
    pub namespace: String,
    /// The name of the Service.
    pub service: String,
    /// The name of the port; may be empty.
    pub port: String,
    /// The kind of the frontend.
    pub kind: FrontendKind,
}

impl TraceReport {
    /// Creates the report of a trace.
    pub fn new(node: &TraceNode, packet: &Packet, rules: &Rules, trace: &Trace) -> Self {
        let desired = &node.desired;
        let frontend = desired.frontend(packet.destination, packet.protocol);
        let addresses = addresses(packet, trace).into_iter();
        Self {
            node: desired.node().name.clone(),
            mode: rules.mode().to_owned(),
            rules: rules.source(),
            packet: packet.clone(),
            frontend: frontend.map(|(name, kind)| TracedFrontend {
                namespace: name.service.namespace().to_owned(),
                service: name.service.name().to_owned(),
                port: name.port.to_string(),
                kind,
            }),
            not_applied: not_applied(node, packet, rules).map(|(_, reason)| reason.clone()),
            outcome: rules.outcome(trace, packet.family()),
            branches: trace.branches.clone(),
            names: addresses.filter_map(|ip| Some((ip, desired.names.owner(ip)?.to_string()))).collect(),
        }
    }
}

/// Returns the service port that owns the frontend of a packet, and the reason why the proxy has not applied it, if it has not.
pub(super) fn not_applied<'a>(
    node: &'a TraceNode,
    packet: &Packet,
    rules: &Rules,
) -> Option<(&'a ServicePortName, &'a Unapplied)> {
    let desired = &node.desired;
    let (name, _) = desired.frontend(packet.destination, packet.protocol)?;
    // Rules in files may be of another host.
    let reason = desired.unapplied(name, packet.family()).filter(|_| rules.source() != RulesSource::Files)?;
    Some((name, reason))
}

fn addresses(packet: &Packet, trace: &Trace) -> BTreeSet<IpAddr> {
    let mut all = BTreeSet::from([packet.source.ip(), packet.destination.ip()]);
    for branch in &trace.branches {
        all.extend(branch.choices.iter().flat_map(|choice| [choice.to.ip(), choice.from]));
        if let Verdict::Delivered { to, from, .. } = &branch.verdict {
            all.extend([to.ip(), *from]);
        }
        for event in &branch.events {
            match event {
                Event::Effect {
                    effect: Effect::Dnat { before, after } | Effect::Connect { before, after }, ..
                } => all.extend([before.ip(), after.ip()]),
                Event::Effect { effect: Effect::Masquerade { before, after }, .. } => all.extend([*before, *after]),
                _ => {}
            }
        }
    }
    all
}
