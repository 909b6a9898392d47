//! The comparison of the kernel's rules with the desired state of this host.

use std::{borrow::Borrow, net::IpAddr, path::PathBuf, thread, time::Duration};

use ferroute_config::FamilySupport;
use ferroute_core::IpFamily;
use ferroute_host::{HostAddresses, KernelAddresses};
use ferroute_iptables::{HostExec, exec::search_path};
use ferroute_modes::{
    ActiveProxy, REGISTRY, kernel_has_ipv6,
    kernel_rules::{KernelRules, read},
};
use ferroute_nftables::kernel::Consistency;
use ferroute_trace::Host;
use serde::{Deserialize, Serialize};

use super::{Conclusion, DiffReport, Expected, Rules, Undetermined, compare};
use crate::{desired::Desired, preflight::resolve_for};

/// Reports on all proxies whose rules are in the kernel, and their conclusion.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Comparison {
    /// The worst conclusion of all reports.
    pub conclusion: Conclusion,
    /// A report for each proxy and IP family.
    pub reports: Vec<DiffReport>,
}

impl Comparison {
    fn new(reports: Vec<DiffReport>) -> Self {
        let conclusion = reports.iter().map(DiffReport::conclusion).max().unwrap_or(Conclusion::Equal);
        Self { conclusion, reports }
    }

    /// Removes the differences that an earlier comparison did not find.
    fn confirming(mut self, earlier: &Self) -> Self {
        for report in &mut self.reports {
            let is_same = |other: &&DiffReport| (other.family, &other.actual) == (report.family, &report.actual);
            if let Some(earlier) = earlier.reports.iter().find(is_same) {
                report.confirm(earlier);
            }
        }
        Self::new(self.reports)
    }
}

/// Loads the desired state and compares the rules in the kernel with it. Services change while both are read, so that a
/// difference has to be found again after a pause in which a proxy applies changes.
///
/// # Errors
/// Those of `load` and `compare`, which is [`compare_with_kernel`] in the network namespace of the rules.
pub fn compare_settled<D: Borrow<Desired>>(
    mut load: impl FnMut() -> anyhow::Result<D>,
    compare: impl Fn(&Desired) -> anyhow::Result<Comparison>,
) -> anyhow::Result<(D, Comparison)> {
    let mut desired = load()?;
    let mut comparison = compare(desired.borrow())?;
    for pause in SETTLING {
        if comparison.conclusion != Conclusion::Different {
            break;
        }
        thread::sleep(pause);
        desired = load()?;
        comparison = compare(desired.borrow())?.confirming(&comparison);
    }
    Ok((desired, comparison))
}

/// The pauses before further comparisons. An iptables mode with many Services may take a second for a change.
const SETTLING: [Duration; 2] = [Duration::from_millis(300), Duration::from_secs(1)];

/// Compares the rules in the kernel, of any program, with the desired state. Changes nothing.
///
/// # Errors
/// If the kernel's rules cannot be read.
pub fn compare_with_kernel(desired: &Desired) -> anyhow::Result<Comparison> {
    let addresses = KernelAddresses::open()?.list()?;
    // The routes are derived from the objects; the addresses are those that a proxy reads on this host.
    let host = Host { addresses, ..desired.host.clone() };
    let path: Vec<PathBuf> = search_path();
    let mut reports = Vec::new();
    for family in IpFamily::BOTH {
        let kernel = read(family, &HostExec, &path)?;
        if serves(desired, family) || !REGISTRY.active_proxies(&kernel).is_empty() {
            reports.extend(reports_for(desired, &host, family, kernel)?);
        }
    }
    reports.iter_mut().for_each(|report| report.mark_unapplied(&desired.unapplied));
    Ok(Comparison::new(reports))
}

fn serves(desired: &Desired, family: IpFamily) -> bool {
    let support = FamilySupport { ipv4: true, ipv6: kernel_has_ipv6() };
    let families = desired.resolved.families(desired.node(), support);
    families.is_ok_and(|families| families.iter().any(|served| served == family))
}

/// Returns a report for each proxy whose rules are in the kernel, or a single report if there is none.
fn reports_for(
    desired: &Desired,
    host: &Host,
    family: IpFamily,
    mut kernel: KernelRules,
) -> anyhow::Result<Vec<DiffReport>> {
    let services = desired.table(family);
    let addresses: &[IpAddr] = &host.addresses;
    let planned = REGISTRY.active(desired.resolved.mode).plan(&desired.resolved, services, addresses)?;
    let rules = Rules::from(planned.view());
    let settings = &desired.resolved.settings;
    // If the configuration is invalid in the other mode, its rules are those of another configuration.
    let settings_in =
        |mode| resolve_for(&desired.config, mode).map_or_else(|_| settings.clone(), |resolved| resolved.settings);
    let expected = Expected { services, settings, settings_in: &settings_in, host, rules: &rules };
    // Elements that packets have added are client state, not rules.
    kernel.nftables.iter_mut().for_each(|snapshot| snapshot.table.clear_dynamic_sets());
    let proxies = REGISTRY.active_proxies(&kernel);
    if proxies.is_empty() {
        // Without Services, the absence of rules makes no difference.
        if services.entries.is_empty() {
            return Ok(Vec::new());
        }
        let mut report = DiffReport::without_rules(&expected);
        report.undetermined.extend(unread(&kernel, &kernel.unread));
        return Ok(vec![report]);
    }
    let report = |proxy: &ActiveProxy<'_>| {
        let mut report = compare(&expected, &Rules::from(proxy.rules));
        report.undetermined.extend(unread(&kernel, &proxy.unread));
        report
    };
    Ok(proxies.iter().map(report).collect())
}

/// Returns undetermined comparisons for the rules that could not be read for these reasons.
fn unread(kernel: &KernelRules, reasons: &[String]) -> Vec<Undetermined> {
    let modified = "rules were modified while they were read".to_owned();
    let interrupted = (kernel.reading == Consistency::Interrupted).then_some(modified);
    let reasons = interrupted.into_iter().chain(reasons.iter().cloned());
    reasons.map(|reason| Undetermined { service_port: None, reason }).collect()
}
