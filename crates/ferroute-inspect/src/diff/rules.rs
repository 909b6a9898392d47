use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    net::IpAddr,
};

use ferroute_config::ModeName;
use ferroute_core::{Frontend, Hairpin, Method, ModeTraits};
use ferroute_iptables::RuleSet;
use ferroute_modes::{ComparableFrontend, ComparableRules, RulesView};
use ferroute_nftables::kernel::MemoryTable;
use ferroute_trace::{Host, Packet, Ruleset};
use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use super::{
    Outcomes,
    iptables::{self, IndexedRules},
    nftables, outcomes,
};

/// The format of Service rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum RulesKind {
    /// iptables rules, of kube-proxy or Ferroute.
    Iptables,
    /// Ferroute's nftables table.
    Nftables,
    /// The table of kube-proxy's nftables mode.
    KubeProxyNftables,
    /// The rules of any other mode.
    #[serde(untagged)]
    Other(ModeName),
}

impl RulesKind {
    /// Returns the mode of the rules.
    pub(super) fn mode(&self) -> ModeName {
        match self {
            Self::Iptables => ModeName::IPTABLES,
            Self::Nftables | Self::KubeProxyNftables => ModeName::NFTABLES,
            Self::Other(mode) => *mode,
        }
    }
}

/// The rules of a service proxy, prepared for a comparison by service port.
pub struct Rules<'a>(Format<'a>);

enum Format<'a> {
    Iptables(IndexedRules<'a>),
    Nftables(&'a MemoryTable),
    KubeProxyNftables(&'a MemoryTable),
    Other(OtherRules<'a>),
}

/// The rules of a mode that uses neither iptables nor nftables alone.
struct OtherRules<'a> {
    rules: &'a dyn ComparableRules,
    /// The iptables rules among them.
    iptables: Vec<IndexedRules<'a>>,
    frontends: BTreeMap<Frontend, ComparableFrontend>,
}

/// The part of [`Rules`] that packets to some frontends can reach.
pub(super) enum Projection<'a> {
    Iptables(RuleSet),
    Nftables(&'a MemoryTable),
    KubeProxyNftables(&'a MemoryTable),
    Other {
        rules: &'a dyn ComparableRules,
        iptables: Vec<RuleSet>,
        frontends: BTreeMap<Frontend, &'a ComparableFrontend>,
    },
}

impl<'a> Rules<'a> {
    /// Wraps iptables rules, planned or read from the kernel. Rules of other programs are ignored.
    pub fn iptables(rules: &'a RuleSet) -> Self {
        Self(Format::Iptables(IndexedRules::new(rules)))
    }

    /// Ferroute's nftables table.
    pub fn nftables(table: &'a MemoryTable) -> Self {
        Self(Format::Nftables(table))
    }

    /// The table of kube-proxy's nftables mode.
    pub fn kube_proxy_nftables(table: &'a MemoryTable) -> Self {
        Self(Format::KubeProxyNftables(table))
    }

    /// Wraps the rules of any other mode.
    pub fn other(rules: &'a dyn ComparableRules) -> Self {
        let (iptables, long) = rules.iptables();
        let iptables = iptables.iter().map(|rules| IndexedRules::of_chains(rules, long.iter().copied())).collect();
        Self(Format::Other(OtherRules { rules, iptables, frontends: rules.frontends() }))
    }

    /// Returns the format of the rules.
    pub fn kind(&self) -> RulesKind {
        match &self.0 {
            Format::Iptables(_) => RulesKind::Iptables,
            Format::Nftables(_) => RulesKind::Nftables,
            Format::KubeProxyNftables(_) => RulesKind::KubeProxyNftables,
            Format::Other(other) => RulesKind::Other(other.rules.mode()),
        }
    }

    /// Returns the traits of the mode that the rules belong to.
    pub(super) fn traits(&self) -> &'static ModeTraits {
        match &self.0 {
            Format::Iptables(_) => &ModeTraits::IPTABLES,
            Format::Nftables(_) => &ModeTraits::NFTABLES,
            Format::KubeProxyNftables(_) => &KUBE_PROXY_NFTABLES,
            Format::Other(other) => other.rules.traits(),
        }
    }

    /// Returns a description of the parts that are not compared in rules of this format.
    pub(super) fn limitation(&self) -> Option<&'static str> {
        match &self.0 {
            Format::Iptables(_) | Format::Nftables(_) => None,
            Format::KubeProxyNftables(_) => {
                Some("session affinity timeouts in kube-proxy's nftables rules are not compared")
            }
            Format::Other(other) => {
                let is_unknown = other.frontends.values().any(|frontend| frontend.affinity.is_none());
                is_unknown.then_some("session affinity timeouts in these rules are not compared")
            }
        }
    }

    /// Returns the rules if they are iptables rules.
    pub(super) fn as_iptables(&self) -> Option<&'a RuleSet> {
        match &self.0 {
            Format::Iptables(rules) => Some(rules.all()),
            _ => None,
        }
    }

    /// Returns the table if it is Ferroute's.
    pub(super) fn as_nftables(&self) -> Option<&'a MemoryTable> {
        match &self.0 {
            Format::Nftables(table) => Some(table),
            _ => None,
        }
    }

    /// Returns all frontends in the rules, with the names in their comments.
    pub(super) fn frontends(&self) -> BTreeMap<Frontend, Option<String>> {
        match &self.0 {
            Format::Iptables(rules) => rules.frontends(),
            Format::Nftables(table) => nftables::frontends(table),
            Format::KubeProxyNftables(table) => nftables::kube_proxy_frontends(table),
            Format::Other(other) => {
                let frontends = other.frontends.iter();
                frontends.map(|(frontend, facts)| (*frontend, facts.service_port.clone())).collect()
            }
        }
    }

    /// Returns the rules that packets to these frontends can reach; `node` contains the addresses that can serve node
    /// ports.
    pub(super) fn project(&self, frontends: &[Frontend], node: &BTreeSet<IpAddr>) -> Projection<'_> {
        match &self.0 {
            Format::Iptables(rules) => Projection::Iptables(rules.project(frontends, node)),
            Format::Nftables(table) => Projection::Nftables(table),
            Format::KubeProxyNftables(table) => Projection::KubeProxyNftables(table),
            Format::Other(other) => Projection::Other {
                rules: other.rules,
                iptables: other.iptables.iter().map(|rules| rules.project(frontends, node)).collect(),
                frontends: frontends
                    .iter()
                    .filter_map(|frontend| Some((*frontend, other.frontends.get(frontend)?)))
                    .collect(),
            },
        }
    }
}

