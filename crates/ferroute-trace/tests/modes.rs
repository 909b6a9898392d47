//! The modes agree: in every cluster, nftables and iptables rules send every new connection to the same endpoints, with the
//! same probabilities and source, except for each [`ModeDifference`]. Both modes serve node ports on the same addresses
//! here; their defaults differ. Listeners of userspace mode have the same endpoints as iptables rules.

#![expect(clippy::unwrap_used, reason = "helpers of tests only")]

mod common;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
};

use common::{
    relayed::Relayed,
    world::{Client, World, ip, world},
};
use ferroute_core::{
    HostState, IpFamily, Protocol, ServiceTable,
    testing::{Cluster, arbitrary},
};
use ferroute_inspect::diff::{self, ModeDifference, ModeDifferences, Outcomes, PacketOutcome};
use ferroute_iptables::{PlanContext, RuleSet};
use ferroute_nftables::{
    ClassId, Value,
    kernel::{Kernel, MemoryKernel, MemoryTable},
    model::{Change, Data, Element, Name, TableId, Transaction},
    plan::{ListNumber, NftablesSettings, SetId, TABLE},
};
use ferroute_trace::{Host, Leaf, Packet, Ruleset};
use ipnet::IpNet;
use proptest::{
    prelude::*,
    strategy::ValueTree,
    test_runner::{RngAlgorithm, TestRng, TestRunner},
};

/// The planned rules of one IP family of a cluster in both modes.
struct Modes<'a> {
    world: &'a World,
    host: Host,
    services: ServiceTable,
    iptables: RuleSet,
    nftables: MemoryKernel,
    userspace: Relayed,
}

fn of_family(networks: &[IpNet], family: IpFamily) -> Vec<IpNet> {
    networks.iter().copied().filter(|net| IpFamily::of(net.addr()) == family).collect()
}

impl<'a> Modes<'a> {
    fn new(cluster: &Cluster, world: &'a World, family: IpFamily, with_service_cidrs: bool) -> Self {
        let mut services = cluster.table(family);
        let host_state = HostState { addresses: world.addresses(), random_fully: true, ..HostState::default() };
        let iptables = ferroute_iptables::render(&services, &PlanContext::new(&world.settings, &services, &host_state));
        let networks: Vec<IpNet> =
            if with_service_cidrs { CLUSTER_IPS.map(|net| net.parse().unwrap()).into() } else { Vec::new() };
        services.service_cidrs = of_family(&networks, family);
        let settings = NftablesSettings { proxy: world.settings.clone(), ..NftablesSettings::default() };
        let mut nftables = MemoryKernel::new();
        nftables.commit(&ferroute_nftables::plan::render(&services, &settings, &world.addresses())).unwrap();
        let userspace = Relayed::new(cluster, world, family);
        Self { world, host: world.host(), services, iptables, nftables, userspace }
    }

    fn id(&self) -> TableId {
        TableId { family: self.services.family, name: TABLE }
    }

    fn table(&self) -> &MemoryTable {
        self.nftables.table(&self.id()).unwrap()
    }

    fn through_iptables(&self, packet: &Packet) -> Outcomes {
        outcomes(packet, Ruleset::from_rules(&self.iptables).verdicts(&self.host, packet))
    }

    fn through_nftables(&self, packet: &Packet) -> Outcomes {
        outcomes(packet, Ruleset::from_nftables_table("", self.table()).verdicts(&self.host, packet))
    }

