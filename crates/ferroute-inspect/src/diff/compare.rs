use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
    num::NonZeroUsize,
    panic::resume_unwind,
    thread,
};

use ferroute_core::{Frontend, ServicePortEntry, ProxySettings, ServicePortName, ServiceTable};
use ferroute_trace::{Host, Packet};
use ipnet::IpNet;

use super::{
    Change, Client, Compared, Doubt, End, Ends, Finding, Leftover, Mode, ModeDifference, ModeFacts, Report, Rules,
    Surroundings, ends::agree, findings::changes, report::named, rules::Projection, structure::differences,
};

/// What should be true, and the rules that say it.
pub struct Wanted<'a> {
    /// The Services of one family.
    pub services: &'a ServiceTable,
    /// What the operator has decided.
    pub settings: &'a ProxySettings,
    /// The node among its networks, with the addresses that the rules were planned with.
    pub host: &'a Host,
    /// The rules.
    pub rules: &'a Rules<'a>,
}

/// Compares `found` with what should be there, service port by service port, on all processors.
pub fn compare(wanted: &Wanted<'_>, found: &Rules<'_>) -> Report {
    let surroundings = Surroundings::new(wanted.services, wanted.settings, wanted.host);
    let modes = ModeFacts::new(wanted.services, wanted.settings, wanted.host);
    let node = wanted.host.addresses.iter().copied().collect();
    let begin = || Comparison {
        wanted,
        found,
        surroundings: &surroundings,
        modes: &modes,
        node: &node,
        known: BTreeSet::new(),
        compared: Compared::default(),
        named: BTreeMap::new(),
        findings: Vec::new(),
        doubts: Vec::new(),
    };
    let entries: Vec<(&ServicePortName, &ServicePortEntry)> = wanted.services.entries.iter().collect();
    let processors = thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let share = entries.len().div_ceil(processors).max(LEAST_SHARE);
    let parts: Vec<Comparison<'_>> = thread::scope(|scope| {
        let work = |part| scope.spawn(move || begin().over(part));
        let running: Vec<_> = entries.chunks(share).map(work).collect();
        let joined = running.into_iter().map(|part| part.join().unwrap_or_else(|panic| resume_unwind(panic)));
        joined.collect()
    });
    parts.into_iter().fold(begin(), Comparison::and).report()
}

impl Report {
    /// There is not one rule of a service proxy, so that nothing needs to be compared.
    pub fn of_nothing(wanted: &Wanted<'_>) -> Self {
        Self {
            family: wanted.services.family,
            wanted: wanted.rules.mode(),
            found: None,
            compared: Compared { service_ports: wanted.services.entries.len(), ..Compared::default() },
            findings: Vec::new(),
            leftovers: Vec::new(),
            structure: vec!["no rules of a service proxy".to_owned()],
            doubts: Vec::new(),
            blind_spot: None,
            named: Vec::new(),
        }
    }
}

struct Comparison<'a> {
    wanted: &'a Wanted<'a>,
    found: &'a Rules<'a>,
    surroundings: &'a Surroundings<'a>,
    modes: &'a ModeFacts<'a>,
    /// The node's addresses.
    node: &'a BTreeSet<IpAddr>,
    /// Frontends that Services have.
    known: BTreeSet<Frontend>,
    compared: Compared,
    named: BTreeMap<ModeDifference, usize>,
    findings: Vec<Finding>,
    doubts: Vec<Doubt>,
}

/// The part of both sides' rules that is about one service port.
struct Sides<'a> {
    wanted: Projection<'a>,
    found: Projection<'a>,
}

