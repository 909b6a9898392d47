//! The table whose rules log the packets that rules of Services are about to reject or drop.
//!
//! ```text
//!   prerouting ─► pod, outside ─┐   not in the source ranges ─────────────────► log
//!   output ─────► node ─────────┴─► a frontend that refuses such clients ─────► log
//!                               ├─► a frontend with limits ─────────────────► log
//!                               └─► another port of a cluster IP, or none ────► log
//! ```
//!
//! The rules do not change packets. They come before all rules of Services in any mode, so that one table serves all
//! modes. [`Refusals`] decides by the prefix of a logged packet.
//!
//! Only the rules of a Service decide whether a connection is beyond its limits. The first packets of connections to
//! Services with limits are therefore logged before these rules, and again after them.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
};

use ferroute_core::{Client, FamilySettings, Frontend, LocalTraffic, NodePortMatch};
use ferroute_nftables::{
    DataType, Value,
    model::{
        Chain, ChainType, Change, Comment, Element, Field, Hook, InterfacePattern, Key, Match, Name, Rule, Set,
        Statement, TableId, Transaction, Verdict,
    },
    plan::frontend_key,
};
use ipnet::IpNet;

use super::Refusals;

/// Input for the rules of an IP family.
#[derive(Clone, Debug)]
pub(crate) struct Watched<'a> {
    pub(crate) settings: &'a FamilySettings,
    /// The frontends at which some connections are refused.
    pub(crate) refusing: Vec<(Frontend, &'a Refusals)>,
    /// The frontends with limits.
    pub(crate) limited: Vec<Frontend>,
    /// All frontends with addresses, if other ports of cluster IPs are refused.
    pub(crate) frontends: Vec<Frontend>,
    /// Whether node ports are refused at all addresses of the node, not only at those that serve node ports.
    pub(crate) refuses_at_all_addresses: bool,
    /// Addresses whose other ports are refused, with their Services.
    pub(crate) cluster_ips: BTreeMap<IpAddr, Arc<str>>,
    /// The networks of cluster IPs, if packets to unassigned addresses in them are dropped.
    pub(crate) networks: &'a [IpNet],
}

impl Watched<'_> {
    /// Returns the addresses at which node ports are refused; `None` if they are not a list.
    fn node_port_addresses(&self) -> Option<&[IpAddr]> {
        match &self.settings.node_ports {
            NodePortMatch::Addresses(addresses) if !self.refuses_at_all_addresses => Some(addresses),
            NodePortMatch::Addresses(_) | NodePortMatch::AnyLocal => None,
        }
    }

    /// Returns the conditions for packets to addresses at which node ports are refused.
    fn to_node(&self) -> Vec<Statement> {
        if self.node_port_addresses().is_some() {
            return vec![in_set(&[Field::Daddr], &NODE_PORT_ADDRESSES)];
        }
        let is_served_on_localhost = self.settings.localhost_node_ports || self.refuses_at_all_addresses;
        let not_localhost = Match::Daddr { net: self.settings.family.loopback(), eq: false };
        let not_localhost = (!is_served_on_localhost).then_some(not_localhost);
        [Match::FibDaddrLocal].into_iter().chain(not_localhost).map(Statement::from).collect()
    }
}

/// Kind of a logged packet, by the prefix of its rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Logged {
    /// Sent to a frontend.
    Frontend {
        /// The class of its sender.
        client: Client,
        /// The sender may use the frontend.
        is_permitted: bool,
    },
    /// Sent to a frontend with limits.
    Limited {
        /// The class of its sender.
        client: Client,
    },
    /// Let through by the rules of a Service with limits.
    Admitted,
    /// Sent to a port that the Service of the address does not have.
    UnknownPort,
    /// Sent to an address in a network of cluster IPs that no Service has.
    UnassignedAddress,
}

