//! The registry of proxy modes.
//!
//! A mode is a way to program Services into the kernel. It implements [`Mode`] and has one line in [`REGISTRY`]. The
//! daemon and all commands use the registry and never match on a mode:
//!
//! | method | used by |
//! | --- | --- |
//! | [`Mode::probe`] | the selection of a mode if none is configured |
//! | [`Mode::open`] | the daemon |
//! | [`RemovableMode::leftovers`], [`RemovableMode::is_present`] | `--cleanup`, the daemon after a switch of modes, `preflight` |
//! | [`Mode::plan`] | `render`, `trace`, `diff`, `demo` |
//! | [`Mode::simulate`] | `replay` |
//! | [`Mode::active_proxies`] | `diff`, `trace --kernel`, `doctor`, `preflight` |
//!
//! The rules themselves are planned by the crates of the modes. [`kernel_rules`] reads the rules of the kernel, in which modes
//! recognise their own, and [`cleanup`] removes them.
//!
//! # Example
//!
//! Plan the nftables rules of a cluster without Services:
//!
//! ```
//! use ferroute_config::KubeProxyConfiguration;
//! use ferroute_core::{IpFamily, NodeView, Tracker};
//! use ferroute_modes::REGISTRY;
//!
//! let mut config = KubeProxyConfiguration::default().defaulted();
//! config.mode = "nftables".to_owned();
//! let resolved = REGISTRY.resolve(&config)?;
//!
//! let mut tracker = Tracker::new(NodeView { name: "node-1".to_owned(), ..NodeView::default() });
//! tracker.update(IpFamily::V4);
//! let mode = REGISTRY.active(resolved.mode);
//! let rules = mode.plan(&resolved, tracker.table(IpFamily::V4), &[])?;
//! assert!(rules.to_string().starts_with("add table ip ferroute"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod cleanup;
mod host_rules;
mod ipsets;
mod iptables;
mod ipvs;
pub mod kernel_rules;
mod memory_rules;
mod nftables;
mod select;
mod simulated;
mod userspace;

use std::{
    collections::{BTreeMap, HashSet},
    fmt, fs,
    net::IpAddr,
    path::Path,
};

use ferroute_admin::metrics::{ModeMetric, RelayedPort};
use ferroute_config::{FieldErrors, KubeProxyConfiguration, ModeName, Resolved};
use ferroute_core::{
    Changes, Dataplane, Frontend, IpFamily, ModeTraits, NodeView, ProxySettings, RulesDigest, ServiceTable,
};
use ferroute_iptables::{ChainName, RuleSet, TableName};
use ferroute_nftables::kernel::MemoryTable;
use ferroute_trace::{Ruleset, Traceable};
use ipnet::IpNet;

pub use self::{
    ipvs::KernelIpvs,
    select::{CalledAs, Reason},
    userspace::{KernelUserspace, WORKER_COMMAND, WorkerOptions},
};
use crate::{cleanup::Leftovers, kernel_rules::KernelRules};

/// The modes of this program, in the order in which their leftovers can be removed: rules before the sets, counters, virtual
/// servers and listeners that they refer to.
pub static REGISTRY: Registry =
    Registry::new(&[&iptables::Iptables, &nftables::Nftables, &ipvs::Ipvs, &userspace::Userspace]);

/// A proxy mode.
pub trait Mode: RemovableMode {
    /// Checks, without changing anything, that this host supports all features that the mode needs for an IP family.
    /// Returns how and why the mode accesses its rules here, `by netlink: the host's iptables uses nf_tables`; `None`
    /// if there is only one way.
    ///
    /// # Errors
    /// The reason why the mode is unavailable.
    fn probe(&self, resolved: &Resolved, family: IpFamily) -> Result<Option<String>, String>;

    /// Opens a dataplane for each IP family of the node, in the network namespace of the calling thread.
    ///
    /// # Errors
    /// If the host cannot run this mode.
    fn open(&self, resolved: &Resolved, node: &NodeView) -> anyhow::Result<OpenMode>;

    /// Plans the rules for a node with these addresses, and for a host that supports all optional features.
    ///
    /// # Errors
    /// If the planned rules are inconsistent, which is a bug.
    fn plan(
        &self,
        resolved: &Resolved,
        table: &ServiceTable,
        addresses: &[IpAddr],
    ) -> anyhow::Result<Box<dyn PlannedRules>>;

