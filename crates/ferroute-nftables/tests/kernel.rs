//! The real kernel, in network namespaces.

use std::net::IpAddr;

use ferroute_core::{Dataplane, IpFamily, ServiceTable, testing::*};
use ferroute_host::{AddressError, HostAddresses};
use ferroute_nftables::{NftablesDataplane, plan::NftablesSettings};
use ferroute_testing::NetNs;

struct Fixed(Vec<IpAddr>);

impl HostAddresses for Fixed {
    fn list(&mut self) -> Result<Vec<IpAddr>, AddressError> {
        Ok(self.0.clone())
    }
}

fn load(ns: &NetNs, table: &ServiceTable, settings: NftablesSettings) -> NftablesDataplane {
    ns.run(|| {
        let host = Fixed(vec!["192.168.0.1".parse().unwrap()]);
        let mut dataplane = NftablesDataplane::open(table.family, settings, Box::new(host)).unwrap();
        dataplane.resync(table).unwrap_or_else(|e| panic!("{e}: {:?}", e.source));
        dataplane
    })
}

#[test]
fn it_loads() {
    let ns = NetNs::new();
    let cluster = Cluster::of_node("node-1")
        .service(service("shop/web").cluster_ip("10.96.0.1").port("http", 80).node_port(30080).external_local())
        .slice(slice("shop/web-a", "web").port("http", 8080).pod(pod("10.244.0.2").on("node-1")).pod("10.244.1.2"));
    load(&ns, &cluster.table(IpFamily::V4), NftablesSettings::default());
    println!("{}", ns.command("nft", &["list", "ruleset"]));
}
