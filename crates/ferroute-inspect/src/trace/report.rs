//! Traces as JSON, as documented in `docs/tracing.md`. Within a version, fields are only added.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use ferroute_core::FrontendKind;
use ferroute_trace::{Branch, Effect, Event, Outcome, Packet, Trace, Verdict};
use serde::{Serialize, Serializer};

use super::{node::TraceNode, rules::Rules};

/// A trace, for serialization.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report<'a> {
    /// The version of the format. It changes when fields are removed or change their meaning.
    version: u32,
    node: &'a str,
    mode: &'static str,
    /// The source of the rules: `planned` or `kernel`.
    rules: &'static str,
    packet: &'a Packet,
    /// The frontend with the packet's destination.
    frontend: Option<FrontendReport>,
    outcome: Outcome,
    #[serde(rename = "ways")]
    branches: &'a [Branch],
    /// The known owners of addresses in the trace.
    names: BTreeMap<IpAddr, String>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct FrontendReport {
    namespace: String,
    service: String,
    port: String,
    #[serde(serialize_with = "frontend_kind")]
    kind: FrontendKind,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn frontend_kind<S: Serializer>(kind: &FrontendKind, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(match kind {
        FrontendKind::ClusterIp => "clusterIp",
        FrontendKind::ExternalIp => "externalIp",
        FrontendKind::LoadBalancer => "loadBalancer",
        FrontendKind::NodePort => "nodePort",
    })
}

impl<'a> Report<'a> {
    /// Creates the report of a trace.
    pub fn new(node: &'a TraceNode, packet: &'a Packet, rules: &Rules, trace: &'a Trace) -> Self {
        let desired = &node.desired;
        let frontend = desired.frontend(packet.destination, packet.protocol);
        let addresses = addresses(packet, trace).into_iter();
        Self {
            version: 1,
            node: &desired.node().name,
            mode: rules.mode(),
            rules: if rules.are_in_kernel() { "kernel" } else { "planned" },
            packet,
            frontend: frontend.map(|(name, kind)| FrontendReport {
                namespace: name.service.namespace().to_owned(),
                service: name.service.name().to_owned(),
                port: name.port.to_string(),
                kind,
            }),
            outcome: trace.outcome(),
            branches: &trace.branches,
            names: addresses.filter_map(|ip| Some((ip, desired.names.owner(ip)?.to_string()))).collect(),
        }
    }
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
