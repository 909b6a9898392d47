//! userspace mode in the registry.

mod leftovers;
mod planned;

use std::{
    collections::{BTreeMap, HashSet},
    ffi::OsString,
    io,
    net::IpAddr,
    ops::RangeInclusive,
    os::fd::AsFd,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use anyhow::Context;
use ferroute_admin::metrics::{ModeMetric, RelayedPort, USERSPACE_METRICS};
use ferroute_config::{LogFormat, ModeName, Resolved, UserspaceSettings};
use ferroute_core::{
    Dataplane, HostState, IpFamily, ModeTraits, NodeView, Protocol, ProxySettings, ServiceTable, error_chain,
};
use ferroute_host::{KernelAddresses, raise_descriptor_limit};
use ferroute_iptables::{
    exec::{ChainMode, GroupWriter},
    native::Modules,
};
use ferroute_netlink::confine_to_relaying;
use ferroute_userspace::{
    Limits, ListenerStats, PlannedRelay, PortRange, Relay, SHORT_SEARCH, ServicePortStats, StatsReader,
    UserspaceDataplane, WorkerClient, WorkerProgram, WorkerSettings,
    plan::{RelayContext, RelayPlan},
    run_worker, running_workers_within,
};
use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities, set_no_new_privs};

use self::{leftovers::Workers, planned::Planned};
use crate::{
    ActiveProxy, Mode, OpenMode, PlannedRules, RelayReader, RemovableMode, Removal, Simulation,
    cleanup::Leftovers,
    host_rules::{HostRules, probe_access},
    iptables::{chain_modes, leftovers_beside_own_rules},
    kernel_rules::KernelRules,
    memory_rules::MemoryRules,
    simulated::Simulated,
};

pub use self::planned::KernelUserspace;

/// userspace mode.
pub(super) struct Userspace;

impl Mode for Userspace {
    fn probe(&self, resolved: &Resolved, family: IpFamily) -> Result<Option<String>, String> {
        probe_access(resolved, family, Modules::Common)
    }

    fn open(&self, resolved: &Resolved, node: &NodeView) -> anyhow::Result<OpenMode> {
        let HostRules { generations, families, disabled } = HostRules::find(resolved, node, Modules::Common)?;
        let mut worker = WorkerClient::new(worker_program(resolved));
        // A host that cannot run it should not get rules that lead to it.
        worker.generation()?;
        let mut dataplanes: Vec<(IpFamily, Box<dyn Dataplane>)> = Vec::new();
        for (family, chosen) in families {
            tracing::info!(%family, rules = %chosen, "using a userspace proxy");
            let rules = GroupWriter::new(chosen.access, generations.clone());
            let addresses = Box::new(KernelAddresses::open()?);
            let dataplane =
                UserspaceDataplane::new(family, resolved.settings.clone(), worker.clone(), rules, addresses);
            dataplanes.push((family, Box::new(dataplane)));
        }
        let mut stats = StatsReader::new(worker.clone());
        let relay_reader: RelayReader = Box::new(move || Ok(relayed_ports(stats.read()?)));
        // Rules of a family that is no longer served may lead to removed endpoints.
        let rules = disabled.into_iter().map(|family| leftovers_beside_own_rules(family, None));
        let workers: Box<dyn Leftovers> = Box::new(Workers::others_than(worker));
        let leftovers = rules.chain([workers]).collect();
        Ok(OpenMode { dataplanes, leftovers, relay_reader: Some(relay_reader) })
    }

    fn plan(
        &self,
        resolved: &Resolved,
        table: &ServiceTable,
        addresses: &[IpAddr],
    ) -> anyhow::Result<Box<dyn PlannedRules>> {
        let host = HostState { addresses: addresses.to_vec(), ..HostState::default() };
        let mut state = RelayPlan::new(RelayContext::new(&resolved.settings, table, &host));
        let changes = state.listener_changes(table, None);
        let ports = PlannedRelay::new(port_range(&resolved.userspace)).set(&changes.set)?;
        let ports: Vec<Option<u16>> = ports.into_iter().map(Result::ok).collect();
        state.record(table, &changes, &ports);
        Ok(Box::new(Planned::new(state, table)))
    }

