//! nftables mode in the registry.

use std::{
    fmt,
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use anyhow::Context;
use ferroute_admin::metrics::{ModeMetric, NFTABLES_METRICS};
use ferroute_config::{FamilySupport, ModeName, Resolved};
use ferroute_core::{Dataplane, IpFamily, ModeTraits, NodeView, ProxySettings, ServiceTable, error_chain};
use ferroute_host::{KernelAddresses, LocalhostRoutes};
use ferroute_nftables::{
    MINIMUM_KERNEL, NftablesDataplane, ProbeError, TableOwner, delete_table,
    kernel::{InterceptedKernel, Kernel, MemoryError, MemoryKernel, MemoryTable, NetlinkError, NetlinkKernel},
    model::Transaction,
    plan::NftablesSettings,
    udp_frontends,
};
use ferroute_trace::{Ruleset, Traceable};

use crate::{
    ActiveProxy, Mode, OpenMode, PlannedRules, RemovableMode, Removal, RulesView, Simulation,
    cleanup::{Leftovers, RemovalReport},
    kernel_has_ipv6, kernel_release,
    kernel_rules::KernelRules,
    simulated::Simulated,
};

/// nftables mode.
pub(super) struct Nftables;

impl Mode for Nftables {
    fn probe(&self, resolved: &Resolved, family: IpFamily) -> Result<Option<String>, String> {
        let probe = || -> Result<(), ProbeError<NetlinkError>> {
            // A flowtable is not needed.
            let settings = NftablesSettings { flowtable: None, ..settings(resolved) };
            ferroute_nftables::probe(&mut NetlinkKernel::open()?, family, &settings)
        };
        probe().map(|()| None).map_err(|error| unsupported(&error_chain(&error), kernel_release().as_deref()))
    }

    fn open(&self, resolved: &Resolved, node: &NodeView) -> anyhow::Result<OpenMode> {
        let support = FamilySupport { ipv4: true, ipv6: kernel_has_ipv6() };
        let mut dataplanes: Vec<(IpFamily, Box<dyn Dataplane>)> = Vec::new();
        for family in resolved.families(node, support)?.iter() {
            let open = || -> anyhow::Result<NftablesDataplane> {
                Ok(NftablesDataplane::open(family, settings(resolved), Box::new(KernelAddresses::open()?))?)
            };
            let dataplane =
                open().context("the kernel does not support nf_tables, or the process lacks CAP_NET_ADMIN")?;
            tracing::info!(%family, "using nftables");
            dataplanes.push((family, Box::new(dataplane)));
        }
        let mut leftovers = leftovers_beside_own_table();
        if !resolved.settings.localhost_node_ports(IpFamily::V6) {
            leftovers.push(Box::new(RoutesToLocalhost));
        }
        Ok(OpenMode { dataplanes, leftovers, relay_reader: None })
    }

    fn plan(
        &self,
        resolved: &Resolved,
        table: &ServiceTable,
        addresses: &[IpAddr],
    ) -> anyhow::Result<Box<dyn PlannedRules>> {
        let transaction = ferroute_nftables::plan::render(table, &settings(resolved), addresses);
        let mut kernel = MemoryKernel::new();
        kernel.commit(&transaction).context("the planned rules are inconsistent")?;
        Ok(Box::new(Planned { transaction, kernel }))
    }

    fn simulate(&self, family: IpFamily, resolved: &Resolved, addresses: Vec<IpAddr>) -> Box<dyn Simulation> {
        let text = Arc::new(Mutex::new(String::new()));
        let written = text.clone();
        let record: Record = Box::new(move |kernel, transaction| {
            lock(&written).push_str(&transaction.to_string());
            kernel.commit(transaction)
        });
        let kernel = InterceptedKernel::new(MemoryKernel::new(), record);
        let addresses = Box::new(addresses);
        let dataplane = NftablesDataplane::with_kernel(kernel, family, settings(resolved), addresses);
        Box::new(Simulated::new(dataplane, move |_: &mut _| std::mem::take(&mut *lock(&text))))
    }

    fn active_proxies<'a>(&self, kernel: &'a KernelRules) -> Vec<ActiveProxy<'a>> {
        let proxy = |table: &'a MemoryTable, description, rules| ActiveProxy {
            mode: ModeName::NFTABLES,
            description,
            rules,
            unread: unread(table),
        };
        let ferroute = kernel
            .ferroute_table()
            .map(|snapshot| proxy(&snapshot.table, "Ferroute in nftables mode", RulesView::Nftables(&snapshot.table)));
        let kube_proxy = kernel.kube_proxy_table().map(|snapshot| {
            proxy(&snapshot.table, "kube-proxy in nftables mode", RulesView::KubeProxyNftables(&snapshot.table))
        });
        ferroute.into_iter().chain(kube_proxy).collect()
    }

    fn metrics(&self) -> &'static [ModeMetric] {
        NFTABLES_METRICS
    }

    fn traits(&self) -> &'static ModeTraits {
        &ModeTraits::NFTABLES
    }

    fn sets_route_localnet(&self, settings: &ProxySettings) -> bool {
        settings.localhost_node_ports(IpFamily::V4)
    }

    fn counts_connections(&self) -> bool {
        true
    }
}