    /// Returns a dataplane that writes to an in-memory kernel without rules, on a host with these addresses.
    fn simulate(&self, family: IpFamily, resolved: &Resolved, addresses: Vec<IpAddr>) -> Box<dyn Simulation>;

    /// Returns the service proxies of this mode whose rules are in the kernel, whether running or not.
    fn active_proxies<'a>(&self, kernel: &'a KernelRules) -> Vec<ActiveProxy<'a>>;

    /// Returns the metrics that this mode exposes in addition to those of all modes.
    fn metrics(&self) -> &'static [ModeMetric];

    /// Returns the behaviour of the mode that differs from other modes.
    fn traits(&self) -> &'static ModeTraits;

    /// Reports whether the daemon sets the sysctl `route_localnet` with these settings.
    fn sets_route_localnet(&self, settings: &ProxySettings) -> bool;

    /// Returns the sysctls that the daemon sets for this mode, besides those of all modes.
    fn sysctls(&self, _: &Resolved) -> Vec<Sysctl> {
        Vec::new()
    }

    /// Prepares the host for [`Mode::sysctls`]: keeps the values of sysctls that are restored later, and restores those
    /// that the mode no longer sets. Returns a description of the restored values.
    ///
    /// # Errors
    /// If a value cannot be kept or restored.
    fn prepare_sysctls(&self, _: &Resolved) -> anyhow::Result<Vec<String>> {
        Ok(Vec::new())
    }

    /// Returns the mode that replaces this one if the host does not support it; `None` if an unsupported host is an
    /// error.
    fn fallback(&self) -> Option<ModeName> {
        None
    }

    /// Reports whether the mode can count connections by service port and endpoint.
    fn counts_connections(&self) -> bool {
        false
    }
}

/// A sysctl and its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sysctl {
    /// The path below `/proc/sys`.
    pub name: &'static str,
    /// The value.
    pub value: &'static str,
}

/// A mode of Ferroute or kube-proxy whose leftovers on a host can be detected and removed.
pub trait RemovableMode: Send + Sync {
    /// Returns the name of the mode.
    fn name(&self) -> ModeName;

    /// Returns all objects that the mode may have left behind, in an order in which they can be removed.
    fn leftovers(&self, removal: Removal) -> Vec<Box<dyn Leftovers>>;

    /// Reports whether rules of this mode are in the kernel; false if this cannot be determined. The cost of the check
    /// does not depend on the number of rules.
    fn is_present(&self) -> bool;

    /// Returns the ports of this host on which processes of this mode relay UDP flows of an IP family, including after
    /// another mode has taken over. These processes hand flows over to the active rules.
    fn relay_ports(&self, _: IpFamily) -> HashSet<u16> {
        HashSet::new()
    }
}

/// Reason why leftovers are removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Removal {
    /// For `--cleanup`: all objects are removed, even if that breaks established connections.
    Cleanup,
    /// Another mode is active now: its objects, and those that established connections need, are kept.
    TakenOver(ModeName),
}

/// An open mode.
pub struct OpenMode {
    /// A dataplane for each IP family that the node uses and the host supports.
    pub dataplanes: Vec<(IpFamily, Box<dyn Dataplane>)>,
    /// Leftovers of the same mode that the dataplanes do not use, such as rules in another backend of iptables.
    pub leftovers: Vec<Box<dyn Leftovers>>,
    /// Reader of the connections that a process of the mode relays; `None` if the mode has no such process.
    pub relay_reader: Option<RelayReader>,
}

/// Returns the connections that a process relays, by service port, or the reason why they are unknown. It may block.
pub type RelayReader = Box<dyn FnMut() -> anyhow::Result<Vec<RelayedPort>> + Send>;

/// The planned rules of one IP family. `Display` prints them in the syntax of the mode's tool.
pub trait PlannedRules: Traceable + fmt::Display {
    /// Returns the rules, for a comparison.
    fn view(&self) -> RulesView<'_>;
}