    /// Compares the modes; returns the intended difference, if any.
    fn check(
        &self,
        known: &ModeDifferences<'_>,
        client: &Client,
        packet: &Packet,
    ) -> Result<Option<ModeDifference>, TestCaseError> {
        let (iptables, nftables) = (self.through_iptables(packet), self.through_nftables(packet));
        let (difference, expected) = match known.difference(packet, &iptables, |other| self.through_iptables(other)) {
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

    /// Compares userspace mode with iptables mode by the endpoints. Their source differs, because the process connects to
    /// them. It does not relay SCTP.
    fn check_relayed(&self, client: &Client, packet: &Packet) -> Result<(), TestCaseError> {
        // Only iptables mode makes loopback addresses reachable from outside, and therefore drops such packets.
        if packet.destination.ip().is_loopback() && !matches!(client, Client::Node) {
            return Ok(());
        }
        let relayed = Ruleset::from_rules(&self.userspace).verdicts(&self.host, packet);
        let (iptables, userspace) = (self.through_iptables(packet), outcomes(packet, relayed));
        let shares = |outcomes: &Outcomes| {
            let mut shares: BTreeMap<String, f64> = BTreeMap::new();
            for (outcome, share) in outcomes {
                let end = match outcome {
                    // Untouched packets keep their destination, and may be masqueraded.
                    PacketOutcome::Untouched => packet.destination.to_string(),
                    PacketOutcome::Delivered { to, .. } => to.to_string(),
                    other => format!("{other:?}"),
                };
                *shares.entry(end).or_default() += share;
            }
            shares
        };
        let (expected, got) = (shares(&iptables), shares(&userspace));
        let same = got.keys().eq(expected.keys())
            && got.values().zip(expected.values()).all(|(one, other)| (one - other).abs() < ROUNDING);
        let is_unsupported = packet.protocol == Protocol::Sctp && got.keys().eq(["Rejected"]);
        prop_assert!(same || is_unsupported, "{client:?} {packet:?}\niptables {expected:?}\nuserspace {got:?}");
        Ok(())
    }

    /// Returns all frontends and endpoints, and some addresses and ports that no rule mentions.
    fn destinations(&self) -> BTreeSet<SocketAddr> {
        let family = self.services.family;
        let of_family = |address: &IpAddr| IpFamily::of(*address) == family;
        let node: Vec<IpAddr> = self.world.addresses().into_iter().filter(of_family).collect();
        let mut all = BTreeSet::new();
        for entry in self.services.entries.values() {
            let service = &entry.service;
            let addresses = service.cluster_ip.into_iter();
            let addresses = addresses.chain(service.external_ips.iter().chain(&service.load_balancer_vips).copied());
            all.extend(addresses.flat_map(|address| [service.port, UNUSED].map(|port| SocketAddr::new(address, port))));
            let node_port = service.node_port.into_iter();
            all.extend(node_port.flat_map(|port| node.iter().map(move |own| SocketAddr::new(*own, port.get()))));
            all.extend(entry.endpoints.get(0).map(|endpoint| endpoint.socket()));
        }
        let unknown: [&str; 2] = [["203.0.113.240", "10.96.0.200"], ["2001:db8:ff::1", "fd00:96::200"]][family.index()];
        all.extend(unknown.map(|address| SocketAddr::new(ip(address), 80)));
        all.extend(node.iter().map(|own| SocketAddr::new(*own, UNUSED)));
        all
    }

    /// Compares the modes for every client and destination; returns the intended differences.
    fn check_all(&self) -> Result<BTreeSet<ModeDifference>, TestCaseError> {
        let mut differences = BTreeSet::new();
        let known = ModeDifferences::new(&self.services, &self.world.settings, &self.host);
        let destinations = self.destinations();
        for client in Client::all(self.services.family) {
            for (to, protocol) in destinations.iter().flat_map(|to| PROTOCOLS.map(|protocol| (*to, protocol))) {
                let packet = client.packet(self.world, protocol, to);
                differences.extend(self.check(&known, &client, &packet)?);
                self.check_relayed(&client, &packet)?;
            }
        }
        Ok(differences)
    }

    /// Checks session affinity in nftables mode: a client gets its endpoint again at every frontend of the service port
    /// that has this endpoint, whichever frontend it used first.
    fn check_affinity(&self, client: &Client) -> Result<(), TestCaseError> {
        let sticky = self.services.entries.iter().filter(|(_, entry)| entry.service.affinity.is_some());
        for (name, entry) in sticky {
            let service = &entry.service;
            let addresses = service.cluster_ip.into_iter();
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
                    let PacketOutcome::Delivered { to, .. } = end else { continue };
                    self.check_affinity_of_endpoint(&frontends, to)?;
                }
            }
        }
        Ok(())
    }

    fn check_affinity_of_endpoint(
        &self,
        frontends: &[(Packet, [Value; 3])],
        endpoint: SocketAddr,
    ) -> Result<(), TestCaseError> {
        let slots: BTreeSet<ClassId> =
            frontends.iter().flat_map(|(_, frontend)| self.slots(frontend, endpoint)).collect();
        prop_assert!(!slots.is_empty(), "{endpoint} has no slot");
        for (packet, _) in frontends {
            let is_endpoint =
                |end: &PacketOutcome| matches!(end, PacketOutcome::Delivered { to, .. } if *to == endpoint);
            let before = self.through_nftables(packet);
            let ends_there: Vec<&PacketOutcome> = before.keys().filter(|end| is_endpoint(end)).collect();
            let &[end] = &ends_there[..] else { continue };
            let mut transaction = Transaction::new(self.id());
            for slot in &slots {
                let (number, list) = ListNumber::from_class_id(*slot).unwrap();
                let element =
                    Element::new([number.list(list).into(), packet.source.ip().into()]).values([(*slot).into()]);
                transaction.push(Change::AddElement(Name::fixed("affinity"), element));
            }
            let mut kernel = self.nftables.clone();
            kernel.commit(&transaction).unwrap();
            let table = kernel.table(&self.id()).unwrap();
            let again = Ruleset::from_nftables_table("", table).verdicts(&self.host, packet);
            prop_assert_eq!(outcomes(packet, again), Outcomes::from([(end.clone(), 1.0)]));
        }
        Ok(())
    }

