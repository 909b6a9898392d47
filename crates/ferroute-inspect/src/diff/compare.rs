use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
};

use ferroute_config::ModeName;
use ferroute_core::{
    Frontend, IpFamily, ModeTrait, ProxySettings, ServicePortEntry, ServicePortName, ServiceTable, map_parts,
};
use ferroute_trace::Host;
use ipnet::IpNet;

use super::{
    Client, Coverage, DiffReport, Finding, Mismatch, ModeDifference, Outcomes, PacketOutcome, Rules, StaleFrontend,
    Undetermined,
    clients::Topology,
    mode_differences::{Attempt, ModeDifferences},
    outcomes::{agree, mismatches},
    rules::Projection,
    structure::differences,
};

/// The desired state of one IP family, and the rules planned for it.
pub struct Expected<'a> {
    /// The Services.
    pub services: &'a ServiceTable,
    /// The settings of the proxy.
    pub settings: &'a ProxySettings,
    /// Returns the settings that the same configuration has in another mode.
    pub settings_in: &'a (dyn Fn(ModeName) -> ProxySettings + Sync),
    /// The node's routes, and the addresses that the rules were planned for.
    pub host: &'a Host,
    /// The planned rules.
    pub rules: &'a Rules<'a>,
}

/// Compares actual with expected rules, service port by service port, on all CPUs.
pub fn compare(expected: &Expected<'_>, actual: &Rules<'_>) -> DiffReport {
    let traits = (expected.rules.kind() != actual.kind()).then(|| (expected.rules.traits(), actual.traits()));
    let host = expected.host;
    // Another mode's proxy sets this sysctl, and adds these routes, if its rules translate connections to localhost.
    let localhost = |family, is_set| traits.map_or(is_set, |(_, actual)| actual.localhost_node_ports.contains(&family));
    let route_localnet = localhost(IpFamily::V4, host.route_localnet);
    let localhost_routes = localhost(IpFamily::V6, host.localhost_routes);
    let actual_host = Host { route_localnet, localhost_routes, ..host.clone() };
    let topology = Topology::new(expected.services, expected.settings, host);
    let modes = traits.map(|(planned, of_actual)| {
        let settings = (expected.settings_in)(actual.kind().mode());
        ModeDifferences::new(expected.services, host, (planned, expected.settings), (of_actual, &settings))
    });
    let node = expected.host.addresses.iter().copied().collect();
    let begin = || Comparison {
        expected,
        actual,
        actual_host: &actual_host,
        topology: &topology,
        modes: modes.as_ref(),
        node: &node,
        frontends: BTreeSet::new(),
        coverage: Coverage::default(),
        intended: BTreeMap::new(),
        findings: Vec::new(),
        undetermined: Vec::new(),
    };
    let entries: Vec<(&ServicePortName, &ServicePortEntry)> = expected.services.entries.iter().collect();
    let parts = map_parts(&entries, MIN_PART, usize::MAX, |part| begin().run(part));
    parts.into_iter().fold(begin(), Comparison::merge).report()
}

impl DiffReport {
    /// A report on the absence of any rules of a service proxy.
    pub fn without_rules(expected: &Expected<'_>) -> Self {
        Self {
            family: expected.services.family,
            expected: expected.rules.kind(),
            actual: None,
            coverage: Coverage { service_ports: expected.services.entries.len(), ..Coverage::default() },
            findings: Vec::new(),
            stale: Vec::new(),
            structure: vec!["no rules of a service proxy".to_owned()],
            undetermined: Vec::new(),
            limitation: None,
            intended: Vec::new(),
        }
    }
}

struct Comparison<'a> {
    expected: &'a Expected<'a>,
    actual: &'a Rules<'a>,
    /// The node as the proxy of the actual rules sets it up.
    actual_host: &'a Host,
    topology: &'a Topology<'a>,
    /// Differences between the modes; `None` if both sides are rules of the same mode.
    modes: Option<&'a ModeDifferences<'a>>,
    /// The node's addresses.
    node: &'a BTreeSet<IpAddr>,
    /// The frontends of Services.
    frontends: BTreeSet<Frontend>,
    coverage: Coverage,
    /// The number of packets by the name of the trait.
    intended: BTreeMap<&'static str, usize>,
    findings: Vec<Finding>,
    undetermined: Vec<Undetermined>,
}

/// The rules of both sides for one service port.
struct Sides<'a> {
    expected: Projection<'a>,
    actual: Projection<'a>,
}

