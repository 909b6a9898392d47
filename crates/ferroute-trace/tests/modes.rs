//! Both modes do the same: in every cluster, the rules of nftables and those of iptables send every new connection to
//! the same endpoints, as often and with the same source, except where [`Difference`] says otherwise.

#![expect(clippy::unwrap_used, reason = "helpers of tests only")]

mod common;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
};

use common::world::{Client, World, ip, world};
use ferroute_core::{
    IpFamily, NodePortMatch, Protocol, ServicePort, ServiceTable,
    testing::{Cluster, arbitrary},
};
use ferroute_iptables::{HostFacts, PlanContext, RuleSet};
use ferroute_nftables::{
    Class, Value,
    kernel::{Kernel, MemoryKernel, MemoryTable},
    model::{Change, Datum, Element, Name, TableId, Transaction},
    plan::{NftablesSettings, TABLE},
};
use ferroute_trace::{Ending, Host, Packet, Verdict, iptables, nftables};
use ipnet::IpNet;
use proptest::{
    prelude::*,
    strategy::ValueTree,
    test_runner::{RngAlgorithm, TestRng, TestRunner},
};

/// Where nftables mode does something else than iptables mode, on purpose and as kube-proxy's does. Node ports on
/// localhost and on other addresses than the primary one are a matter of settings; here both modes have the same ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Difference {
    /// A port of a cluster IP that its Service does not have is refused; iptables lets the packet wander off.
    UnknownPortOfClusterIp,
    /// An address out of the networks of cluster IPs that no Service has gets silence; iptables does not know these
    /// networks.
    UnassignedClusterIp,
    /// The node itself is refused at an external address of a Service without endpoints; iptables has no such rule for
    /// what the node sends.
    OwnCallToExternalAddressWithoutEndpoints,
    /// Source ranges are looked at first: strangers get silence also where there is no endpoint anyway; iptables refuses
    /// everybody there.
    SourceRangesWithoutEndpoints,
    /// Source ranges also guard an address of the balancer that is an external IP of the same Service as well; in
    /// iptables the rule of the external IP comes first.
    SourceRangesOnExternalIp,
    /// Where a node port does not answer because of `nodePortAddresses`, nothing is refused or dropped either; iptables
    /// refuses on all addresses of the node.
    NodePortBeside,
    /// A pod of another node that calls itself through this one is seen with its own address: only this node's own
    /// endpoints are in the set of those to masquerade. iptables masquerades for every endpoint.
    HairpinOfAnotherNode,
}

/// What becomes of a packet, and how often.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum End {
    /// It gets to an address, seen as from another, through an interface.
    Delivered { to: SocketAddr, from: IpAddr, through: Option<String> },
    /// No rule had to do with it.
    Untouched,
    /// The sender is told.
    Refused,
    /// It vanishes.
    Dropped,
}

type Ends = BTreeMap<End, f64>;

/// What the planners make of one family of a cluster.
struct Modes<'a> {
    world: &'a World,
    host: Host,
    services: ServiceTable,
    /// Networks of cluster IPs.
    networks: Vec<IpNet>,
    iptables: RuleSet,
    nftables: MemoryKernel,
}

fn of_family(networks: &[IpNet], family: IpFamily) -> Vec<IpNet> {
    networks.iter().copied().filter(|net| IpFamily::of(net.addr()) == family).collect()
}

impl<'a> Modes<'a> {
    fn new(cluster: &Cluster, world: &'a World, family: IpFamily, know_networks: bool) -> Self {
        let mut services = cluster.table(family);
        let facts = HostFacts { addresses: world.addresses(), random_fully: true, ..HostFacts::default() };
        let iptables = ferroute_iptables::render(&services, &PlanContext::new(&world.settings, &services, &facts));
        let networks: Vec<IpNet> =
            if know_networks { CLUSTER_IPS.map(|net| net.parse().unwrap()).into() } else { Vec::new() };
        services.service_cidrs = of_family(&networks, family);
        let settings = NftablesSettings { proxy: world.settings.clone(), counters: false };
        let mut nftables = MemoryKernel::new();
        nftables.commit(&ferroute_nftables::plan::render(&services, &settings, &world.addresses())).unwrap();
        Self { world, host: world.host(), services, networks, iptables, nftables }
    }

    fn id(&self) -> TableId {
        TableId { family: self.services.family, name: TABLE }
    }

    fn table(&self) -> &MemoryTable {
        self.nftables.table(&self.id()).unwrap()
    }

    fn through_iptables(&self, packet: &Packet) -> Ends {
        ends(packet, iptables::endings(&self.iptables, &self.host, packet))
    }