    /// Returns the slots of an endpoint, one for each endpoint list of the frontend that contains it.
    fn slots(&self, frontend: &[Value], endpoint: SocketAddr) -> Vec<ClassId> {
        let number = |id: ClassId| ListNumber::from_class_id(id).map(|(number, _)| number);
        let services = self.table().elements(&SetId::Services.name()).find(|element| element.key[..] == *frontend);
        let of_service = services.and_then(|element| number(element.data.as_ref()?.class_id()?));
        let data = [endpoint.ip().into(), Value::Port(endpoint.port())];
        let maps = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp].map(|protocol| SetId::Endpoints(protocol).name());
        let of_it = maps
            .iter()
            .flat_map(|map| self.table().elements(map))
            .filter(|element| matches!(&element.data, Some(Data::Values(fields)) if fields.as_slice() == data));
        let slot = |element: &Element| match element.key[..] {
            [Value::ClassId(slot), Value::Integer(0)] if number(slot) == of_service => Some(slot),
            _ => None,
        };
        of_it.filter_map(slot).collect()
    }
}

/// Adds up the verdicts, none of which may be unknown.
fn outcomes(packet: &Packet, leaves: Vec<Leaf>) -> Outcomes {
    let outcomes = diff::outcomes(packet, leaves);
    for outcome in outcomes.keys() {
        assert!(!matches!(outcome, PacketOutcome::NoRoute | PacketOutcome::Unknown { .. }), "{packet:?}: {outcome:?}");
    }
    outcomes
}

/// Adds the load balancer IPs of each Service to its external IPs.
fn overlap_frontends(cluster: &mut Cluster) {
    for service in &mut cluster.services {
        let addresses = service.status.load_balancer.ingress.iter().map(|point| point.ip.clone());
        service.spec.external_ips.extend(addresses);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn all_modes_send_packets_to_same_endpoints(
        mut cluster in arbitrary::cluster(),
        world in world(),
        with_service_cidrs in any::<bool>(),
        overlap in any::<bool>(),
    ) {
        if overlap {
            overlap_frontends(&mut cluster);
        }
        for family in IpFamily::BOTH {
            Modes::new(&cluster, &world, family, with_service_cidrs).check_all()?;
        }
    }

    #[test]
    fn client_with_affinity_gets_its_endpoint_again(cluster in arbitrary::cluster(), world in world()) {
        for family in IpFamily::BOTH {
            let modes = Modes::new(&cluster, &world, family, false);
            for client in Client::all(family) {
                modes.check_affinity(&client)?;
            }
        }
    }
}

/// A documented difference that never occurs is wrong.
#[test]
fn every_mode_difference_occurs() {
    // A fixed seed makes the result reproducible.
    let mut runner =
        TestRunner::new_with_rng(ProptestConfig::default(), TestRng::deterministic_rng(RngAlgorithm::ChaCha));
    let mut differences = BTreeSet::new();
    for _ in 0..32 {
        let mut cluster = arbitrary::cluster().new_tree(&mut runner).unwrap().current();
        let world = world().new_tree(&mut runner).unwrap().current();
        overlap_frontends(&mut cluster);
        for family in IpFamily::BOTH {
            differences.extend(Modes::new(&cluster, &world, family, true).check_all().unwrap());
        }
    }
    use ModeDifference::*;
    let all = [
        UnknownPortOfClusterIp,
        UnassignedClusterIp,
        NodeToExternalAddressWithoutEndpoints,
        SourceRangesWithoutEndpoints,
        SpoofedAddressWithoutEndpoints,
        SourceRangesOnExternalIp,
        NodePortOnExcludedAddress,
        HairpinFromOtherNode,
    ];
    assert_eq!(differences, all.into());
}

const PROTOCOLS: [Protocol; 3] = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp];

/// The networks of the cluster IPs in generated clusters.
const CLUSTER_IPS: [&str; 2] = ["10.96.0.0/16", "fd00:96::/112"];

/// A port that no generated Service uses.
const UNUSED: u16 = 4242;

/// An upper bound of the rounding errors of the kernel's 31-bit probabilities for a dozen endpoints.
const ROUNDING: f64 = 1e-7;
