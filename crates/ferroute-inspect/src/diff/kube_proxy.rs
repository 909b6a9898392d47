//! What the table of kube-proxy's nftables mode says about frontends. Chains and sets per Service are walked like anybody's;
//! here are only the maps that lead there, whose names kube-proxy's documentation of that mode tells.

use std::collections::BTreeMap;

use ferroute_core::{Frontend, Protocol};
use ferroute_nftables::{
    Value,
    kernel::MemoryTable,
    model::{Element, Name},
    plan::frontend_from_key,
};

/// All frontends, with the names of their service ports.
pub(super) fn frontends(table: &MemoryTable) -> BTreeMap<Frontend, Option<String>> {
    let sets = MAPS.map(Name::fixed);
    let mut all = BTreeMap::new();
    for element in sets.iter().flat_map(|set| table.elements(set)) {
        let Some(frontend) = frontend_from_key(&element.key).or_else(|| node_port(element)) else { continue };
        let name = element.comment.as_ref().map(|comment| comment.as_str().to_owned());
        let known = all.entry(frontend).or_insert(None);
        *known = known.take().or(name);
    }
    all
}

fn node_port(element: &Element) -> Option<Frontend> {
    let &[Value::Protocol(number), Value::Port(port)] = element.key.as_slice() else { return None };
    let protocol = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp].into_iter().find(|it| it.number() == number)?;
    Some(Frontend { address: None, protocol, port })
}

/// By address, protocol and port, or by protocol and port.
const MAPS: [&str; 4] = ["service-ips", "service-nodeports", "no-endpoint-services", "no-endpoint-nodeports"];