/// Rules of a service proxy, planned or read from the kernel.
#[derive(Clone, Copy, Debug)]
pub enum RulesView<'a> {
    /// The iptables rules of kube-proxy or Ferroute.
    Iptables(&'a RuleSet),
    /// The table of Ferroute's nftables mode.
    Nftables(&'a MemoryTable),
    /// The table of kube-proxy's nftables mode.
    KubeProxyNftables(&'a MemoryTable),
    /// The rules of a mode that uses neither iptables nor nftables.
    Other(&'a dyn ComparableRules),
}

/// Rules that can be compared with those of other modes by tracing the same packets through both.
pub trait ComparableRules: Traceable + fmt::Debug + Sync {
    /// Returns the name of the rules' mode.
    fn mode(&self) -> ModeName;

    /// Returns the behaviour of the mode that differs from other modes.
    fn traits(&self) -> &'static ModeTraits;

    /// Returns all frontends in the rules.
    fn frontends(&self) -> BTreeMap<Frontend, ComparableFrontend>;

    /// Returns the iptables rules among these rules, and their chains with rules for each service port. Packets are traced
    /// through a copy without the rules for other service ports.
    fn iptables(&self) -> (&[RuleSet], Vec<(TableName, ChainName)>) {
        (&[], Vec::new())
    }

    /// Adds everything but the iptables rules that [`iptables`](Self::iptables) returns.
    fn add_others_to<'a>(&'a self, ruleset: &mut Ruleset<'a>) {
        self.add_to(ruleset);
    }
}

/// A frontend in rules that can be compared.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ComparableFrontend {
    /// The service port that the rules name.
    pub service_port: Option<String>,
    /// The timeout of session affinity in seconds: `Some(None)` without affinity, `None` if the rules do not show it.
    pub affinity: Option<Option<u32>>,
    /// The source ranges that the rules permit.
    pub source_ranges: Vec<IpNet>,
}

/// A service proxy whose rules are in the kernel, whether running or not.
#[derive(Clone, Debug)]
pub struct ActiveProxy<'a> {
    /// Mode.
    pub mode: ModeName,
    /// The program and its mode: `kube-proxy in nftables mode`.
    pub description: &'static str,
    /// Rules.
    pub rules: RulesView<'a>,
    /// Descriptions of rules that could not be read.
    pub unread: Vec<String>,
}

impl<'a> ActiveProxy<'a> {
    /// The proxy of a mode whose rules are neither iptables nor nftables, if the kernel has its objects.
    fn of_objects(
        description: &'static str,
        objects: Option<&'a impl ComparableRules>,
        kernel: &KernelRules,
    ) -> Vec<Self> {
        let proxy = |objects: &'a dyn ComparableRules| Self {
            mode: objects.mode(),
            description,
            rules: RulesView::Other(objects),
            unread: kernel.unread.clone(),
        };
        objects.map(|objects| proxy(objects)).into_iter().collect()
    }
}

/// A dataplane over an in-memory kernel, which returns what it writes as text.
pub trait Simulation: Send {
    /// Writes all rules.
    ///
    /// # Errors
    /// If the rules cannot be written.
    fn resync(&mut self, table: &ServiceTable) -> anyhow::Result<SimulatedSync>;

    /// Writes the rules of changed service ports.
    ///
    /// # Errors
    /// If the rules cannot be written.
    fn sync(&mut self, table: &ServiceTable, changes: &Changes) -> anyhow::Result<SimulatedSync>;
}

/// The outcome of a simulated sync.
#[derive(Clone, Debug)]
pub struct SimulatedSync {
    /// Number of rules or elements written.
    pub written: usize,
    /// Number of chains or elements removed.
    pub removed: usize,
    /// Number of active rules or elements after the sync.
    pub total: usize,
    /// The digest of all rules, after a resync.
    pub rules: Option<RulesDigest>,
    /// The written text, in the syntax of the mode's tool.
    pub text: String,
    /// The result of another way of writing, if the mode has several; see [`OtherWriting`].
    pub other: Option<OtherWriting>,
}

/// Result of a simulated sync that writes in another way. In iptables mode, netlink edits the chains that Services
/// share, and the programs replace them.
#[derive(Clone, Debug)]
pub struct OtherWriting {
    /// Number of rules or elements written.
    pub written: usize,
    /// The written text, in the syntax of the mode's tool.
    pub text: String,
}

