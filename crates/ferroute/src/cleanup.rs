//! Removes what proxies leave on a host: all of it for `--cleanup`, that of other modes once ours has taken over.
//!
//! | trace | of | goes |
//! | --- | --- | --- |
//! | chains `KUBE-*` and the jumps into them | iptables and ipvs mode, ours and kube-proxy's | by `iptables-restore` |
//! | packet counters that rules named | iptables mode | by netlink |
//! | tables `ip ferroute`, `ip6 ferroute` | our nftables mode | by netlink |
//! | tables `ip kube-proxy`, `ip6 kube-proxy` | kube-proxy's nftables mode | by netlink |
//! | virtual servers, `kube-ipvs0`, ipsets `KUBE-*` | ipvs mode | by netlink |
//!
//! What is *not* removed: `KUBE-FIREWALL` in table filter and the kubelet's own chains, which the kubelet uses; and
//! sysctls, for nobody knows what they were before or who relies on them by now. kube-proxy leaves all these, too.

mod ipvs;

use std::{process::ExitCode, sync::Arc};

use ferroute_core::IpFamily;
use ferroute_host::KernelCounters;
use ferroute_iptables::{
    ChainName, HostPrograms, TableName, Tools,
    plan::is_of_any_mode,
    runner::{Backend, Cleanup, Scope, Unusable, clean_up, remove_counters, search_path},
};
use ferroute_nftables::{
    Owner,
    kernel::{Kernel, NetlinkError, NetlinkKernel},
    model::TableId,
    remove_table,
};

use crate::logging::chain;

/// What a removal has come to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Report {
    /// What is gone.
    pub(crate) removed: Vec<String>,
    /// What stays, or may, and why.
    pub(crate) troubles: Vec<String>,
}

impl Report {
    fn removed(&mut self, what: impl Into<String>) {
        self.removed.push(what.into());
    }

    fn trouble(&mut self, error: &dyn std::error::Error) {
        self.troubles.push(chain(error));
    }
}

/// Something that a proxy may have left behind.
pub(crate) trait Leftovers: Send {
    /// Removes it. What comes in the way of one thing does not keep the next from being removed; nothing being there is
    /// no trouble.
    fn remove(&mut self, report: &mut Report);
}

/// What a proxy may have left in the kernel, part by part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Traces {
    /// iptables rules of a family, of both backends; but where iptables mode is in force, what belongs to it stays in its
    /// backend.
    Iptables { family: IpFamily, in_force: Option<Backend> },
    /// The counters that iptables rules named.
    Counters,
    /// An nftables table.
    Nftables { owner: Owner, family: IpFamily },
    /// What ipvs mode has besides iptables rules, which have to be gone before; with `drain`, but for what open connections
    /// need.
    Ipvs { drain: bool },
}

/// Those of all modes, in the order in which they can go.
pub(crate) fn of_every_mode() -> Vec<Traces> {
    let mut traces = iptables(&[]);
    traces.push(Traces::Counters);
    traces.extend(nftables(Owner::Ferroute));
    traces.extend(nftables(Owner::KubeProxy));
    traces.push(Traces::Ipvs { drain: false });
    traces
}

/// Those of all modes but iptables, which has taken over in these families, with these backends.
pub(crate) fn of_all_but_iptables(in_force: &[(IpFamily, Backend)]) -> Vec<Traces> {
    let mut traces = iptables(in_force);
    traces.extend(nftables(Owner::Ferroute));
    traces.extend(nftables(Owner::KubeProxy));
    traces.push(Traces::Ipvs { drain: true });
    traces
}

/// Those of all modes but our nftables, which has taken over.
pub(crate) fn of_all_but_nftables() -> Vec<Traces> {
    let mut traces = iptables(&[]);
    traces.push(Traces::Counters);
    traces.extend(nftables(Owner::KubeProxy));
    traces.push(Traces::Ipvs { drain: true });
    traces
}

fn iptables(in_force: &[(IpFamily, Backend)]) -> Vec<Traces> {
    let backend_of = |family| in_force.iter().find(|(served, _)| *served == family).map(|(_, backend)| *backend);
    IpFamily::BOTH.map(|family| Traces::Iptables { family, in_force: backend_of(family) }).into()
}

fn nftables(owner: Owner) -> [Traces; 2] {
    IpFamily::BOTH.map(|family| Traces::Nftables { owner, family })
}

