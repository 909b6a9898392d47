use std::sync::Arc;

use ferroute_api::{EndpointConditions, EndpointPort, EndpointSlice, SliceEndpoint, labels};

use super::{
    super::{SliceSkipReason, parse_slice},
    assert_errors,
};
use crate::{
    Hints, IpFamily, Protocol,
    testing::{SliceBuilder, namespaced_name, pod, slice},
    tracker::{EndpointView, SlicePort, SliceView},
};

fn web() -> SliceBuilder {
    slice("shop/web-a", "web").port("http", 8080)
}

fn view(slice: SliceBuilder) -> SliceView {
    parse_slice(&slice.build(), "node-1").unwrap().unwrap()
}

/// Returns the only endpoint of a slice.
fn endpoint(pod: impl Into<crate::testing::PodBuilder>) -> EndpointView {
    let [endpoint] = <[EndpointView; 1]>::try_from(view(web().pod(pod)).endpoints).unwrap();
    endpoint
}

fn with_conditions(ready: Option<bool>, serving: Option<bool>, terminating: Option<bool>) -> (bool, bool, bool) {
    let slice = web().with(|slice| {
        let conditions = EndpointConditions { ready, serving, terminating };
        slice.endpoints =
            vec![SliceEndpoint { addresses: vec!["10.244.0.2".into()], conditions, ..SliceEndpoint::default() }];
    });
    let endpoint = &view(slice).endpoints[0];
    (endpoint.ready, endpoint.serving, endpoint.terminating)
}

fn parse_with(change: impl FnOnce(&mut EndpointSlice)) -> Result<Option<SliceView>, super::InvalidObject> {
    parse_slice(&web().pod("10.244.0.2").with(change).build(), "node-1")
}

#[test]
fn all_fields_are_parsed() {
    let parsed = view(
        web()
            .udp("dns", 5353)
            .pod(pod("10.244.0.2").on("node-1"))
            .pod(pod("10.244.1.2").on("node-2").in_zone("zone-b")),
    );
    let endpoint = |address: &str, local| EndpointView {
        address: address.parse().unwrap(),
        ready: true,
        serving: true,
        terminating: false,
        local,
        node_unknown: false,
        hints: None,
        weight: 1,
        zone: (!local).then(|| "zone-b".into()),
    };
    assert_eq!(
        parsed,
        SliceView {
            service: namespaced_name("shop/web"),
            name: namespaced_name("shop/web-a"),
            family: IpFamily::V4,
            ports: vec![
                SlicePort { name: "http".into(), protocol: Protocol::Tcp, port: 8080 },
                SlicePort { name: "dns".into(), protocol: Protocol::Udp, port: 5353 },
            ],
            endpoints: vec![endpoint("10.244.0.2", true), endpoint("10.244.1.2", false)],
            ignored: Box::default(),
        }
    );
}

#[test]
fn missing_conditions_mean_ready_serving_and_not_terminating() {
    assert_eq!(with_conditions(None, None, None), (true, true, false));
    assert_eq!(with_conditions(Some(false), None, None), (false, true, false));
    assert_eq!(with_conditions(Some(false), None, Some(true)), (false, true, true));
    assert_eq!(with_conditions(None, Some(false), Some(true)), (true, false, true));
    assert_eq!(with_conditions(Some(true), Some(true), Some(false)), (true, true, false));
    assert_eq!(with_conditions(Some(false), Some(false), Some(true)), (false, false, true));
}

#[test]
fn endpoint_is_local_if_it_has_the_name_of_this_node() {
    assert!(endpoint(pod("10.244.0.2").on("node-1")).local);
    assert!(!endpoint(pod("10.244.0.2").on("node-2")).local);
    for unknown in [pod("10.244.0.2").on(""), pod("10.244.0.2").without_node()] {
        let unknown = endpoint(unknown);
        assert!(!unknown.local && unknown.node_unknown);
    }
    assert!(!endpoint(pod("10.244.0.2").on("node-2")).node_unknown);
    let nameless = web().pod(pod("10.244.0.2").on(""));
    assert!(!parse_slice(&nameless.build(), "").unwrap().unwrap().endpoints[0].local);
}

