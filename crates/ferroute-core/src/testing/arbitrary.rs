//! Strategies for clusters and for edits of them.
//!
//! All fields that a proxy reads vary independently: types, both traffic policies, affinity, source ranges, load balancers
//! of both `ipMode`s, health check node ports, one or two families, Services that the proxy skips, several slices per
//! Service, endpoints in several slices with different conditions or ports, missing conditions, zone and node hints on
//! all or some endpoints, TCP, UDP and SCTP.
//!
//! The guarantees of an API server hold after every edit: names are unique, and no two ports have the same frontend.
//! For this, each Service has one of a few *slots*, which determine its addresses and node ports. Each slot has two
//! names, so that one Service can take over the addresses of another. Services may share port numbers, node port
//! numbers with different protocols, pods, and one external IP with different ports.
//!
//! [`contested_service`] and [`contested_cluster`] are the opposite: all Services claim the same few addresses.
//! [`adversarial_cluster`] has the most unusual values that the API server accepts.
//!
//! The address of an endpoint determines its node. The proxy's node is always called [`NODE`].

mod adversarial;
mod contested;
mod service;
mod settings;
mod slice;

use std::ops::Range;

use ferroute_api::{EndpointSlice, Node, NodeAddress, Service, Taint, labels};
use proptest::{collection::vec, option, prelude::*, sample::select};

pub use self::{
    adversarial::adversarial_cluster,
    contested::{CONTESTED, CONTESTED_ADDRESSES, contested_cluster, contested_name, contested_service},
    settings::{no_masquerade_cidrs, settings},
};
use super::{Cluster, Edit, namespaced_name};
use crate::Protocol;

/// Name of the proxy's node in every generated cluster.
pub const NODE: &str = "node-1";

/// Generates any Service.
pub fn service() -> impl Strategy<Value = Service> {
    (0..SLOTS, 0..NAMES_PER_SLOT).prop_flat_map(|(slot, name)| service::in_slot(slot, name))
}

/// Generates any slice of any Service.
pub fn slice() -> impl Strategy<Value = EndpointSlice> {
    (0..SLICES).prop_flat_map(slice::numbered)
}

/// Generates the proxy's node with varying labels, taints and addresses.
pub fn node() -> impl Strategy<Value = Node> {
    let zone = option::of(select(vec!["zone-a", "zone-b", "zone-z"]));
    (zone, any::<bool>(), any::<bool>()).prop_map(|(zone, external, to_be_deleted)| {
        let mut node = Cluster::new(NODE).node;
        if let Some(zone) = zone {
            node.metadata.labels.insert(labels::ZONE.to_owned(), zone.to_owned());
        }
        if external {
            let address = NodeAddress { type_: "ExternalIP".to_owned(), address: "203.0.113.200".to_owned() };
            node.status.addresses.push(address);
        }
        if to_be_deleted {
            node.spec.taints.push(Taint { key: labels::TO_BE_DELETED_TAINT.to_owned() });
        }
        node.spec.pod_cidrs = ["10.244.0.0/24", "fd00:244::/64"].map(str::to_owned).into();
        node
    })
}

/// Generates any cluster, of up to six Services and ten slices.
pub fn cluster() -> impl Strategy<Value = Cluster> {
    let services = (0..SLOTS).map(|slot| {
        let named = (0..NAMES_PER_SLOT).prop_flat_map(move |name| service::in_slot(slot, name));
        option::weighted(0.7, named)
    });
    let slices = (0..SLICES).map(|number| option::weighted(0.7, slice::numbered(number)));
    (node(), services.collect::<Vec<_>>(), slices.collect::<Vec<_>>()).prop_map(|(node, services, slices)| Cluster {
        node,
        services: services.into_iter().flatten().collect(),
        slices: slices.into_iter().flatten().collect(),
    })
}

/// Generates any cluster, some of whose slices exclude endpoints from new connections by their weights.
pub fn drained_cluster() -> impl Strategy<Value = Cluster> {
    let weights = || select(vec![None, Some("0"), Some("10.244.0.3=0 fd00:244:0:0::3=0"), Some("7 10.244.1.1=0")]);
    (cluster(), vec(weights(), SLICES)).prop_map(|(mut cluster, weights)| {
        for (slice, weights) in cluster.slices.iter_mut().zip(weights) {
            slice.metadata.annotations.extend(weights.map(|text| (labels::WEIGHT.to_owned(), text.to_owned())));
        }
        cluster
    })
}

/// Generates a sequence of edits, valid for any generated cluster, including one that was edited before. `steps` is
/// their number; a step that concerns two Services is two edits.
pub fn edits(steps: Range<usize>) -> impl Strategy<Value = Vec<Edit>> {
    vec(step(), steps).prop_map(|steps| steps.into_iter().flatten().collect())
}

fn step() -> impl Strategy<Value = Vec<Edit>> {
    let set_service = (0..SLOTS, 0..NAMES_PER_SLOT).prop_flat_map(|(slot, name)| {
        service::in_slot(slot, name).prop_map(move |service| {
            // The addresses of the slot are available only without its other Services.
            let others = (0..NAMES_PER_SLOT).filter(|other| *other != name);
            let removals = others.map(|other| Edit::RemoveService(namespaced_name(&service::full_name(slot, other))));
            removals.chain([Edit::SetService(Box::new(service))]).collect()
        })
    });
    let remove_service = (0..SLOTS, 0..NAMES_PER_SLOT)
        .prop_map(|(slot, name)| vec![Edit::RemoveService(namespaced_name(&service::full_name(slot, name)))]);
    let set_slice = slice().prop_map(|slice| vec![Edit::SetSlice(slice)]);
    let remove_slice =
        (0..SLICES).prop_map(|number| vec![Edit::RemoveSlice(namespaced_name(&slice::full_name(number)))]);
    let set_node = node().prop_map(|node| vec![Edit::SetNode(node)]);
    prop_oneof![4 => set_service, 1 => remove_service, 5 => set_slice, 1 => remove_slice, 1 => set_node]
}

/// Generates the protocol of a port: mostly the same for Services and slices, sometimes another.
fn protocol(slot: usize, port: usize) -> impl Strategy<Value = Protocol> {
    let all = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp];
    prop_oneof![6 => Just(all[(slot + port) % all.len()]), 1 => select(all.to_vec())]
}

/// Services and slices of the same parity share a namespace.
fn namespace(number: usize) -> &'static str {
    ["even", "odd"][number % 2]
}

const SLOTS: usize = 6;
const NAMES_PER_SLOT: usize = 2;
const SLICES: usize = 10;
const PORTS: usize = 3;
