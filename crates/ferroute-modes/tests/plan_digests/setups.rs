//! The settings that rules depend on.

use std::{net::IpAddr, num::NonZeroUsize};

use ferroute_config::{FlagSettings, KubeProxyConfiguration, ModeName, Resolved};
use ferroute_core::{
    FlowtableSettings, IpFamily, LocalTrafficDetector, NodePortAddresses, ProxySettings, ServiceTable,
    testing::Cluster, tracker::TrackerEvent,
};
use ferroute_modes::REGISTRY;
use ipnet::IpNet;

/// Settings and addresses of a host.
pub(crate) struct Setup {
    /// A name for keys and messages.
    pub(crate) name: String,
    settings: ProxySettings,
    /// The addresses of all interfaces; empty in commands on another host.
    pub(crate) addresses: Vec<IpAddr>,
    /// Whether to set all fields that only flags and the sections of single modes set.
    all_options: bool,
    service_cidrs: Vec<IpNet>,
}

impl Setup {
    /// Returns the settings of a recorded case.
    pub(crate) fn recorded(settings: ProxySettings, addresses: Vec<IpAddr>) -> Self {
        Self { addresses, ..Self::new("recorded", settings) }
    }

    fn new(name: &str, settings: ProxySettings) -> Self {
        let addresses = ["127.0.0.1", "::1", "192.168.0.1", "fd00:168::1", "192.168.7.1", "10.244.0.1", "fd00:244::1"];
        let addresses = addresses.map(|address| address.parse().unwrap()).into();
        Self { name: name.to_owned(), settings, addresses, all_options: false, service_cidrs: Vec::new() }
    }

    /// Returns the configuration of a mode.
    pub(crate) fn resolved(&self, mode: ModeName) -> Resolved {
        let mut config = KubeProxyConfiguration::default().defaulted();
        config.mode = mode.as_str().to_owned();
        let mut resolved = REGISTRY.resolve(&config).unwrap();
        resolved.settings = self.settings.clone();
        if self.all_options {
            resolved.ipvs.scheduler = "wrr".to_owned();
            resolved.ipvs.exclude_cidrs = vec!["10.96.0.2/32".parse().unwrap(), "fd00:96::2/128".parse().unwrap()];
            resolved.conntrack.tcp_be_liberal = true;
            let devices = vec!["eth0".parse().unwrap(), "veth*".parse().unwrap()];
            resolved.flags = FlagSettings {
                connection_counters: NonZeroUsize::new(100),
                flowtable: Some(FlowtableSettings { devices, packets: 20 }),
                ..FlagSettings::default()
            };
        }
        resolved
    }

    /// Returns the tables of a cluster, of both IP families.
    pub(crate) fn tables(&self, cluster: &Cluster) -> [ServiceTable; 2] {
        let mut tracker = cluster.tracker();
        tracker.apply(TrackerEvent::ServiceCidrsApplied(self.service_cidrs.clone()));
        IpFamily::BOTH.map(|family| {
            tracker.update(family);
            tracker.table(family).clone()
        })
    }
}

/// Returns settings that differ from the first ones, each in the respect that its name describes.
pub(crate) fn setups() -> Vec<Setup> {
    let base = || ProxySettings { detector: cluster_cidr(), ..ProxySettings::default() };
    let detector = |detector| ProxySettings { detector, ..base() };
    let node_ports = |node_port_addresses| ProxySettings { node_port_addresses, ..base() };
    let within = |networks: &[&str]| NodePortAddresses::Within(nets(networks));
    vec![
        Setup::new("cluster-cidr", base()),
        Setup { addresses: Vec::new(), ..Setup::new("no-addresses", base()) },
        Setup::new("masquerade-all", ProxySettings { masquerade_all: true, ..base() }),
        Setup::new(
            "no-masquerade",
            ProxySettings { no_masquerade_cidrs: nets(&["10.244.0.0/24", "fd00:244::/64"]), ..base() },
        ),
        Setup::new("mark-bit-31", ProxySettings { masquerade_bit: 31, ..base() }),
        Setup::new("detect-none", detector(LocalTrafficDetector::None)),
        Setup::new(
            "detect-none-masquerade-all",
            ProxySettings { masquerade_all: true, ..detector(LocalTrafficDetector::None) },
        ),
        Setup::new("detect-node-cidr", detector(LocalTrafficDetector::NodeCidr)),
        Setup::new("detect-bridge", detector(LocalTrafficDetector::BridgeInterface("cbr0".to_owned()))),
        Setup::new("detect-prefix", detector(LocalTrafficDetector::InterfaceNamePrefix("veth".to_owned()))),
        Setup::new("no-localhost", ProxySettings { localhost_node_ports: false, ..base() }),
        Setup::new("primary", node_ports(NodePortAddresses::Primary)),
        Setup { addresses: Vec::new(), ..Setup::new("primary-no-addresses", node_ports(NodePortAddresses::Primary)) },
        Setup::new("within", node_ports(within(&["192.168.0.0/24", "fd00:168::/64"]))),
        Setup::new("within-loopback", node_ports(within(&["127.0.0.0/8", "192.168.7.0/24", "::1/128"]))),
        Setup::new("within-no-address", node_ports(within(&["172.16.0.0/12"]))),
        Setup { service_cidrs: nets(&["10.96.0.0/16", "fd00:96::/112"]), ..Setup::new("service-cidrs", base()) },
        Setup { all_options: true, ..Setup::new("all-options", base()) },
    ]
}

fn cluster_cidr() -> LocalTrafficDetector {
    LocalTrafficDetector::ClusterCidr(nets(&["10.244.0.0/16", "fd00:244::/32"]))
}

fn nets(texts: &[&str]) -> Vec<IpNet> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}