    fn through_nftables(&self, packet: &Packet) -> Ends {
        ends(packet, nftables::endings(self.table(), &self.host, packet))
    }

    /// Compares the modes; tells where they are meant to differ.
    fn check(&self, client: &Client, packet: &Packet) -> Result<Option<Difference>, TestCaseError> {
        let (iptables, nftables) = (self.through_iptables(packet), self.through_nftables(packet));
        let (difference, expected) = match self.difference(client, packet, &iptables) {
            Some((difference, expected)) => (Some(difference), expected),
            None => (None, iptables.clone()),
        };
        let same = nftables.keys().eq(expected.keys())
            && nftables.values().zip(expected.values()).all(|(one, other)| (one - other).abs() < ROUNDING);
        prop_assert!(
            same,
            "{client:?} {packet:?}\niptables {iptables:?}\nnftables {nftables:?}\nexpected ({difference:?}) {expected:?}"
        );
        Ok(difference)
    }

    /// Whether the modes differ for a packet that ends like this in iptables mode, and how it then ends in nftables mode.
    fn difference(&self, client: &Client, packet: &Packet, iptables: &Ends) -> Option<(Difference, Ends)> {
        use Difference::*;
        let (to, from) = (packet.destination, packet.source.ip());
        let only = |end: End| Ends::from([(end, 1.0)]);
        let is = |end: End| iptables.keys().eq([&end]);
        let unserved = is(End::Refused) || is(End::Untouched);
        let at_port = |service: &&ServicePort| service.port == to.port();
        let services = || self.of_protocol(packet.protocol);
        let vips = || services().filter(at_port).filter(|service| service.load_balancer_vips.contains(&to.ip()));
        let shut_out = |service: &ServicePort| {
            let ranges = &service.load_balancer_source_ranges;
            !ranges.is_empty() && !ranges.iter().any(|range| range.contains(&from))
        };
        if unserved && vips().any(shut_out) {
            return Some((SourceRangesWithoutEndpoints, only(End::Dropped)));
        }
        let external = |service: &ServicePort| service.external_ips.contains(&to.ip());
        if !unserved && vips().any(|service| shut_out(service) && external(service)) {
            return Some((SourceRangesOnExternalIp, only(End::Dropped)));
        }
        let calls_external = vips().count() > 0 || services().filter(at_port).any(external);
        if matches!(client, Client::Node) && is(End::Untouched) && calls_external {
            return Some((OwnCallToExternalAddressWithoutEndpoints, only(End::Refused)));
        }
        let all = || self.services.entries.values();
        if is(End::Untouched) && all().any(|entry| entry.service.cluster_ip == to.ip()) {
            return Some((UnknownPortOfClusterIp, only(End::Refused)));
        }
        if is(End::Untouched) && self.networks.iter().any(|net| net.contains(&to.ip())) {
            return Some((UnassignedClusterIp, only(End::Dropped)));
        }
        let node_port = services().any(|service| service.node_port.is_some_and(|port| port.get() == to.port()));
        let turned_away = is(End::Refused) || is(End::Dropped);
        // What others send to the node's localhost is dropped by the kernel itself.
        let arrives = self.host.owns(to.ip()) && (!to.ip().is_loopback() || matches!(client, Client::Node));
        if turned_away && node_port && arrives && !self.answers_on_node_ports(to.ip()) {
            return Some((NodePortBeside, only(End::Untouched)));
        }
        let itself = |end: &End| matches!(end, End::Delivered { to, .. } if to.ip() == from);
        // What a pod beside it would be seen as tells whether there is another reason to masquerade.
        let neighbour = ip(["10.244.1.200", "fd00:244:0:1::200"][self.services.family.index()]);
        if matches!(client, Client::Elsewhere(_)) && from != neighbour && iptables.keys().any(itself) {
            let source = SocketAddr::new(neighbour, packet.source.port());
            let of_neighbour = self.through_iptables(&Packet { source, ..packet.clone() });
            let keeps = of_neighbour
                .keys()
                .filter(|end| itself(end))
                .any(|end| matches!(end, End::Delivered { from, .. } if *from == neighbour));
            let own_source = |end: &End| match end.clone() {
                End::Delivered { to, through, .. } if itself(end) => End::Delivered { to, from, through },
                other => other,
            };
            let expected = iptables.iter().map(|(end, share)| (own_source(end), *share)).collect();
            return keeps.then_some((HairpinOfAnotherNode, expected));
        }
        None
    }

    fn of_protocol(&self, protocol: Protocol) -> impl Iterator<Item = &ServicePort> {
        let entries = self.services.entries.iter().filter(move |(name, _)| name.protocol == protocol);
        entries.map(|(_, entry)| &*entry.service)
    }

