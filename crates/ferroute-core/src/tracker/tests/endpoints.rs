//! The endpoints of service ports, from their slices.

use super::*;

#[test]
fn slice_ports_are_matched_by_name_and_protocol() {
    let mut tracker = tracker();
    set_service(&mut tracker, web().port("dns-tcp", 53).udp("dns", 53));
    set_slice(&mut tracker, web_slice().udp("http", 1).port("dns", 2).udp("dns", 5353).port("", 3));
    update(&mut tracker);
    assert_eq!(endpoints(&tracker, &port_name("shop/web:http")), ["10.244.0.2:8080"]);
    assert_eq!(endpoints(&tracker, &udp_port_name("shop/web:dns")), ["10.244.0.2:5353"]);
    assert!(endpoints(&tracker, &port_name("shop/web:dns-tcp")).is_empty());
}

#[test]
fn port_without_name_matches_slice_port_without_name() {
    let mut tracker = tracker();
    set_service(&mut tracker, service("shop/web").cluster_ip("10.96.0.1").port("", 80));
    set_slice(&mut tracker, web_slice().port("", 9090));
    update(&mut tracker);
    assert_eq!(endpoints(&tracker, &port_name("shop/web")), ["10.244.0.2:9090"]);
}

#[test]
fn slices_may_have_different_target_ports() {
    let mut tracker = updated();
    set_slice(&mut tracker, slice("shop/web-b", "web").port("http", 9090).pod("10.244.0.2").pod("10.244.0.3"));
    update(&mut tracker);
    assert_eq!(
        endpoints(&tracker, &port_name("shop/web:http")),
        ["10.244.0.2:8080", "10.244.0.2:9090", "10.244.0.3:9090"]
    );
}

#[test]
fn endpoints_are_sorted_by_text() {
    let mut tracker = tracker();
    set_service(&mut tracker, web());
    set_slice(&mut tracker, web_slice().pod("10.244.0.10").pod("10.244.0.1").pod("10.244.0.9"));
    update(&mut tracker);
    assert_eq!(
        endpoints(&tracker, &port_name("shop/web:http")),
        ["10.244.0.10:8080", "10.244.0.1:8080", "10.244.0.2:8080", "10.244.0.9:8080"]
    );
}

#[test]
fn endpoint_in_two_slices_has_the_better_conditions() {
    let better_first: [(PodBuilder, PodBuilder); 5] = [
        (pod("10.244.0.2").unready(), pod("10.244.0.2").terminating()),
        (pod("10.244.0.2"), pod("10.244.0.2").unready()),
        (pod("10.244.0.2"), pod("10.244.0.2").conditions(false, true, false)),
        (pod("10.244.0.2").terminating(), pod("10.244.0.2").terminated()),
        (pod("10.244.0.2").on("node-1"), pod("10.244.0.2")),
    ];
    for (better, worse) in better_first {
        let only = |pod: &PodBuilder| slice("shop/web-a", "web").port("http", 8080).pod(pod.clone());
        let mut expected = tracker();
        set_service(&mut expected, web());
        set_slice(&mut expected, only(&better));
        update(&mut expected);
        for (a, b) in [(&better, &worse), (&worse, &better)] {
            let mut tracker = tracker();
            set_service(&mut tracker, web());
            set_slice(&mut tracker, only(a));
            set_slice(&mut tracker, slice("shop/web-b", "web").port("http", 8080).pod(b.clone()));
            update(&mut tracker);
            assert_eq!(tracker.table(IpFamily::V4), expected.table(IpFamily::V4), "{better:?} and {worse:?}");
        }
    }
}

#[test]
fn endpoint_that_moves_between_slices_is_never_missing() {
    let mut tracker = updated();
    set_slice(&mut tracker, slice("shop/web-b", "web").port("http", 8080).pod("10.244.0.2"));
    assert_eq!(update(&mut tracker), [] as [&str; 0]);
    tracker.delete_slice(&namespaced_name("shop/web-a"));
    assert_eq!(update(&mut tracker), [] as [&str; 0]);
    assert_eq!(endpoints(&tracker, &port_name("shop/web:http")), ["10.244.0.2:8080"]);
}
