//! A trace as JSON. `docs/tracing.md` tells what its fields mean; what is there stays there within one version.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use ferroute_trace::{Account, Effect, Event, Outcome, Packet, Told, Verdict};
use serde::Serialize;

use super::{rules::Rules, scene::Scene};
use crate::desired::Frontend;

/// See the module's text.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Report<'a> {
    /// Raised when a field changes its meaning or goes.
    version: u32,
    node: &'a str,
    mode: &'static str,
    /// Where the rules come from: `planned` or `kernel`.
    rules: &'static str,
    packet: &'a Packet,
    /// Whose address and port the packet's destination is.
    frontend: Option<FrontendReport>,
    outcome: Outcome,
    ways: &'a [Told],
    /// Who has the addresses that come up, as far as that is known.
    names: BTreeMap<IpAddr, String>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct FrontendReport {
    namespace: String,
    service: String,
    port: String,
    kind: Frontend,
}

impl<'a> Report<'a> {
    pub(super) fn new(scene: &'a Scene, packet: &'a Packet, rules: &Rules, account: &'a Account) -> Self {
        let desired = &scene.desired;
        let frontend = desired.frontend(packet.destination, packet.protocol);
        let addresses = addresses(packet, account).into_iter();
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
            outcome: account.outcome(),
            ways: &account.ways,
            names: addresses.filter_map(|ip| Some((ip, desired.names.at(ip)?.to_string()))).collect(),
        }
    }
}

fn addresses(packet: &Packet, account: &Account) -> BTreeSet<IpAddr> {
    let mut all = BTreeSet::from([packet.source.ip(), packet.destination.ip()]);
    for way in &account.ways {
        all.extend(way.group.choices.iter().flat_map(|choice| [choice.to.ip(), choice.from]));
        if let Verdict::Delivered { to, from, .. } = &way.group.verdict {
            all.extend([to.ip(), *from]);
        }
        for event in &way.events {
            match event {
                Event::Effect { effect: Effect::Dnat { before, after }, .. } => all.extend([before.ip(), after.ip()]),
                Event::Effect { effect: Effect::Masquerade { before, after }, .. } => all.extend([*before, *after]),
                _ => {}
            }
        }
    }
    all
}