impl RemovableMode for Nftables {
    fn name(&self) -> ModeName {
        ModeName::NFTABLES
    }

    fn leftovers(&self, removal: Removal) -> Vec<Box<dyn Leftovers>> {
        // Established connections need the routes.
        let routes = (removal == Removal::Cleanup).then(|| Box::new(RoutesToLocalhost) as Box<dyn Leftovers>);
        TableOwner::ALL.into_iter().flat_map(tables).chain(routes).collect()
    }

    fn is_present(&self) -> bool {
        let tables = IpFamily::BOTH.into_iter().flat_map(|family| TableOwner::ALL.map(|owner| owner.table(family)));
        NetlinkKernel::open()
            .is_ok_and(|mut kernel| tables.into_iter().any(|table| matches!(kernel.list_table(&table), Ok(Some(_)))))
    }
}

/// Returns the tables to remove while nftables mode is active.
pub(super) fn leftovers_beside_own_table() -> Vec<Box<dyn Leftovers>> {
    tables(TableOwner::KubeProxy)
}

/// The local routes that node ports on `::1` need.
#[derive(Debug)]
struct RoutesToLocalhost;

impl Leftovers for RoutesToLocalhost {
    fn remove(&mut self, report: &mut RemovalReport) {
        match LocalhostRoutes::open().and_then(|mut routes| routes.remove()) {
            Ok(0) => {}
            Ok(count) => report.removed(format!("local routes to ::1 of {count} interfaces")),
            Err(error) => report.failed(&error),
        }
    }
}

/// Explains why the mode is unavailable.
fn unsupported(reason: &str, release: Option<&str>) -> String {
    let this = release.map(|release| format!("; this is {release}")).unwrap_or_default();
    format!("{reason} (nftables mode requires Linux {MINIMUM_KERNEL} or newer with its nft_* modules{this})")
}

/// Returns the settings of this mode.
fn settings(resolved: &Resolved) -> NftablesSettings {
    NftablesSettings {
        proxy: resolved.settings.clone(),
        counters: resolved.flags.connection_counters.is_some(),
        flowtable: resolved.flags.flowtable.clone(),
    }
}

/// Describes the elements of a table that could not be decoded.
fn unread(table: &MemoryTable) -> Vec<String> {
    let sets = table.sets().map(|set| (&set.name, table.undecoded(&set.name))).filter(|(_, unread)| *unread > 0);
    sets.map(|(set, unread)| format!("{unread} elements of {set} have an unsupported form")).collect()
}

/// A planned table: the transaction that creates it, and the table that results.
struct Planned {
    transaction: Transaction,
    kernel: MemoryKernel,
}

impl Planned {
    fn table(&self) -> &MemoryTable {
        self.kernel.table(&self.transaction.table).expect("bug: a committed plan has a table")
    }
}

impl fmt::Display for Planned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.transaction.fmt(f)
    }
}

impl PlannedRules for Planned {
    fn view(&self) -> RulesView<'_> {
        RulesView::Nftables(self.table())
    }
}

impl Traceable for Planned {
    fn add_to<'a>(&'a self, ruleset: &mut Ruleset<'a>) {
        ruleset.add_nftables_table(self.transaction.table.to_string(), self.table());
    }
}

/// Locks a string, which is valid even if a thread panicked while it held the lock.
fn lock(text: &Mutex<String>) -> MutexGuard<'_, String> {
    text.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Records a transaction and commits it.
type Record = Box<dyn FnMut(&mut MemoryKernel, &Transaction) -> Result<(), MemoryError> + Send>;

/// The nftables table of one program and IP family.
#[derive(Debug)]
struct Table {
    owner: TableOwner,
    family: IpFamily,
}

fn tables(owner: TableOwner) -> Vec<Box<dyn Leftovers>> {
    IpFamily::BOTH.into_iter().map(|family| Box::new(Table { owner, family }) as Box<dyn Leftovers>).collect()
}

impl Leftovers for Table {
    fn remove(&mut self, report: &mut RemovalReport) {
        let table = self.owner.table(self.family);
        let remove = |mut kernel: NetlinkKernel| {
            let udp_frontends = udp_frontends(&mut kernel, &table)?;
            Ok(delete_table(&mut kernel, table.clone())?.then_some(udp_frontends))
        };
        match NetlinkKernel::open().and_then(remove) {
            Ok(Some(mut udp_frontends)) => {
                report.udp_frontends.append(&mut udp_frontends);
                report.removed(format!("nftables table {table}"));
            }
            Ok(None) | Err(NetlinkError::NotSupported) => {}
            Err(error) => report.failed(&error),
        }
    }
}
