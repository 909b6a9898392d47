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

/// Returns the objects that rendering a cluster adds to an empty table.
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
    add map ip ferroute services { type ipv4_addr . inet_proto . inet_service : classid ; comment "address and port to kind:list, hexadecimal" ; }
    add map ip ferroute node-ports { type inet_proto . inet_service : classid ; comment "the same for node ports" ; }
    add map ip ferroute lists { type classid : classid ; comment "kind:list to class:list; the class says how many endpoints there are" ; }
    add map ip ferroute dispatch { type classid : verdict ; comment "what to do for a class" ; }
    add map ip ferroute local-dispatch { type classid : verdict ; comment "the same for outside traffic that must stay on this node" ; }
    add map ip ferroute tcp-endpoints { typeof meta priority . numgen random mod 65536 : ip daddr . tcp dport ; comment "list and index from 1, or slot and 0, to an endpoint" ; }
    add map ip ferroute udp-endpoints { typeof meta priority . numgen random mod 65536 : ip daddr . udp dport ; comment "list and index from 1, or slot and 0, to an endpoint" ; }
    add map ip ferroute sctp-endpoints { typeof meta priority . numgen random mod 65536 : ip daddr . sctp dport ; comment "list and index from 1, or slot and 0, to an endpoint" ; }
    add map ip ferroute slots { typeof meta priority . numgen random mod 65536 : meta priority ; comment "list and index to the endpoint's slot, for services with affinity" ; }
    add map ip ferroute affinity { type classid . ipv4_addr : classid ; size 1048576 ; flags dynamic,timeout ; comment "list and client to the slot of the endpoint that the client had last" ; }
    add map ip ferroute restricted { type ipv4_addr . inet_proto . inet_service : classid ; comment "load balancers with source ranges, to their list" ; }
    add set ip ferroute hairpin { type ipv4_addr . ipv4_addr . inet_proto . inet_service ; comment "endpoints of this node that reach themselves through a service" ; }
    add set ip ferroute cluster-ips { type ipv4_addr ; comment "addresses of services within the cluster" ; }
    add set ip ferroute node-port-addresses { type ipv4_addr ; comment "addresses that answer on node ports, unless all local ones do" ; }
    add chain ip ferroute refuse { comment "services without endpoints" ; }
    add rule ip ferroute refuse reject
    add chain ip ferroute remember { comment "the endpoint whose slot is the priority" ; }
    add chain ip ferroute admit { comment "the same for clients that are new" ; }
    add chain ip ferroute services { comment "the choice of an endpoint" ; }
    add rule ip ferroute services ip saddr != 10.244.0.0/16 ip daddr @cluster-ips meta mark set meta mark | 0x00004000 comment "endpoints may not know the way to others than pods"
    add rule ip ferroute services meta priority set ip daddr . meta l4proto . th dport map @services meta priority set meta priority map @lists meta priority & fff0:1 vmap @dispatch
    add rule ip ferroute services ip daddr @node-port-addresses meta priority set meta l4proto . th dport map @node-ports meta priority set meta priority map @lists meta priority & fff0:1 vmap @dispatch comment "node ports"
    add chain ip ferroute source-ranges { comment "the priority is the list of a load balancer with source ranges" ; }
    add rule ip ferroute source-ranges drop
    add chain ip ferroute firewall { comment "source ranges of load balancers" ; }
    add rule ip ferroute firewall meta priority set ip daddr . meta l4proto . th dport map @restricted goto source-ranges
    add chain ip ferroute cluster-ips { comment "what no service has answered although it has the address" ; }
    add rule ip ferroute cluster-ips ip daddr @cluster-ips reject comment "a port that the service has not"
    add chain ip ferroute masquerading { comment "sources that endpoints could not answer to" ; }
    add rule ip ferroute masquerading meta mark & 0x00004000 != 0x00000000 meta mark set meta mark ^ 0x00004000 masquerade fully-random
    add rule ip ferroute masquerading ct status dnat ip saddr . ip daddr . meta l4proto . th dport @hairpin masquerade fully-random
    add chain ip ferroute nat-prerouting { type nat hook prerouting priority -101 ; policy accept ; }
    add rule ip ferroute nat-prerouting jump services
    add chain ip ferroute nat-output { type nat hook output priority -101 ; policy accept ; }
    add rule ip ferroute nat-output jump services
    add chain ip ferroute filter-forward { type filter hook forward priority 0 ; policy accept ; }
    add rule ip ferroute filter-forward ct state new jump cluster-ips
    add chain ip ferroute filter-output { type filter hook output priority 0 ; policy accept ; }
    add rule ip ferroute filter-output ct state new ct status dnat meta priority set none comment "it has carried class:list"
    add rule ip ferroute filter-output ct state new jump cluster-ips
    add chain ip ferroute nat-input { type nat hook input priority 99 ; policy accept ; }
    add rule ip ferroute nat-input ct status dnat meta priority set none comment "it has carried class:list"
    add chain ip ferroute nat-postrouting { type nat hook postrouting priority 99 ; policy accept ; }
    add rule ip ferroute nat-postrouting jump masquerading
    add element ip ferroute dispatch { 70:1 : goto refuse }
    add element ip ferroute dispatch { f0:1 : drop }
    add element ip ferroute local-dispatch { 70:1 : goto refuse }
    add element ip ferroute local-dispatch { f0:1 : drop }
    add element ip ferroute node-port-addresses { 192.168.0.1 }
    "#);
    let rules = |text: String| text.lines().filter(|line| line.starts_with("add rule")).collect::<Vec<_>>().join("\n");
    assert_snapshot!(rules(text(IpFamily::V6)), @r#"
    add rule ip6 ferroute refuse reject
    add rule ip6 ferroute services ip6 saddr != fd00:244::/48 ip6 daddr @cluster-ips meta mark set meta mark | 0x00004000 comment "endpoints may not know the way to others than pods"
    add rule ip6 ferroute services meta priority set ip6 daddr . meta l4proto . th dport map @services meta priority set meta priority map @lists meta priority & fff0:1 vmap @dispatch
    add rule ip6 ferroute services ip6 daddr @node-port-addresses meta priority set meta l4proto . th dport map @node-ports meta priority set meta priority map @lists meta priority & fff0:1 vmap @dispatch comment "node ports"
    add rule ip6 ferroute source-ranges drop
    add rule ip6 ferroute firewall meta priority set ip6 daddr . meta l4proto . th dport map @restricted goto source-ranges
    add rule ip6 ferroute cluster-ips ip6 daddr @cluster-ips reject comment "a port that the service has not"
    add rule ip6 ferroute masquerading meta mark & 0x00004000 != 0x00000000 meta mark set meta mark ^ 0x00004000 masquerade fully-random
    add rule ip6 ferroute masquerading ct status dnat ip6 saddr . ip6 daddr . meta l4proto . th dport @hairpin masquerade fully-random
    add rule ip6 ferroute nat-prerouting jump services
    add rule ip6 ferroute nat-output jump services
    add rule ip6 ferroute filter-forward ct state new ct status dnat meta priority set none comment "it has carried class:list"
    add rule ip6 ferroute filter-forward ct state new jump cluster-ips
    add rule ip6 ferroute filter-output ct state new ct status dnat meta priority set none comment "it has carried class:list"
    add rule ip6 ferroute filter-output ct state new jump cluster-ips
    add rule ip6 ferroute nat-input ct status dnat meta priority set none comment "it has carried class:list"
    add rule ip6 ferroute nat-postrouting jump masquerading
    "#);
}

