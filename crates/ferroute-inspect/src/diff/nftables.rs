//! What Ferroute's own nftables table says about frontends. Everything is a look into its maps.

use std::collections::BTreeMap;

use ferroute_core::{Frontend, IpFamily};
use ferroute_nftables::{
    Value,
    kernel::MemoryTable,
    model::{Key, Name},
    plan::{SetId, frontend_from_key, frontend_key},
};
use ipnet::IpNet;

/// All frontends, with the names of their service ports.
pub(super) fn frontends(table: &MemoryTable) -> BTreeMap<Frontend, Option<String>> {
    const BY_FRONTEND: [SetId; 4] = [SetId::Services, SetId::LocalServices, SetId::Refused, SetId::Dropped];
    let mut all = BTreeMap::new();
    let sets = BY_FRONTEND.map(SetId::name);
    for element in sets.iter().flat_map(|set| table.elements(set)) {
        let Some(frontend) = frontend_from_key(&element.key) else { continue };
        let name = element.comment.as_ref().map(|comment| comment.as_str().to_owned());
        let known = all.entry(frontend).or_insert(None);
        *known = known.take().or(name);
    }
    all
}

/// Seconds for which clients of these frontends keep their endpoint.
pub(super) fn affinity(table: &MemoryTable, frontends: &[Frontend]) -> Option<u32> {
    let times = table.sets().filter_map(|set| match SetId::from_name(&set.name) {
        Some(SetId::Sticky(seconds)) => Some((seconds, &set.name)),
        _ => None,
    });
    let is_sticky = |set: &Name| frontends.iter().flat_map(keys).any(|key| table.find(set, &key).is_some());
    times.filter(|(_, set)| is_sticky(set)).map(|(seconds, _)| seconds).max()
}

/// Networks of sources that may use these frontends.
pub(super) fn source_ranges(table: &MemoryTable, frontends: &[Frontend]) -> Vec<IpNet> {
    let restricted =
        |frontend: &&Frontend| keys(frontend).any(|key| table.find(&SetId::Restricted.name(), &key).is_some());
    let restricted: Vec<Key> = frontends.iter().filter(restricted).flat_map(keys).collect();
    if restricted.is_empty() {
        return Vec::new();
    }
    let set = SetId::SourceRanges.name();
    let is_own = |key: &Key| restricted.iter().any(|frontend| key.starts_with(frontend));
    let own = table.elements(&set).filter(|element| is_own(&element.key));
    own.filter_map(|element| match element.key.last()? {
        Value::Network(net) => Some(*net),
        Value::Address(address) => Some(IpNet::from(*address)),
        _ => None,
    })
    .collect()
}

/// The keys that may stand for a frontend: a node port's is that of its family, which it does not tell.
fn keys(frontend: &Frontend) -> impl Iterator<Item = Key> + use<> {
    let families = match frontend.address {
        Some(address) => vec![IpFamily::of(address)],
        None => IpFamily::BOTH.into(),
    };
    let frontend = *frontend;
    families.into_iter().map(move |family| frontend_key(frontend, family).into_iter().collect())
}
