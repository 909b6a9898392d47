use std::{collections::BTreeMap, time::Duration};

use ferroute_core::{
    LocalTrafficDetector, NodePortAddresses, ProxySettings,
    testing::{Cluster, arbitrary, service, slice},
};
use proptest::prelude::*;

use super::*;
use crate::{
    Class,
    model::{Change, RejectWith, SetKind, Verdict},
    plan::{NftablesSettings, render},
};

/// Encodes a rule and reads it again.
fn round_trip(rule: &Rule, family: IpFamily, sets: &BTreeMap<Name, Set>) -> Rule {
    EncodedRule::of(rule, family).unwrap().decode(family, &|name| sets.get(name))
}

/// Sets that rules of the tests use.
fn sets(family: IpFamily) -> BTreeMap<Name, Set> {
    let address = DataType::address(family);
    let sets = [
        Set::new(Name::fixed("addresses"), [address]),
        Set::new(Name::fixed("ports"), [DataType::Port]).kind(SetKind::Interval),
        Set::new(Name::fixed("clients"), [address]).kind(SetKind::Learned { capacity: 0 }),
        Set::new(Name::fixed("frontends"), [address, DataType::Protocol, DataType::Port]).to_verdicts(),
        Set::new(Name::fixed("backends"), [DataType::Number]).to_values([address, DataType::Port]),
        Set::new(Name::fixed("choice"), [DataType::Number]).to_verdicts(),
        Set::new(Name::fixed("devices"), [DataType::Interface]),
    ];
    sets.into_iter().map(|set| (set.name.clone(), set)).collect()
}

fn planned(cluster: &Cluster, settings: &NftablesSettings, family: IpFamily) -> (Vec<Rule>, BTreeMap<Name, Set>) {
    let addresses = ["127.0.0.1", "192.168.0.1", "::1", "fd00:168::1"].map(|address| address.parse().unwrap());
    let (mut rules, mut sets) = (Vec::new(), BTreeMap::new());
    for change in render(&cluster.table(family), settings, &addresses).changes {
        match change {
            Change::AddRule(_, rule) => rules.push(rule),
            Change::AddSet(set) => drop(sets.insert(set.name.clone(), set)),
            _ => {}
        }
    }
    (rules, sets)
}

fn any_settings() -> impl Strategy<Value = NftablesSettings> {
    let pods = ["10.244.0.0/16", "fd00:244::/50"].map(|net| net.parse().unwrap());
    let detectors = prop_oneof![
        Just(LocalTrafficDetector::None),
        Just(LocalTrafficDetector::ClusterCidr(pods.into())),
        Just(LocalTrafficDetector::BridgeInterface("cni0".into())),
        Just(LocalTrafficDetector::InterfaceNamePrefix("veth".into())),
    ];
    (detectors, any::<[bool; 4]>()).prop_map(|(detector, [all, localhost, any_local, counters])| {
        let node_port_addresses = if any_local { NodePortAddresses::All } else { NodePortAddresses::Primary };
        let proxy = ProxySettings {
            detector,
            masquerade_all: all,
            localhost_node_ports: localhost,
            node_port_addresses,
            ..ProxySettings::default()
        };
        NftablesSettings { proxy, counters }
    })
}

proptest! {
    #[test]
    fn every_rule_that_is_planned_is_read_back_as_it_was_written(
        cluster in arbitrary::cluster(),
        settings in any_settings(),
    ) {
        for family in IpFamily::BOTH {
            let (rules, sets) = planned(&cluster, &settings, family);
            prop_assert!(!rules.is_empty());
            for rule in rules {
                prop_assert_eq!(&round_trip(&rule, family, &sets), &rule, "{}", rule.text(family));
            }
        }
    }

    #[test]
    fn no_expression_makes_the_reader_panic(
        expressions in prop::collection::vec((any_name(), prop::collection::vec(any_attribute(), 0..7)), 0..6),
    ) {
        let expressions = expressions
            .into_iter()
            .map(|(name, attributes)| Expression { name: name.to_owned(), data: attributes.concat() })
            .collect();
        let opaque = Opaque { expressions, text: String::new(), outcome: Outcome::Nothing };
        let rule = Rule::new([Statement::Opaque(opaque)]);
        for family in IpFamily::BOTH {
            let sets = sets(family);
            let read = round_trip(&rule, family, &sets);
            prop_assert!(!read.text(family).to_string().contains('\n'));
        }
    }
}

fn any_name() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec![
        "payload",
        "meta",
        "ct",
        "fib",
        "numgen",
        "bitwise",
        "immediate",
        "cmp",
        "range",
        "lookup",
        "dynset",
        "nat",
        "masq",
        "reject",
        "notrack",
        "counter",
        "limit",
        "queue",
    ])
}

/// An attribute as it is in a message.
fn any_attribute() -> impl Strategy<Value = Vec<u8>> {
    let number = prop_oneof![0..24_u32, any::<u32>()].prop_map(|number| number.to_be_bytes().to_vec());
    let nested = prop::collection::vec(any::<u8>(), 0..20).prop_map(|bytes| attribute(1, &bytes));
    let name = Just(b"frontends\0".to_vec());
    (1..8_u16, prop_oneof![4 => number, 2 => nested, 1 => name]).prop_map(|(kind, bytes)| attribute(kind, &bytes))
}

