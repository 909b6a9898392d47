//! The counters of a service proxy's rules in this network namespace.

use std::{
    num::NonZeroUsize,
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use ferroute_config::ModeName;
use ferroute_core::IpFamily;
use ferroute_iptables::{
    HostExec, TableName,
    exec::{RulesSnapshot, search_path, snapshot_rules},
    plan::chains,
};
use ferroute_ipvs::kernel::read_state;
use ferroute_nftables::{
    ConnectionReader,
    kernel::{Kernel, Listing, NetlinkError, NetlinkKernel},
    model::TableId,
    plan::{SetId, TABLE},
};
use ferroute_userspace::running_workers;

use super::{Sample, flow_counts::FlowCounts};
use crate::about::About;

/// The sources of counters.
pub struct Counters {
    /// Ferroute's nftables tables with counters.
    nftables: Vec<ConnectionReader>,
    /// The IP families with a proxy's `iptables` rules, which always have counters.
    iptables: Vec<IpFamily>,
    /// The IP families with virtual servers, which always have counters.
    ipvs: Vec<IpFamily>,
    /// Whether there are processes of userspace mode, which always count.
    userspace: bool,
    /// New connections since the start, where rules do not count.
    flows: Option<FlowCounts>,
    /// The endpoints in these rules, which may have no connections.
    uncounted: Vec<ConnectionReader>,
    /// The endpoints, and when they were read.
    endpoints: Option<(Instant, Sample)>,
}

impl Counters {
    /// Opens the sources of counters: only the rules of the running proxy, which do not include those of a previous
    /// mode, or the rules of all proxies if none runs.
    ///
    /// # Errors
    /// If there are none.
    pub fn open(about: &About) -> anyhow::Result<Self> {
        let counts = |mode: ModeName| about.mode.as_ref().is_none_or(|counted| counted.value == mode.as_str());
        let userspace = counts(ModeName::USERSPACE) && !running_workers()?.is_empty();
        let mut counters = Self {
            nftables: Vec::new(),
            iptables: Vec::new(),
            ipvs: Vec::new(),
            userspace,
            flows: None,
            uncounted: Vec::new(),
            endpoints: None,
        };
        let mut unread = Vec::new();
        for family in IpFamily::BOTH {
            match if counts(ModeName::NFTABLES) { has_counters(family)? } else { None } {
                Some(true) => counters.nftables.push(ConnectionReader::open(family, MAX_SERVICE_PORTS)?),
                Some(false) => counters.uncounted.push(ConnectionReader::open(family, MAX_SERVICE_PORTS)?),
                None => {}
            }
            let RulesSnapshot { backends, unread: reasons } = match counts(ModeName::IPTABLES) {
                true => snapshot_rules(family, &HostExec, &search_path())?,
                false => RulesSnapshot::default(),
            };
            unread.extend(reasons);
            if backends.iter().any(|backend| backend.saved.rules.chain(TableName::Nat, chains::SERVICES).is_some()) {
                counters.iptables.push(family);
            }
            if counts(ModeName::IPVS) && read_state(family)?.is_some() {
                counters.ipvs.push(family);
            }
        }
        let Self { nftables, iptables, ipvs, userspace, .. } = &counters;
        if nftables.is_empty() && iptables.is_empty() && ipvs.is_empty() && !userspace {
            if !counters.uncounted.is_empty() {
                let flows = FlowCounts::start().context(
                    "the nftables rules do not count connections, unless the proxy runs with \
                     --nftables-connection-counters COUNT, and they cannot be counted here",
                )?;
                return Ok(Self { flows: Some(flows), ..counters });
            }
            if !unread.is_empty() {
                bail!("found no rules of a service proxy that count connections, but: {}", unread.join("; "));
            }
            bail!("no rules of a service proxy in this network namespace count connections");
        }
        Ok(counters)
    }

    /// Returns a note for the user about the numbers; empty if there is none.
    pub fn note(&self) -> &'static str {
        if self.flows.is_some() { ", counted from flows" } else { "" }
    }

    /// Reads all counters.
    ///
    /// # Errors
    /// If the kernel's rules or a worker of userspace mode cannot be read.
    pub fn read(&mut self) -> anyhow::Result<Sample> {
        if let Some(flows) = &self.flows {
            let connections = flows.read()?;
            let mut sample = self.endpoints()?;
            sample.extend(&connections);
            return Ok(sample);
        }
        let mut sample = Sample::default();
        for reader in &mut self.nftables {
            for (name, endpoint, connections) in reader.read()?.endpoints() {
                sample.add(name, endpoint, connections);
            }
        }
        for family in &self.iptables {
            for backend in snapshot_rules(*family, &HostExec, &search_path())?.backends {
                sample.add_iptables(&backend.saved);
            }
        }
        for family in &self.ipvs {
            // ipvs has no service ports, so virtual servers take their place.
            for (key, server) in read_state(*family)?.into_iter().flat_map(|state| state.servers) {
                for real in server.real_servers {
                    sample.add(&key.to_string(), real.real.socket(), real.total_connections);
                }
            }
        }
        let workers = if self.userspace { running_workers()? } else { Vec::new() };
        for mut worker in workers {
            // A worker that has just ended has no counts.
            for listener in worker.listeners().unwrap_or_default() {
                for (endpoint, connections) in listener.endpoints.iter().zip(&listener.connections) {
                    sample.add(listener.service_port(), *endpoint, *connections);
                }
            }
        }
        Ok(sample)
    }

    /// Returns the endpoints in rules without counters, which are read from time to time.
    fn endpoints(&mut self) -> anyhow::Result<Sample> {
        if let Some((read, sample)) = &self.endpoints
            && read.elapsed() < ENDPOINTS_INTERVAL
        {
            return Ok(sample.clone());
        }
        let mut sample = Sample::default();
        for reader in &mut self.uncounted {
            for (name, endpoint, _) in reader.read()?.endpoints() {
                sample.add(name, endpoint, 0);
            }
        }
        self.endpoints = Some((Instant::now(), sample.clone()));
        Ok(sample)
    }
}

/// Reports whether Ferroute's nftables table has counters; `None` if there is no such table.
fn has_counters(family: IpFamily) -> Result<Option<bool>, NetlinkError> {
    let mut kernel = match NetlinkKernel::open() {
        Err(NetlinkError::NotSupported) => return Ok(None),
        kernel => kernel?,
    };
    let listing = kernel.list_table(&TableId { family, name: TABLE })?;
    let has_counters = |listing: Listing| {
        let services = listing.sets.into_iter().find(|listed| listed.name == SetId::Services.name());
        services.and_then(|listed| listed.set).is_some_and(|set| set.counter)
    };
    Ok(listing.map(has_counters))
}

/// The maximum number of service ports with separate counts, which is more than large clusters have.
const MAX_SERVICE_PORTS: NonZeroUsize = NonZeroUsize::new(1 << 17).expect("this is not zero");

/// The time for which the endpoints in rules without counters are assumed not to change: a large cluster has a million.
const ENDPOINTS_INTERVAL: Duration = Duration::from_secs(10);
