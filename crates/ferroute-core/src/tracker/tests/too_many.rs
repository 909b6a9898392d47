use super::*;
use crate::testing::{Cluster, Edit};

#[test]
fn endpoints_beyond_the_limit_are_left_out_and_counted() {
    let slices = |tracker: &mut Tracker, count: usize, ready: bool| {
        for (k, pods) in (0..count).collect::<Vec<_>>().chunks(1_000).enumerate() {
            let address = |i: &usize| std::net::Ipv4Addr::from(0x0af4_0000 + u32::try_from(*i).unwrap()).to_string();
            // The first endpoints by text are not ready.
            let built = pods.iter().fold(slice(&format!("shop/web-{k:03}"), "web").port("http", 8080), |slice, i| {
                slice.pod(pod(&address(i)).conditions(ready || *i >= 100, false, false))
            });
            Edit::SetSlice(built.build()).apply_to(tracker);
        }
        tracker.update(IpFamily::V4)
    };
    let web = service("shop/web").cluster_ip("10.96.0.1").port("http", 80).affinity(60);
    let mut tracker = Cluster::new("node-1").service(web.clone()).tracker();
    let changes = slices(&mut tracker, 4_095, false);
    assert!(changes.excess.is_empty() && tracker.table(IpFamily::V4).excess.is_empty());
    let changes = slices(&mut tracker, 4_100, false);
    let name = port_name("shop/web:http");
    let table = tracker.table(IpFamily::V4);
    assert_eq!((&changes.excess, &table.excess), (&[name.clone()].into(), &[(name.clone(), 5)].into()));
    let endpoints = &table.entries[&name].endpoints;
    assert_eq!((endpoints.len(), endpoints.iter().filter(|endpoint| endpoint.ready).count()), (4_095, 4_000));
    assert!(endpoints.iter().is_sorted_by_key(|endpoint| endpoint.to_string()));
    // Without session affinity, the limit is higher.
    Edit::SetService(Box::new(web.with(|service| service.spec.session_affinity = None).build())).apply_to(&mut tracker);
    let changes = tracker.update(IpFamily::V4);
    assert_eq!(changes.excess, [name.clone()].into());
    let table = tracker.table(IpFamily::V4);
    assert_eq!((table.entries[&name].endpoints.len(), table.excess.len()), (4_100, 0));
}

#[test]
fn limits_are_those_of_the_mode() {
    let balanced = |method: &str| web().annotation("ferroute.io/load-balancing", method);
    let sticky = || web().affinity(60);
    let used = |web: ServiceBuilder, traits: &'static ModeTraits| {
        let mut tracker = Tracker::new(node("node-1")).with_traits(traits);
        Edit::SetService(Box::new(web.build())).apply_to(&mut tracker);
        let addresses = (0..4_100_u32).map(|i| std::net::Ipv4Addr::from(0x0af4_0000 + i).to_string());
        for (k, addresses) in addresses.collect::<Vec<_>>().chunks(1_000).enumerate() {
            let slice = slice(&format!("shop/web-{k}"), "web").port("http", 8080);
            let slice = addresses.iter().fold(slice, |slice, address| slice.pod(pod(address)));
            Edit::SetSlice(slice.build()).apply_to(&mut tracker);
        }
        tracker.update(IpFamily::V4);
        tracker.table(IpFamily::V4).entries[&port_name("shop/web:http")].endpoints.len()
    };
    assert_eq!(used(balanced("source-hash"), &ModeTraits::NFTABLES), 2_048);
    assert_eq!(used(sticky(), &ModeTraits::NFTABLES), 4_095);
    for traits in [&ModeTraits::IPVS, &ModeTraits::USERSPACE] {
        assert_eq!((used(balanced("round-robin"), traits), used(sticky(), traits)), (4_100, 4_100));
    }
}
