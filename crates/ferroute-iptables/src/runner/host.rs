//! What the dataplane needs of the host besides its rules, and what follows for them.

use std::{fmt, time::Instant};

use ferroute_core::{IpFamily, NodePortAddresses, ProxySettings};
use ferroute_host::{
    AddressError, CounterError, Ensured, HostAddresses, KernelAddresses, KernelCounters, PacketCounters, Sysctls,
};

use crate::{HostFacts, NfacctCounters};

/// The seams to the host.
pub struct Host {
    /// Tells the addresses of its interfaces.
    pub addresses: Box<dyn HostAddresses>,
    /// Its packet counters; `None` where the kernel has none.
    pub counters: Option<Box<dyn PacketCounters>>,
    /// Its sysctls.
    pub sysctls: Sysctls,
    /// Its clock.
    pub now: Box<dyn Fn() -> Instant + Send>,
}

/// A seam to the host cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// Addresses.
    #[error(transparent)]
    Addresses(#[from] AddressError),
    /// Counters.
    #[error(transparent)]
    Counters(#[from] CounterError),
}

impl Host {
    /// That of the calling thread's network namespace.
    ///
    /// # Errors
    /// When the kernel cannot be asked at all.
    pub fn of_kernel() -> Result<Self, HostError> {
        let counters = KernelCounters::open()?.map(|counters| Box::new(counters) as Box<dyn PacketCounters>);
        Ok(Self {
            addresses: Box::new(KernelAddresses::open()?),
            counters,
            sysctls: Sysctls::of_kernel(),
            now: Box::new(Instant::now),
        })
    }
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Host").field("sysctls", &self.sysctls).finish_non_exhaustive()
    }
}

/// The operator's settings together with what the host makes of them.
#[derive(Debug)]
pub(super) struct Surroundings {
    /// What the operator wants.
    wanted: ProxySettings,
    /// What the host lets us have of it.
    pub(super) settings: ProxySettings,
    /// What was found out last.
    pub(super) facts: HostFacts,
}

impl Surroundings {
    /// Nothing is known of the host yet, but whether its tools know `--random-fully`.
    pub(super) fn new(wanted: ProxySettings, random_fully: bool) -> Self {
        let settings = wanted.clone();
        Self { wanted, settings, facts: HostFacts { random_fully, ..HostFacts::default() } }
    }

    /// Prepares the host and looks at everything.
    pub(super) fn prepare(&mut self, family: IpFamily, host: &mut Host) {
        self.settings = self.wanted.clone();
        if self.wanted.localhost_node_ports(family) {
            self.settings.localhost_node_ports = route_localnet(&host.sysctls);
        }
        self.facts.counters =
            host.counters.as_mut().map(|counters| ensure_counters(&mut **counters)).unwrap_or_default();
        // Not there: connection tracking is not loaded yet, and begins strict.
        self.facts.conntrack_tcp_be_liberal = host.sysctls.read(TCP_BE_LIBERAL).is_ok_and(|value| value != "0");
        self.look_at_addresses(host);
    }

    /// Looks at what can change at any time and costs little.
    pub(super) fn look_at_addresses(&mut self, host: &mut Host) {
        if self.wanted.node_port_addresses == NodePortAddresses::All {
            return;
        }
        match host.addresses.list() {
            Ok(addresses) => self.facts.addresses = addresses,
            // Rules without node ports would be worse than such for addresses of a moment ago.
            Err(error) => warn(&error, "cannot see the host's addresses; node ports stay on those known before"),
        }
    }
}

/// Lets packets to 127.0.0.0/8 be routed, which node ports on localhost need. Where that is not allowed, everything else
/// shall still work, so node ports then go without localhost.
fn route_localnet(sysctls: &Sysctls) -> bool {
    match sysctls.ensure(ROUTE_LOCALNET, "1") {
        Ok(Ensured::AsBefore) => true,
        Ok(Ensured::Changed { from }) => {
            tracing::info!(
                sysctl = ROUTE_LOCALNET,
                from,
                to = "1",
                "set for node ports on localhost; to leave it alone, turn off iptables.localhostNodePorts"
            );
            true
        }
        Err(error) => {
            warn(
                &error,
                "node ports do not answer on localhost, all else works; set the sysctl to 1 beforehand, or turn off iptables.localhostNodePorts",
            );
            false
        }
    }
}

/// Rules may only name counters that are there.
fn ensure_counters(counters: &mut dyn PacketCounters) -> NfacctCounters {
    let mut ensure = |name| match counters.ensure(name) {
        Ok(()) => true,
        Err(error) => {
            warn(&error, "packets are not counted");
            false
        }
    };
    NfacctCounters {
        invalid_dropped: ensure(NfacctCounters::INVALID_DROPPED),
        localhost_accepted: ensure(NfacctCounters::LOCALHOST_ACCEPTED),
    }
}

/// Warns with an error and all its sources.
fn warn(error: &dyn std::error::Error, consequence: &str) {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        text.push_str(": ");
        text.push_str(&source.to_string());
        next = source.source();
    }
    tracing::warn!(error = text, "{consequence}");
}

const ROUTE_LOCALNET: &str = "net/ipv4/conf/all/route_localnet";
const TCP_BE_LIBERAL: &str = "net/netfilter/nf_conntrack_tcp_be_liberal";