/// Removes everything that a proxy has left on this host, in whichever mode, and nothing else. Tells in the log what was
/// removed. Fails if something remains.
pub(crate) fn cleanup() -> ExitCode {
    let mut report = Report::default();
    of_every_mode().into_iter().for_each(|mut traces| traces.remove(&mut report));
    for removed in &report.removed {
        tracing::info!("removed {removed}");
    }
    for trouble in &report.troubles {
        tracing::error!("{trouble}");
    }
    match (report.removed.len(), report.troubles.len()) {
        (0, 0) => tracing::info!("there was nothing to clean up"),
        (_, 0) => tracing::info!("all is cleaned up; sysctls stay as they are"),
        (_, troubles) => {
            tracing::error!(troubles, "not all is cleaned up");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

impl Leftovers for Traces {
    fn remove(&mut self, report: &mut Report) {
        match *self {
            Self::Iptables { family, in_force } => remove_iptables(family, in_force, report),
            Self::Counters => remove_packet_counters(report),
            Self::Nftables { owner, family } => remove_nftables(owner, family, report),
            Self::Ipvs { drain } => ipvs::remove(drain, report),
        }
    }
}

fn remove_iptables(family: IpFamily, in_force: Option<Backend>, report: &mut Report) {
    let (programs, path) = (Arc::new(HostPrograms), search_path());
    let (found, scope) = match in_force {
        Some(backend) => (Tools::find_backend(family, backend, &*programs, &path), Scope::OtherModes),
        None => (Tools::find(family, &*programs, &path), Scope::Everything),
    };
    let tools = match found {
        Ok(tools) => tools,
        // Without tables nobody has written such rules here.
        Err(error @ Unusable::Kernel { .. }) => {
            tracing::debug!(%family, "no iptables rules to look for: {}", chain(&error));
            return;
        }
        // Somebody else's tools may have, as in a container, and the kernel still knows of them.
        Err(error @ Unusable::Missing { .. }) => {
            let left = chains_in_sight(family);
            if !left.is_empty() {
                report.troubles.push(format!("{} of {family} iptables stay: {}", left.join(", "), chain(&error)));
            }
            return;
        }
        Err(error) => return report.trouble(&error),
    };
    let mut clean = |tools: &Tools, scope| {
        let Cleanup { chains, jumps, errors } = clean_up(tools, programs.clone(), scope);
        if chains + jumps > 0 {
            let backend = tools.release.backend;
            report.removed(format!("{chains} chains and {jumps} jumps into them from {family} iptables ({backend})"));
        }
        for error in &errors {
            report.troubles.push(format!("{family} iptables: {}", chain(error)));
        }
    };
    clean(&tools, scope);
    match tools.other_backend(&*programs, &path) {
        Ok(Some(other)) if other.rules > 0 => match Tools::find_backend(family, other.backend, &*programs, &path) {
            Ok(tools) => clean(&tools, Scope::Everything),
            Err(error) => tracing::debug!(%family, "cannot look into the other backend: {}", chain(&error)),
        },
        Ok(_) => {}
        Err(error) => tracing::debug!(%family, "cannot look at the other backend: {}", chain(&error)),
    }
}

/// Chains of a proxy that `iptables` has written into tables of nf_tables, as far as these can be read.
fn chains_in_sight(family: IpFamily) -> Vec<String> {
    let Ok(mut kernel) = NetlinkKernel::open() else { return Vec::new() };
    let mut found = Vec::new();
    for table in TableName::OURS {
        let id = TableId { family, name: table.as_str().to_owned().into() };
        let Ok(Some(listing)) = kernel.listing(&id) else { continue };
        let chains = listing.chains.iter().filter_map(|listed| listed.name.as_str().parse::<ChainName>().ok());
        found.extend(chains.filter(|chain| is_of_any_mode(table, *chain)).map(|chain| format!("{table} {chain}")));
    }
    found
}

fn remove_packet_counters(report: &mut Report) {
    match KernelCounters::open() {
        Ok(Some(mut counters)) => {
            let (removed, errors) = remove_counters(&mut counters);
            removed.into_iter().for_each(|name| report.removed(format!("packet counter {name}")));
            errors.iter().for_each(|error| report.trouble(error));
        }
        Ok(None) => {}
        Err(error) => report.trouble(&error),
    }
}

fn remove_nftables(owner: Owner, family: IpFamily, report: &mut Report) {
    let table = owner.table(family);
    match NetlinkKernel::open().and_then(|mut kernel| remove_table(&mut kernel, table.clone())) {
        Ok(true) => report.removed(format!("nftables table {table}")),
        Ok(false) | Err(NetlinkError::NotSupported) => {}
        Err(error) => report.trouble(&error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEGACY: [(IpFamily, Backend); 1] = [(IpFamily::V4, Backend::Legacy)];

    #[test]
    fn rules_go_before_what_they_look_into() {
        for traces in [of_every_mode(), of_all_but_iptables(&LEGACY), of_all_but_nftables()] {
            let last_iptables = traces.iter().rposition(|traces| matches!(traces, Traces::Iptables { .. })).unwrap();
            let is_later = |traces: &Traces| matches!(traces, Traces::Counters | Traces::Ipvs { .. });
            assert!(traces.iter().position(is_later).is_some_and(|at| at > last_iptables));
        }
    }

    #[test]
    fn a_switch_removes_all_modes_but_the_one_that_has_taken_over() {
        let ours = |traces: &Traces| matches!(traces, Traces::Nftables { owner: Owner::Ferroute, .. });
        let but_iptables = of_all_but_iptables(&LEGACY);
        assert_eq!(of_every_mode().len(), 8);
        assert!(!of_all_but_nftables().iter().any(ours));
        assert_eq!(of_all_but_nftables().len(), of_every_mode().len() - 2);
        let drains = |traces: &[Traces]| traces.contains(&Traces::Ipvs { drain: true });
        assert!(drains(&but_iptables) && drains(&of_all_but_nftables()) && !drains(&of_every_mode()));
        assert_eq!(
            but_iptables[..2],
            [
                Traces::Iptables { family: IpFamily::V4, in_force: Some(Backend::Legacy) },
                Traces::Iptables { family: IpFamily::V6, in_force: None },
            ]
        );
        assert_eq!(but_iptables.iter().filter(|traces| ours(traces)).count(), 2);
    }
}
