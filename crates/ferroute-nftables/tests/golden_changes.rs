//! The transactions of single changes, in `nft` syntax.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

mod common;

use std::sync::{Arc, Mutex};

use common::{
    Host, SharedKernel, settings,
    shop::{cluster, pods, web},
    table_id,
};
use ferroute_core::{
    Dataplane, IpFamily,
    testing::{Cluster, Edit, ServiceBuilder, SliceBuilder},
    tracker::TrackerEvent,
};
use ferroute_nftables::{
    NftablesDataplane,
    kernel::{InterceptedKernel, Kernel, MemoryKernel},
};
use insta::assert_snapshot;

/// Returns an in-memory kernel and a record of its transactions, with an empty line after each.
fn recorder() -> (impl Kernel, Arc<Mutex<String>>) {
    let record = Arc::new(Mutex::new(String::new()));
    let writer = record.clone();
    let kernel = InterceptedKernel::new(MemoryKernel::new(), move |kernel, transaction| {
        writer.lock().unwrap().push_str(&format!("{transaction}\n"));
        kernel.commit(transaction)
    });
    (kernel, record)
}

/// Returns the transactions of some edits, after an initial sync of a cluster.
fn written(cluster: &Cluster, edits: impl IntoIterator<Item = Edit>) -> String {
    let ((kernel, record), mut tracker) = (recorder(), cluster.tracker());
    let mut dataplane = NftablesDataplane::with_kernel(kernel, IpFamily::V4, settings(), Box::new(Host::default()));
    dataplane.resync(tracker.table(IpFamily::V4)).unwrap();
    record.lock().unwrap().clear();
    for edit in edits {
        edit.apply_to(&mut tracker);
        let changes = tracker.update(IpFamily::V4);
        dataplane.sync(tracker.table(IpFamily::V4), &changes).unwrap();
    }
    record.lock().unwrap().clone()
}

fn set_slice(slice: SliceBuilder) -> Edit {
    Edit::SetSlice(slice.build())
}

fn set_service(service: ServiceBuilder) -> Edit {
    Edit::SetService(Box::new(service.build()))
}