impl Logged {
    /// All prefixes with their kinds of packets.
    const PREFIXES: [(&'static str, Self); 12] = {
        use Client::{Node, Outside, Pod};
        const fn frontend(client: Client, is_permitted: bool) -> Logged {
            Logged::Frontend { client, is_permitted }
        }
        [
            ("pod", frontend(Pod, true)),
            ("node", frontend(Node, true)),
            ("outside", frontend(Outside, true)),
            ("restricted-pod", frontend(Pod, false)),
            ("restricted-node", frontend(Node, false)),
            ("restricted-outside", frontend(Outside, false)),
            ("limited-pod", Self::Limited { client: Pod }),
            ("limited-node", Self::Limited { client: Node }),
            ("limited-outside", Self::Limited { client: Outside }),
            ("admitted", Self::Admitted),
            ("unknown-port", Self::UnknownPort),
            ("unassigned-address", Self::UnassignedAddress),
        ]
    };

    /// Returns the meaning of a prefix.
    pub(crate) fn from_prefix(prefix: &str) -> Option<Self> {
        Self::PREFIXES.into_iter().find(|(text, _)| *text == prefix).map(|(_, logged)| logged)
    }

    /// Returns the statement that logs packets of this kind.
    fn log(self, group: u16) -> Statement {
        let prefix = Self::PREFIXES.into_iter().find(|(_, logged)| *logged == self).map_or("", |(prefix, _)| prefix);
        Statement::Log { prefix: prefix.into(), group }
    }
}

/// Returns the name of the table for a group, which has one receiver.
pub(crate) fn table_name(group: u16) -> Name {
    format!("ferroute-refused-{group}").into()
}

/// Returns the transaction that creates the table for packets that are logged to `group`, or replaces it.
pub(crate) fn table(watched: &Watched<'_>, group: u16) -> Transaction {
    let Watched { settings, .. } = watched;
    let mut transaction = Transaction::new(TableId { family: settings.family, name: table_name(group) });
    transaction.changes.extend([Change::AddOwnedTable(COMMENT), Change::DeleteTable, Change::AddOwnedTable(COMMENT)]);
    let mut table = Table { watched, group, transaction };
    table.add();
    table.transaction
}

struct Table<'a, 'b> {
    watched: &'a Watched<'b>,
    group: u16,
    transaction: Transaction,
}

impl<'a, 'b> Table<'a, 'b> {
    fn add(&mut self) {
        let Watched { settings, refusing, limited, frontends, cluster_ips, .. } = self.watched;
        let address = DataType::address(settings.family);
        let at_address = [address, DataType::InetProto, DataType::InetService];
        for by_address in [true, false] {
            let frontend = if by_address { &at_address[..] } else { &at_address[1..] };
            let key = [&[address], frontend].concat();
            for length in self.prefix_lengths(by_address) {
                let keys = self.restricted(by_address).flat_map(|(frontend, _, sources)| {
                    let of_length = sources.iter().filter(move |net| net.prefix_len() == length);
                    of_length.map(move |net| {
                        [Value::Address(net.network())].into_iter().chain(frontend_key(frontend)).collect::<Key>()
                    })
                });
                self.set(&permitted(length, by_address), key.clone(), keys);
            }
        }
        let keys = |ips: Vec<IpAddr>| ips.into_iter().map(|ip| [Value::Address(ip)].into_iter().collect());
        self.set(&CLUSTER_IPS, [address], keys(cluster_ips.keys().copied().collect()));
        if let Some(addresses) = self.watched.node_port_addresses() {
            self.set(&NODE_PORT_ADDRESSES, [address], keys(addresses.to_vec()));
        }
        self.set(&FRONTENDS, at_address, frontends.iter().map(|frontend| frontend_key(*frontend)));
        if !limited.is_empty() {
            let (at_addresses, node_ports): (Vec<Frontend>, Vec<Frontend>) =
                limited.iter().partition(|frontend| frontend.address.is_some());
            self.set(&LIMITED_FRONTENDS, at_address, at_addresses.into_iter().map(frontend_key));
            self.set(&LIMITED_NODE_PORTS, &at_address[1..], node_ports.into_iter().map(frontend_key));
        }
        for client in Client::ALL {
            let permitted = refusing.iter().filter(|(_, refusals)| refusals.of(client, true).is_some());
            let (at_addresses, node_ports): (Vec<Frontend>, Vec<Frontend>) =
                permitted.map(|(frontend, _)| *frontend).partition(|frontend| frontend.address.is_some());
            let restricted = |by_address| {
                let refused = self.restricted(by_address);
                let refused = refused.filter(move |(_, refusals, _)| refusals.of(client, false).is_some());
                refused.map(|(frontend, ..)| frontend_key(frontend))
            };
            let [restricted, restricted_node_ports] = [restricted(true), restricted(false)];
            let names = Names::of(client);
            self.set(&names.frontends, at_address, at_addresses.into_iter().map(frontend_key));
            self.set(&names.node_ports, &at_address[1..], node_ports.into_iter().map(frontend_key));
            self.set(&names.restricted, at_address, restricted);
            if self.restricts_node_ports() {
                self.set(&names.restricted_node_ports, &at_address[1..], restricted_node_ports);
            }
            self.chains(client);
        }
        self.base_chains();
    }