impl<'a> From<RulesView<'a>> for Rules<'a> {
    fn from(view: RulesView<'a>) -> Self {
        match view {
            RulesView::Iptables(rules) => Self::iptables(rules),
            RulesView::Nftables(table) => Self::nftables(table),
            RulesView::KubeProxyNftables(table) => Self::kube_proxy_nftables(table),
            RulesView::Other(rules) => Self::other(rules),
        }
    }
}

impl Projection<'_> {
    /// Traces a packet.
    pub(super) fn outcomes(&self, host: &Host, packet: &Packet) -> Outcomes {
        let ruleset = match self {
            Self::Iptables(rules) => Ruleset::from_rules(rules),
            Self::Nftables(table) | Self::KubeProxyNftables(table) => Ruleset::from_nftables_table("", table),
            Self::Other { rules, iptables, .. } => {
                let mut ruleset = Ruleset::new();
                iptables.iter().for_each(|rules| ruleset.add_iptables(rules));
                rules.add_others_to(&mut ruleset);
                ruleset
            }
        };
        outcomes(packet, ruleset.verdicts(host, packet))
    }

    /// Returns the session affinity timeout of these frontends in seconds, with an inner [`None`] if they have no
    /// affinity; `None` if it cannot be determined from the format.
    pub(super) fn affinity(&self, frontends: &[Frontend]) -> Option<Option<u32>> {
        match self {
            Self::Iptables(rules) => Some(iptables::affinity(rules, frontends)),
            Self::Nftables(table) => Some(nftables::affinity(table, frontends)),
            Self::KubeProxyNftables(_) => None,
            Self::Other { frontends: facts, .. } => {
                let facts = frontends.iter().filter_map(|frontend| facts.get(frontend));
                let known: Vec<Option<u32>> = facts.filter_map(|facts| facts.affinity).collect();
                (!known.is_empty()).then(|| known.into_iter().flatten().next())
            }
        }
    }

    /// Returns the source ranges of these frontends, as far as the format shows them.
    pub(super) fn source_ranges(&self, frontends: &[Frontend]) -> Vec<IpNet> {
        match self {
            Self::Iptables(rules) => iptables::source_ranges(rules, frontends),
            Self::Nftables(table) => nftables::source_ranges(table, frontends),
            // These are in anonymous sets of chains for each Service; the ranges of the other side are used.
            Self::KubeProxyNftables(_) => Vec::new(),
            Self::Other { frontends: facts, .. } => {
                let facts = frontends.iter().filter_map(|frontend| facts.get(frontend));
                let ranges: BTreeSet<IpNet> = facts.flat_map(|facts| facts.source_ranges.iter().copied()).collect();
                ranges.into_iter().collect()
            }
        }
    }
}

impl fmt::Display for RulesKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Iptables => "iptables",
            Self::Nftables => "nftables",
            Self::KubeProxyNftables => "kube-proxy's nftables",
            Self::Other(mode) => mode.as_str(),
        })
    }
}

/// kube-proxy's nftables mode. It masquerades hairpin traffic from all nodes, and chooses endpoints like its iptables
/// mode.
const KUBE_PROXY_NFTABLES: ModeTraits = ModeTraits {
    hairpin: Hairpin::All,
    methods: &[Method::Random],
    weights: false,
    drain_timeouts: false,
    source_ranges_scope: false,
    limits: false,
    ..ModeTraits::NFTABLES
};
