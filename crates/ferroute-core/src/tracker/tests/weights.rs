use std::net::SocketAddr;

use ferroute_api::labels;

use super::*;

const A: &str = "10.244.0.2";
const B: &str = "10.244.1.2";

/// Returns a tracker of a node in `zone-a`, with an endpoint there and one in another zone.
fn zoned(service: ServiceBuilder) -> Tracker {
    let mut tracker = Tracker::new(NodeView { zone: Some("zone-a".to_owned()), ..node("node-1") });
    set_service(&mut tracker, service);
    let endpoints = slice("shop/web-a", "web").port("http", 8080);
    set_slice(&mut tracker, endpoints.pod(pod(A).in_zone("zone-a")).pod(pod(B).in_zone("zone-b")));
    update(&mut tracker);
    tracker
}

fn weights(tracker: &Tracker) -> Vec<u16> {
    let entry = &tracker.table(IpFamily::V4).entries[&port_name("shop/web:http")];
    entry.endpoints.iter().map(|endpoint| endpoint.weight).collect()
}

fn shares(shares: &[(&str, u8)]) -> TrackerEvent {
    let share = |(address, sixteenths): &(&str, u8)| {
        (SocketAddr::new(address.parse().unwrap(), 8080), Share::new(*sixteenths).unwrap())
    };
    TrackerEvent::SharesApplied(Shares::from([(port_name("shop/web:http"), shares.iter().map(share).collect())]))
}

#[test]
fn endpoints_in_the_zone_of_the_node_have_more_weight() {
    let mut tracker = zoned(web().annotation(labels::ZONE_WEIGHT, "8"));
    assert_eq!(weights(&tracker), [8, 1]);
    tracker.apply(TrackerEvent::NodeApplied(NodeView { zone: Some("zone-b".to_owned()), ..node("node-1") }));
    assert_eq!(update(&mut tracker), ["~shop/web:http"]);
    assert_eq!(weights(&tracker), [1, 8]);
    tracker.apply(TrackerEvent::NodeApplied(node("node-1")));
    update(&mut tracker);
    assert_eq!(weights(&tracker), [1, 1], "the zone of the node is not known");
    assert_eq!(weights(&zoned(web())), [1, 1]);
}

#[test]
fn zones_multiply_the_weights_of_slices() {
    let mut tracker = zoned(web().annotation(labels::ZONE_WEIGHT, "8"));
    let weighted = slice("shop/web-a", "web").port("http", 8080).with(|slice| {
        slice.metadata.annotations.insert(labels::WEIGHT.to_owned(), format!("3 {B}=0"));
    });
    set_slice(&mut tracker, weighted.pod(pod(A).in_zone("zone-a")).pod(pod(B).in_zone("zone-a")));
    update(&mut tracker);
    assert_eq!(weights(&tracker), [24, 0]);
}

#[test]
fn shares_reduce_weights() {
    let mut tracker = zoned(web());
    for (given, expected) in [
        (&[(A, 2)][..], [1, 8]),
        (&[(A, 12)], [3, 4]),
        (&[(A, 4), (B, 8)], [1, 2]),
        (&[(A, 8), (B, 8)], [1, 1]),
        (&[("10.244.0.9", 1)], [1, 1]),
    ] {
        tracker.apply(shares(given));
        update(&mut tracker);
        assert_eq!(weights(&tracker), expected, "{given:?}");
    }
    tracker.apply(shares(&[(A, 4)]));
    update(&mut tracker);
    tracker.apply(TrackerEvent::SharesApplied(Shares::new()));
    assert_eq!(update(&mut tracker), ["~shop/web:http"]);
    assert_eq!(weights(&tracker), [1, 1]);
}

#[test]
fn shares_multiply_other_weights() {
    let mut tracker = zoned(web().annotation(labels::ZONE_WEIGHT, "8"));
    tracker.apply(shares(&[(A, 4)]));
    update(&mut tracker);
    assert_eq!(weights(&tracker), [2, 1]);
}

#[test]
fn equal_shares_change_nothing() {
    let mut tracker = zoned(web());
    tracker.apply(shares(&[(A, 8), (B, 8)]));
    assert!(update(&mut tracker).is_empty());
}
