mod claims;
mod endpoints;
mod too_many;
mod weights;

use super::*;
use crate::{
    Hints,
    parse::{parse_service, parse_slice},
    testing::{
        PodBuilder, ServiceBuilder, SliceBuilder, namespaced_name, node, pod, port_name, service, slice, udp_port_name,
    },
};

const BOTH: [IpFamily; 2] = IpFamily::BOTH;

fn tracker() -> Tracker {
    Tracker::new(node("node-1"))
}

fn web() -> ServiceBuilder {
    service("shop/web").cluster_ip("10.96.0.1").port("http", 80)
}

fn web_slice() -> SliceBuilder {
    slice("shop/web-a", "web").port("http", 8080).pod("10.244.0.2")
}

fn set_service(tracker: &mut Tracker, service: ServiceBuilder) {
    tracker.apply_service(parse_service(&service.build()).unwrap().unwrap());
}

fn set_slice(tracker: &mut Tracker, slice: SliceBuilder) {
    tracker.apply_slice(parse_slice(&slice.build(), "node-1").unwrap().unwrap());
}

/// Returns a tracker with the Service `shop/web`, which has one endpoint, and without pending changes.
fn updated() -> Tracker {
    let mut tracker = tracker();
    set_service(&mut tracker, web());
    set_slice(&mut tracker, web_slice());
    for family in BOTH {
        tracker.update(family);
    }
    tracker
}

/// Returns the names of the ports that differ, with `+` for new, `-` for removed and `~` for changed ones.
fn summary(tracker: &Tracker, changes: &Changes, family: IpFamily) -> Vec<String> {
    let entries = &tracker.table(family).entries;
    let sign = |name: &ServicePortName, previous: &Option<ServicePortEntry>| match (previous, entries.get(name)) {
        (None, Some(_)) => '+',
        (Some(_), None) => '-',
        (Some(old), Some(new)) if old != new => '~',
        _ => '!',
    };
    changes.previous.iter().map(|(name, previous)| format!("{}{name}", sign(name, previous))).collect()
}

/// Updates the IPv4 table and returns the changes.
fn update(tracker: &mut Tracker) -> Vec<String> {
    let changes = tracker.update(IpFamily::V4);
    let services: BTreeSet<NamespacedName> = changes.previous.keys().map(|name| name.service.clone()).collect();
    assert_eq!(changes.services, services, "changed Services are those of the changed ports");
    summary(tracker, &changes, IpFamily::V4)
}

/// Returns the endpoints of an IPv4 port, in order.
#[track_caller]
fn endpoints(tracker: &Tracker, name: &ServicePortName) -> Vec<String> {
    tracker.table(IpFamily::V4).entries[name].endpoints.iter().map(|endpoint| endpoint.to_string()).collect()
}

#[test]
fn new_tracker_has_no_pending_changes() {
    let mut tracker = tracker();
    for family in BOTH {
        assert!(!tracker.has_pending_changes(family));
        assert!(tracker.update(family).is_empty());
        assert_eq!(*tracker.table(family), ServiceTable::new(family, Arc::new(node("node-1"))));
    }
}

#[test]
fn service_and_slice_may_be_applied_in_either_order() {
    let mut first = tracker();
    set_service(&mut first, web());
    assert_eq!(update(&mut first), ["+shop/web:http"]);
    assert!(endpoints(&first, &port_name("shop/web:http")).is_empty());
    set_slice(&mut first, web_slice());
    assert_eq!(update(&mut first), ["~shop/web:http"]);
    let mut second = tracker();
    set_slice(&mut second, web_slice());
    assert!(second.has_pending_changes(IpFamily::V4));
    assert_eq!(update(&mut second), [] as [&str; 0]);
    set_service(&mut second, web());
    assert_eq!(update(&mut second), ["+shop/web:http"]);
    assert_eq!(endpoints(&first, &port_name("shop/web:http")), ["10.244.0.2:8080"]);
    assert_eq!(first.table(IpFamily::V4), second.table(IpFamily::V4));
}

#[test]
fn changes_contain_previous_entries() {
    let mut tracker = updated();
    let before = tracker.table(IpFamily::V4).entries.clone();
    let http = port_name("shop/web:http");
    set_service(&mut tracker, web().udp("dns", 53).affinity(10));
    let changes = tracker.update(IpFamily::V4);
    let expected = [(http.clone(), Some(before[&http].clone())), (udp_port_name("shop/web:dns"), None)];
    assert_eq!(changes.previous, BTreeMap::from(expected));
    assert_eq!(changes.services, BTreeSet::from([namespaced_name("shop/web")]));
    assert!(!changes.node);
    let now = tracker.table(IpFamily::V4).entries.clone();
    tracker.delete_service(&namespaced_name("shop/web"));
    let changes = tracker.update(IpFamily::V4);
    assert_eq!(changes.previous, now.into_iter().map(|(name, entry)| (name, Some(entry))).collect());
    assert!(tracker.table(IpFamily::V4).entries.is_empty());
}