    fn answers_on_node_ports(&self, address: IpAddr) -> bool {
        let settings = &self.world.settings;
        let chosen = match settings.node_ports(self.services.family, &self.services.node, &self.world.addresses()) {
            NodePortMatch::AnyLocal => true,
            NodePortMatch::Addresses(addresses) => addresses.contains(&address),
        };
        chosen && (!address.is_loopback() || settings.localhost_node_ports(self.services.family))
    }

    /// All addresses and ports that rules could have to do with, and some that they have not.
    fn destinations(&self) -> BTreeSet<SocketAddr> {
        let family = self.services.family;
        let of_family = |address: &IpAddr| IpFamily::of(*address) == family;
        let node: Vec<IpAddr> = self.world.addresses().into_iter().filter(of_family).collect();
        let mut all = BTreeSet::new();
        for entry in self.services.entries.values() {
            let service = &entry.service;
            let addresses = [service.cluster_ip].into_iter();
            let addresses = addresses.chain(service.external_ips.iter().chain(&service.load_balancer_vips).copied());
            all.extend(addresses.flat_map(|address| [service.port, UNUSED].map(|port| SocketAddr::new(address, port))));
            let node_port = service.node_port.into_iter();
            all.extend(node_port.flat_map(|port| node.iter().map(move |own| SocketAddr::new(*own, port.get()))));
            all.extend(entry.endpoints.first().map(|endpoint| endpoint.socket()));
        }
        let strangers: [&str; 2] =
            [["203.0.113.240", "10.96.0.200"], ["2001:db8:ff::1", "fd00:96::200"]][family.index()];
        all.extend(strangers.map(|address| SocketAddr::new(ip(address), 80)));
        all.extend(node.iter().map(|own| SocketAddr::new(*own, UNUSED)));
        all
    }

    /// Compares the modes for every client and destination; tells where they are meant to differ.
    fn check_all(&self) -> Result<BTreeSet<Difference>, TestCaseError> {
        let mut met = BTreeSet::new();
        let destinations = self.destinations();
        for client in Client::all(self.services.family) {
            for (to, protocol) in destinations.iter().flat_map(|to| PROTOCOLS.map(|protocol| (*to, protocol))) {
                met.extend(self.check(&client, &client.packet(self.world, protocol, to))?);
            }
        }
        Ok(met)
    }

    /// A client that nftables mode remembers gets its endpoint again at every frontend of the service port that leads
    /// there, whichever it was.
    fn check_affinity(&self, client: &Client) -> Result<(), TestCaseError> {
        let sticky = self.services.entries.iter().filter(|(_, entry)| entry.service.affinity.is_some());
        for (name, entry) in sticky {
            let service = &entry.service;
            let addresses = [service.cluster_ip].into_iter();
            let addresses = addresses.chain(service.external_ips.iter().chain(&service.load_balancer_vips).copied());
            let at = |address| (SocketAddr::new(address, service.port), address);
            let node_port = service.node_port.map(|port| {
                let node = ["192.168.0.1", "fd00:168::1"][self.services.family.index()];
                (SocketAddr::new(ip(node), port.get()), ip(["0.0.0.0", "::"][self.services.family.index()]))
            });
            let frontends: Vec<(Packet, [Value; 3])> = addresses
                .map(at)
                .chain(node_port)
                .map(|(to, address)| {
                    let frontend = [address.into(), Value::protocol(name.protocol), Value::Port(to.port())];
                    (client.packet(self.world, name.protocol, to), frontend)
                })
                .collect();
            for (packet, _) in &frontends {
                for (end, _) in self.through_nftables(packet) {
                    let End::Delivered { to, .. } = end else { continue };
                    self.check_remembered(&frontends, to)?;
                }
            }
        }
        Ok(())
    }

    fn check_remembered(&self, frontends: &[(Packet, [Value; 3])], endpoint: SocketAddr) -> Result<(), TestCaseError> {
        let slots: BTreeSet<Class> =
            frontends.iter().flat_map(|(_, frontend)| self.slots(frontend, endpoint)).collect();
        prop_assert!(!slots.is_empty(), "{endpoint} has no slot");
        for (packet, _) in frontends {
            let leads_there = |end: &End| matches!(end, End::Delivered { to, .. } if *to == endpoint);
            let before = self.through_nftables(packet);
            let there: Vec<&End> = before.keys().filter(|end| leads_there(end)).collect();
            let &[there] = &there[..] else { continue };
            let mut remember = Transaction::new(self.id());
            for slot in &slots {
                let element = Element::new([slot.owner().into(), packet.source.ip().into()]).fields([(*slot).into()]);
                remember.push(Change::AddElement(Name::fixed("affinity"), element));
            }
            let mut kernel = self.nftables.clone();
            kernel.commit(&remember).unwrap();
            let again = nftables::endings(kernel.table(&self.id()).unwrap(), &self.host, packet);
            prop_assert_eq!(ends(packet, again), Ends::from([(there.clone(), 1.0)]));
        }
        Ok(())
    }