    fn simulate(&self, family: IpFamily, resolved: &Resolved, addresses: Vec<IpAddr>) -> Box<dyn Simulation> {
        let relay = PlannedRelay::new(port_range(&resolved.userspace));
        let addresses = Box::new(addresses);
        let settings = resolved.settings.clone();
        let dataplane = UserspaceDataplane::new(family, settings, relay, MemoryRules::default(), addresses);
        Box::new(Simulated::new(dataplane, |dataplane: &mut UserspaceDataplane<PlannedRelay, MemoryRules>| {
            let mut text = dataplane.relay_mut().take_text();
            text.push_str(&dataplane.rules_mut().take_text());
            text
        }))
    }

    fn active_proxies<'a>(&self, kernel: &'a KernelRules) -> Vec<ActiveProxy<'a>> {
        ActiveProxy::of_objects("Ferroute in userspace mode", kernel.userspace.as_ref(), kernel)
    }

    fn metrics(&self) -> &'static [ModeMetric] {
        USERSPACE_METRICS
    }

    fn traits(&self) -> &'static ModeTraits {
        &ModeTraits::USERSPACE
    }

    fn sets_route_localnet(&self, _: &ProxySettings) -> bool {
        // The node's own connections to localhost do not leave it.
        false
    }
}

impl RemovableMode for Userspace {
    fn name(&self) -> ModeName {
        ModeName::USERSPACE
    }

    fn leftovers(&self, removal: Removal) -> Vec<Box<dyn Leftovers>> {
        // The chains of the mode are removed with those of iptables mode.
        vec![Box::new(Workers::all(removal != Removal::Cleanup))]
    }

    fn is_present(&self) -> bool {
        chain_modes().contains(&ChainMode::Userspace)
    }

    fn relay_ports(&self, family: IpFamily) -> HashSet<u16> {
        let workers = running_workers_within(SHORT_SEARCH).unwrap_or_else(|error| {
            tracing::warn!("{}", error_chain(&error));
            Vec::new()
        });
        let mut hung = HUNG.lock().unwrap_or_else(PoisonError::into_inner);
        hung.retain(|_, until| Instant::now() < *until);
        let mut ports = HashSet::new();
        for mut worker in workers {
            if hung.contains_key(&worker.process_id()) {
                continue;
            }
            match worker.relay_ports(family) {
                Ok(of_worker) => ports.extend(of_worker),
                // The worker has just ended, or hangs.
                Err(error) => {
                    tracing::debug!(pid = worker.process_id(), "{}", error_chain(&error));
                    hung.insert(worker.process_id(), Instant::now() + HUNG_FOR);
                }
            }
        }
        ports
    }
}

/// Workers that did not respond, by process ID, and the time until which syncs do not ask them again. It is of this
/// process, because all dataplanes ask the same workers.
static HUNG: Mutex<BTreeMap<i32, Instant>> = Mutex::new(BTreeMap::new());

/// Time for which a worker is not asked again.
const HUNG_FOR: Duration = Duration::from_secs(60);

/// Returns the metrics of the first [`MAX_METRICS`] service ports, and combined metrics of all other service ports for
/// each family and protocol.
fn relayed_ports(stats: Vec<ServicePortStats>) -> Vec<RelayedPort> {
    let mut named = Vec::new();
    let mut others: BTreeMap<(IpFamily, Protocol), ListenerStats> = BTreeMap::new();
    for (index, ServicePortStats { family, service_port, protocol, stats }) in stats.into_iter().enumerate() {
        if index < MAX_METRICS {
            named.push((family, service_port, protocol, stats));
        } else {
            others.entry((family, protocol)).or_default().add(&stats);
        }
    }
    let others = others.into_iter().map(|((family, protocol), stats)| (family, String::new(), protocol, stats));
    let ports = named.into_iter().chain(others).map(|(family, service_port, protocol, stats)| {
        let ListenerStats {
            connections,
            active,
            failed_attempts,
            refused,
            limited,
            bytes_to_endpoints,
            bytes_to_clients,
        } = stats;
        RelayedPort {
            family,
            service_port,
            protocol,
            open: active,
            connections,
            failed_attempts,
            refused,
            limited,
            bytes_to_endpoints,
            bytes_to_clients,
        }
    });
    ports.collect()
}

/// Maximum number of service ports with separate metrics. Each has six series.
const MAX_METRICS: usize = 1_000;

/// The settings of the worker process.
#[derive(Clone, Debug)]
pub struct WorkerOptions {
    /// The ports to accept connections on; `None` for any.
    pub ports: Option<RangeInclusive<u16>>,
    /// The timeout of idle UDP flows.
    pub udp_timeout: Duration,
    /// The timeout of idle TCP connections.
    pub tcp_timeout: Duration,
    /// The level of log lines.
    pub verbosity: u32,
    /// The format of log lines.
    pub log_format: LogFormat,
}

