//! Rendered tables of small clusters, in `nft` syntax.

mod common;

use common::{
    Host, settings,
    shop::{cluster, pods, web},
};
use ferroute_core::{
    IpFamily,
    testing::{Cluster, pod},
};
use ferroute_nftables::{
    kernel::{Kernel, MemoryKernel},
    model::Change,
    plan::render,
};
use insta::assert_snapshot;

/// Returns what rendering a cluster adds to an empty table.
fn elements_of(cluster: &Cluster) -> String {
    let mut transaction = render(&cluster.table(IpFamily::V4), &settings(), &Host::default().0);
    let empty = render(&Cluster::new("node-1").table(IpFamily::V4), &settings(), &Host::default().0);
    transaction.changes.drain(..empty.len());
    transaction.to_string()
}

#[test]
fn table_without_services() {
    let text = |family| {
        let transaction = render(&Cluster::new("node-1").table(family), &settings(), &Host::default().0);
        transaction.to_string()
    };
    assert_snapshot!(text(IpFamily::V4), @r#"
    add table ip ferroute { comment "services, written by ferroute" ; }
    add map ip ferroute services { type ipv4_addr . inet_proto . inet_service : classid ; comment "what to do for an address and port, kind:endpoints in hexadecimal; 0.0.0.0 or :: for node ports" ; }
    add map ip ferroute local-services { type ipv4_addr . inet_proto . inet_service : classid ; comment "the same for outside traffic that must stay on this node, kind:endpoints of this node" ; }
    add map ip ferroute dispatch { type classid : verdict ; comment "1 pick, 2 pick-local, 3 external, 4 external-local; +4 with affinity, +10 for node ports" ; }
    add map ip ferroute local-dispatch { type classid : verdict ; comment "the same for classes of local-services" ; }
    add map ip ferroute endpoints { type ipv4_addr . inet_proto . inet_service . classid : ipv4_addr . inet_service ; comment "list:index, list 1 the cluster's, 2 this node's; from 100:1 slots for affinity" ; }
    add map ip ferroute slots { type ipv4_addr . inet_proto . inet_service . classid : classid ; comment "list:index of an endpoint to its slot, for services with affinity" ; }
    add map ip ferroute affinity { type classid . ipv4_addr : classid ; size 1048576 ; flags dynamic,timeout ; comment "slots of a service's list and client to the slot of the endpoint that the client had last" ; }
    add set ip ferroute refused { type ipv4_addr . inet_proto . inet_service ; comment "services without any endpoint" ; }
    add set ip ferroute dropped { type ipv4_addr . inet_proto . inet_service ; comment "services without an endpoint on this node, where policy asks for one" ; }
    add set ip ferroute restricted { type ipv4_addr . inet_proto . inet_service ; comment "load balancers with source ranges" ; }
    add set ip ferroute source-ranges { type ipv4_addr . inet_proto . inet_service . ipv4_addr ; flags interval ; comment "sources that may use them" ; }
    add set ip ferroute hairpin { type ipv4_addr . ipv4_addr . inet_proto . inet_service ; comment "endpoints of this node that reach themselves through a service" ; }
    add set ip ferroute cluster-ips { type ipv4_addr ; comment "addresses of services within the cluster" ; }
    add set ip ferroute node-port-addresses { type ipv4_addr ; comment "addresses that answer on node ports, unless all local ones do" ; }
    add chain ip ferroute remember { comment "the endpoint whose slot is the priority" ; }
    add chain ip ferroute node-port-remember { comment "the endpoint whose slot is the priority" ; }
    add chain ip ferroute services { comment "the choice of an endpoint" ; }
    add rule ip ferroute services ip daddr @cluster-ips ip saddr != 10.244.0.0/16 meta mark set meta mark | 0x00004000 comment "endpoints may not know the way to others than pods"
    add rule ip ferroute services meta priority set ip daddr . meta l4proto . th dport map @services meta priority vmap @dispatch
    add rule ip ferroute services ip daddr @node-port-addresses meta priority set ip daddr & 0.0.0.0 . meta l4proto . th dport map @services meta priority vmap @dispatch comment "node ports"
    add chain ip ferroute firewall { comment "source ranges of load balancers" ; }
    add rule ip ferroute firewall ip daddr . meta l4proto . th dport @restricted ip daddr . meta l4proto . th dport . ip saddr != @source-ranges drop
    add chain ip ferroute frontends { comment "services with nothing to send packets to" ; }
    add rule ip ferroute frontends ip daddr . meta l4proto . th dport @refused reject
    add rule ip ferroute frontends ip daddr . meta l4proto . th dport @dropped drop
    add chain ip ferroute node-ports { comment "the same for node ports" ; }
    add rule ip ferroute node-ports ip daddr @node-port-addresses ip daddr & 0.0.0.0 . meta l4proto . th dport @refused reject
    add rule ip ferroute node-ports ip daddr @node-port-addresses ip daddr & 0.0.0.0 . meta l4proto . th dport @dropped drop
    add chain ip ferroute cluster-ips { comment "what no service has answered although it has the address" ; }
    add rule ip ferroute cluster-ips ip daddr @cluster-ips reject comment "a port that the service has not"
    add chain ip ferroute masquerading { comment "sources that endpoints could not answer to" ; }
    add rule ip ferroute masquerading meta mark & 0x00004000 != 0x00000000 meta mark set meta mark ^ 0x00004000 masquerade fully-random
    add rule ip ferroute masquerading ct status dnat ip saddr . ip daddr . meta l4proto . th dport @hairpin masquerade fully-random
    add chain ip ferroute filter-prerouting-pre-dnat { type filter hook prerouting priority -110 ; policy accept ; }
    add rule ip ferroute filter-prerouting-pre-dnat ct state new jump firewall
    add chain ip ferroute filter-output-pre-dnat { type filter hook output priority -110 ; policy accept ; }
    add rule ip ferroute filter-output-pre-dnat ct state new jump firewall
    add chain ip ferroute nat-prerouting { type nat hook prerouting priority -100 ; policy accept ; }
    add rule ip ferroute nat-prerouting jump services
    add chain ip ferroute nat-output { type nat hook output priority -100 ; policy accept ; }
    add rule ip ferroute nat-output jump services
    add chain ip ferroute filter-prerouting-post-dnat { type filter hook prerouting priority -99 ; policy accept ; }
    add rule ip ferroute filter-prerouting-post-dnat ct state new ct status dnat meta priority set none comment "it has carried kind:endpoints"
    add chain ip ferroute filter-output-post-dnat { type filter hook output priority -99 ; policy accept ; }
    add rule ip ferroute filter-output-post-dnat ct state new ct status dnat meta priority set none comment "it has carried kind:endpoints"
    add chain ip ferroute filter-input { type filter hook input priority 0 ; policy accept ; }
    add rule ip ferroute filter-input ct state new jump node-ports
    add rule ip ferroute filter-input ct state new jump frontends
    add chain ip ferroute filter-forward { type filter hook forward priority 0 ; policy accept ; }
    add rule ip ferroute filter-forward ct state new jump frontends
    add rule ip ferroute filter-forward ct state new jump cluster-ips
    add chain ip ferroute filter-output { type filter hook output priority 0 ; policy accept ; }
    add rule ip ferroute filter-output ct state new jump frontends
    add rule ip ferroute filter-output ct state new jump cluster-ips
    add chain ip ferroute nat-postrouting { type nat hook postrouting priority 100 ; policy accept ; }
    add rule ip ferroute nat-postrouting jump masquerading
    add element ip ferroute node-port-addresses { 192.168.0.1 }
    "#);
    let rules = |text: String| text.lines().filter(|line| line.starts_with("add rule")).collect::<Vec<_>>().join("\n");
    assert_snapshot!(rules(text(IpFamily::V6)), @r#"
    add rule ip6 ferroute services ip6 daddr @cluster-ips ip6 saddr != fd00:244::/48 meta mark set meta mark | 0x00004000 comment "endpoints may not know the way to others than pods"
    add rule ip6 ferroute services meta priority set ip6 daddr . meta l4proto . th dport map @services meta priority vmap @dispatch
    add rule ip6 ferroute services ip6 daddr @node-port-addresses meta priority set ip6 daddr & :: . meta l4proto . th dport map @services meta priority vmap @dispatch comment "node ports"
    add rule ip6 ferroute firewall ip6 daddr . meta l4proto . th dport @restricted ip6 daddr . meta l4proto . th dport . ip6 saddr != @source-ranges drop
    add rule ip6 ferroute frontends ip6 daddr . meta l4proto . th dport @refused reject
    add rule ip6 ferroute frontends ip6 daddr . meta l4proto . th dport @dropped drop
    add rule ip6 ferroute node-ports ip6 daddr @node-port-addresses ip6 daddr & :: . meta l4proto . th dport @refused reject
    add rule ip6 ferroute node-ports ip6 daddr @node-port-addresses ip6 daddr & :: . meta l4proto . th dport @dropped drop
    add rule ip6 ferroute cluster-ips ip6 daddr @cluster-ips reject comment "a port that the service has not"
    add rule ip6 ferroute masquerading meta mark & 0x00004000 != 0x00000000 meta mark set meta mark ^ 0x00004000 masquerade fully-random
    add rule ip6 ferroute masquerading ct status dnat ip6 saddr . ip6 daddr . meta l4proto . th dport @hairpin masquerade fully-random
    add rule ip6 ferroute filter-prerouting-pre-dnat ct state new jump firewall
    add rule ip6 ferroute filter-output-pre-dnat ct state new jump firewall
    add rule ip6 ferroute nat-prerouting jump services
    add rule ip6 ferroute nat-output jump services
    add rule ip6 ferroute filter-prerouting-post-dnat ct state new ct status dnat meta priority set none comment "it has carried kind:endpoints"
    add rule ip6 ferroute filter-output-post-dnat ct state new ct status dnat meta priority set none comment "it has carried kind:endpoints"
    add rule ip6 ferroute filter-input ct state new jump node-ports
    add rule ip6 ferroute filter-input ct state new jump frontends
    add rule ip6 ferroute filter-forward ct state new jump frontends
    add rule ip6 ferroute filter-forward ct state new jump cluster-ips
    add rule ip6 ferroute filter-output ct state new jump frontends
    add rule ip6 ferroute filter-output ct state new jump cluster-ips
    add rule ip6 ferroute nat-postrouting jump masquerading
    "#);
}

#[test]
fn service_with_two_endpoints() {
    assert_snapshot!(elements_of(&cluster(web(), pods(&[2, 3]))), @r#"
    add element ip ferroute cluster-ips { 10.96.0.1 }
    add chain ip ferroute pick-2
    add rule ip ferroute pick-2 meta priority set numgen random mod 2 offset 65537 dnat ip to ip daddr . meta l4proto . th dport . meta priority map @endpoints
    add rule ip ferroute pick-2 meta priority set numgen random mod 1 offset 65537 dnat ip to ip daddr . meta l4proto . th dport . meta priority map @endpoints comment "the list has just become shorter"
    add element ip ferroute dispatch { 1:2 : goto pick-2 }
    add element ip ferroute services { 10.96.0.1 . tcp . 80 comment "shop/web:http" : 1:2 }
    add element ip ferroute endpoints { 10.96.0.1 . tcp . 80 . 1:1 : 10.244.0.2 . 8080 }
    add element ip ferroute endpoints { 10.96.0.1 . tcp . 80 . 1:2 : 10.244.0.3 . 8080 }
    "#);
}

#[test]
fn service_with_all_features() {
    let service = web()
        .node_port(30080)
        .load_balancer("198.51.100.1")
        .source_range("10.0.0.0/8")
        .source_range("10.1.0.0/16")
        .external_local()
        .affinity(10_800);
    let pods = pods(&[2]).pod(pod("10.244.0.3").on("node-1"));
    assert_snapshot!(elements_of(&cluster(service, pods)), @r#"
    add element ip ferroute cluster-ips { 10.96.0.1 }
    add element ip ferroute hairpin { 10.244.0.3 . 10.244.0.3 . tcp . 8080 }
    add chain ip ferroute node-port-pick-sticky-2
    add rule ip ferroute node-port-pick-sticky-2 meta priority set numgen random mod 1 offset 65537 meta priority set ip daddr & 0.0.0.0 . meta l4proto . th dport . meta priority map @slots meta priority set meta priority & ffff:1 . ip saddr map @affinity jump node-port-remember comment "the endpoint that the client had last, if it is still there"
    add rule ip ferroute node-port-pick-sticky-2 meta priority set numgen random mod 2 offset 65537 meta priority set ip daddr & 0.0.0.0 . meta l4proto . th dport . meta priority map @slots jump node-port-remember
    add rule ip ferroute node-port-pick-sticky-2 meta priority set numgen random mod 1 offset 65537 meta priority set ip daddr & 0.0.0.0 . meta l4proto . th dport . meta priority map @slots jump node-port-remember comment "the list has just become shorter"
    add chain ip ferroute node-port-external-local-sticky-2
    add rule ip ferroute node-port-external-local-sticky-2 ip saddr 10.244.0.0/16 goto node-port-pick-sticky-2 comment "pods are served as by a load balancer"
    add rule ip ferroute node-port-external-local-sticky-2 fib saddr type local meta mark set meta mark | 0x00004000 goto node-port-pick-sticky-2 comment "so is the node itself"
    add rule ip ferroute node-port-external-local-sticky-2 meta priority set ip daddr & 0.0.0.0 . meta l4proto . th dport map @local-services meta priority vmap @local-dispatch comment "others stay on this node"
    add element ip ferroute dispatch { 18:2 : goto node-port-external-local-sticky-2 }
    add chain ip ferroute node-port-pick-local-sticky-1
    add rule ip ferroute node-port-pick-local-sticky-1 meta priority set numgen random mod 1 offset 131073 meta priority set ip daddr & 0.0.0.0 . meta l4proto . th dport . meta priority map @slots meta priority set meta priority & ffff:1 . ip saddr map @affinity jump node-port-remember comment "the endpoint that the client had last, if it is still there"
    add rule ip ferroute node-port-pick-local-sticky-1 meta priority set numgen random mod 1 offset 131073 meta priority set ip daddr & 0.0.0.0 . meta l4proto . th dport . meta priority map @slots jump node-port-remember
    add element ip ferroute local-dispatch { 16:1 : goto node-port-pick-local-sticky-1 }
    add set ip ferroute sticky-10800 { type ipv4_addr . inet_proto . inet_service ; }
    add element ip ferroute services { 0.0.0.0 . tcp . 30080 comment "shop/web:http" : 18:2 }
    add element ip ferroute local-services { 0.0.0.0 . tcp . 30080 : 16:1 }
    add element ip ferroute endpoints { 0.0.0.0 . tcp . 30080 . 8367:53ed : 10.244.0.2 . 8080 }
    add element ip ferroute endpoints { 0.0.0.0 . tcp . 30080 . 8367:9843 : 10.244.0.3 . 8080 }
    add element ip ferroute endpoints { 0.0.0.0 . tcp . 30080 . 861a:9843 : 10.244.0.3 . 8080 }
    add element ip ferroute slots { 0.0.0.0 . tcp . 30080 . 1:1 : 8367:53ed }
    add element ip ferroute slots { 0.0.0.0 . tcp . 30080 . 1:2 : 8367:9843 }
    add element ip ferroute slots { 0.0.0.0 . tcp . 30080 . 2:1 : 861a:9843 }
    add element ip ferroute sticky-10800 { 0.0.0.0 . tcp . 30080 }
    add chain ip ferroute pick-sticky-2
    add rule ip ferroute pick-sticky-2 meta priority set numgen random mod 1 offset 65537 meta priority set ip daddr . meta l4proto . th dport . meta priority map @slots meta priority set meta priority & ffff:1 . ip saddr map @affinity jump remember comment "the endpoint that the client had last, if it is still there"
    add rule ip ferroute pick-sticky-2 meta priority set numgen random mod 2 offset 65537 meta priority set ip daddr . meta l4proto . th dport . meta priority map @slots jump remember
    add rule ip ferroute pick-sticky-2 meta priority set numgen random mod 1 offset 65537 meta priority set ip daddr . meta l4proto . th dport . meta priority map @slots jump remember comment "the list has just become shorter"
    add element ip ferroute dispatch { 5:2 : goto pick-sticky-2 }
    add element ip ferroute services { 10.96.0.1 . tcp . 80 comment "shop/web:http" : 5:2 }
    add element ip ferroute endpoints { 10.96.0.1 . tcp . 80 . 8367:53ed : 10.244.0.2 . 8080 }
    add element ip ferroute endpoints { 10.96.0.1 . tcp . 80 . 8367:9843 : 10.244.0.3 . 8080 }
    add element ip ferroute slots { 10.96.0.1 . tcp . 80 . 1:1 : 8367:53ed }
    add element ip ferroute slots { 10.96.0.1 . tcp . 80 . 1:2 : 8367:9843 }
    add element ip ferroute sticky-10800 { 10.96.0.1 . tcp . 80 }
    add chain ip ferroute external-local-sticky-2
    add rule ip ferroute external-local-sticky-2 ip saddr 10.244.0.0/16 goto pick-sticky-2 comment "pods are served as by a load balancer"
    add rule ip ferroute external-local-sticky-2 fib saddr type local meta mark set meta mark | 0x00004000 goto pick-sticky-2 comment "so is the node itself"
    add rule ip ferroute external-local-sticky-2 meta priority set ip daddr . meta l4proto . th dport map @local-services meta priority vmap @local-dispatch comment "others stay on this node"
    add element ip ferroute dispatch { 8:2 : goto external-local-sticky-2 }
    add chain ip ferroute pick-local-sticky-1
    add rule ip ferroute pick-local-sticky-1 meta priority set numgen random mod 1 offset 131073 meta priority set ip daddr . meta l4proto . th dport . meta priority map @slots meta priority set meta priority & ffff:1 . ip saddr map @affinity jump remember comment "the endpoint that the client had last, if it is still there"
    add rule ip ferroute pick-local-sticky-1 meta priority set numgen random mod 1 offset 131073 meta priority set ip daddr . meta l4proto . th dport . meta priority map @slots jump remember
    add element ip ferroute local-dispatch { 6:1 : goto pick-local-sticky-1 }
    add element ip ferroute services { 198.51.100.1 . tcp . 80 comment "shop/web:http" : 8:2 }
    add element ip ferroute local-services { 198.51.100.1 . tcp . 80 : 6:1 }
    add element ip ferroute endpoints { 198.51.100.1 . tcp . 80 . 8367:53ed : 10.244.0.2 . 8080 }
    add element ip ferroute endpoints { 198.51.100.1 . tcp . 80 . 8367:9843 : 10.244.0.3 . 8080 }
    add element ip ferroute endpoints { 198.51.100.1 . tcp . 80 . 861a:9843 : 10.244.0.3 . 8080 }
    add element ip ferroute slots { 198.51.100.1 . tcp . 80 . 1:1 : 8367:53ed }
    add element ip ferroute slots { 198.51.100.1 . tcp . 80 . 1:2 : 8367:9843 }
    add element ip ferroute slots { 198.51.100.1 . tcp . 80 . 2:1 : 861a:9843 }
    add element ip ferroute restricted { 198.51.100.1 . tcp . 80 comment "shop/web:http" }
    add element ip ferroute source-ranges { 198.51.100.1 . tcp . 80 . 10.0.0.0/8 }
    add element ip ferroute sticky-10800 { 198.51.100.1 . tcp . 80 }
    flush chain ip ferroute remember
    add rule ip ferroute remember ip daddr . meta l4proto . th dport @sticky-10800 update @affinity { meta priority & ffff:1 . ip saddr timeout 3h : meta priority }
    add rule ip ferroute remember dnat ip to ip daddr . meta l4proto . th dport . meta priority map @endpoints
    add rule ip ferroute remember delete @affinity { meta priority & ffff:1 . ip saddr : meta priority } comment "the endpoint is gone"
    flush chain ip ferroute node-port-remember
    add rule ip ferroute node-port-remember ip daddr & 0.0.0.0 . meta l4proto . th dport @sticky-10800 update @affinity { meta priority & ffff:1 . ip saddr timeout 3h : meta priority }
    add rule ip ferroute node-port-remember dnat ip to ip daddr & 0.0.0.0 . meta l4proto . th dport . meta priority map @endpoints
    add rule ip ferroute node-port-remember delete @affinity { meta priority & ffff:1 . ip saddr : meta priority } comment "the endpoint is gone"
    "#);
}

#[test]
fn services_without_endpoints() {
    assert_snapshot!(elements_of(&cluster(web().node_port(30080), pods(&[]))), @r#"
    add element ip ferroute cluster-ips { 10.96.0.1 }
    add element ip ferroute refused { 0.0.0.0 . tcp . 30080 comment "shop/web:http" }
    add element ip ferroute refused { 10.96.0.1 . tcp . 80 comment "shop/web:http" }
    "#);
    let local = web().internal_local().node_port(30080).external_local();
    assert_snapshot!(elements_of(&cluster(local, pods(&[2]))), @r#"
    add element ip ferroute cluster-ips { 10.96.0.1 }
    add chain ip ferroute node-port-pick-1
    add rule ip ferroute node-port-pick-1 meta priority set numgen random mod 1 offset 65537 dnat ip to ip daddr & 0.0.0.0 . meta l4proto . th dport . meta priority map @endpoints
    add chain ip ferroute node-port-external-local-1
    add rule ip ferroute node-port-external-local-1 ip saddr 10.244.0.0/16 goto node-port-pick-1 comment "pods are served as by a load balancer"
    add rule ip ferroute node-port-external-local-1 fib saddr type local meta mark set meta mark | 0x00004000 goto node-port-pick-1 comment "so is the node itself"
    add rule ip ferroute node-port-external-local-1 meta priority set ip daddr & 0.0.0.0 . meta l4proto . th dport map @local-services meta priority vmap @local-dispatch comment "others stay on this node"
    add element ip ferroute dispatch { 14:1 : goto node-port-external-local-1 }
    add element ip ferroute services { 0.0.0.0 . tcp . 30080 comment "shop/web:http" : 14:1 }
    add element ip ferroute endpoints { 0.0.0.0 . tcp . 30080 . 1:1 : 10.244.0.2 . 8080 }
    add element ip ferroute dropped { 0.0.0.0 . tcp . 30080 comment "shop/web:http" }
    add element ip ferroute dropped { 10.96.0.1 . tcp . 80 comment "shop/web:http" }
    "#);
}

#[test]
fn refused_transaction_names_the_change_at_fault() {
    let mut transaction = render(&cluster(web(), pods(&[2])).table(IpFamily::V4), &settings(), &[]);
    transaction.changes.retain(|change| !matches!(change, Change::AddChain(chain) if chain.name.as_str() == "pick-1"));
    let error = MemoryKernel::new().commit(&transaction).unwrap_err();
    assert!(error.to_string().starts_with("add rule ip ferroute pick-1 meta priority set numgen"), "{error}");
    assert!(error.to_string().ends_with(": no such object"), "{error}");
}
