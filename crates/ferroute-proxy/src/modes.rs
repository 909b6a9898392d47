//! The registry of proxy modes.
//!
//! A mode is a way to program Services into the kernel. It implements [`Mode`] and has one line in [`REGISTRY`]; the
//! daemon and all commands ask the registry and never match on a mode:
//!
//! | what | who asks |
//! | --- | --- |
//! | [`Mode::probe`] | the selection of a mode where none is configured |
//! | [`Mode::open`] | the daemon |
//! | [`Mode::leftovers`], [`Mode::is_present`] | `--cleanup`, the daemon after a switch of modes, `preflight` |
//! | [`Mode::plan`] | `render`, `trace`, `diff`, `demo` |
//! | [`Mode::simulate`] | `replay` |
//! | [`Mode::active_proxies`] | `diff`, `trace --kernel`, `doctor`, `preflight` |
//!
//! Not here: what rules look like, which is known to the crates of the modes.

mod iptables;
mod ipvs;
mod nftables;
mod select;

use std::{fmt, net::IpAddr, path::Path};

use ferroute_admin::metrics::ModeMetric;
use ferroute_config::{FieldErrors, KubeProxyConfiguration, ModeName, Resolved};
use ferroute_core::{
    Changes, Dataplane, IpFamily, NodeView, ProxySettings, RulesDigest, ServiceTable,
};
use ferroute_iptables::RuleSet;
use ferroute_nftables::kernel::MemoryTable;
use ferroute_trace::Traceable;

pub use self::select::{CalledAs, Reason};
use crate::{cleanup::Leftovers, kernel_rules::KernelRules};

/// The modes of this program, in the order in which their leftovers can be removed: rules before the sets, counters and
/// virtual servers that they refer to.
pub static REGISTRY: Registry = Registry::new(&[&iptables::Iptables, &nftables::Nftables], &[&ipvs::Ipvs]);

/// A proxy mode.
pub trait Mode: Leaves {
    /// Checks that this host supports everything that the mode needs for an IP family. Leaves nothing behind.
    ///
    /// # Errors
    /// What the host does not support.
    fn probe(&self, resolved: &Resolved, family: IpFamily) -> Result<(), String>;

    /// Opens a dataplane for each IP family of the node, in the network namespace of the calling thread.
    ///
    /// # Errors
    /// If the host cannot run this mode.
    fn open(&self, resolved: &Resolved, node: &NodeView) -> anyhow::Result<OpenMode>;

    /// Plans the rules for a table on a node with these addresses, for a host that supports everything that rules may
    /// need.
    ///
    /// # Errors
    /// If the planned rules contradict each other, which is a defect.
    fn plan(
        &self,
        resolved: &Resolved,
        table: &ServiceTable,
        addresses: &[IpAddr],
    ) -> anyhow::Result<Box<dyn PlannedRules>>;

    /// Returns a dataplane over an in-memory kernel without rules, on a host with these addresses.
    fn simulate(&self, family: IpFamily, resolved: &Resolved, addresses: Vec<IpAddr>) -> Box<dyn Simulation>;

    /// Returns the service proxies of this mode whose rules are in the kernel, running or not.
    fn active_proxies<'a>(&self, kernel: &'a KernelRules) -> Vec<ActiveProxy<'a>>;

    /// Returns the metrics that this mode exposes in addition to those of all modes.
    fn metrics(&self) -> &'static [ModeMetric];

    /// Reports whether the daemon sets the sysctl `route_localnet` with these settings.
    fn sets_route_localnet(&self, settings: &ProxySettings) -> bool;

    /// Reports whether the mode can count connections by service port and endpoint.
    fn counts_connections(&self) -> bool {
        false
    }
}

/// What remains on a host after a mode has run there, in Ferroute or in kube-proxy.
pub trait Leaves: Send + Sync {
    /// Returns the name of the mode.
    fn name(&self) -> ModeName;

    /// Returns everything that the mode may have left behind.
    fn leftovers(&self, removal: Removal) -> Vec<Box<dyn Leftovers>>;

    /// Reports whether rules of this mode are in the kernel, by a check whose cost does not depend on their number. A
    /// kernel that cannot be read has none.
    fn is_present(&self) -> bool;
}

/// Why leftovers are removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Removal {
    /// `--cleanup`: everything goes, open connections included.
    Cleanup,
    /// Another mode is active now: what open connections still need stays.
    TakenOver,
}

/// An open mode.
pub struct OpenMode {
    /// A dataplane for each IP family that is served.
    pub dataplanes: Vec<(IpFamily, Box<dyn Dataplane>)>,
    /// Leftovers of the same mode that the dataplanes do not use, such as rules in another backend of iptables.
    pub leftovers: Vec<Box<dyn Leftovers>>,
}

/// The planned rules of one IP family. `Display` prints them in the syntax of the mode's own tool.
pub trait PlannedRules: Traceable + fmt::Display {
    /// Returns the rules for a comparison.
    fn view(&self) -> RulesView<'_>;
}