#[test]
fn changes_for_resync_omit_new_service_ports() {
    let mut tracker = tracker();
    set_service(&mut tracker, web());
    let changes = tracker.update_for_resync(IpFamily::V4);
    assert_eq!(changes.previous, BTreeMap::new());
    assert_eq!(changes.services, BTreeSet::from([namespaced_name("shop/web")]));
    let before = tracker.table(IpFamily::V4).entries.clone();
    assert_eq!(before.len(), 1);
    set_service(&mut tracker, web().port("https", 443));
    set_slice(&mut tracker, web_slice());
    let changes = tracker.update_for_resync(IpFamily::V4);
    assert_eq!(changes.previous, before.into_iter().map(|(name, entry)| (name, Some(entry))).collect());
    assert_eq!(tracker.table(IpFamily::V4).entries.len(), 2);
}

#[test]
fn slices_are_returned_as_applied() {
    let zoned = |zones: &[&str]| {
        let hints = Hints { zones: zones.iter().map(|zone| (*zone).into()).collect(), nodes: Vec::new() };
        (!zones.is_empty()).then(|| Arc::new(hints))
    };
    let mut endpoints = Vec::new();
    for bits in 0..16_u8 {
        let has = |bit: u8| bits & bit != 0;
        let address = std::net::Ipv4Addr::new(10, 244, 0, bits).into();
        let hints = zoned(if bits.is_multiple_of(3) { &["a"] } else { &[] });
        let (ready, serving, terminating, local) = (has(1), has(2), has(4), has(8));
        let weight = if bits.is_multiple_of(5) { 7 } else { 1 };
        let node_unknown = bits.is_multiple_of(7);
        let zone = (!bits.is_multiple_of(4)).then(|| Arc::from(["zone-a", "zone-b"][usize::from(bits & 1)]));
        endpoints.push(EndpointView { address, ready, serving, terminating, local, node_unknown, hints, weight, zone });
    }
    let ports = vec![SlicePort { name: "http".into(), protocol: crate::Protocol::Tcp, port: 8080 }];
    let view = |name: &str, endpoints: &[EndpointView]| SliceView {
        service: namespaced_name("shop/web"),
        name: namespaced_name(name),
        family: IpFamily::V4,
        ports: ports.clone(),
        endpoints: endpoints.to_vec(),
        ignored: Box::default(),
    };
    let (first, second) = (view("shop/web-a", &endpoints), view("shop/web-b", &endpoints[1..2]));
    let mut tracker = tracker();
    tracker.apply_slice(second.clone());
    tracker.apply_slice(first.clone());
    assert_eq!(tracker.slices_of(&namespaced_name("shop/web")).collect::<Vec<_>>(), [first, second]);
    assert_eq!(tracker.slices_of(&namespaced_name("shop/other")).count(), 0);
}

#[test]
fn unchanged_ports_are_not_in_changes() {
    let mut tracker = updated();
    set_service(&mut tracker, web().port("https", 443));
    assert_eq!(update(&mut tracker), ["+shop/web:https"]);
    set_slice(&mut tracker, web_slice().port("https", 8443));
    assert_eq!(update(&mut tracker), ["~shop/web:https"]);
    set_service(&mut tracker, web());
    assert_eq!(update(&mut tracker), ["-shop/web:https"]);
}

#[test]
fn port_with_new_name_or_protocol_is_another_port() {
    let mut tracker = updated();
    set_service(&mut tracker, service("shop/web").cluster_ip("10.96.0.1").port("www", 80));
    assert_eq!(update(&mut tracker), ["-shop/web:http", "+shop/web:www"]);
    set_service(&mut tracker, service("shop/web").cluster_ip("10.96.0.1").udp("www", 80));
    assert_eq!(update(&mut tracker), ["-shop/web:www", "+shop/web:www"]);
    assert!(tracker.table(IpFamily::V4).entries.contains_key(&udp_port_name("shop/web:www")));
}

