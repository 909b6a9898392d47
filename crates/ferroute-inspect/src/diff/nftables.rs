//! Reads frontends from nftables tables: lookups in the maps and sets of Ferroute's table, and in the maps of
//! kube-proxy's table, whose names are documented.

use std::collections::{BTreeMap, BTreeSet};

use ferroute_core::Frontend;
use ferroute_nftables::{
    ClassId, Value,
    kernel::MemoryTable,
    model::Name,
    plan::{List, ListNumber, SetId, frontend_from_key, frontend_key, frontend_map},
};
use ipnet::IpNet;

/// Returns the frontends in Ferroute's table, with the names of their service ports.
pub(super) fn frontends(table: &MemoryTable) -> BTreeMap<Frontend, Option<String>> {
    frontends_in(table, &[SetId::Services, SetId::NodePorts].map(SetId::name))
}

/// Returns the frontends in the table of kube-proxy's nftables mode, with the names of their service ports.
pub(super) fn kube_proxy_frontends(table: &MemoryTable) -> BTreeMap<Frontend, Option<String>> {
    frontends_in(table, &KUBE_PROXY_MAPS.map(Name::fixed))
}

fn frontends_in(table: &MemoryTable, sets: &[Name]) -> BTreeMap<Frontend, Option<String>> {
    let mut frontends = BTreeMap::new();
    for element in sets.iter().flat_map(|set| table.elements(set)) {
        let Some(frontend) = frontend_from_key(&element.key) else { continue };
        let comment = element.comment.as_ref().map(|comment| comment.as_str().to_owned());
        let name = frontends.entry(frontend).or_insert(None);
        *name = name.take().or(comment);
    }
    frontends
}

/// Returns the session affinity timeout of these frontends in seconds.
pub(super) fn affinity(table: &MemoryTable, frontends: &[Frontend]) -> Option<u32> {
    let numbers: BTreeSet<ListNumber> =
        frontends.iter().filter_map(|frontend| number(table, frontend_map(*frontend), *frontend)).collect();
    let timeouts = table.sets().filter_map(|set| match SetId::from_name(&set.name) {
        Some(SetId::Sticky(seconds)) => Some((seconds, &set.name)),
        _ => None,
    });
    let is_sticky = |set: &Name| {
        let mut lists = numbers.iter().flat_map(|number| List::ALL.map(|list| number.list(list)));
        lists.any(|list| table.find(set, &[list.into()].into_iter().collect()).is_some())
    };
    timeouts.filter(|(_, set)| is_sticky(set)).map(|(seconds, _)| seconds).max()
}

/// Returns the source ranges of these frontends.
pub(super) fn source_ranges(table: &MemoryTable, frontends: &[Frontend]) -> Vec<IpNet> {
    let lists: BTreeSet<ClassId> = frontends
        .iter()
        .filter_map(|frontend| number(table, SetId::Restricted, *frontend))
        .map(|number| number.list(List::Cluster))
        .collect();
    let sets = table.sets().filter_map(|set| match SetId::from_name(&set.name) {
        Some(SetId::SourceRanges(length)) => Some((length, &set.name)),
        _ => None,
    });
    let of_set = |(length, set): (u8, &Name)| -> Vec<IpNet> {
        let elements = table.elements(set).filter_map(|element| match element.key[..] {
            [Value::Address(address), Value::ClassId(list)] if lists.contains(&list) => {
                IpNet::new(address, length).ok()
            }
            _ => None,
        });
        elements.collect()
    };
    sets.flat_map(of_set).collect()
}

/// Returns the number of the service port to which a map leads from a frontend.
fn number(table: &MemoryTable, map: SetId, frontend: Frontend) -> Option<ListNumber> {
    let element = table.find(&map.name(), &frontend_key(frontend))?;
    ListNumber::from_class_id(element.data.as_ref()?.class_id()?).map(|(number, _)| number)
}

/// kube-proxy's maps and sets with keys of address, protocol and port, or of protocol and port.
const KUBE_PROXY_MAPS: [&str; 4] =
    ["service-ips", "service-nodeports", "no-endpoint-services", "no-endpoint-nodeports"];
