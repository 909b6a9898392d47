//! What the proxy's rules in this network namespace have counted, whichever process writes them.

use std::num::NonZeroUsize;

use anyhow::bail;
use ferroute_core::IpFamily;
use super::Sample;
use ferroute_iptables::{
    HostExec, TableName,
    plan::chains,
    exec::{snapshot_rules, search_path},
};
use ferroute_nftables::{
    ConnectionReader,
    kernel::{Kernel, NetlinkError, NetlinkKernel},
    model::TableId,
    plan::{SetId, TABLE},
};

/// Where counters are.
pub(super) struct Counters {
    /// Our tables of nftables that count.
    nftables: Vec<ConnectionReader>,
    /// Families with a proxy's rules of `iptables`, which always count.
    iptables: Vec<IpFamily>,
}

impl Counters {
    /// Finds out what is there.
    pub(super) fn open() -> anyhow::Result<Self> {
        let mut counters = Self { nftables: Vec::new(), iptables: Vec::new() };
        let mut silent = false;
        for family in IpFamily::BOTH {
            match counts(family)? {
                Some(true) => counters.nftables.push(ConnectionReader::open(family, MOST_SERVICE_PORTS)?),
                Some(false) => silent = true,
                None => {}
            }
            let found = snapshot_rules(family, &HostExec, &search_path())?;
            if found.iter().any(|found| found.saved.rules.chain(TableName::Nat, chains::SERVICES).is_some()) {
                counters.iptables.push(family);
            }
        }
        if counters.nftables.is_empty() && counters.iptables.is_empty() {
            if silent {
                bail!(
                    "the rules in nftables mode do not count connections: run the proxy with \
                     --nftables-connection-counters COUNT"
                );
            }
            bail!("there are no rules of a service proxy here that count connections");
        }
        Ok(counters)
    }

    /// What was counted up to now.
    pub(super) fn read(&mut self) -> anyhow::Result<Sample> {
        let mut sample = Sample::default();
        for reader in &mut self.nftables {
            for (name, endpoint, connections) in reader.read()?.endpoints() {
                sample.add(name, endpoint, connections);
            }
        }
        for family in &self.iptables {
            for found in snapshot_rules(*family, &HostExec, &search_path())? {
                sample.add_iptables(&found.saved);
            }
        }
        Ok(sample)
    }
}

/// Whether our table counts; `None` if it is not there.
fn counts(family: IpFamily) -> Result<Option<bool>, NetlinkError> {
    let mut kernel = match NetlinkKernel::open() {
        Err(NetlinkError::NotSupported) => return Ok(None),
        kernel => kernel?,
    };
    let listing = kernel.list_table(&TableId { family, name: TABLE })?;
    let is_counting = |listing: ferroute_nftables::kernel::Listing| {
        let services = listing.sets.into_iter().find(|listed| listed.name == SetId::Services.name());
        services.and_then(|listed| listed.set).is_some_and(|set| set.counter)
    };
    Ok(listing.map(is_counting))
}

/// Service ports that are told apart: more than a terminal has lines, and more than large clusters have.
const MOST_SERVICE_PORTS: NonZeroUsize = NonZeroUsize::new(1 << 17).expect("this is not zero");