#[test]
fn changes_reverted_before_the_update_are_not_reported() {
    let reverted: [fn(&mut Tracker); 7] = [
        |tracker| {
            tracker.delete_service(&namespaced_name("shop/web"));
            set_service(tracker, web());
        },
        |tracker| {
            tracker.delete_slice(&namespaced_name("shop/web-a"));
            set_slice(tracker, web_slice());
        },
        |tracker| {
            set_slice(tracker, web_slice().pod("10.244.0.3"));
            set_slice(tracker, web_slice());
        },
        |tracker| {
            set_service(tracker, web().affinity(10));
            set_service(tracker, web());
        },
        |tracker| {
            set_slice(tracker, slice("shop/web-a", "other").port("http", 8080).pod("10.244.0.2"));
            set_slice(tracker, web_slice());
        },
        |tracker| {
            set_service(tracker, service("shop/new").cluster_ip("10.96.0.2").port("", 80));
            tracker.delete_service(&namespaced_name("shop/new"));
        },
        |tracker| {
            tracker.apply_node(NodeView { zone: Some("a".into()), ..node("node-1") });
            tracker.apply_node(node("node-1"));
        },
    ];
    for (i, apply_and_revert) in reverted.into_iter().enumerate() {
        let mut tracker = updated();
        let before = BOTH.map(|family| tracker.table(family).clone());
        apply_and_revert(&mut tracker);
        for family in BOTH {
            assert_eq!(tracker.update(family), Changes::default(), "case {i}");
            assert!(!tracker.has_pending_changes(family), "case {i}");
            assert_eq!(*tracker.table(family), before[family.index()], "case {i}");
        }
    }
}

#[test]
fn slice_can_move_to_another_service() {
    let mut tracker = updated();
    set_service(&mut tracker, service("shop/new").cluster_ip("10.96.0.2").port("http", 80));
    update(&mut tracker);
    set_slice(&mut tracker, slice("shop/web-a", "new").port("http", 8080).pod("10.244.0.2"));
    assert_eq!(update(&mut tracker), ["~shop/new:http", "~shop/web:http"]);
    assert!(endpoints(&tracker, &port_name("shop/web:http")).is_empty());
    assert_eq!(endpoints(&tracker, &port_name("shop/new:http")), ["10.244.0.2:8080"]);
    tracker.delete_slice(&namespaced_name("shop/web-a"));
    assert_eq!(update(&mut tracker), ["~shop/new:http"]);
    assert!(endpoints(&tracker, &port_name("shop/new:http")).is_empty());
}

#[test]
fn slices_with_equal_names_in_two_namespaces_are_distinct() {
    let mut tracker = updated();
    set_service(&mut tracker, service("other/web").cluster_ip("10.96.0.2").port("http", 80));
    set_slice(&mut tracker, slice("other/web-a", "web").port("http", 8080).pod("10.244.0.9"));
    assert_eq!(update(&mut tracker), ["+other/web:http"]);
    tracker.delete_slice(&namespaced_name("other/web-a"));
    update(&mut tracker);
    assert_eq!(endpoints(&tracker, &port_name("shop/web:http")), ["10.244.0.2:8080"]);
}

#[test]
fn port_without_name_is_removed_with_its_service() {
    let mut tracker = updated();
    set_service(&mut tracker, service("shop/web").cluster_ip("10.96.0.1").port("", 80));
    assert_eq!(update(&mut tracker), ["+shop/web", "-shop/web:http"]);
    tracker.delete_service(&namespaced_name("shop/web"));
    assert_eq!(update(&mut tracker), ["-shop/web"]);
}

#[test]
fn recreated_service_has_its_slices() {
    let mut tracker = updated();
    tracker.delete_service(&namespaced_name("shop/web"));
    assert_eq!(update(&mut tracker), ["-shop/web:http"]);
    set_service(&mut tracker, web());
    assert_eq!(update(&mut tracker), ["+shop/web:http"]);
    assert_eq!(endpoints(&tracker, &port_name("shop/web:http")), ["10.244.0.2:8080"]);
}

#[test]
fn deleted_objects_leave_no_state() {
    let mut tracker = updated();
    set_slice(&mut tracker, slice("shop/web-a", "other").pod("10.244.0.2"));
    tracker.delete_slice(&namespaced_name("shop/web-a"));
    tracker.delete_service(&namespaced_name("shop/web"));
    update(&mut tracker);
    assert!(tracker.services.is_empty() && tracker.owners.is_empty());
}

#[test]
fn deleting_unknown_objects_has_no_effect() {
    let mut tracker = updated();
    tracker.delete_service(&namespaced_name("shop/unknown"));
    tracker.delete_slice(&namespaced_name("shop/unknown"));
    // The names of a slice and a Service, in the wrong calls.
    tracker.delete_service(&namespaced_name("shop/web-a"));
    tracker.delete_slice(&namespaced_name("shop/web"));
    assert!(BOTH.iter().all(|family| !tracker.has_pending_changes(*family)));
}

