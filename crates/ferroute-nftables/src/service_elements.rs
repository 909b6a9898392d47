//! Reading the elements of one service port, at a cost that does not depend on the others.

use ferroute_core::{ServicePortEntry, ServicePortName};

use crate::{
    kernel::{Consistency, Counter, Kernel},
    model::{Element, Key, Name, Set, TableId, Value},
    plan::{ExistingLists, KeyOwner, Kind, List, RefusalKind, SetId, frontend_key},
};

/// An element with the name of its set, and its counter if it has one.
pub type CountedElement = (Name, Element, Option<Counter>);

/// Reads the elements that a service port may have in a table of nftables mode, in the order of sets and keys. They include those of
/// other service ports that have the same addresses.
///
/// Elements are read by their keys, which are derived from the addresses of the service port and from the elements that
/// these lead to. Source ranges and clients with session affinity or limits are listed, if the service port has any.
///
/// # Errors
/// If the kernel returns an error. A table that does not exist has no elements.
pub fn service_port_elements<K: Kernel>(
    kernel: &mut K,
    table: &TableId,
    name: &ServicePortName,
    entry: &ServicePortEntry,
) -> Result<Vec<CountedElement>, K::Error> {
    let mut attempts = 0;
    loop {
        attempts += 1;
        let before = kernel.generation()?;
        let elements = read(kernel, table, name, entry)?;
        if attempts == MAX_ATTEMPTS || kernel.generation()? == before {
            return Ok(elements);
        }
    }
}

fn read<K: Kernel>(
    kernel: &mut K,
    table: &TableId,
    name: &ServicePortName,
    entry: &ServicePortEntry,
) -> Result<Vec<CountedElement>, K::Error> {
    let Some(listing) = kernel.list_table(table)? else { return Ok(Vec::new()) };
    let sets = listing.sets.into_iter().filter_map(|listed| Some((SetId::from_name(&listed.name)?, listed.set?)));
    let mut sets: Vec<(SetId, Set)> = sets.collect();
    sets.sort_by_key(|(id, _)| rank(*id));
    let mut lists = ExistingLists::default();
    let mut found = Vec::new();
    for (id, set) in sets {
        let is_listed = match id {
            SetId::SourceRanges(_) => !entry.service.load_balancer_source_ranges.is_empty(),
            SetId::Affinity => entry.service.affinity.is_some(),
            SetId::ClientRates(_) | SetId::ClientConnections(_) => entry.service.limits.is_some(),
            _ => false,
        };
        let keys = if is_listed { Vec::new() } else { keys(id, name, entry, &lists) };
        let mut on_element = |element: Option<Element>, counter| {
            if let Some(element) = element {
                lists.insert(id, element.clone());
                found.push((set.name.clone(), element, counter));
            }
        };
        if is_listed {
            // The generation shows whether the list is complete.
            let (Consistency::Consistent | Consistency::Interrupted) =
                kernel.dump_elements(table, &set, &mut on_element)?;
        } else {
            kernel.get_elements(table, &set, &mut keys.into_iter(), &mut on_element)?;
        }
    }
    found.sort_by(|(set, element, _), (other_set, other, _)| (set, &element.key).cmp(&(other_set, &other.key)));
    Ok(found)
}

/// Returns the position of a set in the order of reading: the keys of later sets are derived from the elements of
/// earlier ones.
fn rank(id: SetId) -> u8 {
    match id {
        _ if id.key_owner() == KeyOwner::Frontend => 0,
        SetId::Lists => 2,
        SetId::Slots => 3,
        SetId::Endpoints(_) => 4,
        _ => 1,
    }
}

/// Returns the possible keys of the service port in a set. `lists` are the elements of the sets before it.
fn keys(id: SetId, name: &ServicePortName, entry: &ServicePortEntry, lists: &ExistingLists) -> Vec<Key> {
    let service = &entry.service;
    let frontends = |with_address: bool| -> Vec<Key> {
        let frontends = service.frontends(name.protocol).map(|(_, frontend)| frontend);
        frontends.filter(|frontend| frontend.address.is_some() == with_address).map(frontend_key).collect()
    };
    let key = |values: &[Value]| values.iter().copied().collect::<Key>();
    match id {
        SetId::Services | SetId::Restricted | SetId::FlowServices => frontends(true),
        SetId::NodePorts | SetId::RestrictedNodePorts | SetId::FlowNodePorts => frontends(false),
        SetId::ClusterIps => service.cluster_ip.into_iter().map(|address| key(&[address.into()])).collect(),
        SetId::Hairpin => {
            let hairpin = entry.endpoints.iter().map(|endpoint| {
                let address = endpoint.address.into();
                key(&[address, address, Value::protocol(name.protocol), Value::Port(endpoint.port)])
            });
            hairpin.collect()
        }
        SetId::Lists | SetId::Slots | SetId::Endpoints(_) => {
            lists.service_ports().into_iter().flat_map(|port| lists.keys(id, port)).collect()
        }
        SetId::Limited => {
            let lists =
                lists.service_ports().into_iter().flat_map(|(number, _)| List::ALL.map(|list| number.list(list)));
            lists.flat_map(|list| Kind::ALL.map(|kind| key(&[kind.limited_request(list).into()]))).collect()
        }
        SetId::Refusals => {
            let numbers = lists.service_ports().into_iter().map(|(number, _)| number.list(List::Cluster));
            numbers.flat_map(|list| RefusalKind::ALL.map(|kind| key(&[kind.key(list).into()]))).collect()
        }
        SetId::Sticky(_)
        | SetId::NewClients { .. }
        | SetId::ClientRateLists(_)
        | SetId::ClientConnectionLists(_)
        | SetId::Rates(_)
        | SetId::Connections(_) => {
            let numbers = lists.service_ports().into_iter().map(|(number, _)| number);
            numbers.flat_map(|number| List::ALL.map(|list| key(&[number.list(list).into()]))).collect()
        }
        SetId::Affinity
        | SetId::ClientRates(_)
        | SetId::ClientConnections(_)
        | SetId::SourceRanges(_)
        | SetId::Dispatch
        | SetId::LocalDispatch
        | SetId::NodePortAddresses => Vec::new(),
    }
}

/// The number of attempts after which elements are returned although the ruleset changed while they were read.
const MAX_ATTEMPTS: u32 = 4;