impl Comparison<'_> {
    fn over(mut self, entries: &[(&ServicePortName, &ServicePortEntry)]) -> Self {
        for (name, entry) in entries {
            let frontends: BTreeSet<Frontend> =
                entry.service.frontends(name.protocol).map(|(_, frontend)| frontend).collect();
            let frontends: Vec<Frontend> = frontends.into_iter().collect();
            self.service_port(name, entry, &frontends);
            self.compared.service_ports += 1;
            self.compared.frontends += frontends.len();
            self.known.extend(frontends);
        }
        self
    }

    /// With what a later part has found.
    fn and(mut self, later: Self) -> Self {
        self.known.extend(later.known);
        self.compared.service_ports += later.compared.service_ports;
        self.compared.frontends += later.compared.frontends;
        self.compared.packets += later.compared.packets;
        for (difference, packets) in later.named {
            *self.named.entry(difference).or_default() += packets;
        }
        self.findings.extend(later.findings);
        self.doubts.extend(later.doubts);
        self
    }

    fn report(self) -> Report {
        let left = self.found.frontends().into_iter().filter(|(frontend, _)| !self.known.contains(frontend));
        Report {
            family: self.wanted.services.family,
            wanted: self.wanted.rules.mode(),
            found: Some(self.found.mode()),
            leftovers: left.map(|(frontend, name)| Leftover { frontend, name }).collect(),
            compared: self.compared,
            findings: self.findings,
            structure: differences(self.wanted.rules, self.found),
            doubts: self.doubts,
            blind_spot: self.found.blind_spot(),
            named: named(&self.named),
        }
    }

    fn service_port(&mut self, name: &ServicePortName, entry: &ServicePortEntry, frontends: &[Frontend]) {
        let sides = Sides {
            wanted: self.wanted.rules.about(frontends, self.node),
            found: self.found.about(frontends, self.node),
        };
        let mut ranges = sides.wanted.source_ranges(frontends);
        ranges.extend(sides.found.source_ranges(frontends));
        let first = self.findings.len();
        let mut used = frontends.to_vec();
        used.retain(|frontend| self.frontend(name, entry, frontend, &ranges, &sides));
        // Where nobody gets to an endpoint there is nothing to be remembered, whatever the rules say.
        let affinities = [&sides.wanted, &sides.found].map(|side| side.affinity(&used));
        if let [Some(wanted), Some(found)] = affinities
            && wanted != found
        {
            // What is about the whole service port is told before what is about one frontend.
            let change = Change::Affinity { wanted, found };
            self.findings
                .insert(first, Finding { service_port: name.to_string(), frontend: None, clients: Vec::new(), change });
        }
    }

    /// Compares what becomes of packets to a frontend. Tells whether some get to an endpoint on both sides.
    fn frontend(
        &mut self,
        name: &ServicePortName,
        entry: &ServicePortEntry,
        frontend: &Frontend,
        ranges: &[IpNet],
        sides: &Sides<'_>,
    ) -> bool {
        let is_balancer = frontend.address.is_some_and(|address| entry.service.load_balancer_vips.contains(&address));
        let clients = self.surroundings.clients(entry, if is_balancer { ranges } else { &[] });
        let addresses = match frontend.address {
            Some(address) => vec![address],
            None => self.surroundings.node_port_addresses(self.wanted.services),
        };
        // Clients that meet the same differences are told together.
        let mut met: Vec<(Change, Vec<Client>)> = Vec::new();
        let (mut doubt, mut used) = (None, false);
        let mut asked: Vec<&Client> = Vec::new();
        for (address, client) in addresses.iter().flat_map(|address| clients.iter().map(move |it| (*address, it))) {
            let to = SocketAddr::new(address, frontend.port);
            let Some(packet) = self.surroundings.packet(client, entry, name.protocol, to) else { continue };
            self.compared.packets += 1;
            if !asked.contains(&client) {
                asked.push(client);
            }
            let (wanted, found) = self.both(&packet, sides);
            used |=
                [&wanted, &found].into_iter().all(|ends| ends.keys().any(|end| matches!(end, End::Delivered { .. })));
            let unknown = [&wanted, &found].into_iter().flat_map(BTreeMap::keys).find_map(|end| match end {
                End::Unknown { why } => Some(why.clone()),
                _ => None,
            });
            if let Some(why) = unknown {
                doubt.get_or_insert(format!("{frontend} from {client}: {why}"));
                continue;
            }
            for change in changes(packet.source.ip(), &wanted, &found) {
                match met.iter_mut().find(|(known, _)| *known == change) {
                    Some((_, clients)) if clients.contains(client) => {}
                    Some((_, clients)) => clients.push(client.clone()),
                    None => met.push((change, vec![client.clone()])),
                }
            }
        }
        for (change, clients) in met {
            let clients = if clients.len() == asked.len() { Vec::new() } else { clients };
            let finding = Finding { service_port: name.to_string(), frontend: Some(*frontend), clients, change };
            self.findings.push(finding);
        }
        self.doubts.extend(doubt.map(|why| Doubt { service_port: Some(name.to_string()), why }));
        used
    }

    /// What becomes of a packet where everything is as wanted, said in terms of the other side's mode, and what becomes
    /// of it there.
    fn both(&mut self, packet: &Packet, sides: &Sides<'_>) -> (Ends, Ends) {
        let host = self.surroundings.host();
        let (wanted, found) = (sides.wanted.ends(host, packet), sides.found.ends(host, packet));
        if self.wanted.rules.mode() == self.found.mode() || agree(&wanted, &found) {
            return (wanted, found);
        }
        let difference = match (self.wanted.rules.mode(), self.found.mode()) {
            (Mode::Iptables, _) => self.meant(packet, &wanted, &sides.wanted, &found),
            (_, Mode::Iptables) => self.meant(packet, &found, &sides.found, &wanted),
            // Both of nftables, but not both ours: kube-proxy's masquerades hairpins of all nodes, as iptables does.
            (Mode::KubeProxyNftables, _) => self.meant(packet, &wanted, &sides.wanted, &found),
            (Mode::Nftables, _) => self.meant(packet, &found, &sides.found, &wanted),
        };
        match difference {
            Some(difference) => {
                *self.named.entry(difference).or_default() += 1;
                (found.clone(), found)
            }
            None => (wanted, found),
        }
    }

    /// The difference between the modes that a packet meets, if it is one that is meant.
    fn meant(
        &self,
        packet: &Packet,
        iptables: &Ends,
        rules: &Projection<'_>,
        nftables: &Ends,
    ) -> Option<ModeDifference> {
        let host = self.surroundings.host();
        match self.modes.difference(packet, iptables, |packet| rules.ends(host, packet)) {
            Some((difference, expected)) if agree(nftables, &expected) => Some(difference),
            _ => self.other_addresses(packet, nftables).then_some(ModeDifference::NodePortAddresses),
        }
    }

    /// A node port at an address where nftables mode has none. Of a proxy whose settings are not known, no more can be
    /// told than that the primary address would have it in any case.
    fn other_addresses(&self, packet: &Packet, nftables: &Ends) -> bool {
        let (address, services) = (packet.destination.ip(), self.wanted.services);
        let may_lack = match self.wanted.rules.mode() {
            Mode::Nftables | Mode::KubeProxyNftables => !self.modes.answers_on_node_ports(address),
            Mode::Iptables => services.node.primary_address(services.family) != Some(address),
        };
        self.wanted.host.owns(address) && may_lack && nftables.keys().eq([&End::Untouched])
    }
}

/// Service ports that are worth a thread.
const LEAST_SHARE: usize = 64;