#[test]
fn families_are_updated_independently() {
    let mut tracker = tracker();
    set_service(&mut tracker, web().cluster_ip("fd00:96::1"));
    set_slice(&mut tracker, web_slice());
    set_slice(&mut tracker, slice("shop/web-6", "web").port("http", 8080).pod("fd00:244::2"));
    assert_eq!(update(&mut tracker), ["+shop/web:http"]);
    assert!(tracker.table(IpFamily::V6).entries.is_empty());
    assert_eq!(BOTH.map(|family| tracker.has_pending_changes(family)), [false, true]);
    let changes = tracker.update(IpFamily::V6);
    assert_eq!(summary(&tracker, &changes, IpFamily::V6), ["+shop/web:http"]);
    let v6 = &tracker.table(IpFamily::V6).entries[&port_name("shop/web:http")];
    assert_eq!(v6.endpoints.iter().map(|endpoint| endpoint.to_string()).collect::<Vec<_>>(), ["[fd00:244::2]:8080"]);
    assert_eq!(endpoints(&tracker, &port_name("shop/web:http")), ["10.244.0.2:8080"]);
}

#[test]
fn service_without_family_has_no_ports_in_it() {
    let mut tracker = updated();
    set_service(&mut tracker, service("shop/web").cluster_ip("fd00:96::1").port("http", 80));
    assert_eq!(update(&mut tracker), ["-shop/web:http"]);
    let changes = tracker.update(IpFamily::V6);
    assert_eq!(summary(&tracker, &changes, IpFamily::V6), ["+shop/web:http"]);
}

#[test]
fn services_with_common_name_prefix_are_distinct() {
    let mut tracker = tracker();
    for (i, name) in ["shop/web", "shop/web-2", "shop/web2", "shop2/web", "sho/web"].iter().enumerate() {
        set_service(&mut tracker, service(name).cluster_ip(&format!("10.96.0.{i}")).port("a", 80).port("b", 81));
    }
    update(&mut tracker);
    let table = tracker.table(IpFamily::V4);
    let ports: Vec<_> = table.ports_of(&namespaced_name("shop/web")).map(|(name, _)| name.to_string()).collect();
    assert_eq!(ports, ["shop/web:a", "shop/web:b"]);
    assert_eq!(table.ports_of(&namespaced_name("shop/we")).count(), 0);
    tracker.delete_service(&namespaced_name("shop/web"));
    assert_eq!(update(&mut tracker), ["-shop/web:a", "-shop/web:b"]);
}

#[test]
fn changed_node_is_reported_once_to_each_family() {
    let mut tracker = updated();
    let moved = NodeView { zone: Some("a".into()), ..node("node-1") };
    tracker.apply_node(moved.clone());
    for family in BOTH {
        assert_eq!(*tracker.table(family).node, node("node-1"), "the table has the node of the last update");
        assert!(tracker.has_pending_changes(family));
        assert_eq!(tracker.update(family), Changes { node: true, ..Changes::default() });
        assert!(!tracker.has_pending_changes(family));
        assert_eq!(*tracker.table(family).node, moved);
    }
    tracker.apply_node(moved);
    assert!(BOTH.iter().all(|family| !tracker.has_pending_changes(*family)));
}

#[test]
fn changed_service_cidrs_are_reported_once_to_their_family() {
    let mut tracker = updated();
    let nets = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect::<Vec<ipnet::IpNet>>();
    let changed = Changes { service_cidrs: true, ..Changes::default() };
    tracker.apply_service_cidrs(nets(&["10.112.0.0/16", "10.96.0.0/16", "10.96.0.0/16"]));
    assert_eq!(BOTH.map(|family| tracker.has_pending_changes(family)), [true, false]);
    assert_eq!(BOTH.map(|family| tracker.update(family)), [changed.clone(), Changes::default()]);
    assert_eq!(tracker.table(IpFamily::V4).service_cidrs, nets(&["10.96.0.0/16", "10.112.0.0/16"]));
    tracker.apply_service_cidrs(nets(&["10.96.0.0/16", "fd00:96::/112", "10.112.0.0/16"]));
    assert_eq!(BOTH.map(|family| tracker.update(family)), [Changes::default(), changed.clone()]);
    tracker.apply_service_cidrs(Vec::new());
    assert_eq!(BOTH.map(|family| tracker.update(family)), [changed.clone(), changed]);
    assert!(BOTH.iter().all(|family| !tracker.has_pending_changes(*family)));
}

#[test]
fn desired_services_and_slices_are_listed() {
    let mut tracker = updated();
    set_slice(&mut tracker, slice("shop/late-a", "late").pod("10.244.0.7"));
    let names = |names: Vec<&NamespacedName>| names.into_iter().map(ToString::to_string).collect::<BTreeSet<_>>();
    let set = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<BTreeSet<_>>();
    assert_eq!(names(tracker.services().collect()), set(&["shop/web"]));
    assert_eq!(names(tracker.slices().collect()), set(&["shop/late-a", "shop/web-a"]));
    tracker.delete_service(&namespaced_name("shop/web"));
    tracker.delete_slice(&namespaced_name("shop/late-a"));
    assert_eq!(names(tracker.services().collect()), set(&[]));
    assert_eq!(names(tracker.slices().collect()), set(&["shop/web-a"]));
}
