//! The order in which packets are walked to frontends, as there may be too many to walk packets to all: first one of each
//! kind, and those that rules of other programs name, by their addresses or ports.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    net::IpAddr,
};

use ferroute_iptables::plan::is_proxy_chain;
use ferroute_modes::kernel_rules::KernelRules;
use ipnet::IpNet;

use super::{destinations::Destination, translations::is_foreign};

/// Returns the frontends in this order; the others follow in theirs.
pub(super) fn ordered(destinations: Vec<Destination>, rules: &KernelRules) -> Vec<Destination> {
    let mut index = Index::new(&destinations);
    index.add_first_of_kinds();
    for backend in &rules.iptables {
        for (table, chains) in &backend.saved.rules.tables {
            let others = chains.chains.iter().filter(|(name, _)| !is_proxy_chain(*table, **name));
            others.flat_map(|(_, chain)| &chain.rules).for_each(|rule| index.add_named(&rule.to_string()));
        }
    }
    for snapshot in rules.nftables.iter().filter(|snapshot| is_foreign(snapshot)) {
        let table = &snapshot.table;
        for rule in table.chains().flat_map(|chain| &chain.rules) {
            index.add_named(&table.rule_text(rule, rules.family));
        }
        for element in table.sets().flat_map(|set| table.elements(&set.name)) {
            element.key.iter().for_each(|value| index.add_named(&value.to_string()));
        }
    }
    for entry in rules.ipsets.entries() {
        entry.networks.iter().for_each(|network| index.add(Named::Network(*network)));
        entry.port.into_iter().for_each(|port| index.add(Named::Ports(port, port)));
    }
    let first = index.first;
    let (named, mut rest): (Vec<_>, Vec<_>) =
        destinations.into_iter().enumerate().partition(|(n, _)| first.contains(n));
    let mut all = named;
    all.append(&mut rest);
    all.into_iter().map(|(_, destination)| destination).collect()
}

/// Frontends by what rules may name.
struct Index<'a> {
    all: &'a [Destination],
    by_address: BTreeMap<IpAddr, Vec<usize>>,
    by_port: BTreeMap<u16, Vec<usize>>,
    /// The frontends that come first.
    first: BTreeSet<usize>,
}

/// What a rule may name.
#[derive(Clone, Copy)]
enum Named {
    Network(IpNet),
    Addresses(IpAddr, IpAddr),
    Ports(u16, u16),
}

impl<'a> Index<'a> {
    fn new(all: &'a [Destination]) -> Self {
        let (mut by_address, mut by_port) = (BTreeMap::<_, Vec<_>>::new(), BTreeMap::<_, Vec<_>>::new());
        for (n, destination) in all.iter().enumerate() {
            by_address.entry(destination.address).or_default().push(n);
            by_port.entry(destination.port).or_default().push(n);
        }
        Self { all, by_address, by_port, first: BTreeSet::new() }
    }

    /// Adds a frontend of each kind.
    fn add_first_of_kinds(&mut self) {
        let mut kinds = HashSet::new();
        let of = |it: &Destination| (it.kind, it.policy, it.protocol, it.has_endpoints, it.own_pod.is_some());
        self.first.extend(self.all.iter().enumerate().filter(|(_, it)| kinds.insert(of(it))).map(|(n, _)| n));
    }

    /// Adds frontends that a rule or an element of a set names.
    fn add_named(&mut self, text: &str) {
        text.split(SEPARATORS).filter_map(Named::parse).for_each(|named| self.add(named));
    }

    fn add(&mut self, named: Named) {
        let first = match named {
            Named::Network(network) => first_in(&self.by_address, network.network(), network.broadcast()),
            Named::Addresses(first, last) => first_in(&self.by_address, first, last),
            Named::Ports(first, last) => first_in(&self.by_port, first, last),
        };
        self.first.extend(first);
    }
}

/// Returns the first frontends in a range.
fn first_in<K: Ord>(all: &BTreeMap<K, Vec<usize>>, first: K, last: K) -> Vec<usize> {
    if first > last {
        return Vec::new();
    }
    all.range(first..=last).flat_map(|(_, found)| found).take(MAX_OF_NAME).copied().collect()
}

impl Named {
    /// Reads a word of a rule, in the syntax of `iptables-save` or `nft`.
    fn parse(word: &str) -> Option<Self> {
        if let Ok(network) = word.parse::<IpNet>().or_else(|_| word.parse::<IpAddr>().map(IpNet::from)) {
            return Some(Self::Network(network));
        }
        if let Some((first, last)) = word.split_once('-')
            && let (Ok(first), Ok(last)) = (first.parse(), last.parse())
        {
            return Some(Self::Addresses(first, last));
        }
        let (first, last) = word.split_once([':', '-']).unwrap_or((word, word));
        Some(Self::Ports(first.parse().ok()?, last.parse().ok()?))
    }
}

/// The maximum number of frontends that are walked because of one name in a rule.
const MAX_OF_NAME: usize = 16;
/// Characters between the names in a rule.
const SEPARATORS: [char; 6] = [' ', ',', '{', '}', '"', ';'];

#[cfg(test)]
mod tests {
    use super::{super::destinations::tests::destination_at, *};

    #[test]
    fn frontends_of_each_kind_and_named_ones_come_first() {
        let all: Vec<Destination> =
            (0..200u16).map(|n| destination_at([10, 96, 0, (n % 100) as u8], 1000 + n)).collect();
        let first = |rules: &[&str]| {
            let mut index = Index::new(&all);
            index.add_first_of_kinds();
            rules.iter().for_each(|rule| index.add_named(rule));
            index.first.into_iter().collect::<Vec<_>>()
        };
        assert_eq!(first(&[]), [0]);
        for (rule, expected) in [
            ("-A X -d 10.96.0.7/32 -j ACCEPT", &[0, 7, 107][..]),
            ("ip daddr 10.96.0.7 accept", &[0, 7, 107]),
            ("ip daddr { 10.96.0.7, 10.97.0.0/16 } accept", &[0, 7, 107]),
            ("ip daddr 10.96.0.98-10.97.0.9 accept", &[0, 98, 99, 198, 199]),
            ("-A X -p tcp -m multiport --dports 1005,1010:1011 -j RETURN", &[0, 5, 10, 11]),
            ("tcp dport 1005-1006 return", &[0, 5, 6]),
            ("-m mark --mark 0x4000/0x4000 -j ACCEPT", &[0]),
            ("ip daddr 10.0.0.9-10.0.0.1 tcp dport 9-1 accept", &[0]),
        ] {
            assert_eq!(first(&[rule]), expected, "{rule}");
        }
        assert_eq!(first(&["-d 10.96.0.0/16"]).len(), MAX_OF_NAME);
    }
}
