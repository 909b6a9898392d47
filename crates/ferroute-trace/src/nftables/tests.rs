mod changes;
mod nginx;

use ferroute_core::{
    IpFamily,
    testing::{Cluster, pod, service, slice},
};
use ferroute_nftables::{
    ClassId, Value,
    kernel::{Kernel, MemoryKernel},
    model::{Change, Data, Element, Name, TableId, Transaction},
    plan::{ListNumber, NftablesSettings, TABLE, render},
    script,
};

use crate::{
    Event, Leaf, Packet, Ruleset, Verdict,
    testing::{from_node, from_outside, from_pod, host, ip, nginx, settings, socket},
    write_leaf_into, write_summary_into,
};

/// A kernel with the planned rules of a cluster.
fn kernel(cluster: &Cluster, service_networks: &[&str]) -> MemoryKernel {
    let proxy = settings();
    let settings = NftablesSettings { proxy, ..NftablesSettings::default() };
    let mut table = cluster.table(IpFamily::V4);
    table.service_cidrs = service_networks.iter().map(|net| net.parse().unwrap()).collect();
    let mut kernel = MemoryKernel::new();
    kernel.commit(&render(&table, &settings, &host().addresses)).unwrap();
    kernel
}

fn id() -> TableId {
    TableId { family: IpFamily::V4, name: TABLE }
}

fn ruleset(kernel: &MemoryKernel) -> Ruleset<'_> {
    Ruleset::from_nftables_table(id().to_string(), kernel.table(&id()).unwrap())
}

fn summary(kernel: &MemoryKernel, packet: &Packet) -> String {
    let mut text = String::new();
    write_summary_into(&mut text, &ruleset(kernel).summary(&host(), packet)).unwrap();
    text
}

#[test]
fn trace_shows_the_table_as_nft_does() {
    let kernel = kernel(&nginx(|it| it), &[]);
    let trace = ruleset(&kernel).trace(&host(), &from_pod("10.111.175.78:80"));
    assert!(matches!(&trace.branches[0].events[0], Event::Hook { table, .. } if table == "ip ferroute"));
}

#[test]
fn walk_has_one_leaf_for_each_of_many_endpoints() {
    let kernel = kernel(&Cluster::uniform(1, 1000), &[]);
    let leaves = ruleset(&kernel).verdicts(&host(), &from_pod("10.96.0.1:80"));
    assert_eq!(leaves.len(), 1000);
    assert!(leaves.iter().all(|leaf| leaf.share == 0.001));
}

#[test]
fn client_with_affinity_keeps_its_endpoint_until_it_is_removed() {
    let mut kernel = kernel(&nginx(|it| it.affinity(10_800)), &[]);
    let packet = from_pod("10.111.175.78:80");
    let remember = |kernel: &mut MemoryKernel, slot: ClassId| {
        let (number, list) = ListNumber::from_class_id(slot).unwrap();
        let element = Element::new([number.list(list).into(), packet.source.ip().into()]).values([slot.into()]);
        let mut transaction = Transaction::new(id());
        transaction.push(Change::AddElement(Name::fixed("affinity"), element));
        kernel.commit(&transaction).unwrap();
    };
    let table = kernel.table(&id()).unwrap();
    let leaves = |kernel: &MemoryKernel| ruleset(kernel).verdicts(&host(), &packet);
    assert_eq!(leaves(&kernel).len(), 3);
    let endpoints = Name::fixed("tcp-endpoints");
    let element = table.elements(&endpoints).find(
        |element| matches!(&element.data, Some(Data::Values(fields)) if fields.starts_with(&[ip("172.17.0.5").into()])),
    );
    let Some(Value::ClassId(slot)) = element.and_then(|element| element.key.first()).copied() else {
        panic!("172.17.0.5 has no slot")
    };
    let mut other = kernel.clone();
    remember(&mut kernel, slot);
    assert!(matches!(
        leaves(&kernel).as_slice(),
        [Leaf { verdict: Verdict::Delivered { to, .. }, share: 1.0, .. }] if *to == socket("172.17.0.5:80")
    ));
    // A slot of the same list, but of no current endpoint.
    remember(&mut other, ClassId(slot.0 ^ 1 << 20));
    assert_eq!(leaves(&other).len(), 3);
}

/// Returns the ends of a packet in a table of `nft list ruleset`, each with its assumptions.
fn ends(text: &str) -> Vec<(String, Vec<String>)> {
    let tables = script::parse(IpFamily::V4, text, &script::Variables::default()).unwrap();
    let ruleset = Ruleset::from_nftables_table("ip t", &tables[0].table);
    let branches = ruleset.trace(&host(), &from_pod("10.0.0.1:80")).branches.into_iter();
    branches
        .map(|branch| (branch.verdict.to_string(), branch.assumptions.iter().map(ToString::to_string).collect()))
        .collect()
}

#[test]
fn modules_without_options_and_limits_are_assumed_for_each_rule() {
    let ends = |rules: &str| {
        let chain = format!("chain c {{\n type filter hook forward priority filter; policy accept;\n{rules}\n}}");
        ends(&format!("table ip t {{\n{chain}\n}}\n"))
    };
    for (condition, is_shared) in
        [("xt match \"set\"", false), ("limit rate 5/second", false), ("limit name \"web\"", true), ("ip ttl 64", true)]
    {
        let matches = format!("`{condition}` matches");
        let separate = vec![matches.clone(), format!("another `{condition}` does not match")];
        for rules in [
            format!("{condition} meta mark set 1\n meta mark 1 {condition} drop"),
            format!("{condition} {condition} drop\n{condition} meta mark set 1"),
        ] {
            let ends = ends(&rules);
            assert!(ends.iter().any(|(end, assumed)| end == "dropped" && assumed[0] == matches), "{ends:?}");
            let is_separate = ends.iter().any(|(end, assumed)| {
                end != "dropped" && (*assumed == separate || *assumed == [format!("`{condition}` does not match")])
            });
            assert!(is_separate, "{ends:?}");
            let dropped = ends.iter().find(|(end, _)| end == "dropped").unwrap();
            assert_eq!(dropped.1.len(), if is_shared { 1 } else { 2 }, "{condition}: {ends:?}");
        }
    }
}

#[test]
fn last_of_the_base_chains_of_equal_priority_runs_first() {
    let chain = |name: &str, address: u8| {
        format!("chain {name} {{\n type nat hook postrouting priority srcnat;\n snat to 192.0.2.{address}\n}}\n")
    };
    for (first, second) in [("a", "b"), ("b", "a")] {
        let text = format!("table ip t {{\n{}{}}}\n", chain(first, 1), chain(second, 2));
        assert!(ends(&text)[0].0.ends_with("with source 192.0.2.2"), "{text}");
    }
}
