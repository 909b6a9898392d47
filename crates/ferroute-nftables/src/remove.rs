use std::collections::BTreeSet;

use ferroute_core::{Frontend, IpFamily, Protocol};

use crate::{
    kernel::{Consistency, ErrorKind, Kernel, KernelError, Listing},
    model::{Change, Name, TableId, Transaction},
    plan::{self, SetId, frontend_from_key},
};

/// A program with separate tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableOwner {
    /// Ferroute.
    Ferroute,
    /// kube-proxy in nftables mode.
    KubeProxy,
}

impl TableOwner {
    /// Both programs.
    pub const ALL: [Self; 2] = [Self::Ferroute, Self::KubeProxy];

    /// Returns the program's table of an IP family.
    pub fn table(self, family: IpFamily) -> TableId {
        let name = match self {
            Self::Ferroute => plan::TABLE,
            Self::KubeProxy => KUBE_PROXY,
        };
        TableId { family, name }
    }
}

/// Deletes a table with its contents. Reports whether it existed.
///
/// # Errors
///
/// The kernel refused the deletion.
pub fn delete_table<K: Kernel>(kernel: &mut K, table: TableId) -> Result<bool, K::Error> {
    match kernel.commit(&Transaction { table, changes: vec![Change::DeleteTable] }) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == Some(ErrorKind::NotFound) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Returns the UDP frontends of a table of any version of Ferroute or kube-proxy; none if it does not exist.
///
/// # Errors
///
/// The table cannot be read.
pub fn udp_frontends<K: Kernel>(kernel: &mut K, table: &TableId) -> Result<BTreeSet<Frontend>, K::Error> {
    match kernel.list_table(table)? {
        Some(listing) => listed_udp_frontends(kernel, table, &listing),
        None => Ok(BTreeSet::new()),
    }
}

/// Returns the UDP frontends of a table that has this listing.
pub(crate) fn listed_udp_frontends<K: Kernel>(
    kernel: &mut K,
    table: &TableId,
    listing: &Listing,
) -> Result<BTreeSet<Frontend>, K::Error> {
    let names = [SetId::Services.name(), SetId::NodePorts.name(), KUBE_PROXY_SERVICES, KUBE_PROXY_NODE_PORTS];
    let mut frontends = BTreeSet::new();
    let sets = listing.sets.iter().filter(|listed| names.contains(&listed.name));
    for set in sets.filter_map(|listed| listed.set.as_ref()) {
        // An interrupted dump may lack elements; the attempts add up.
        for _ in 0..MAX_ATTEMPTS {
            let consistency = kernel.dump_elements(table, set, &mut |element, _| {
                let frontend = element.and_then(|element| frontend_from_key(&element.key));
                let udp = frontend.filter(|frontend| frontend.protocol == Protocol::Udp);
                // Earlier layouts had node ports in the map of Services, with the unspecified address.
                let address = |frontend: &Frontend| frontend.address.filter(|address| !address.is_unspecified());
                frontends.extend(udp.map(|frontend| Frontend { address: address(&frontend), ..frontend }));
            })?;
            if consistency == Consistency::Consistent {
                break;
            }
        }
    }
    Ok(frontends)
}

const MAX_ATTEMPTS: usize = 5;

/// The maps of kube-proxy's table that are looked up by address, protocol and port, and by protocol and node port.
const KUBE_PROXY_SERVICES: Name = Name::fixed("service-ips");
const KUBE_PROXY_NODE_PORTS: Name = Name::fixed("service-nodeports");

/// The name of kube-proxy's tables, one per IP family, since its nftables mode was added in version 1.29.
const KUBE_PROXY: Name = Name::fixed("kube-proxy");
