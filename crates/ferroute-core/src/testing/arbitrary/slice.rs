use ferroute_api::{EndpointConditions, EndpointHints, EndpointPort, EndpointSlice, HintRef, SliceEndpoint};
use proptest::{
    collection::vec,
    option,
    prelude::*,
    sample::{select, subsequence},
};

use super::{NAMES_PER_SLOT, NODE, PORTS, SLOTS, namespace, protocol, service::short_name};
use crate::{IpFamily, testing::slice};

pub(super) fn full_name(number: usize) -> String {
    format!("{}/slice-{number}", namespace(number))
}

/// Generates the slice with this number. Its Service in the namespace, family, ports and endpoints vary.
pub(super) fn numbered(number: usize) -> impl Strategy<Value = EndpointSlice> {
    let slots: Vec<usize> = (0..SLOTS).filter(|slot| namespace(*slot) == namespace(number)).collect();
    let owner = (select(slots), prop_oneof![3 => Just(0), 1 => 1..NAMES_PER_SLOT]);
    let family = select(IpFamily::BOTH.to_vec());
    (owner, family).prop_flat_map(move |((slot, name), family)| {
        (ports(slot), endpoints(family)).prop_map(move |(ports, endpoints)| {
            slice(&full_name(number), &short_name(slot, name))
                .with(|slice| {
                    slice.address_type = family.to_string();
                    slice.ports = ports;
                    slice.endpoints = endpoints;
                })
                .build()
        })
    })
}

/// Generates most of the port names of Services. Target ports differ between slices.
fn ports(slot: usize) -> impl Strategy<Value = Vec<EndpointPort>> {
    let named = |name: String, index: usize| {
        let target = select(vec![8080, 9000, 9001]);
        let port = prop_oneof![15 => target.prop_map(Some), 1 => Just(None)];
        let built = (protocol(slot, index), port).prop_map(move |(protocol, port)| EndpointPort {
            name: name.clone(),
            protocol: Some(protocol.as_str().to_uppercase()),
            port,
        });
        option::weighted(0.85, built)
    };
    let mut all = vec![named(String::new(), 0)];
    all.extend((0..PORTS).map(|index| named(format!("p{index}"), index)));
    all.prop_map(|ports| ports.into_iter().flatten().collect())
}

fn endpoints(family: IpFamily) -> impl Strategy<Value = Vec<SliceEndpoint>> {
    // Proxies ignore hints unless all endpoints have them.
    let hints = prop_oneof![
        3 => Just(HintsOn::None),
        2 => Just(HintsOn::All),
        1 => Just(HintsOn::Some),
    ];
    let pods = subsequence((0..PODS).collect::<Vec<_>>(), 0..=5);
    (pods, hints)
        .prop_flat_map(move |(pods, on)| pods.into_iter().map(|pod| endpoint(family, pod, on)).collect::<Vec<_>>())
}

#[derive(Clone, Copy, Debug)]
enum HintsOn {
    None,
    Some,
    All,
}

fn endpoint(family: IpFamily, pod: usize, on: HintsOn) -> impl Strategy<Value = SliceEndpoint> {
    let hints = match on {
        HintsOn::None => Just(None).boxed(),
        HintsOn::Some => option::of(hints()).boxed(),
        HintsOn::All => hints().prop_map(Some).boxed(),
    };
    (conditions(), hints).prop_map(move |(conditions, hints)| {
        let (address, node_name) = location(family, pod);
        let node_name = node_name.map(str::to_owned);
        SliceEndpoint { addresses: vec![address], conditions, node_name, hints, ..SliceEndpoint::default() }
    })
}

/// Returns the address and node of a pod. One pod uses the host network, and one has no node.
fn location(family: IpFamily, pod: usize) -> (String, Option<&'static str>) {
    if pod == 0 {
        return ([NODE_ADDRESS_V4, NODE_ADDRESS_V6][family.index()].to_owned(), Some(NODE));
    }
    let node = pod % 3;
    let address = match family {
        IpFamily::V4 => format!("10.244.{node}.{pod}"),
        IpFamily::V6 => format!("fd00:244:0:{node}::{pod}"),
    };
    (address, [Some(NODE), Some("node-2"), Some("node-3")][node].filter(|_| pod != PODS - 1))
}

fn conditions() -> impl Strategy<Value = EndpointConditions> {
    let case = |ready, serving, terminating| Just(EndpointConditions { ready, serving, terminating });
    let (yes, no) = (Some(true), Some(false));
    prop_oneof![
        3 => case(yes, yes, no),
        1 => case(None, None, None),
        1 => case(no, no, no),
        2 => case(no, yes, yes),
        1 => case(no, None, yes),
        1 => case(no, no, yes),
        // A Service with `publishNotReadyAddresses`.
        1 => case(yes, yes, yes),
        1 => case(yes, no, no),
    ]
}

fn hints() -> impl Strategy<Value = EndpointHints> {
    let names =
        |names: &[&'static str]| vec(select(names.to_vec()).prop_map(|name| HintRef { name: name.to_owned() }), 1..=2);
    let zones = prop_oneof![4 => names(&["zone-a", "zone-b"]), 1 => Just(vec![])];
    let nodes = prop_oneof![1 => names(&[NODE, "node-2"]), 1 => Just(vec![])];
    (zones, nodes).prop_map(|(for_zones, for_nodes)| EndpointHints { for_zones, for_nodes })
}

const PODS: usize = 12;
const NODE_ADDRESS_V4: &str = "192.168.0.1";
const NODE_ADDRESS_V6: &str = "fd00:168::1";