impl WorkerOptions {
    /// Runs the worker process, whose standard input is the socket to the proxy, until its connections have ended after a
    /// request to drain.
    ///
    /// # Errors
    /// If it cannot start.
    pub fn run(self) -> anyhow::Result<()> {
        // Before another thread is started, which would keep its privileges.
        let dropped = self.drop_privileges();
        ferroute_logging::start(self.verbosity, self.log_format);
        if let Err(error) = dropped {
            tracing::warn!("cannot drop privileges of the userspace proxy's worker: {}", error_chain(&error));
        }
        let control = std::io::stdin().as_fd().try_clone_to_owned().context("cannot use standard input")?;
        let descriptors = raise_descriptor_limit().unwrap_or_else(|error| {
            tracing::warn!("{}", error_chain(&error));
            1024
        });
        // A connection has two sockets and temporarily two pipes, a flow has one socket. The rest is for listeners.
        let limit = usize::try_from(descriptors / 8).unwrap_or(usize::MAX);
        let defaults = Limits::default();
        let limits = Limits {
            connections: defaults.connections.min(limit),
            flows: defaults.flows.min(limit),
            udp_timeout: self.udp_timeout,
            tcp_timeout: self.tcp_timeout,
        };
        let ports = self.ports.map_or(PortRange::Any, PortRange::Within);
        run_worker(WorkerSettings { ports, limits }, control).context("cannot run the userspace proxy's worker")
    }
}

impl WorkerOptions {
    /// Drops all capabilities except those that the process needs: one to delete conntrack entries, and another one for
    /// listeners on ports below 1024. Refuses system calls that it does not need.
    fn drop_privileges(&self) -> io::Result<()> {
        let mut kept = CapabilitySet::NET_ADMIN;
        if self.ports.as_ref().is_some_and(|ports| *ports.start() < FIRST_UNPRIVILEGED_PORT) {
            kept |= CapabilitySet::NET_BIND_SERVICE;
        }
        set_no_new_privs(true)?;
        let CapabilitySets { permitted, .. } = capabilities(None)?;
        let kept = kept & permitted;
        let sets = CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() };
        set_capabilities(None, sets)?;
        confine_to_relaying()
    }
}

/// The first port that needs no capability, by default (`net.ipv4.ip_unprivileged_port_start`).
const FIRST_UNPRIVILEGED_PORT: u16 = 1024;

/// The name of the command that runs [`WorkerOptions`].
pub const WORKER_COMMAND: &str = "userspace-worker";

/// Returns the command line of the worker process: this program, even if its file was replaced or deleted.
fn worker_program(resolved: &Resolved) -> WorkerProgram {
    let UserspaceSettings { ports, udp_idle_timeout } = &resolved.userspace;
    let mut arguments: Vec<OsString> = vec![WORKER_COMMAND.into()];
    arguments.push(format!("--v={}", resolved.logging.verbosity).into());
    arguments.push(format!("--udp-timeout={}", udp_idle_timeout.as_millis().max(1)).into());
    // The kernel forgets the address translation of a connection after this time, in this mode too.
    if let Some(timeout) = resolved.conntrack.tcp_established_timeout {
        arguments.push(format!("--tcp-timeout={}", timeout.as_secs().max(1)).into());
    }
    if let Some(ports) = ports {
        arguments.push(format!("--ports={}-{}", ports.start(), ports.end()).into());
    }
    if resolved.logging.format == LogFormat::Json {
        arguments.push("--json".into());
    }
    WorkerProgram { program: "/proc/self/exe".into(), arguments }
}

fn port_range(settings: &UserspaceSettings) -> PortRange {
    settings.ports.clone().map_or(PortRange::Any, PortRange::Within)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn service_ports_beyond_the_limit_are_counted_together() {
        let stats = |index: usize| ServicePortStats {
            family: IpFamily::V4,
            service_port: format!("shop/{index}:http"),
            protocol: Protocol::Tcp,
            stats: ListenerStats { connections: 1, ..ListenerStats::default() },
        };
        let ports = relayed_ports((0..MAX_METRICS + 5).map(stats).collect());
        assert_eq!(ports.len(), MAX_METRICS + 1);
        assert_eq!((&*ports[MAX_METRICS].service_port, ports[MAX_METRICS].connections), ("", 5));
    }
}
