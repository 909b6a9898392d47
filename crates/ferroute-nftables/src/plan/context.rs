use std::net::IpAddr;

use ferroute_core::{FamilySettings, FlowtableSettings, LocalTraffic, ModeTraits, ProxySettings, ServiceTable};
use ipnet::IpNet;

use crate::model::{InterfacePattern, Match};

/// The settings of this mode.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NftablesSettings {
    /// Settings that all modes have. kube-proxy's defaults for node ports differ in this mode: they are served on the
    /// node's primary addresses only, and not on localhost.
    pub proxy: ProxySettings,
    /// Whether each frontend and endpoint gets a connection counter.
    pub counters: bool,
    /// Settings of the flowtable, with which packets of established connections skip the hooks; `None` for no
    /// flowtable.
    pub flowtable: Option<FlowtableSettings>,
}

/// The inputs of rules besides Services and endpoints. A change of them can affect the rules of all Services.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Context {
    /// The proxy's settings.
    pub(crate) settings: FamilySettings,
    /// The aggregated service CIDRs of this family. Packets to unassigned addresses in them are dropped, because they
    /// would otherwise be sent to the default gateway.
    pub(crate) service_networks: Vec<IpNet>,
    /// Whether elements have counters.
    pub(crate) counters: bool,
    /// The number of packets after which a connection is added to the flowtable; `None` without one.
    pub(crate) flowtable_packets: Option<u32>,
}

impl Context {
    /// Returns the context for a table's node and service CIDRs; `host` are the addresses of the host's interfaces.
    pub(crate) fn new(table: &ServiceTable, settings: &NftablesSettings, host: &[IpAddr]) -> Self {
        Self {
            settings: FamilySettings::new(&settings.proxy, table, &ModeTraits::NFTABLES, host),
            service_networks: IpNet::aggregate(&table.service_cidrs),
            counters: settings.counters,
            flowtable_packets: settings.flowtable.as_ref().map(|flowtable| flowtable.packets),
        }
    }

    /// Returns the condition for traffic from local pods, or for all other traffic if `eq` is false; `None` if it
    /// cannot be detected.
    pub(super) fn match_local_pods(&self, eq: bool) -> Option<Match> {
        Some(match self.settings.local_traffic.as_ref()? {
            LocalTraffic::Source(net) => Match::Saddr { net: *net, eq },
            LocalTraffic::Interface(name) => Match::Iifname { name: InterfacePattern::Exact(name.as_str().into()), eq },
            LocalTraffic::InterfacePrefix(prefix) => {
                Match::Iifname { name: InterfacePattern::Prefix(prefix.as_str().into()), eq }
            }
        })
    }
}