    fn set(&mut self, name: &Name, key: impl Into<Vec<DataType>>, keys: impl Iterator<Item = Key>) {
        self.transaction.push(Change::AddSet(Set::new(name.clone(), key)));
        // A key that occurs twice is added once.
        let elements = keys.map(|key| Change::AddElement(name.clone(), Element::with_key(key)));
        self.transaction.changes.extend(elements);
    }

    /// Returns the frontends with source ranges, either those with an address or node ports, which have none.
    fn restricted(
        &self,
        by_address: bool,
    ) -> impl Iterator<Item = (Frontend, &'a Refusals, &'a [IpNet])> + use<'a, 'b> {
        let refusing = self.watched.refusing.iter();
        let restricted = refusing.filter_map(|(frontend, refusals)| Some((*frontend, *refusals, refusals.sources()?)));
        restricted.filter(move |(frontend, ..)| frontend.address.is_some() == by_address)
    }

    /// Returns the prefix lengths of the source ranges of these frontends.
    fn prefix_lengths(&self, by_address: bool) -> BTreeSet<u8> {
        self.restricted(by_address).flat_map(|(_, _, sources)| sources).map(IpNet::prefix_len).collect()
    }

    fn restricts_node_ports(&self) -> bool {
        self.restricted(false).next().is_some()
    }

    /// Adds the chains for packets of a class of clients.
    fn chains(&mut self, client: Client) {
        let names = Names::of(client);
        let log = |is_permitted| [Logged::Frontend { client, is_permitted }.log(self.group), Verdict::Accept.into()];
        let log_here = |logged: Logged| [logged.log(self.group), Verdict::Accept.into()];
        let refused = [in_set(&AT_ADDRESS, &names.frontends)].into_iter().chain(log(true));
        let to_node = self.watched.to_node().into_iter().chain([in_set(&AT_NODE, &names.node_ports)]);
        let at_node = to_node.chain(log(true));
        let limited = [
            vec![in_set(&AT_ADDRESS, &LIMITED_FRONTENDS)],
            self.watched.to_node().into_iter().chain([in_set(&AT_NODE, &LIMITED_NODE_PORTS)]).collect(),
        ];
        let limited = limited.into_iter().filter(|_| self.has_limits()).map(|conditions| {
            Rule::new(conditions.into_iter().chain(log_here(Logged::Limited { client })).collect::<Vec<_>>())
        });
        let served = [in_set(&AT_ADDRESS, &FRONTENDS), Verdict::Accept.into()];
        let unknown_port = [in_set(&[Field::Daddr], &CLUSTER_IPS)].into_iter().chain(log_here(Logged::UnknownPort));
        let unassigned = self.watched.networks.iter().map(|net| {
            let to = Match::Daddr { net: *net, eq: true };
            Rule::new([to.into()].into_iter().chain(log_here(Logged::UnassignedAddress)).collect::<Vec<_>>())
        });
        let mut permitted_rules = vec![Rule::new(refused.collect::<Vec<_>>()), Rule::new(at_node.collect::<Vec<_>>())];
        permitted_rules.extend(limited);
        permitted_rules.extend([Rule::new(served), Rule::new(unknown_port.collect::<Vec<_>>())]);
        permitted_rules.extend(unassigned);
        let mut rules = Vec::new();
        for by_address in [true, false] {
            let conditions = if by_address { Vec::new() } else { self.watched.to_node() };
            let (key, restricted) = if by_address {
                (&AT_ADDRESS[..], &names.restricted)
            } else {
                (&AT_NODE[..], &names.restricted_node_ports)
            };
            let rule = |condition: Statement, end: Vec<Statement>| {
                Rule::new(conditions.iter().cloned().chain([condition]).chain(end).collect::<Vec<_>>())
            };
            rules.extend(self.prefix_lengths(by_address).into_iter().map(|length| {
                let key = [&[Field::SaddrNetwork(length)], key].concat();
                let permitted = in_set(&key, &permitted(length, by_address));
                rule(permitted, vec![Verdict::Goto(names.permitted.clone()).into()])
            }));
            if by_address || self.restricts_node_ports() {
                rules.push(rule(in_set(key, restricted), log(false).into()));
            }
        }
        rules.push(Rule::new([Verdict::Goto(names.permitted.clone()).into()]));
        self.transaction.add_chain(Chain::new(names.permitted).rules(permitted_rules));
        self.transaction.add_chain(Chain::new(names.chain).rules(rules));
    }