#[test]
fn only_the_first_address_of_an_endpoint_is_used() {
    let slice = web().pod("10.244.0.2").with(|slice| slice.endpoints[0].addresses.push("nonsense".into()));
    assert_eq!(view(slice).endpoints.len(), 1);
}

#[test]
fn equal_hints_are_shared_and_empty_hints_are_none() {
    let parsed = view(
        web()
            .pod(pod("10.244.0.2").for_zone("a").for_zone("b").for_node("node-1"))
            .pod(pod("10.244.0.3").for_zone("a").for_zone("b").for_node("node-1"))
            .pod(pod("10.244.0.4").for_zone("a"))
            .pod("10.244.0.5")
            .pod("10.244.0.6")
            .with(|slice| slice.endpoints[4].hints = Some(Default::default())),
    );
    let hints: Vec<_> = parsed.endpoints.iter().map(|endpoint| endpoint.hints.clone()).collect();
    let both = Hints { zones: vec!["a".into(), "b".into()], nodes: vec!["node-1".into()] };
    assert_eq!(hints[0].as_deref(), Some(&both));
    assert!(Arc::ptr_eq(hints[0].as_ref().unwrap(), hints[1].as_ref().unwrap()));
    assert_eq!(hints[2].as_deref(), Some(&Hints { zones: vec!["a".into()], nodes: vec![] }));
    assert_eq!(hints[3..], [None, None]);
}

#[test]
fn slices_for_others_are_skipped() {
    for slice in [
        web().label(labels::HEADLESS, ""),
        web().label(labels::SERVICE_NAME, ""),
        web().with(|slice| slice.metadata.labels.clear()),
        web().with(|slice| slice.address_type = "FQDN".into()),
    ] {
        // Addresses are not validated.
        let slice = slice.with(|slice| {
            slice.endpoints = vec![SliceEndpoint { addresses: vec!["example.com".into()], ..SliceEndpoint::default() }];
        });
        assert_eq!(parse_slice(&slice.build(), "node-1"), Ok(None));
    }
}

#[test]
fn slices_are_used_whatever_proxy_their_label_names() {
    assert_eq!(view(web().label(labels::SERVICE_PROXY_NAME, "other")), view(web()));
}

#[test]
fn first_skip_reason_of_a_slice_is_returned() {
    let reason = |slice: SliceBuilder| SliceSkipReason::for_slice(&slice.build());
    assert_eq!(reason(web()), None);
    assert_eq!(reason(web().label(labels::HEADLESS, "")), Some(SliceSkipReason::HeadlessByLabel));
    assert_eq!(reason(web().with(|slice| slice.metadata.labels.clear())), Some(SliceSkipReason::NoService));
    assert_eq!(reason(web().with(|slice| slice.address_type = "FQDN".into())), Some(SliceSkipReason::HostNames));
}

#[test]
fn ports_without_number_are_ignored() {
    let all = EndpointPort { name: "all".into(), protocol: None, port: None };
    let zero = EndpointPort { name: "zero".into(), protocol: None, port: Some(0) };
    let parsed = view(web().with(|slice| slice.ports.extend([all, zero])));
    assert_eq!(parsed.ports, [SlicePort { name: "http".into(), protocol: Protocol::Tcp, port: 8080 }]);
}

#[test]
fn errors_name_the_invalid_field() {
    assert_errors(
        parse_with(|slice| slice.address_type = "IPX".into()),
        &[("addressType", "\"IPX\" (want IPv4, IPv6")],
    );
    assert_errors(parse_with(|slice| slice.address_type.clear()), &[("addressType", "unsupported value \"\"")]);
    assert_errors(parse_with(|slice| slice.ports[0].port = Some(70_000)), &[("ports[0].port", "invalid port 70000")]);
    assert_errors(parse_with(|slice| slice.ports[0].port = Some(-1)), &[("ports[0].port", "invalid port -1")]);
    assert_errors(
        parse_with(|slice| slice.ports[0].protocol = Some("ICMP".into())),
        &[("ports[0].protocol", "unsupported protocol \"ICMP\"")],
    );
    assert_errors(
        parse_with(|slice| slice.endpoints[0].addresses.clear()),
        &[("endpoints[0].addresses", "at least one address is required")],
    );
    assert_errors(
        parse_with(|slice| slice.endpoints[0].addresses[0] = "x".into()),
        &[("endpoints[0].addresses[0]", "invalid IP address \"x\"")],
    );
}

