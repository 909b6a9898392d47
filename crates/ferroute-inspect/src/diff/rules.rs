use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    net::IpAddr,
};

use ferroute_iptables::RuleSet;
use ferroute_nftables::kernel::MemoryTable;
use ferroute_trace::{Host, Packet, Ruleset};
use ipnet::IpNet;
use serde::Serialize;

use super::{Ends, ends, iptables::IndexedRules, kube_proxy, nftables};

/// How rules are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Mode {
    /// By iptables, as kube-proxy and Ferroute do.
    Iptables,
    /// By nftables, as Ferroute does.
    Nftables,
    /// By nftables, as kube-proxy does.
    KubeProxyNftables,
}

/// A service proxy's rules, of either mode, ready to be asked about one service port after the other.
pub struct Rules<'a>(Kind<'a>);

enum Kind<'a> {
    Iptables(IndexedRules<'a>),
    Nftables(&'a MemoryTable),
    KubeProxyNftables(&'a MemoryTable),
}

/// The part of [`Rules`] that packets to some frontends can meet.
pub(super) enum Projection<'a> {
    Iptables(RuleSet),
    Nftables(&'a MemoryTable),
    KubeProxyNftables(&'a MemoryTable),
}

impl<'a> Rules<'a> {
    /// Rules of iptables, as they were planned or as the kernel has them. What is not a service proxy's is left out.
    pub fn iptables(rules: &'a RuleSet) -> Self {
        Self(Kind::Iptables(IndexedRules::new(rules)))
    }

    /// Ferroute's table of nftables.
    pub fn nftables(table: &'a MemoryTable) -> Self {
        Self(Kind::Nftables(table))
    }

    /// The table of kube-proxy's nftables mode.
    pub fn kube_proxy_nftables(table: &'a MemoryTable) -> Self {
        Self(Kind::KubeProxyNftables(table))
    }

    /// How they are written.
    pub fn mode(&self) -> Mode {
        match &self.0 {
            Kind::Iptables(_) => Mode::Iptables,
            Kind::Nftables(_) => Mode::Nftables,
            Kind::KubeProxyNftables(_) => Mode::KubeProxyNftables,
        }
    }

    /// What cannot be told from such rules by any walk.
    pub(super) fn blind_spot(&self) -> Option<&'static str> {
        matches!(self.0, Kind::KubeProxyNftables(_))
            .then_some("how long clients keep their endpoint is not looked at in kube-proxy's nftables rules")
    }

    /// The rules, if they are of `iptables`.
    pub(super) fn as_iptables(&self) -> Option<&'a RuleSet> {
        match &self.0 {
            Kind::Iptables(rules) => Some(rules.all()),
            Kind::Nftables(_) | Kind::KubeProxyNftables(_) => None,
        }
    }

    /// The table, if it is our own.
    pub(super) fn as_nftables(&self) -> Option<&'a MemoryTable> {
        match &self.0 {
            Kind::Nftables(table) => Some(table),
            Kind::Iptables(_) | Kind::KubeProxyNftables(_) => None,
        }
    }

    /// All frontends that they know, with the names that they are commented with.
    pub(super) fn frontends(&self) -> BTreeMap<Frontend, Option<String>> {
        match &self.0 {
            Kind::Iptables(rules) => rules.frontends(),
            Kind::Nftables(table) => nftables::frontends(table),
            Kind::KubeProxyNftables(table) => kube_proxy::frontends(table),
        }
    }

    /// What packets to these frontends can meet.
    pub(super) fn about(&self, frontends: &[Frontend], node: &BTreeSet<IpAddr>) -> Projection<'a> {
        match &self.0 {
            Kind::Iptables(rules) => Projection::Iptables(rules.about(frontends, node)),
            Kind::Nftables(table) => Projection::Nftables(table),
            Kind::KubeProxyNftables(table) => Projection::KubeProxyNftables(table),
        }
    }
}

impl Projection<'_> {
    /// What becomes of a packet.
    pub(super) fn ends(&self, host: &Host, packet: &Packet) -> Ends {
        match self {
            Self::Iptables(rules) => ends(packet, Ruleset::from_rules(rules).verdicts(host, packet)),
            Self::Nftables(table) | Self::KubeProxyNftables(table) => {
                ends(packet, Ruleset::from_nftables_table("", table).verdicts(host, packet))
            }
        }
    }

    /// Seconds for which clients of these frontends keep their endpoint, [`None`] within if they do not; nothing where
    /// it cannot be told.
    pub(super) fn affinity(&self, frontends: &[Frontend]) -> Option<Option<u32>> {
        match self {
            Self::Iptables(rules) => Some(super::iptables::affinity(rules, frontends)),
            Self::Nftables(table) => Some(nftables::affinity(table, frontends)),
            Self::KubeProxyNftables(_) => None,
        }
    }

    /// Sources that some rule or element about these frontends names as those who may use them.
    pub(super) fn source_ranges(&self, frontends: &[Frontend]) -> Vec<IpNet> {
        match self {
            Self::Iptables(rules) => super::iptables::source_ranges(rules, frontends),
            Self::Nftables(table) => nftables::source_ranges(table, frontends),
            // They are in anonymous sets of chains of their own; the other side's ranges have to do.
            Self::KubeProxyNftables(_) => Vec::new(),
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Iptables => "iptables",
            Self::Nftables => "nftables",
            Self::KubeProxyNftables => "kube-proxy's nftables",
        })
    }
}