    fn has_limits(&self) -> bool {
        !self.watched.limited.is_empty()
    }

    fn base_chains(&mut self) {
        let to = |client| Verdict::Goto(Names::of(client).chain).into();
        let new = || Statement::from(Match::CtStateNew);
        let from_pods = self.watched.settings.local_traffic.as_ref().map(|local| {
            let condition = match local {
                LocalTraffic::Source(net) => Match::Saddr { net: *net, eq: true },
                LocalTraffic::Interface(name) => {
                    Match::Iifname { name: InterfacePattern::Exact(name.as_str().into()), eq: true }
                }
                LocalTraffic::InterfacePrefix(prefix) => {
                    Match::Iifname { name: InterfacePattern::Prefix(prefix.as_str().into()), eq: true }
                }
            };
            Rule::new([new(), condition.into(), to(Client::Pod)])
        });
        let prerouting: Vec<Rule> = from_pods.into_iter().chain([Rule::new([new(), to(Client::Outside)])]).collect();
        let base = |name, hook| Chain::new(Name::fixed(name)).base(ChainType::Filter, hook, PRIORITY);
        self.transaction.add_chain(base("prerouting", Hook::Prerouting).rules(prerouting));
        self.transaction.add_chain(base("output", Hook::Output).rules([Rule::new([new(), to(Client::Node)])]));
        if self.has_limits() {
            let rules = || {
                let to = [
                    (&ORIGINALLY_AT_ADDRESS[..], LIMITED_FRONTENDS),
                    (&ORIGINALLY_AT_ADDRESS[1..], LIMITED_NODE_PORTS),
                ];
                to.map(|(key, set)| {
                    Rule::new([new(), in_set(key, &set), Logged::Admitted.log(self.group), Verdict::Accept.into()])
                })
            };
            for (name, hook) in [("admitted", Hook::Prerouting), ("admitted-output", Hook::Output)] {
                let chain = Chain::new(Name::fixed(name)).base(ChainType::Filter, hook, PRIORITY_AFTER);
                self.transaction.add_chain(chain.rules(rules()));
            }
        }
    }
}

/// The names of the chains and sets for a class of clients.
struct Names {
    chain: Name,
    /// The chain for clients that may use the frontend.
    permitted: Name,
    frontends: Name,
    node_ports: Name,
    restricted: Name,
    restricted_node_ports: Name,
}

impl Names {
    fn of(client: Client) -> Self {
        let name = match client {
            Client::Pod => "pod",
            Client::Node => "node",
            Client::Outside => "outside",
        };
        Self {
            chain: format!("from-{name}").into(),
            permitted: format!("from-permitted-{name}").into(),
            frontends: format!("{name}-frontends").into(),
            node_ports: format!("{name}-node-ports").into(),
            restricted: format!("{name}-restricted").into(),
            restricted_node_ports: format!("{name}-restricted-node-ports").into(),
        }
    }
}

/// Returns the name of the set of clients that may use a frontend with source ranges of this prefix length.
fn permitted(length: u8, by_address: bool) -> Name {
    let of = if by_address { "permitted" } else { "permitted-node-ports" };
    format!("{of}-{length}").into()
}

fn in_set(key: &[Field], set: &Name) -> Statement {
    Match::InSet { key: key.to_vec(), set: set.clone(), eq: true }.into()
}

const AT_ADDRESS: [Field; 3] = [Field::Daddr, Field::L4proto, Field::Dport];
const AT_NODE: [Field; 2] = [Field::L4proto, Field::Dport];
const ORIGINALLY_AT_ADDRESS: [Field; 3] = [Field::CtOriginalDaddr, Field::L4proto, Field::CtOriginalDport];
const CLUSTER_IPS: Name = Name::fixed("cluster-ips");
const FRONTENDS: Name = Name::fixed("frontends");
const LIMITED_FRONTENDS: Name = Name::fixed("limited-frontends");
const LIMITED_NODE_PORTS: Name = Name::fixed("limited-node-ports");
const NODE_PORT_ADDRESSES: Name = Name::fixed("node-port-addresses");
const COMMENT: Comment = Comment::fixed("ferroute flows: packets that rules refuse");
/// After connection tracking (-200), and before all rules of Services: the first of which are the rules of source
/// ranges in nftables mode (-110).
const PRIORITY: i32 = -115;
/// After the translation of destinations, where nftables mode applies limits: all chains of type nat at -100.
const PRIORITY_AFTER: i32 = -99;

#[cfg(test)]
mod tests;