fn attribute(kind: u16, bytes: &[u8]) -> Vec<u8> {
    let length = u16::try_from(4 + bytes.len()).unwrap();
    let padding = bytes.len().next_multiple_of(4) - bytes.len();
    [&length.to_ne_bytes()[..], &kind.to_ne_bytes(), bytes, &[0; 3][..padding]].concat()
}

#[test]
fn what_others_write_is_read_back_as_it_was_written() {
    let number = |field, mask, relation, number| {
        Statement::from(Match::Compare { field, mask, relation, value: Value::Number(number) })
    };
    let port = |field, relation, port| {
        Statement::from(Match::Compare { field, mask: u32::MAX, relation, value: Value::Port(port) })
    };
    for family in IpFamily::BOTH {
        let address: std::net::IpAddr = ["10.0.0.4", "fd00::4"][family.index()].parse().unwrap();
        let frontend = vec![Field::Destination, Field::Protocol, Field::Port];
        let member = |field, set, is| Statement::from(Match::Member { key: vec![field], set: Name::fixed(set), is });
        let all = sets(family);
        let rules = [
            vec![Statement::Dispatch { key: frontend, map: Name::fixed("frontends") }],
            vec![Statement::Dispatch { key: vec![Field::Random { count: 3, first: 0 }], map: Name::fixed("choice") }],
            vec![Statement::Translate {
                key: vec![Field::Random { count: 3, first: 1 }],
                map: Name::fixed("backends"),
            }],
            vec![Statement::TranslateTo { address, port: Some(8080) }],
            vec![port(Field::Port, Relation::Equal, 80), Statement::TranslateTo { address, port: None }],
            vec![Statement::SourceFrom(address)],
            vec![
                member(Field::Port, "ports", true),
                member(Field::InputInterface, "devices", false),
                Statement::Masquerade { fully_random: false },
            ],
            vec![number(Field::Mark, 0x4000, Relation::Equal, 0), Verdict::Return.into()],
            vec![number(Field::Mark, u32::MAX, Relation::NotEqual, 7), Verdict::Drop.into()],
            vec![number(Field::ConnectionState, 6, Relation::NotEqual, 0), Verdict::Accept.into()],
            vec![port(Field::SourcePort, Relation::AtLeast, 1024), Statement::Reject(RejectWith::TcpReset)],
            vec![
                Match::Within { field: Field::Port, first: Value::Port(80), last: Value::Port(90), is: false }.into(),
                Statement::Reject(RejectWith::Icmpx(3)),
            ],
            vec![Match::Family(family).into(), Statement::ChangeMark { keep: 0, flip: 5 }],
            vec![Statement::Note { key: vec![Field::Source], set: Name::fixed("clients") }],
            vec![Statement::NoTrack],
            vec![
                Match::Compare {
                    field: Field::OutputInterface,
                    mask: u32::MAX,
                    relation: Relation::NotEqual,
                    value: Value::Interfaces(Interface::new("eth")),
                }
                .into(),
                Statement::PriorityAtRandom { count: 2, first: Class::new(1, 1) },
            ],
        ];
        for statements in rules {
            let rule = Rule::new(statements);
            assert_eq!(round_trip(&rule, family, &all), rule, "{}", rule.text(family));
        }
    }
}

#[test]
fn what_is_not_known_is_kept_as_the_kernel_lists_it() {
    let limit = Expression { name: "limit".to_owned(), data: attribute(1, &5_u64.to_be_bytes()) };
    let opaque = Opaque { expressions: vec![limit], text: "limit".to_owned(), outcome: Outcome::Condition };
    let rule = Rule::new([Match::New.into(), Statement::Opaque(opaque), Verdict::Accept.into()]);
    assert_eq!(round_trip(&rule, IpFamily::V4, &BTreeMap::new()), rule);
    assert_eq!(rule.text(IpFamily::V4).to_string(), "ct state new [limit] accept");
}

#[test]
fn a_set_of_unknown_form_makes_its_rules_opaque() {
    let rule = Rule::new([
        Match::Member { key: vec![Field::Source], set: Name::fixed("strange"), is: true }.into(),
        Verdict::Drop.into(),
    ]);
    let read = round_trip(&rule, IpFamily::V4, &BTreeMap::new());
    let [Statement::Opaque(opaque), Statement::Verdict(Verdict::Drop)] = &*read.statements else {
        panic!("{read:?}");
    };
    assert_eq!((&*opaque.text, opaque.outcome), ("lookup in @strange", Outcome::Condition));
    assert_eq!(opaque.expressions.len(), 2);
}

#[test]
fn the_planners_affinity_is_read_back() {
    let cluster = Cluster::of_node("node-1")
        .service(service("shop/web").cluster_ip("10.96.0.1").port("http", 80).node_port(30080).affinity(300))
        .slice(slice("shop/web-a", "web").port("http", 8080).pod("10.244.0.2").pod("10.244.0.3"));
    let (rules, sets) = planned(&cluster, &NftablesSettings::default(), IpFamily::V4);
    let read: Vec<Rule> = rules.iter().map(|rule| round_trip(rule, IpFamily::V4, &sets)).collect();
    assert_eq!(read, rules);
    let learns = |rule: &Rule| {
        let timeout = Duration::from_secs(300);
        rule.statements
            .iter()
            .any(|statement| matches!(statement, Statement::Learn { timeout: t, .. } if *t == timeout))
    };
    assert!(read.iter().any(learns));
}
