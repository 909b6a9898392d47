use std::{collections::BTreeMap, time::Duration};

use ferroute_core::{
    FlowtableSettings, LocalTrafficDetector, Method, NodePortAddresses, ProxySettings,
    testing::{Cluster, arbitrary, service, slice},
};
use proptest::{prelude::*, sample::select};

use super::*;
use crate::{
    ClassId,
    model::{Change, PriorityBits, RejectWith, SetKind, Verdict},
    plan::{NftablesSettings, render},
};

/// Encodes a rule and decodes it.
fn round_trip(rule: &Rule, family: IpFamily, sets: &BTreeMap<Name, Set>) -> Rule {
    EncodedRule::from_rule(rule, family).unwrap().decode(family, &|name| sets.get(name))
}

/// Returns sets for the rules of the tests.
fn sets(family: IpFamily) -> BTreeMap<Name, Set> {
    let address = DataType::address(family);
    let sets = [
        Set::new(Name::fixed("addresses"), [address]),
        Set::new(Name::fixed("ports"), [DataType::InetService]).kind(SetKind::Interval),
        Set::new(Name::fixed("clients"), [address]).kind(SetKind::Dynamic { size: 0, expires: true }),
        Set::new(Name::fixed("frontends"), [address, DataType::InetProto, DataType::InetService]).verdict_map(),
        Set::new(Name::fixed("backends"), [DataType::Integer]).map_to([address, DataType::InetService]),
        Set::new(Name::fixed("choice"), [DataType::Integer]).verdict_map(),
        Set::new(Name::fixed("devices"), [DataType::IfName]),
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
    (detectors, any::<[bool; 5]>()).prop_map(|(detector, [all, localhost, any_local, counters, flowtable])| {
        let node_port_addresses = if any_local { NodePortAddresses::All } else { NodePortAddresses::Primary };
        let proxy = ProxySettings {
            detector,
            masquerade_all: all,
            localhost_node_ports: localhost,
            node_port_addresses,
            ..ProxySettings::default()
        };
        let flowtable = flowtable.then(|| FlowtableSettings { devices: Vec::new(), packets: 20 });
        NftablesSettings { proxy, counters, flowtable }
    })
}

proptest! {
    #[test]
    fn planned_rules_survive_a_round_trip(
        mut cluster in arbitrary::cluster(),
        settings in any_settings(),
        method in select(&Method::ALL[..]),
    ) {
        for service in &mut cluster.services {
            let annotations = [("load-balancing", method.as_str()), ("hash-table-size", "1024")];
            let annotations = annotations.map(|(key, value)| (format!("ferroute.io/{key}"), value.to_owned()));
            service.metadata.annotations = annotations.into();
        }
        for family in IpFamily::BOTH {
            let (rules, sets) = planned(&cluster, &settings, family);
            prop_assert!(!rules.is_empty());
            for rule in rules {
                prop_assert_eq!(&round_trip(&rule, family, &sets), &rule, "{}", rule.text(family));
            }
        }
    }

    #[test]
    fn decoding_never_panics(
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

/// An encoded attribute.
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
fn rules_of_other_programs_survive_a_round_trip() {
    let number =
        |field, mask, op, number| Statement::from(Match::Cmp { field, mask, op, value: Value::Integer(number) });
    let port = |field, op, port| Statement::from(Match::Cmp { field, mask: u32::MAX, op, value: Value::Port(port) });
    for family in IpFamily::BOTH {
        let address: std::net::IpAddr = ["10.0.0.4", "fd00::4"][family.index()].parse().unwrap();
        let frontend = vec![Field::Daddr, Field::L4proto, Field::Dport];
        let member = |field, set, eq| Statement::from(Match::InSet { key: vec![field], set: Name::fixed(set), eq });
        let all = sets(family);
        let rules = [
            vec![Statement::Vmap { key: frontend, map: Name::fixed("frontends") }],
            vec![Statement::Vmap { key: vec![Field::NumgenRandom { count: 3, first: 0 }], map: Name::fixed("choice") }],
            vec![Statement::DnatMap {
                key: vec![Field::NumgenRandom { count: 3, first: 1 }],
                map: Name::fixed("backends"),
            }],
            vec![Statement::Dnat { address, port: Some(8080) }],
            vec![port(Field::Dport, CmpOp::Eq, 80), Statement::Dnat { address, port: None }],
            vec![Statement::Snat(address)],
            vec![
                member(Field::Dport, "ports", true),
                member(Field::Iifname, "devices", false),
                Statement::Masquerade { fully_random: false },
            ],
            vec![number(Field::MetaMark, 0x4000, CmpOp::Eq, 0), Verdict::Return.into()],
            vec![number(Field::MetaMark, u32::MAX, CmpOp::Neq, 7), Verdict::Drop.into()],
            vec![number(Field::CtState, 6, CmpOp::Neq, 0), Verdict::Accept.into()],
            vec![port(Field::Sport, CmpOp::Gte, 1024), Statement::Reject(RejectWith::TcpReset)],
            vec![
                Match::Range { field: Field::Dport, first: Value::Port(80), last: Value::Port(90), eq: false }.into(),
                Statement::Reject(RejectWith::Icmpx(3)),
            ],
            vec![Match::Nfproto(family).into(), Statement::MetaMarkSet { mask: 0, xor: 5 }],
            vec![Statement::UpdateSet { key: vec![Field::Saddr], set: Name::fixed("clients"), timeout: None }],
            vec![Statement::Notrack],
            vec![
                Match::CtPacketsAbove(300).into(),
                Match::Cmp { field: Field::CtOriginalDport, mask: u32::MAX, op: CmpOp::Eq, value: Value::Port(443) }
                    .into(),
                Statement::FlowAdd(Name::fixed("fast")),
            ],
            vec![
                Match::Cmp {
                    field: Field::Oifname,
                    mask: u32::MAX,
                    op: CmpOp::Neq,
                    value: Value::IfNamePrefix(IfName::new("eth")),
                }
                .into(),
                Statement::MetaPriorityBits(PriorityBits::new(ClassId::new(0xf, 0xffff), ClassId::new(0x10, 2))),
            ],
        ];
        for statements in rules {
            let rule = Rule::new(statements);
            assert_eq!(round_trip(&rule, family, &all), rule, "{}", rule.text(family));
        }
    }
}

#[test]
fn unknown_expressions_are_kept_as_the_kernel_lists_them() {
    let limit = Expression { name: "limit".to_owned(), data: attribute(1, &5_u64.to_be_bytes()) };
    let opaque = Opaque { expressions: vec![limit], text: "unknown limit".to_owned(), outcome: Outcome::Condition };
    let rule = Rule::new([Match::CtStateNew.into(), Statement::Opaque(opaque), Verdict::Accept.into()]);
    assert_eq!(round_trip(&rule, IpFamily::V4, &BTreeMap::new()), rule);
    assert_eq!(rule.text(IpFamily::V4).to_string(), "ct state new unknown limit accept");
}

#[test]
fn rules_with_an_undecoded_set_are_opaque() {
    let rule = Rule::new([
        Match::InSet { key: vec![Field::Saddr], set: Name::fixed("strange"), eq: true }.into(),
        Verdict::Drop.into(),
    ]);
    let read = round_trip(&rule, IpFamily::V4, &BTreeMap::new());
    let [Statement::Opaque(opaque), Statement::Verdict(Verdict::Drop)] = &*read.statements else {
        panic!("{read:?}");
    };
    assert_eq!((&*opaque.text, &opaque.outcome), ("ip saddr @strange", &Outcome::Condition));
    assert_eq!(opaque.expressions.len(), 2);
}

#[test]
fn affinity_rules_survive_a_round_trip() {
    let cluster = Cluster::new("node-1")
        .service(service("shop/web").cluster_ip("10.96.0.1").port("http", 80).node_port(30080).affinity(300))
        .slice(slice("shop/web-a", "web").port("http", 8080).pod("10.244.0.2").pod("10.244.0.3"));
    let (rules, sets) = planned(&cluster, &NftablesSettings::default(), IpFamily::V4);
    let read: Vec<Rule> = rules.iter().map(|rule| round_trip(rule, IpFamily::V4, &sets)).collect();
    assert_eq!(read, rules);
    let updates_map = |rule: &Rule| {
        let timeout = Duration::from_secs(300);
        rule.statements
            .iter()
            .any(|statement| matches!(statement, Statement::UpdateMap { timeout: t, .. } if *t == timeout))
    };
    assert!(read.iter().any(updates_map));
}
