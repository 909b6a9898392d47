//! Two modes differ only in their traits: in every cluster, `diff` finds only intended differences between the planned
//! rules of any two modes. In these tests, both serve node ports on the same addresses; their defaults differ.
//!
//! `policies` compares the rules of each mode with an independent specification.

#![expect(clippy::unwrap_used, reason = "helpers of tests only")]

mod common;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
};

use common::world::{Client, World, ip, world};
use ferroute_config::{KubeProxyConfiguration, ModeName};
use ferroute_core::{
    IpFamily, Protocol, ServiceTable,
    testing::{Cluster, arbitrary},
};
use ferroute_inspect::diff::{self, Conclusion, DiffReport, Expected, Outcomes, PacketOutcome, Rules};
use ferroute_modes::{PlannedRules, REGISTRY};
use ferroute_nftables::{
    ClassId, Value,
    kernel::{Kernel, MemoryKernel, MemoryTable},
    model::{Change, Data, Element, Name, TableId, Transaction},
    plan::{ListNumber, NftablesSettings, SetId, TABLE},
};
use ferroute_trace::{Host, Leaf, Packet, Ruleset};
use proptest::{
    prelude::*,
    strategy::ValueTree,
    test_runner::{RngAlgorithm, TestRng, TestRunner},
};

/// Plans the rules of each mode.
fn planned(table: &ServiceTable, world: &World) -> BTreeMap<ModeName, Box<dyn PlannedRules>> {
    let plan = |mode: ModeName| {
        let config = KubeProxyConfiguration { mode: mode.as_str().to_owned(), ..KubeProxyConfiguration::default() };
        let mut resolved = REGISTRY.resolve(&config.defaulted()).unwrap();
        resolved.settings = world.settings.clone();
        (mode, REGISTRY.active(mode).plan(&resolved, table, &world.addresses()).unwrap())
    };
    REGISTRY.names().into_iter().map(plan).collect()
}

/// Compares the rules of every two modes. Returns the traits that differ, by the names of the modes.
fn compare_all(cluster: &Cluster, world: &World) -> Result<BTreeSet<(ModeName, ModeName, String)>, TestCaseError> {
    let mut differences = BTreeSet::new();
    for family in IpFamily::BOTH {
        let table = cluster.table(family);
        let planned = planned(&table, world);
        for (one, rules) in &planned {
            let rules = Rules::from(rules.view());
            let route_localnet = REGISTRY.active(*one).sets_route_localnet(&world.settings);
            let host = Host { route_localnet, ..world.host() };
            let settings = &world.settings;
            let settings_in = |_| settings.clone();
            let expected =
                Expected { services: &table, settings, settings_in: &settings_in, host: &host, rules: &rules };
            for (other, rules) in &planned {
                let report: DiffReport = diff::compare(&expected, &Rules::from(rules.view()));
                let mut text = String::new();
                diff::write_report_into(&mut text, &report, 5).unwrap();
                prop_assert_eq!(report.conclusion(), Conclusion::Equal, "{:?}\n{}", world.settings, text);
                prop_assert!(one != other || report.intended.is_empty(), "{}", text);
                differences.extend(report.intended.iter().map(|it| (*one, *other, it.name.to_string())));
            }
        }
    }
    Ok(differences)
}

/// Creates conflicts of source ranges with external IPs: adds the load balancer IPs of each Service to its external
/// IPs.
fn overlap_frontends(cluster: &mut Cluster) {
    for service in &mut cluster.services {
        let addresses = service.status.load_balancer.ingress.iter().map(|point| point.ip.clone());
        service.spec.external_ips.extend(addresses);
    }
}

/// The planned rules of nftables mode for one IP family of a cluster.
struct Nftables<'a> {
    world: &'a World,
    host: Host,
    services: ServiceTable,
    kernel: MemoryKernel,
}

impl<'a> Nftables<'a> {
    fn new(cluster: &Cluster, world: &'a World, family: IpFamily) -> Self {
        let services = cluster.table(family);
        let settings = NftablesSettings { proxy: world.settings.clone(), ..NftablesSettings::default() };
        let mut kernel = MemoryKernel::new();
        kernel.commit(&ferroute_nftables::plan::render(&services, &settings, &world.addresses())).unwrap();
        Self { world, host: world.host(), services, kernel }
    }