#[test]
fn address_of_the_other_family_is_rejected() {
    let both = |address_type: &str| {
        let slice = web().pod("10.244.0.2").pod("fd00::2").with(|slice| slice.address_type = address_type.into());
        parse_slice(&slice.build(), "node-1")
    };
    assert_errors(both("IPv4"), &[("endpoints[1].addresses[0]", "fd00::2 is not an IPv4 address")]);
    assert_errors(both("IPv6"), &[("endpoints[0].addresses[0]", "10.244.0.2 is not an IPv6 address")]);
}

#[test]
fn all_errors_are_returned_at_once() {
    let result = parse_with(|slice| {
        slice.ports[0].port = Some(-1);
        slice.ports[0].protocol = Some("x".into());
        slice.endpoints[0].addresses.clear();
        slice.endpoints.push(SliceEndpoint { addresses: vec!["y".into()], ..SliceEndpoint::default() });
    });
    assert_errors(
        result,
        &[
            ("ports[0].port", ""),
            ("ports[0].protocol", ""),
            ("endpoints[0].addresses", ""),
            ("endpoints[1].addresses[0]", ""),
        ],
    );
}

#[test]
fn endpoints_with_special_addresses_are_ignored() {
    let slice = web().pod("127.0.0.1").pod("10.244.0.2").pod("0.0.0.0").pod("169.254.169.254").pod("224.0.0.1");
    let view = view(slice);
    let ignored: Vec<String> = view.ignored.iter().map(ToString::to_string).collect();
    assert_eq!(
        ignored,
        [
            "endpoints[0].addresses[0]: 127.0.0.1 is a loopback address",
            "endpoints[2].addresses[0]: 0.0.0.0 is the unspecified address",
            "endpoints[3].addresses[0]: 169.254.169.254 is a link-local address",
            "endpoints[4].addresses[0]: 224.0.0.1 is a multicast address",
        ]
    );
    let [endpoint] = &view.endpoints[..] else { panic!("{view:?}") };
    assert_eq!(endpoint.address.to_string(), "10.244.0.2");
}

#[test]
fn weights_are_of_all_endpoints_or_of_single_ones() {
    let weights = |annotations: &[(&str, &str)]| {
        let slice = web().pod("10.244.0.2").pod("10.244.0.3").with(|slice| {
            let annotations = annotations.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
            slice.metadata.annotations = annotations.collect();
        });
        let view = view(slice);
        (view.endpoints.iter().map(|endpoint| endpoint.weight).collect::<Vec<_>>(), view.ignored.len())
    };
    const OWN: &str = labels::WEIGHT;
    assert_eq!(weights(&[]), (vec![1, 1], 0));
    assert_eq!(weights(&[(OWN, "7")]), (vec![7, 7], 0));
    assert_eq!(weights(&[(OWN, "2, 10.244.0.3=0")]), (vec![2, 0], 0));
    assert_eq!(weights(&[(OWN, "10.244.0.3=256 10.244.9.9=4")]), (vec![1, 256], 0));
    assert_eq!(weights(&[(OWN, "10.244.0.3=256\t4\r\n")]), (vec![4, 256], 0));
    assert_eq!(weights(&[(labels::CILIUM_WEIGHT, "3")]), (vec![3, 3], 0));
    assert_eq!(weights(&[(labels::CILIUM_WEIGHT, "3"), (OWN, "2")]), (vec![2, 2], 0));
    assert_eq!(weights(&[("ferroute.io/weigth", "7")]), (vec![1, 1], 1));
    assert_eq!(weights(&[(labels::ZONE_WEIGHT, "7")]), (vec![1, 1], 1));
    for invalid in ["heavy", "257", "-1", "10.244.0.2=", "10.244.0.999=1", "2 3", "10.244.0.2=2 10.244.0.2=3"] {
        assert_eq!(weights(&[(OWN, invalid), (labels::CILIUM_WEIGHT, "3")]), (vec![1, 1], 1), "{invalid}");
    }
}
