//! Planned or active objects of ipvs mode together with its iptables rules, as required by other commands.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fmt,
};

use ferroute_config::ModeName;
use ferroute_core::{Frontend, IpFamily, ModeTraits};
use ferroute_iptables::RuleSet;
use ferroute_ipvs::{
    kernel::KernelState,
    plan::{Entry, FLAG_PERSISTENT, IpvsPlan, ServerConfig, ServerKey, SetKind},
};
use ferroute_trace::{Ruleset, Traceable};
use ipnet::IpNet;

use crate::{ComparableFrontend, ComparableRules, PlannedRules, RulesView};

/// Planned objects.
#[derive(Debug)]
pub(super) struct Planned {
    state: IpvsPlan,
    rules: RuleSet,
}

impl Planned {
    pub(super) fn new(state: IpvsPlan) -> Self {
        let rules = state.chains().to_rule_set(state.family());
        Self { state, rules }
    }
}

impl fmt::Display for Planned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.state.fmt(f)
    }
}

impl PlannedRules for Planned {
    fn view(&self) -> RulesView<'_> {
        RulesView::Other(self)
    }
}

impl Traceable for Planned {
    fn add_to<'a>(&'a self, ruleset: &mut Ruleset<'a>) {
        ruleset.add_ipvs(&self.state);
        ruleset.add_iptables(&self.rules);
    }
}

impl ComparableRules for Planned {
    fn mode(&self) -> ModeName {
        ModeName::IPVS
    }

    fn traits(&self) -> &'static ModeTraits {
        &ModeTraits::IPVS
    }

    fn frontends(&self) -> BTreeMap<Frontend, ComparableFrontend> {
        let frontends = self.state.servers().iter().map(|(key, server)| {
            let facts = ComparableFrontend {
                service_port: Some(server.owner.to_string()),
                affinity: Some(server.affinity()),
                source_ranges: server.source_ranges().to_vec(),
            };
            (frontend(*key, server.is_node_port()), facts)
        });
        frontends.collect()
    }
}

/// Objects of ipvs mode in the kernel, and the iptables rules of the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelIpvs {
    /// Virtual servers, sets and addresses.
    pub objects: KernelState,
    /// The rules of each backend of iptables.
    pub rules: Vec<RuleSet>,
}

impl KernelIpvs {
    /// Returns the virtual servers of these frontends with their set entries: the name of the table or set, and the text in the
    /// syntax of its tool.
    pub fn objects_of(&self, frontends: &[Frontend]) -> Vec<(String, String)> {
        let mut found = Vec::new();
        let mut in_sets = BTreeSet::new();
        for (key, server) in &self.objects.servers {
            let Some(is_node_port) = is_node_port(&self.objects, *key) else { continue };
            if !frontends.contains(&frontend(*key, is_node_port)) {
                continue;
            }
            found.extend(server.lines(*key).into_iter().map(|line| ("ipvs".to_owned(), line)));
            // If a Service address has a port with the number of a node port, the sets of the node port do not concern
            // its virtual server.
            let is_about = |entry: &Entry| is_node_port || !matches!(entry, Entry::Port(_));
            in_sets.extend(self.objects.entries_of(*key).into_iter().filter(|(_, entry)| is_about(entry)));
        }
        let family = |entry: &Entry| match entry {
            Entry::Service(key)
            | Entry::ServiceAndAddress(key, _)
            | Entry::ServiceAndNetwork(key, _)
            | Entry::ServiceExceptNetwork(key, _) => Some(IpFamily::of(key.address)),
            Entry::Address(address) => Some(IpFamily::of(*address)),
            Entry::Port(_) => self.objects.servers.keys().next().map(|key| IpFamily::of(key.address)),
        };
        found.extend(
            in_sets
                .iter()
                .filter_map(|(kind, entry)| Some((format!("ipset {}", kind.name(family(entry)?)), entry.to_string()))),
        );
        found
    }
}

impl Traceable for KernelIpvs {
    fn add_to<'a>(&'a self, ruleset: &mut Ruleset<'a>) {
        ruleset.add_ipvs(&self.objects);
        self.rules.iter().for_each(|rules| ruleset.add_iptables(rules));
    }
}

impl ComparableRules for KernelIpvs {
    fn mode(&self) -> ModeName {
        ModeName::IPVS
    }

    fn traits(&self) -> &'static ModeTraits {
        &ModeTraits::IPVS
    }

    fn frontends(&self) -> BTreeMap<Frontend, ComparableFrontend> {
        let mut ranges: HashMap<ServerKey, Vec<IpNet>> = HashMap::new();
        for entry in &self.objects.entries[SetKind::LoadBalancerSourceCidr.index()] {
            if let Entry::ServiceAndNetwork(key, net) = entry {
                ranges.entry(*key).or_default().push(*net);
            }
        }
        let frontends = self.objects.servers.iter().filter_map(|(key, server)| {
            let is_node_port = is_node_port(&self.objects, *key)?;
            let ServerConfig { flags, timeout, .. } = server.config;
            let facts = ComparableFrontend {
                service_port: None,
                affinity: Some((flags & FLAG_PERSISTENT != 0).then_some(timeout)),
                source_ranges: if is_node_port { Vec::new() } else { ranges.remove(key).unwrap_or_default() },
            };
            Some((frontend(*key, is_node_port), facts))
        });
        frontends.collect()
    }
}

/// Reports whether a virtual server in the kernel is a node port; `None` if it belongs to another program.
fn is_node_port(objects: &KernelState, key: ServerKey) -> Option<bool> {
    let contains = |kind: SetKind, entry| objects.entries[kind.index()].contains(&entry);
    let is_service = [SetKind::ClusterIp, SetKind::ExternalIp, SetKind::ExternalIpLocal, SetKind::LoadBalancer]
        .into_iter()
        .any(|kind| contains(kind, Entry::Service(key)));
    let set = SetKind::node_ports(key.protocol);
    let is_node_port = contains(set, Entry::Port(key.port)) || contains(set, Entry::Service(key));
    if is_service { Some(false) } else { is_node_port.then_some(true) }
}

fn frontend(key: ServerKey, is_node_port: bool) -> Frontend {
    Frontend { address: (!is_node_port).then_some(key.address), protocol: key.protocol, port: key.port }
}