    fn id(&self) -> TableId {
        TableId { family: self.services.family, name: TABLE }
    }

    fn table(&self) -> &MemoryTable {
        self.kernel.table(&self.id()).unwrap()
    }

    fn outcomes(&self, packet: &Packet) -> Outcomes {
        outcomes(packet, Ruleset::from_nftables_table("", self.table()).verdicts(&self.host, packet))
    }

    /// Checks session affinity: a client gets its endpoint again at every frontend of the service port that has this
    /// endpoint, regardless of the frontend that it used first.
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
                for (end, _) in self.outcomes(packet) {
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
            let before = self.outcomes(packet);
            let ends_there: Vec<&PacketOutcome> = before.keys().filter(|end| is_endpoint(end)).collect();
            let &[end] = &ends_there[..] else { continue };
            let mut transaction = Transaction::new(self.id());
            for slot in &slots {
                let (number, list) = ListNumber::from_class_id(*slot).unwrap();
                let element =
                    Element::new([number.list(list).into(), packet.source.ip().into()]).values([(*slot).into()]);
                transaction.push(Change::AddElement(Name::fixed("affinity"), element));
            }
            let mut kernel = self.kernel.clone();
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

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn modes_differ_only_as_their_traits_say(
        mut cluster in arbitrary::cluster(),
        world in world(),
        overlap in any::<bool>(),
    ) {
        if overlap {
            overlap_frontends(&mut cluster);
        }
        compare_all(&cluster, &world)?;
    }

    #[test]
    fn client_with_affinity_gets_its_endpoint_again(cluster in arbitrary::cluster(), world in world()) {
        for family in IpFamily::BOTH {
            let rules = Nftables::new(&cluster, &world, family);
            for client in Client::all(family) {
                rules.check_affinity(&client)?;
            }
        }
    }
}

/// The other traits do not concern connections to frontends, or require annotations.
#[test]
fn traits_of_all_pairs_of_modes_show_in_packets() {
    // A fixed seed makes the result reproducible.
    let mut runner =
        TestRunner::new_with_rng(ProptestConfig::default(), TestRng::deterministic_rng(RngAlgorithm::ChaCha));
    let mut differences = BTreeSet::new();
    for _ in 0..32 {
        let mut cluster = arbitrary::cluster().new_tree(&mut runner).unwrap().current();
        let world = world().new_tree(&mut runner).unwrap().current();
        overlap_frontends(&mut cluster);
        differences.extend(compare_all(&cluster, &world).unwrap());
    }
    let mut lines: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for (one, other, name) in differences.iter().filter(|(one, other, _)| one < other) {
        lines.entry(format!("{one}, {other}")).or_default().push(name);
    }
    let lines: Vec<String> = lines.iter().map(|(modes, traits)| format!("{modes}: {}", traits.join(" "))).collect();
    insta::assert_snapshot!(lines.join("\n"), @"
    iptables, ipvs: hairpin localPolicyForAllClients localhostNodePorts refusesNodePortsAtAllAddresses rejectsOwnExternalConnections sourceRangesBeforeRejection sourceRangesOnExternalIps sources withoutLocalEndpoints
    iptables, nftables: hairpin localhostNodePorts refusesNodePortsAtAllAddresses rejectsOwnExternalConnections sourceRangesBeforeRejection sourceRangesOnExternalIps
    iptables, userspace: protocols sources
    ipvs, nftables: localPolicyForAllClients localhostNodePorts sourceRangesBeforeRejection sources withoutLocalEndpoints
    ipvs, userspace: hairpin localPolicyForAllClients localhostNodePorts protocols refusesNodePortsAtAllAddresses rejectsOwnExternalConnections sourceRangesBeforeRejection sourceRangesOnExternalIps sources withoutLocalEndpoints
    nftables, userspace: hairpin localhostNodePorts protocols refusesNodePortsAtAllAddresses rejectsOwnExternalConnections sourceRangesBeforeRejection sourceRangesOnExternalIps sources
    ");
}
