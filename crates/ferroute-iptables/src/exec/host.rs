//! The dataplane's access to the host, and the settings and host state that the planner receives from it.

use std::{
    fmt,
    time::{Duration, Instant},
};

use ferroute_core::{HostState, IpFamily, NfacctCounters, NodePortAddresses, ProxySettings, error_chain};
use ferroute_host::{
    AddressError, CounterError, Ensured, HostAddresses, KernelAddresses, KernelCounters, PacketCounters, Sysctls,
    processor_time,
};
use ferroute_netlink::TableShape;

use crate::TableName;

/// The interfaces to the host, besides its rules, that the dataplane uses.
pub struct HostAccess {
    /// The addresses of the host's interfaces.
    pub addresses: Box<dyn HostAddresses>,
    /// The nfacct counters; `None` if the kernel does not support them.
    pub counters: Option<Box<dyn PacketCounters>>,
    /// The sysctls.
    pub sysctls: Sysctls,
    /// Returns the shape of each of the proxy's tables in the legacy backend.
    pub legacy_shapes: Box<dyn Fn(IpFamily) -> LegacyShapes + Send>,
    /// The clock.
    pub now: Box<dyn Fn() -> Instant + Send>,
    /// Processor time of this process so far, including that of programs that it has run.
    pub processor_time: Box<dyn Fn() -> Duration + Send>,
}

/// The shapes of the proxy's tables in the legacy backend; `None` for a table that cannot be read.
pub type LegacyShapes = Vec<Option<TableShape>>;

/// Reads the shapes of the tables in the network namespace of the calling thread.
fn legacy_shapes(family: IpFamily) -> LegacyShapes {
    let read = |table: &TableName| {
        let shape = TableShape::read(family == IpFamily::V6, table.as_str());
        shape.inspect_err(|error| tracing::debug!(%error, %family, %table, "cannot read the size of the table")).ok()
    };
    TableName::PROXY.iter().map(read).collect()
}

/// A failure to open an interface to the host.
#[derive(Debug, thiserror::Error)]
pub enum HostAccessError {
    /// The addresses.
    #[error(transparent)]
    Addresses(#[from] AddressError),
    /// The nfacct counters.
    #[error(transparent)]
    Counters(#[from] CounterError),
}

impl HostAccess {
    /// Opens the interfaces to the calling thread's network namespace.
    ///
    /// # Errors
    /// If a netlink socket cannot be opened.
    pub fn open() -> Result<Self, HostAccessError> {
        let counters = KernelCounters::open()?.map(|counters| Box::new(counters) as Box<dyn PacketCounters>);
        Ok(Self {
            addresses: Box::new(KernelAddresses::open()?),
            counters,
            sysctls: Sysctls::from_kernel(),
            legacy_shapes: Box::new(legacy_shapes),
            now: Box::new(Instant::now),
            processor_time: Box::new(processor_time),
        })
    }
}

impl fmt::Debug for HostAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostAccess").field("sysctls", &self.sysctls).finish_non_exhaustive()
    }
}

/// The planner's inputs besides the service table: effective settings and host state.
#[derive(Debug)]
pub(super) struct Environment {
    /// The configured settings.
    configured: ProxySettings,
    /// The configured settings, reduced to what the host allows.
    pub(super) settings: ProxySettings,
    /// The last known state of the host.
    pub(super) host: HostState,
}

impl Environment {
    /// Creates an environment in which only one capability of the iptables programs is known.
    pub(super) fn new(configured: ProxySettings, random_fully: bool) -> Self {
        let settings = configured.clone();
        Self { configured, settings, host: HostState { random_fully, ..HostState::default() } }
    }

    /// Prepares the host and reads its whole state.
    pub(super) fn prepare(&mut self, family: IpFamily, access: &mut HostAccess) {
        self.settings = self.configured.clone();
        if self.configured.localhost_node_ports(family) {
            self.settings.localhost_node_ports = enable_route_localnet(&access.sysctls);
        }
        self.host.counters =
            access.counters.as_mut().map(|counters| ensure_counters(&mut **counters)).unwrap_or_default();
        // The sysctl does not exist before connection tracking is loaded, and its default is 0.
        self.host.conntrack_tcp_be_liberal = access.sysctls.read(TCP_BE_LIBERAL).is_ok_and(|value| value != "0");
        self.refresh_addresses(access);
    }

    /// Reads the host's addresses, which can change at any time and cost little to read.
    pub(super) fn refresh_addresses(&mut self, access: &mut HostAccess) {
        if self.configured.node_port_addresses != NodePortAddresses::All {
            access.addresses.refresh(&mut self.host.addresses);
        }
    }
}

/// Enables the sysctl that allows packets to 127.0.0.0/8 to be routed, which node ports on localhost need. Returns
/// false if this is not permitted; node ports then do not answer on localhost.
fn enable_route_localnet(sysctls: &Sysctls) -> bool {
    match sysctls.ensure(ROUTE_LOCALNET, "1") {
        Ok(Ensured::Unchanged) => true,
        Ok(Ensured::Changed { from }) => {
            tracing::info!(
                sysctl = ROUTE_LOCALNET,
                from,
                to = "1",
                "sysctl set for node ports on localhost; to keep its value, disable iptables.localhostNodePorts"
            );
            true
        }
        Err(error) => {
            warn(
                &error,
                "node ports do not answer on localhost; set the sysctl to 1, or disable iptables.localhostNodePorts",
            );
            false
        }
    }
}

/// Creates the nfacct counters. Rules may only name counters that exist.
fn ensure_counters(counters: &mut dyn PacketCounters) -> NfacctCounters {
    let mut ensure = |name| match counters.ensure(name) {
        Ok(()) => true,
        Err(error) => {
            warn(&error, "cannot create an nfacct counter; its packets are not counted");
            false
        }
    };
    NfacctCounters {
        invalid_dropped: ensure(NfacctCounters::INVALID_DROPPED),
        localhost_accepted: ensure(NfacctCounters::LOCALHOST_ACCEPTED),
    }
}

/// Logs a warning with an error and all its sources.
fn warn(error: &dyn std::error::Error, message: &str) {
    tracing::warn!(error = error_chain(error), "{message}");
}

const ROUTE_LOCALNET: &str = "net/ipv4/conf/all/route_localnet";
const TCP_BE_LIBERAL: &str = "net/netfilter/nf_conntrack_tcp_be_liberal";