    /// The numbers that the kernel remembers an endpoint by, one for each list of the frontend that it is in.
    fn slots(&self, frontend: &[Value], endpoint: SocketAddr) -> Vec<Class> {
        let (map, datum) = (Name::fixed("endpoints"), [endpoint.ip().into(), Value::Port(endpoint.port())]);
        let of_it = self.table().elements(&map).filter(|element| {
            element.key.starts_with(frontend)
                && matches!(&element.datum, Some(Datum::Fields(fields)) if fields.as_slice() == datum)
        });
        let slot = |element: &Element| match element.key.last() {
            Some(Value::Class(class)) => Some(*class),
            _ => None,
        };
        of_it.filter_map(slot).collect()
    }
}

/// Adds up what the endings come to.
fn ends(packet: &Packet, endings: Vec<Ending>) -> Ends {
    let mut ends = Ends::new();
    for Ending { verdict, share, assuming } in endings {
        assert!(assuming.is_empty(), "{packet:?} depends on {assuming:?}");
        let end = match verdict {
            Verdict::Delivered { to, from, .. } if (to, from) == (packet.destination, packet.source.ip()) => {
                End::Untouched
            }
            Verdict::Delivered { to, from, through, .. } => End::Delivered { to, from, through },
            Verdict::Rejected { .. } => End::Refused,
            Verdict::Dropped => End::Dropped,
            other => panic!("{packet:?} ends in {other:?}"),
        };
        *ends.entry(end).or_default() += share;
    }
    ends
}

/// Makes the balancers' addresses external IPs of their Services, too.
fn let_frontends_overlap(cluster: &mut Cluster) {
    for service in &mut cluster.services {
        let addresses = service.status.load_balancer.ingress.iter().map(|point| point.ip.clone());
        service.spec.external_ips.extend(addresses);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn both_modes_send_every_packet_to_the_same_endpoints_with_the_same_source(
        mut cluster in arbitrary::cluster(),
        world in world(),
        know_networks in any::<bool>(),
        overlap in any::<bool>(),
    ) {
        if overlap {
            let_frontends_overlap(&mut cluster);
        }
        for family in IpFamily::BOTH {
            Modes::new(&cluster, &world, family, know_networks).check_all()?;
        }
    }

    #[test]
    fn a_client_that_is_remembered_gets_its_endpoint_again(cluster in arbitrary::cluster(), world in world()) {
        for family in IpFamily::BOTH {
            let modes = Modes::new(&cluster, &world, family, false);
            for client in Client::all(family) {
                modes.check_affinity(&client)?;
            }
        }
    }
}

/// A difference that never shows would be an excuse.
#[test]
fn every_difference_between_the_modes_is_met() {
    // A fixed seed: this is about the list, not about one run's luck.
    let mut runner =
        TestRunner::new_with_rng(ProptestConfig::default(), TestRng::deterministic_rng(RngAlgorithm::ChaCha));
    let mut met = BTreeSet::new();
    for _ in 0..32 {
        let mut cluster = arbitrary::cluster().new_tree(&mut runner).unwrap().current();
        let world = world().new_tree(&mut runner).unwrap().current();
        let_frontends_overlap(&mut cluster);
        for family in IpFamily::BOTH {
            met.extend(Modes::new(&cluster, &world, family, true).check_all().unwrap());
        }
    }
    use Difference::*;
    let all = [
        UnknownPortOfClusterIp,
        UnassignedClusterIp,
        OwnCallToExternalAddressWithoutEndpoints,
        SourceRangesWithoutEndpoints,
        SourceRangesOnExternalIp,
        NodePortBeside,
        HairpinOfAnotherNode,
    ];
    assert_eq!(met, all.into());
}

const PROTOCOLS: [Protocol; 3] = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp];

/// The networks that generated clusters take their cluster IPs from.
const CLUSTER_IPS: [&str; 2] = ["10.96.0.0/16", "fd00:96::/112"];

/// A port that no generated Service has.
const UNUSED: u16 = 4242;

/// More than the kernel's 31 bits of chance lose, over a choice among a dozen.
const ROUNDING: f64 = 1e-7;