/// A table of proxy modes.
#[derive(Clone, Copy)]
pub struct Registry {
    modes: &'static [&'static dyn Mode],
}

impl Registry {
    /// Creates a registry.
    pub const fn new(modes: &'static [&'static dyn Mode]) -> Self {
        assert!(!modes.is_empty(), "bug: a registry needs at least one mode");
        Self { modes }
    }

    /// Resolves a configuration, whose mode must be in this registry.
    ///
    /// # Errors
    /// All invalid fields.
    pub fn resolve(&self, config: &KubeProxyConfiguration) -> Result<Resolved, FieldErrors> {
        config.resolve_with(&self.names())
    }

    /// Returns the mode with this name, or the first one if there is none.
    pub fn active(&self, configured: ModeName) -> &'static dyn Mode {
        self.find(configured).unwrap_or(self.modes[0])
    }

    /// Returns the names of all modes, sorted, as kube-proxy's error messages list them.
    pub fn names(&self) -> Vec<ModeName> {
        let mut names: Vec<ModeName> = self.entries().map(RemovableMode::name).collect();
        names.sort();
        names
    }

    /// Opens the dataplanes that a configuration requires on this host.
    ///
    /// # Errors
    /// If the host cannot run the mode.
    pub fn open(&self, resolved: &Resolved, node: &NodeView) -> anyhow::Result<OpenMode> {
        let mode = self.active(resolved.mode);
        let OpenMode { dataplanes, leftovers, relay_reader } = mode.open(resolved, node)?;
        Ok(OpenMode { dataplanes, leftovers: self.leftovers_beside(mode.name(), leftovers), relay_reader })
    }

    /// Returns the leftovers to remove while a mode is active: `own` of that mode, and all of other modes.
    fn leftovers_beside(&self, active: ModeName, own: Vec<Box<dyn Leftovers>>) -> Vec<Box<dyn Leftovers>> {
        let mut own = Some(own);
        let leftovers = self.entries().flat_map(|entry| match own.take_if(|_| entry.name() == active) {
            Some(own) => own,
            None => entry.leftovers(Removal::TakenOver(active)),
        });
        leftovers.collect()
    }

    /// Returns all objects that any mode may have left behind, in an order in which they can be removed.
    pub fn leftovers(&self) -> Vec<Box<dyn Leftovers>> {
        self.entries().flat_map(|entry| entry.leftovers(Removal::Cleanup)).collect()
    }

    /// Returns the modes whose rules or other leftovers are in the kernel. The last mode of the registry comes first, because
    /// later ones use some chains of earlier ones.
    pub fn present(&self) -> Vec<ModeName> {
        self.modes.iter().rev().filter(|mode| mode.is_present()).map(|mode| mode.name()).collect()
    }

    /// Returns the service proxies whose rules are in the kernel, whether running or not.
    pub fn active_proxies<'a>(&self, kernel: &'a KernelRules) -> Vec<ActiveProxy<'a>> {
        self.modes.iter().flat_map(|mode| mode.active_proxies(kernel)).collect()
    }

    /// Returns the ports of this host on which processes of any mode relay UDP flows of an IP family.
    pub fn relay_ports(&self, family: IpFamily) -> HashSet<u16> {
        self.entries().flat_map(|entry| entry.relay_ports(family)).collect()
    }

    fn find(&self, name: ModeName) -> Option<&'static dyn Mode> {
        self.modes.iter().find(|mode| mode.name() == name).copied()
    }

    fn entries(&self) -> impl Iterator<Item = &'static dyn RemovableMode> {
        self.modes.iter().map(|mode| *mode as &'static dyn RemovableMode)
    }
}

/// Returns the release of the kernel, such as `6.1.0-56-cloud-amd64`.
fn kernel_release() -> Option<String> {
    let text = fs::read_to_string("/proc/sys/kernel/osrelease").ok()?;
    Some(text.trim_end().to_owned())
}

/// Reports whether the kernel supports IPv6.
pub fn kernel_has_ipv6() -> bool {
    Path::new("/proc/net/if_inet6").exists()
}

#[cfg(test)]
mod tests;
