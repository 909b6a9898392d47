//! What nftables tables contain about frontends: lookups in the maps and sets of Ferroute's table, and in the maps of
//! kube-proxy's table, whose names are documented.

use std::collections::BTreeMap;

use ferroute_core::{Frontend, IpFamily, Protocol};
use ferroute_nftables::{
    Value,
    kernel::MemoryTable,
    model::{Element, Key, Name},
    plan::{SetId, frontend_from_key, frontend_key},
};
use ipnet::IpNet;

/// Returns the frontends in Ferroute's table, with the names of their service ports.
pub(super) fn frontends(table: &MemoryTable) -> BTreeMap<Frontend, Option<String>> {
    const BY_FRONTEND: [SetId; 4] = [SetId::Services, SetId::LocalServices, SetId::Refused, SetId::Dropped];
    frontends_in(table, &BY_FRONTEND.map(SetId::name))
}

/// Returns the frontends in the table of kube-proxy's nftables mode, with the names of their service ports.
pub(super) fn kube_proxy_frontends(table: &MemoryTable) -> BTreeMap<Frontend, Option<String>> {
    frontends_in(table, &KUBE_PROXY_MAPS.map(Name::fixed))
}

fn frontends_in(table: &MemoryTable, sets: &[Name]) -> BTreeMap<Frontend, Option<String>> {
    let mut frontends = BTreeMap::new();
    for element in sets.iter().flat_map(|set| table.elements(set)) {
        let Some(frontend) = frontend_from_key(&element.key).or_else(|| kube_proxy_node_port(element)) else {
            continue;
        };
        let comment = element.comment.as_ref().map(|comment| comment.as_str().to_owned());
        let name = frontends.entry(frontend).or_insert(None);
        *name = name.take().or(comment);
    }
    frontends
}

/// Returns the node port of an element whose key is only a protocol and a port.
fn kube_proxy_node_port(element: &Element) -> Option<Frontend> {
    let &[Value::Protocol(number), Value::Port(port)] = element.key.as_slice() else { return None };
    let protocol = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp].into_iter().find(|it| it.number() == number)?;
    Some(Frontend { address: None, protocol, port })
}

/// Returns the session affinity timeout of these frontends in seconds.
pub(super) fn affinity(table: &MemoryTable, frontends: &[Frontend]) -> Option<u32> {
    let timeouts = table.sets().filter_map(|set| match SetId::from_name(&set.name) {
        Some(SetId::Sticky(seconds)) => Some((seconds, &set.name)),
        _ => None,
    });
    let is_sticky = |set: &Name| frontends.iter().flat_map(keys).any(|key| table.find(set, &key).is_some());
    timeouts.filter(|(_, set)| is_sticky(set)).map(|(seconds, _)| seconds).max()
}

/// Returns the source ranges of these frontends.
pub(super) fn source_ranges(table: &MemoryTable, frontends: &[Frontend]) -> Vec<IpNet> {
    let restricted =
        |frontend: &&Frontend| keys(frontend).any(|key| table.find(&SetId::Restricted.name(), &key).is_some());
    let restricted: Vec<Key> = frontends.iter().filter(restricted).flat_map(keys).collect();
    if restricted.is_empty() {
        return Vec::new();
    }
    let set = SetId::SourceRanges.name();
    let is_selected = |key: &Key| restricted.iter().any(|frontend| key.starts_with(frontend));
    let selected = table.elements(&set).filter(|element| is_selected(&element.key));
    selected
        .filter_map(|element| match element.key.last()? {
            Value::Network(net) => Some(*net),
            Value::Address(address) => Some(IpNet::from(*address)),
            _ => None,
        })
        .collect()
}

/// Returns the keys that may stand for a frontend: one per IP family for a node port, whose family is not known.
fn keys(frontend: &Frontend) -> impl Iterator<Item = Key> + use<> {
    let families = match frontend.address {
        Some(address) => vec![IpFamily::of(address)],
        None => IpFamily::BOTH.into(),
    };
    let frontend = *frontend;
    families.into_iter().map(move |family| frontend_key(frontend, family).into_iter().collect())
}

/// kube-proxy's maps and sets with keys of address, protocol and port, or of protocol and port.
const KUBE_PROXY_MAPS: [&str; 4] =
    ["service-ips", "service-nodeports", "no-endpoint-services", "no-endpoint-nodeports"];
