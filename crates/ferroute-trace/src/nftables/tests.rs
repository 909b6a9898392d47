mod nginx;

use ferroute_core::{
    IpFamily, Protocol,
    testing::{Cluster, pod, service, slice},
};
use ferroute_nftables::{
    Class, Value,
    kernel::{Kernel, MemoryKernel},
    model::{Change, Datum, Element, Name, TableId, Transaction},
    plan::{NftablesSettings, TABLE, render},
};

use super::*;
use crate::{
    Verdict,
    testing::{from_node, from_outside, from_pod, host, ip, nginx, settings, socket},
    write_story_into, write_summary_into,
};

/// The nodes' kernel, with what is planned for a cluster; pods are told by their addresses.
fn kernel(cluster: &Cluster, service_networks: &[&str]) -> MemoryKernel {
    let proxy = settings();
    let settings = NftablesSettings { proxy, counters: false };
    let mut table = cluster.table(IpFamily::V4);
    table.service_cidrs = service_networks.iter().map(|net| net.parse().unwrap()).collect();
    let mut kernel = MemoryKernel::new();
    kernel.commit(&render(&table, &settings, &host().addresses)).unwrap();
    kernel
}

fn id() -> TableId {
    TableId { family: IpFamily::V4, name: TABLE }
}

fn told(kernel: &MemoryKernel, packet: &Packet) -> String {
    let mut text = String::new();
    write_summary_into(&mut text, &summary(kernel.table(&id()).unwrap(), &host(), packet)).unwrap();
    text
}

#[test]
fn stories_name_the_table_as_nft_does() {
    let kernel = kernel(&nginx(|it| it), &[]);
    let table = kernel.table(&id()).unwrap();
    let packet = from_pod("10.111.175.78:80");
    let first = stories(table, &host(), &packet).next().unwrap();
    assert!(matches!(first.events.first(), Some(crate::Event::Hook { table, .. }) if *table == id().to_string()));
}

#[test]
fn a_choice_among_very_many_endpoints_has_an_end_for_each_and_no_more() {
    let kernel = kernel(&Cluster::uniform(1, 1000), &[]);
    let endings = endings(kernel.table(&id()).unwrap(), &host(), &from_pod("10.96.0.1:80"));
    assert_eq!(endings.len(), 1000);
    assert!(endings.iter().all(|ending| ending.share == 0.001));
}

#[test]
fn a_client_that_is_remembered_gets_its_endpoint_until_that_is_gone() {
    let mut kernel = kernel(&nginx(|it| it.affinity(10_800)), &[]);
    let packet = from_pod("10.111.175.78:80");
    let frontend = || [ip("10.111.175.78").into(), Value::protocol(Protocol::Tcp), Value::Port(80)];
    let remember = |kernel: &mut MemoryKernel, slot: Class| {
        let element = Element::new([slot.owner().into(), packet.source.ip().into()]).fields([slot.into()]);
        let mut transaction = Transaction::new(id());
        transaction.push(Change::AddElement(Name::fixed("affinity"), element));
        kernel.commit(&transaction).unwrap();
    };
    let table = kernel.table(&id()).unwrap();
    assert_eq!(endings(table, &host(), &packet).len(), 3);
    let (endpoints, frontend_key) = (Name::fixed("endpoints"), frontend());
    let element = table.elements(&endpoints).find(|element| {
        element.key.starts_with(&frontend_key)
            && matches!(&element.datum, Some(Datum::Fields(fields)) if fields.starts_with(&[ip("172.17.0.5").into()]))
    });
    let Some(Value::Class(slot)) = element.and_then(|element| element.key.last()).copied() else {
        panic!("172.17.0.5 has no slot")
    };
    let mut other = kernel.clone();
    remember(&mut kernel, slot);
    let endings_of = |kernel: &MemoryKernel| endings(kernel.table(&id()).unwrap(), &host(), &packet);
    assert!(matches!(
        endings_of(&kernel).as_slice(),
        [Ending { verdict: Verdict::Delivered { to, .. }, share: 1.0, .. }] if *to == socket("172.17.0.5:80")
    ));
    // Of the same list, but of no endpoint that is there.
    remember(&mut other, Class(slot.0 ^ 2));
    assert_eq!(endings_of(&other).len(), 3);
}