/// Rules of a service proxy, planned or read from the kernel.
#[derive(Clone, Copy, Debug)]
pub enum RulesView<'a> {
    /// Rules of iptables as kube-proxy and Ferroute write them.
    Iptables(&'a RuleSet),
    /// The table of Ferroute's nftables mode.
    Nftables(&'a MemoryTable),
    /// The table of kube-proxy's nftables mode.
    KubeProxyNftables(&'a MemoryTable),
}

/// A service proxy whose rules are in the kernel, running or not.
#[derive(Clone, Debug)]
pub struct ActiveProxy<'a> {
    /// Its mode.
    pub mode: ModeName,
    /// The program and its mode, for people: `kube-proxy in nftables mode`.
    pub description: &'static str,
    /// Its rules.
    pub rules: RulesView<'a>,
    /// What could not be read of them.
    pub unread: Vec<String>,
}

/// A dataplane over an in-memory kernel, which keeps what it writes as text.
pub trait Simulation {
    /// Writes the whole table from scratch.
    ///
    /// # Errors
    /// If the rules cannot be written.
    fn resync(&mut self, table: &ServiceTable) -> anyhow::Result<SimulatedSync>;

    /// Writes what these changes make of the rules.
    ///
    /// # Errors
    /// If the rules cannot be written.
    fn sync(&mut self, table: &ServiceTable, changes: &Changes) -> anyhow::Result<SimulatedSync>;
}

/// The outcome of a simulated sync.
#[derive(Clone, Debug)]
pub struct SimulatedSync {
    /// Rules or elements written.
    pub written: usize,
    /// Chains or elements removed.
    pub removed: usize,
    /// Active rules or elements afterwards.
    pub total: usize,
    /// The digest of all rules, after a resync.
    pub rules: Option<RulesDigest>,
    /// What was written, in the syntax of the mode's own tool.
    pub text: String,
}

/// A table of proxy modes.
pub struct Registry {
    modes: &'static [&'static dyn Mode],
    /// Modes of kube-proxy that are not implemented here.
    unsupported: &'static [&'static dyn Leaves],
}

impl Registry {
    /// A registry of these modes. `unsupported` are modes of kube-proxy whose leftovers are removed and which the first
    /// of `modes` replaces.
    pub const fn new(modes: &'static [&'static dyn Mode], unsupported: &'static [&'static dyn Leaves]) -> Self {
        assert!(!modes.is_empty(), "bug: a registry without modes");
        Self { modes, unsupported }
    }

    /// Resolves a configuration: its mode must be one of this registry or of kube-proxy.
    ///
    /// # Errors
    /// What is wrong with the configuration.
    pub fn resolve(&self, config: &KubeProxyConfiguration) -> Result<Resolved, FieldErrors> {
        config.resolve_with(&self.names())
    }

    /// Returns the mode that runs where `configured` is configured: that mode, or the one that replaces it here.
    pub fn active(&self, configured: ModeName) -> &'static dyn Mode {
        self.find(configured).unwrap_or(self.modes[0])
    }

    /// Returns the name of the mode that replaces `configured` here, if that one is not implemented.
    pub fn substitute(&self, configured: ModeName) -> Option<ModeName> {
        self.find(configured).is_none().then(|| self.modes[0].name())
    }

    /// Returns the names of all modes, sorted, as kube-proxy's error messages list them.
    pub fn names(&self) -> Vec<ModeName> {
        let mut names: Vec<ModeName> = self.entries().map(Leaves::name).collect();
        names.sort();
        names
    }

    /// Opens the dataplanes that a configuration requires on this host.
    ///
    /// # Errors
    /// If the host cannot run the mode.
    pub fn open(&self, resolved: &Resolved, node: &NodeView) -> anyhow::Result<OpenMode> {
        let configured = resolved.mode;
        if let Some(substitute) = self.substitute(configured) {
            tracing::warn!("mode {configured} is not supported; using {substitute}, which sends traffic to the same endpoints");
        }
        let mode = self.active(configured);
        let OpenMode { dataplanes, leftovers } = mode.open(resolved, node)?;
        let mut own = Some(leftovers);
        let leftovers = self
            .entries()
            .flat_map(|entry| match own.take_if(|_| entry.name() == mode.name()) {
                Some(own) => own,
                None => entry.leftovers(Removal::TakenOver),
            })
            .collect();
        Ok(OpenMode { dataplanes, leftovers })
    }

    /// Returns what all modes may have left behind, in an order in which it can be removed.
    pub fn leftovers(&self) -> Vec<Box<dyn Leftovers>> {
        self.entries().flat_map(|entry| entry.leftovers(Removal::Cleanup)).collect()
    }

    /// Returns the modes whose rules or other leftovers are in the kernel. Modes that are not implemented here come first:
    /// some of them use chains of the others.
    pub fn present(&self) -> impl Iterator<Item = ModeName> {
        let modes = self.modes.iter().map(|mode| *mode as &'static dyn Leaves);
        self.unsupported.iter().copied().chain(modes).filter(|entry| entry.is_present()).map(Leaves::name)
    }

    /// Returns the service proxies whose rules are in the kernel, running or not.
    pub fn active_proxies<'a>(&self, kernel: &'a KernelRules) -> Vec<ActiveProxy<'a>> {
        self.modes.iter().flat_map(|mode| mode.active_proxies(kernel)).collect()
    }

    fn find(&self, name: ModeName) -> Option<&'static dyn Mode> {
        self.modes.iter().find(|mode| mode.name() == name).copied()
    }

    fn entries(&self) -> impl Iterator<Item = &'static dyn Leaves> {
        let modes = self.modes.iter().map(|mode| *mode as &'static dyn Leaves);
        modes.chain(self.unsupported.iter().copied())
    }
}

/// Reports whether the kernel was started with IPv6.
pub fn kernel_has_ipv6() -> bool {
    Path::new("/proc/net/if_inet6").exists()
}

#[cfg(test)]
mod tests;