#[test]
fn service_with_two_endpoints() {
    assert_snapshot!(elements_of(&cluster(web(), pods(&[2, 3]))), @r#"
    add chain ip ferroute pick-2
    add rule ip ferroute pick-2 meta l4proto tcp dnat ip to meta priority & f:ffff . numgen random mod 2 offset 1 map @tcp-endpoints
    add rule ip ferroute pick-2 meta l4proto tcp dnat ip to meta priority & f:ffff . numgen random mod 1 offset 1 map @tcp-endpoints comment "the list has just become shorter"
    add rule ip ferroute pick-2 meta l4proto udp dnat ip to meta priority & f:ffff . numgen random mod 2 offset 1 map @udp-endpoints
    add rule ip ferroute pick-2 meta l4proto udp dnat ip to meta priority & f:ffff . numgen random mod 1 offset 1 map @udp-endpoints comment "the list has just become shorter"
    add rule ip ferroute pick-2 meta l4proto sctp dnat ip to meta priority & f:ffff . numgen random mod 2 offset 1 map @sctp-endpoints
    add rule ip ferroute pick-2 meta l4proto sctp dnat ip to meta priority & f:ffff . numgen random mod 1 offset 1 map @sctp-endpoints comment "the list has just become shorter"
    add element ip ferroute dispatch { 110:1 : goto pick-2 }
    add element ip ferroute local-dispatch { 110:1 : goto pick-2 }
    add element ip ferroute cluster-ips { 10.96.0.1 }
    add element ip ferroute tcp-endpoints { 1:1 . 1 : 10.244.0.2 . 8080 }
    add element ip ferroute tcp-endpoints { 1:1 . 2 : 10.244.0.3 . 8080 }
    add element ip ferroute lists { 11:1 : 111:1 }
    add element ip ferroute services { 10.96.0.1 . tcp . 80 comment "shop/web:http" : 11:1 }
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
    add set ip ferroute source-ranges-8 { type ipv4_addr . classid ; }
    add set ip ferroute sticky-10800 { type classid ; }
    add set ip ferroute new-clients-10800-2 { type classid ; limit rate 262144/day burst 32768 packets ; }
    add map ip ferroute refusals { type classid : verdict ; counter ; comment "limit:list to what happens to refused connections" ; }
    add chain ip ferroute filter-prerouting-pre-dnat { type filter hook prerouting priority -110 ; policy accept ; }
    add rule ip ferroute filter-prerouting-pre-dnat ct state new jump firewall
    add chain ip ferroute filter-output-pre-dnat { type filter hook output priority -110 ; policy accept ; }
    add rule ip ferroute filter-output-pre-dnat ct state new jump firewall
    flush chain ip ferroute remember
    add rule ip ferroute remember meta priority & f:ffff @sticky-10800 update @affinity { meta priority & f:ffff . ip saddr timeout 3h : meta priority }
    add rule ip ferroute remember meta l4proto tcp dnat ip to meta priority . numgen random mod 1 map @tcp-endpoints
    add rule ip ferroute remember meta l4proto udp dnat ip to meta priority . numgen random mod 1 map @udp-endpoints
    add rule ip ferroute remember meta l4proto sctp dnat ip to meta priority . numgen random mod 1 map @sctp-endpoints
    add rule ip ferroute remember delete @affinity { meta priority & f:ffff . ip saddr : meta priority } comment "the endpoint is gone"
    flush chain ip ferroute admit
    add rule ip ferroute admit meta priority & f:ffff @new-clients-10800-2 update @affinity { meta priority & f:ffff . ip saddr timeout 3h : meta priority }
    add rule ip ferroute admit meta l4proto tcp dnat ip to meta priority . numgen random mod 1 map @tcp-endpoints
    add rule ip ferroute admit meta l4proto udp dnat ip to meta priority . numgen random mod 1 map @udp-endpoints
    add rule ip ferroute admit meta l4proto sctp dnat ip to meta priority . numgen random mod 1 map @sctp-endpoints
    add rule ip ferroute admit delete @affinity { meta priority & f:ffff . ip saddr : meta priority } comment "the endpoint is gone"
    flush chain ip ferroute source-ranges
    add rule ip ferroute source-ranges ip saddr & 255.0.0.0 . meta priority @source-ranges-8 meta priority set none return
    add rule ip ferroute source-ranges meta priority set meta priority & 5f:fffd | 50:1 meta priority vmap @refusals
    add rule ip ferroute source-ranges drop
    add chain ip ferroute pick-sticky-1
    add rule ip ferroute pick-sticky-1 meta priority set meta priority & f:ffff . ip saddr map @affinity jump remember comment "the endpoint that the client had last, if it is still there"
    add rule ip ferroute pick-sticky-1 meta priority set meta priority & f:ffff . numgen random mod 1 offset 1 map @slots jump admit
    add chain ip ferroute pick-sticky-2
    add rule ip ferroute pick-sticky-2 meta priority set meta priority & f:ffff . ip saddr map @affinity jump remember comment "the endpoint that the client had last, if it is still there"
    add rule ip ferroute pick-sticky-2 meta priority set meta priority & f:ffff . numgen random mod 2 offset 1 map @slots jump admit
    add rule ip ferroute pick-sticky-2 meta priority set meta priority & f:ffff . numgen random mod 1 offset 1 map @slots jump admit comment "the list has just become shorter"
    add chain ip ferroute external-local-sticky-2
    add rule ip ferroute external-local-sticky-2 ip saddr 10.244.0.0/16 goto pick-sticky-2 comment "pods are served as by a load balancer"
    add rule ip ferroute external-local-sticky-2 fib saddr type local meta mark set meta mark | 0x00004000 goto pick-sticky-2 comment "so is the node itself"
    add rule ip ferroute external-local-sticky-2 meta priority set meta priority & 4f:ffff | 40:2 meta priority set meta priority map @lists meta priority & fff0:1 vmap @local-dispatch comment "others stay on this node"
    add rule ip ferroute external-local-sticky-2 drop comment "the service has just been changed"
    add element ip ferroute dispatch { c0:1 : goto pick-sticky-1 }
    add element ip ferroute local-dispatch { c0:1 : goto pick-sticky-1 }
    add element ip ferroute dispatch { 140:1 : goto pick-sticky-2 }
    add element ip ferroute local-dispatch { 140:1 : goto pick-sticky-2 }
    add element ip ferroute dispatch { 160:1 : goto external-local-sticky-2 }
    add element ip ferroute cluster-ips { 10.96.0.1 }
    add element ip ferroute hairpin { 10.244.0.3 . 10.244.0.3 . tcp . 8080 }
    add element ip ferroute tcp-endpoints { 7321:1 . 0 : 10.244.0.3 . 8080 }
    add element ip ferroute tcp-endpoints { 7321:3 . 0 : 10.244.0.3 . 8080 }
    add element ip ferroute tcp-endpoints { e931:1 . 0 : 10.244.0.2 . 8080 }
    add element ip ferroute slots { 1:1 . 1 : e931:1 }
    add element ip ferroute slots { 1:1 . 2 : 7321:1 }
    add element ip ferroute slots { 1:3 . 1 : 7321:3 }
    add element ip ferroute sticky-10800 { 1:1 }
    add element ip ferroute sticky-10800 { 1:3 }
    add element ip ferroute lists { 41:1 : 141:1 }
    add element ip ferroute lists { 41:3 : c1:3 }
    add element ip ferroute lists { 61:1 : 161:1 }
    add element ip ferroute source-ranges-8 { 10.0.0.0 . 1:1 }
    add element ip ferroute refusals { 51:1 comment "shop/web:http" : drop }
    add element ip ferroute node-ports { tcp . 30080 comment "shop/web:http" : 61:1 }
    add element ip ferroute services { 10.96.0.1 . tcp . 80 comment "shop/web:http" : 41:1 }
    add element ip ferroute services { 198.51.100.1 . tcp . 80 comment "shop/web:http" : 61:1 }
    add element ip ferroute restricted { 198.51.100.1 . tcp . 80 comment "shop/web:http" : 1:1 }
    add element ip ferroute new-clients-10800-2 { 1:1 }
    add element ip ferroute new-clients-10800-2 { 1:3 }
    "#);
}

#[test]
fn services_without_endpoints() {
    assert_snapshot!(elements_of(&cluster(web().node_port(30080), pods(&[]))), @r#"
    add element ip ferroute cluster-ips { 10.96.0.1 }
    add element ip ferroute lists { 11:1 : 71:1 }
    add element ip ferroute lists { 21:1 : 71:1 }
    add element ip ferroute node-ports { tcp . 30080 comment "shop/web:http" : 21:1 }
    add element ip ferroute services { 10.96.0.1 . tcp . 80 comment "shop/web:http" : 11:1 }
    "#);
    let local = web().internal_local().node_port(30080).external_local();
    assert_snapshot!(elements_of(&cluster(local, pods(&[2]))), @r#"
    add chain ip ferroute pick-1
    add rule ip ferroute pick-1 meta l4proto tcp dnat ip to meta priority & f:ffff . numgen random mod 1 offset 1 map @tcp-endpoints
    add rule ip ferroute pick-1 meta l4proto udp dnat ip to meta priority & f:ffff . numgen random mod 1 offset 1 map @udp-endpoints
    add rule ip ferroute pick-1 meta l4proto sctp dnat ip to meta priority & f:ffff . numgen random mod 1 offset 1 map @sctp-endpoints
    add chain ip ferroute external-local-1
    add rule ip ferroute external-local-1 ip saddr 10.244.0.0/16 goto pick-1 comment "pods are served as by a load balancer"
    add rule ip ferroute external-local-1 fib saddr type local meta mark set meta mark | 0x00004000 goto pick-1 comment "so is the node itself"
    add rule ip ferroute external-local-1 meta priority set meta priority & 1f:ffff | 10:2 meta priority set meta priority map @lists meta priority & fff0:1 vmap @local-dispatch comment "others stay on this node"
    add rule ip ferroute external-local-1 drop comment "the service has just been changed"
    add element ip ferroute dispatch { 90:1 : goto pick-1 }
    add element ip ferroute local-dispatch { 90:1 : goto pick-1 }
    add element ip ferroute dispatch { b0:1 : goto external-local-1 }
    add element ip ferroute cluster-ips { 10.96.0.1 }
    add element ip ferroute tcp-endpoints { 1:1 . 1 : 10.244.0.2 . 8080 }
    add element ip ferroute lists { 11:3 : f1:3 }
    add element ip ferroute lists { 31:1 : b1:1 }
    add element ip ferroute node-ports { tcp . 30080 comment "shop/web:http" : 31:1 }
    add element ip ferroute services { 10.96.0.1 . tcp . 80 comment "shop/web:http" : 11:3 }
    "#);
}

#[test]
fn refused_transaction_names_the_change_at_fault() {
    let mut transaction = render(&cluster(web(), pods(&[2])).table(IpFamily::V4), &settings(), &[]);
    transaction.changes.retain(|change| !matches!(change, Change::AddChain(chain) if chain.name.as_str() == "pick-1"));
    let error = MemoryKernel::new().commit(&transaction).unwrap_err();
    assert!(error.to_string().starts_with("add rule ip ferroute pick-1 meta l4proto tcp dnat"), "{error}");
    assert!(error.to_string().ends_with(": no such object"), "{error}");
}