impl Comparison<'_> {
    fn run(mut self, entries: &[(&ServicePortName, &ServicePortEntry)]) -> Self {
        for (name, entry) in entries {
            let frontends: BTreeSet<Frontend> =
                entry.service.frontends(name.protocol).map(|(_, frontend)| frontend).collect();
            let frontends: Vec<Frontend> = frontends.into_iter().collect();
            self.compare_service_port(name, entry, &frontends);
            self.coverage.service_ports += 1;
            self.coverage.frontends += frontends.len();
            self.frontends.extend(frontends);
        }
        self
    }

    fn merge(mut self, later: Self) -> Self {
        self.frontends.extend(later.frontends);
        self.coverage.service_ports += later.coverage.service_ports;
        self.coverage.frontends += later.coverage.frontends;
        self.coverage.packets += later.coverage.packets;
        for (difference, packets) in later.intended {
            *self.intended.entry(difference).or_default() += packets;
        }
        self.findings.extend(later.findings);
        self.undetermined.extend(later.undetermined);
        self
    }

    fn report(self) -> DiffReport {
        let stale = self.actual.frontends().into_iter().filter(|(frontend, _)| !self.frontends.contains(frontend));
        let [planned, actual] = [self.expected.rules, self.actual].map(Rules::traits);
        let intended = ModeTrait::ALL.iter().filter_map(|it| {
            Some(ModeDifference {
                packets: *self.intended.get(it.name)?,
                name: it.name.into(),
                title: it.title.into(),
                expected: it.value(planned),
                actual: it.value(actual),
            })
        });
        DiffReport {
            family: self.expected.services.family,
            expected: self.expected.rules.kind(),
            actual: Some(self.actual.kind()),
            stale: stale.map(|(frontend, name)| StaleFrontend { frontend, name }).collect(),
            coverage: self.coverage,
            findings: self.findings,
            structure: differences(self.expected.rules, self.actual),
            undetermined: self.undetermined,
            limitation: self.actual.limitation().map(Into::into),
            intended: intended.collect(),
        }
    }

    fn compare_service_port(&mut self, name: &ServicePortName, entry: &ServicePortEntry, frontends: &[Frontend]) {
        let sides = Sides {
            expected: self.expected.rules.project(frontends, self.node),
            actual: self.actual.project(frontends, self.node),
        };
        let mut ranges = sides.expected.source_ranges(frontends);
        ranges.extend(sides.actual.source_ranges(frontends));
        let first = self.findings.len();
        let mut used = frontends.to_vec();
        used.retain(|frontend| self.compare_frontend(name, entry, frontend, &ranges, &sides));
        // Affinity has no effect on frontends without endpoints.
        let affinities = [&sides.expected, &sides.actual].map(|side| side.affinity(&used));
        if let [Some(expected), Some(actual)] = affinities
            && expected != actual
        {
            // Findings for the whole service port precede those for single frontends.
            let mismatch = Mismatch::Affinity { expected, actual };
            let finding = Finding {
                service_port: name.to_string(),
                frontend: None,
                not_applied: None,
                clients: Vec::new(),
                mismatch,
            };
            self.findings.insert(first, finding);
        }
    }

    /// Compares the outcomes of packets to a frontend. Returns true if some packets reach an endpoint on both sides.
    fn compare_frontend(
        &mut self,
        name: &ServicePortName,
        entry: &ServicePortEntry,
        frontend: &Frontend,
        ranges: &[IpNet],
        sides: &Sides<'_>,
    ) -> bool {
        let is_load_balancer =
            frontend.address.is_some_and(|address| entry.service.load_balancer_vips.contains(&address));
        let clients = self.topology.clients(entry, if is_load_balancer { ranges } else { &[] });
        let addresses = match frontend.address {
            Some(address) => vec![address],
            None => self.topology.node_port_addresses(self.expected.services),
        };
        // Clients with the same mismatch share a finding.
        let mut mismatched: Vec<(Mismatch, Vec<Client>)> = Vec::new();
        let (mut unknown, mut used) = (None, false);
        let mut senders: Vec<&Client> = Vec::new();
        for (address, client) in addresses.iter().flat_map(|address| clients.iter().map(move |it| (*address, it))) {
            let to = SocketAddr::new(address, frontend.port);
            let Some(packet) = self.topology.packet(client, entry, name.protocol, to) else { continue };
            self.coverage.packets += 1;
            if !senders.contains(&client) {
                senders.push(client);
            }
            let attempt = Attempt { name, entry, frontend: *frontend, packet: &packet };
            let expected = sides.expected.outcomes(self.expected.host, &packet);
            let actual = sides.actual.outcomes(self.actual_host, &packet);
            let both = || [&expected, &actual].into_iter();
            used |= both()
                .all(|outcomes| outcomes.keys().any(|outcome| matches!(outcome, PacketOutcome::Delivered { .. })));
            let reason = both().flat_map(BTreeMap::keys).find_map(|outcome| match outcome {
                PacketOutcome::Unknown { reason } => Some(reason),
                _ => None,
            });
            if let Some(reason) = reason {
                unknown.get_or_insert(format!("{frontend} from {client}: {reason}"));
                continue;
            }
            if self.is_intended(attempt, &expected, &actual) {
                continue;
            }
            for mismatch in mismatches(packet.source.ip(), &expected, &actual) {
                match mismatched.iter_mut().find(|(other, _)| *other == mismatch) {
                    Some((_, clients)) if clients.contains(client) => {}
                    Some((_, clients)) => clients.push(client.clone()),
                    None => mismatched.push((mismatch, vec![client.clone()])),
                }
            }
        }
        for (mismatch, clients) in mismatched {
            let clients = if clients.len() == senders.len() { Vec::new() } else { clients };
            self.findings.push(Finding {
                service_port: name.to_string(),
                frontend: Some(*frontend),
                clients,
                not_applied: None,
                mismatch,
            });
        }
        let service_port = || Some(name.to_string());
        self.undetermined.extend(unknown.map(|reason| Undetermined { service_port: service_port(), reason }));
        used
    }

    /// Reports whether a packet has different outcomes because the modes of the two sides differ by design, and counts
    /// it.
    fn is_intended(&mut self, attempt: Attempt<'_>, expected: &Outcomes, actual: &Outcomes) -> bool {
        let Some(modes) = self.modes.filter(|_| !agree(expected, actual)) else { return false };
        let traits = modes.explain(attempt, expected, actual);
        traits.iter().for_each(|it| *self.intended.entry(it.name).or_default() += 1);
        !traits.is_empty()
    }
}

/// The minimum number of service ports for a thread.
const MIN_PART: usize = 64;