#[test]
fn removed_endpoint_is_replaced_by_the_last_one() {
    let edits = [set_slice(pods(&[2, 4, 5]))];
    assert_snapshot!(written(&cluster(web(), pods(&[2, 3, 4, 5])), edits), @r#"
    add chain ip ferroute pick-3
    add rule ip ferroute pick-3 meta l4proto tcp dnat ip to meta priority & f:ffff . numgen random mod 3 offset 1 map @tcp-endpoints
    add rule ip ferroute pick-3 meta l4proto tcp dnat ip to meta priority & f:ffff . numgen random mod 1 offset 1 map @tcp-endpoints comment "the list has just become shorter"
    add rule ip ferroute pick-3 meta l4proto udp dnat ip to meta priority & f:ffff . numgen random mod 3 offset 1 map @udp-endpoints
    add rule ip ferroute pick-3 meta l4proto udp dnat ip to meta priority & f:ffff . numgen random mod 1 offset 1 map @udp-endpoints comment "the list has just become shorter"
    add rule ip ferroute pick-3 meta l4proto sctp dnat ip to meta priority & f:ffff . numgen random mod 3 offset 1 map @sctp-endpoints
    add rule ip ferroute pick-3 meta l4proto sctp dnat ip to meta priority & f:ffff . numgen random mod 1 offset 1 map @sctp-endpoints comment "the list has just become shorter"
    add element ip ferroute dispatch { 190:1 : goto pick-3 }
    add element ip ferroute local-dispatch { 190:1 : goto pick-3 }

    delete element ip ferroute tcp-endpoints { 1:1 . 2 : 10.244.0.3 . 8080 }
    add element ip ferroute tcp-endpoints { 1:1 . 2 : 10.244.0.5 . 8080 }
    delete element ip ferroute lists { 11:1 : 211:1 }
    add element ip ferroute lists { 11:1 : 191:1 }
    delete element ip ferroute tcp-endpoints { 1:1 . 4 : 10.244.0.5 . 8080 }
    "#);
}

#[test]
fn replaced_endpoint_changes_one_element() {
    assert_snapshot!(written(&cluster(web(), pods(&[2, 3])), [set_slice(pods(&[2, 9]))]), @"
    delete element ip ferroute tcp-endpoints { 1:1 . 2 : 10.244.0.3 . 8080 }
    add element ip ferroute tcp-endpoints { 1:1 . 2 : 10.244.0.9 . 8080 }
    ");
}

#[test]
fn endpoint_of_a_service_with_affinity_is_added_and_another_removed() {
    let edits = [set_slice(pods(&[2, 3])), set_slice(pods(&[3]))];
    assert_snapshot!(written(&cluster(web().affinity(300), pods(&[2])), edits), @r#"
    add chain ip ferroute pick-sticky-2
    add rule ip ferroute pick-sticky-2 meta priority set meta priority & f:ffff . ip saddr map @affinity jump remember comment "the endpoint that the client had last, if it is still there"
    add rule ip ferroute pick-sticky-2 meta priority set meta priority & f:ffff . numgen random mod 2 offset 1 map @slots jump admit
    add rule ip ferroute pick-sticky-2 meta priority set meta priority & f:ffff . numgen random mod 1 offset 1 map @slots jump admit comment "the list has just become shorter"
    add element ip ferroute dispatch { 140:1 : goto pick-sticky-2 }
    add element ip ferroute local-dispatch { 140:1 : goto pick-sticky-2 }

    add element ip ferroute tcp-endpoints { 7321:1 . 0 : 10.244.0.3 . 8080 }
    add element ip ferroute slots { 1:1 . 2 : 7321:1 }
    delete element ip ferroute lists { 41:1 : c1:1 }
    add element ip ferroute lists { 41:1 : 141:1 }

    delete element ip ferroute slots { 1:1 . 1 : e931:1 }
    add element ip ferroute slots { 1:1 . 1 : 7321:1 }
    delete element ip ferroute lists { 41:1 : 141:1 }
    add element ip ferroute lists { 41:1 : c1:1 }
    delete element ip ferroute tcp-endpoints { e931:1 . 0 : 10.244.0.2 . 8080 }
    delete element ip ferroute slots { 1:1 . 2 : 7321:1 }
    "#);
}

#[test]
fn service_loses_its_endpoints_and_gets_them_back() {
    let edits = [set_slice(pods(&[])), set_slice(pods(&[2]))];
    assert_snapshot!(written(&cluster(web(), pods(&[2])), edits), @"
    delete element ip ferroute lists { 11:1 : 91:1 }
    add element ip ferroute lists { 11:1 : 71:1 }
    delete element ip ferroute tcp-endpoints { 1:1 . 1 : 10.244.0.2 . 8080 }

    add element ip ferroute tcp-endpoints { 1:1 . 1 : 10.244.0.2 . 8080 }
    delete element ip ferroute lists { 11:1 : 71:1 }
    add element ip ferroute lists { 11:1 : 91:1 }
    ");
}

#[test]
fn source_ranges_are_widened() {
    let service = |range: &str| web().load_balancer("198.51.100.1").source_range(range);
    let edits = [set_service(service("10.1.0.0/16")), set_service(service("10.0.0.0/8"))];
    assert_snapshot!(written(&cluster(service("10.1.2.0/24"), pods(&[2])), edits), @"
    add set ip ferroute source-ranges-16 { type ipv4_addr . classid ; }
    flush chain ip ferroute source-ranges
    add rule ip ferroute source-ranges ip saddr & 255.255.0.0 . meta priority @source-ranges-16 meta priority set none return
    add rule ip ferroute source-ranges ip saddr & 255.255.255.0 . meta priority @source-ranges-24 meta priority set none return
    add rule ip ferroute source-ranges meta priority set meta priority & 5f:fffd | 50:1 meta priority vmap @refusals
    add rule ip ferroute source-ranges drop

    add element ip ferroute source-ranges-16 { 10.1.0.0 . 1:1 }

    delete element ip ferroute source-ranges-24 { 10.1.2.0 . 1:1 }
    flush chain ip ferroute source-ranges
    add rule ip ferroute source-ranges ip saddr & 255.255.0.0 . meta priority @source-ranges-16 meta priority set none return
    add rule ip ferroute source-ranges meta priority set meta priority & 5f:fffd | 50:1 meta priority vmap @refusals
    add rule ip ferroute source-ranges drop
    delete set ip ferroute source-ranges-24

    add set ip ferroute source-ranges-8 { type ipv4_addr . classid ; }
    flush chain ip ferroute source-ranges
    add rule ip ferroute source-ranges ip saddr & 255.0.0.0 . meta priority @source-ranges-8 meta priority set none return
    add rule ip ferroute source-ranges ip saddr & 255.255.0.0 . meta priority @source-ranges-16 meta priority set none return
    add rule ip ferroute source-ranges meta priority set meta priority & 5f:fffd | 50:1 meta priority vmap @refusals
    add rule ip ferroute source-ranges drop

    add element ip ferroute source-ranges-8 { 10.0.0.0 . 1:1 }

    delete element ip ferroute source-ranges-16 { 10.1.0.0 . 1:1 }
    flush chain ip ferroute source-ranges
    add rule ip ferroute source-ranges ip saddr & 255.0.0.0 . meta priority @source-ranges-8 meta priority set none return
    add rule ip ferroute source-ranges meta priority set meta priority & 5f:fffd | 50:1 meta priority vmap @refusals
    add rule ip ferroute source-ranges drop
    delete set ip ferroute source-ranges-16
    ");
}

#[test]
fn chains_of_the_firewall_exist_while_there_are_source_ranges() {
    let load_balancer = || web().load_balancer("198.51.100.1");
    let edits = [set_service(load_balancer().source_range("10.0.0.0/8")), set_service(load_balancer())];
    assert_snapshot!(written(&cluster(load_balancer(), pods(&[2])), edits), @r#"
    add set ip ferroute source-ranges-8 { type ipv4_addr . classid ; }
    add map ip ferroute refusals { type classid : verdict ; counter ; comment "limit:list to what happens to refused connections" ; }
    add chain ip ferroute filter-prerouting-pre-dnat { type filter hook prerouting priority -110 ; policy accept ; }
    add rule ip ferroute filter-prerouting-pre-dnat ct state new jump firewall
    add chain ip ferroute filter-output-pre-dnat { type filter hook output priority -110 ; policy accept ; }
    add rule ip ferroute filter-output-pre-dnat ct state new jump firewall
    flush chain ip ferroute source-ranges
    add rule ip ferroute source-ranges ip saddr & 255.0.0.0 . meta priority @source-ranges-8 meta priority set none return
    add rule ip ferroute source-ranges meta priority set meta priority & 5f:fffd | 50:1 meta priority vmap @refusals
    add rule ip ferroute source-ranges drop

    add element ip ferroute source-ranges-8 { 10.0.0.0 . 1:1 }
    add element ip ferroute refusals { 51:1 comment "shop/web:http" : drop }
    add element ip ferroute restricted { 198.51.100.1 . tcp . 80 comment "shop/web:http" : 1:1 }

    delete element ip ferroute restricted { 198.51.100.1 . tcp . 80 : 1:1 }

    delete element ip ferroute source-ranges-8 { 10.0.0.0 . 1:1 }
    delete element ip ferroute refusals { 51:1 : drop }
    flush chain ip ferroute source-ranges
    add rule ip ferroute source-ranges drop
    flush chain ip ferroute filter-output-pre-dnat
    delete chain ip ferroute filter-output-pre-dnat
    flush chain ip ferroute filter-prerouting-pre-dnat
    delete chain ip ferroute filter-prerouting-pre-dnat
    delete set ip ferroute source-ranges-8
    delete set ip ferroute refusals
    "#);
}

#[test]
fn chains_of_the_firewall_are_removed_after_a_restart() {
    let load_balancer = || web().load_balancer("198.51.100.1");
    let (kernel, id) = (SharedKernel::default(), table_id(IpFamily::V4));
    let sync = |service| {
        let (kernel, cluster) = (kernel.clone(), cluster(service, pods(&[2])));
        let mut dataplane = NftablesDataplane::with_kernel(kernel, IpFamily::V4, settings(), Box::new(Host::default()));
        dataplane.resync(cluster.tracker().table(IpFamily::V4)).unwrap()
    };
    let chains = || kernel.lock().table(&id).unwrap().chains().filter(|chain| chain.chain.base.is_some()).count();
    sync(load_balancer());
    let without = chains();
    sync(load_balancer().source_range("10.0.0.0/8"));
    assert_eq!(chains(), without + 2);
    let report = sync(load_balancer());
    assert!(report.written < report.total, "the table was replaced: {report:?}");
    assert_eq!(chains(), without);
}

#[test]
fn last_affinity_is_removed_with_its_rules() {
    let edits = [set_service(web())];
    assert_snapshot!(written(&cluster(web().affinity(300), pods(&[2])), edits), @r#"
    add chain ip ferroute pick-1
    add rule ip ferroute pick-1 meta l4proto tcp dnat ip to meta priority & f:ffff . numgen random mod 1 offset 1 map @tcp-endpoints
    add rule ip ferroute pick-1 meta l4proto udp dnat ip to meta priority & f:ffff . numgen random mod 1 offset 1 map @udp-endpoints
    add rule ip ferroute pick-1 meta l4proto sctp dnat ip to meta priority & f:ffff . numgen random mod 1 offset 1 map @sctp-endpoints
    add element ip ferroute dispatch { 90:1 : goto pick-1 }
    add element ip ferroute local-dispatch { 90:1 : goto pick-1 }

    add element ip ferroute tcp-endpoints { 1:1 . 1 : 10.244.0.2 . 8080 }
    add element ip ferroute lists { 11:1 : 91:1 }
    delete element ip ferroute services { 10.96.0.1 . tcp . 80 : 41:1 }
    add element ip ferroute services { 10.96.0.1 . tcp . 80 comment "shop/web:http" : 11:1 }
    delete element ip ferroute new-clients-300-1 { 1:1 }

    delete element ip ferroute lists { 41:1 : c1:1 }
    delete element ip ferroute tcp-endpoints { e931:1 . 0 : 10.244.0.2 . 8080 }
    delete element ip ferroute slots { 1:1 . 1 : e931:1 }
    delete element ip ferroute sticky-300 { 1:1 }
    flush chain ip ferroute remember
    flush chain ip ferroute admit
    delete set ip ferroute sticky-300
    delete set ip ferroute new-clients-300-1
    "#);
}

#[test]
fn service_cidrs_change_only_their_rules() {
    let ((kernel, record), mut tracker) = (recorder(), cluster(web(), pods(&[2])).tracker());
    let mut dataplane = NftablesDataplane::with_kernel(kernel, IpFamily::V4, settings(), Box::new(Host::default()));
    dataplane.resync(tracker.table(IpFamily::V4)).unwrap();
    record.lock().unwrap().clear();
    for networks in [&["10.96.0.0/16", "10.97.0.0/16", "fd00:96::/112"][..], &[]] {
        let cidrs = networks.iter().map(|net| net.parse().unwrap()).collect();
        tracker.apply(TrackerEvent::ServiceCidrsApplied(cidrs));
        let changes = tracker.update(IpFamily::V4);
        dataplane.sync(tracker.table(IpFamily::V4), &changes).unwrap();
    }
    assert_snapshot!(record.lock().unwrap(), @r#"
    flush chain ip ferroute cluster-ips
    add rule ip ferroute cluster-ips ip daddr @cluster-ips reject comment "a port that the service has not"
    add rule ip ferroute cluster-ips ip daddr 10.96.0.0/15 drop comment "an address that no service has"

    flush chain ip ferroute cluster-ips
    add rule ip ferroute cluster-ips ip daddr @cluster-ips reject comment "a port that the service has not"
    "#);
}

#[test]
fn irrelevant_changes_write_nothing() {
    let edits = [set_service(web().label("tier", "front")), set_slice(pods(&[2]).label("changed", "yes"))];
    assert_snapshot!(written(&cluster(web(), pods(&[2])), edits), @"");
}
