//! `ferroute diff`: what is in the kernel, whoever wrote it, against what should be, by what becomes of packets.

use std::{
    io::{ErrorKind, Write},
    process::{ExitCode, Termination},
};

use anyhow::Context;
use ferroute_config::{FamilySupport, Mode};
use ferroute_core::IpFamily;
use ferroute_explain::diff::{Conclusion, Doubt, Report, Rules, Wanted, compare, write_report_into};
use ferroute_host::{HostAddresses, KernelAddresses};
use ferroute_iptables::{HostFacts, HostPrograms, PlanContext, RuleSet, TableName, runner::search_path};
use ferroute_kernel_rules::{KernelRules, ServiceProxy, read};
use ferroute_nftables::{
    kernel::{Kernel, MemoryKernel, MemoryTable, Reading},
    model::TableId,
    plan::TABLE,
};
use ferroute_trace::Host;
use serde::Serialize;

use crate::{
    cli::{DiffArgs, Output},
    desired::Desired,
    planes::{self, kernel_has_ipv6},
};

/// Does what `ferroute diff` was asked for. Nothing is changed.
pub(crate) fn run(args: &DiffArgs, verbosity: Option<u32>, out: &mut impl Write) -> anyhow::Result<Comparison> {
    let desired = Desired::load(&args.desired, verbosity)?;
    let addresses = KernelAddresses::open()?.list()?;
    // Where things are is as the objects say; the addresses are those that a proxy would find here.
    let host = Host { addresses, ..desired.host.clone() };
    let mut reports = Vec::new();
    for family in IpFamily::BOTH {
        let kernel = read(family, &HostPrograms, &search_path())?;
        if serves(&desired, family) || !kernel.proxies().is_empty() {
            reports.extend(reports_of(&desired, &host, family, kernel)?);
        }
    }
    let comparison = Comparison::of(reports);
    match write(&comparison, args, out) {
        // The status tells even who has seen enough (`ferroute diff | head`).
        Err(error) if is_broken_pipe(&error) => Ok(comparison),
        written => written.map(|()| comparison),
    }
}

/// All reports, and what they come to.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Comparison {
    conclusion: Conclusion,
    reports: Vec<Report>,
}

impl Comparison {
    fn of(reports: Vec<Report>) -> Self {
        let conclusion = reports.iter().map(Report::conclusion).max().unwrap_or(Conclusion::Equal);
        Self { conclusion, reports }
    }
}

impl Termination for Comparison {
    fn report(self) -> ExitCode {
        match self.conclusion {
            Conclusion::Equal => ExitCode::SUCCESS,
            Conclusion::Different => ExitCode::from(1),
            Conclusion::Unclear => ExitCode::from(crate::COULD_NOT_TELL),
        }
    }
}

fn serves(desired: &Desired, family: IpFamily) -> bool {
    let support = FamilySupport { ipv4: true, ipv6: kernel_has_ipv6() };
    let families = desired.resolved.families(desired.node(), support);
    families.is_ok_and(|families| families.iter().any(|served| served == family))
}

/// A report for each proxy whose rules are here, or one that says that there are none.
fn reports_of(
    desired: &Desired,
    host: &Host,
    family: IpFamily,
    mut kernel: KernelRules,
) -> anyhow::Result<Vec<Report>> {
    let services = desired.table(family);
    let planned = Planned::new(desired, host, family)?;
    let rules = planned.rules()?;
    let wanted = Wanted { services, settings: &desired.resolved.settings, host, rules: &rules };
    // Clients that the kernel remembers are no matter of rules.
    kernel.nftables.iter_mut().for_each(|found| found.table.forget_learned());
    let proxies = kernel.proxies();
    if proxies.is_empty() {
        // Nothing is there and nothing needs to be, for all that clients can notice.
        let nothing_wanted = services.entries.is_empty();
        return Ok(if nothing_wanted { Vec::new() } else { vec![Report::of_nothing(&wanted)] });
    }
    let report = |proxy: ServiceProxy| {
        let mut report = compare(&wanted, &rules_of(&kernel, proxy)?);
        report.doubts.extend(doubts(&kernel, proxy));
        Some(report)
    };
    Ok(proxies.into_iter().filter_map(report).collect())
}

/// The rules that should be there.
enum Planned {
    Iptables(RuleSet),
    Nftables(MemoryKernel, TableId),
}

impl Planned {
    fn new(desired: &Desired, host: &Host, family: IpFamily) -> anyhow::Result<Self> {
        let (resolved, table) = (&desired.resolved, desired.table(family));
        Ok(match resolved.mode {
            Mode::Nftables => {
                let settings = planes::nftables_settings(resolved);
                let mut kernel = MemoryKernel::new();
                kernel
                    .commit(&ferroute_nftables::plan::render(table, &settings, &host.addresses))
                    .context("the rules that should be there cannot be had")?;
                Self::Nftables(kernel, TableId { family, name: TABLE })
            }
            Mode::Iptables | Mode::Ipvs(_) => {
                let facts = HostFacts { addresses: host.addresses.clone(), ..desired.facts(family) };
                let context = PlanContext::new(&resolved.settings, table, &facts);
                Self::Iptables(ferroute_iptables::render(table, &context))
            }
        })
    }

    fn rules(&self) -> anyhow::Result<Rules<'_>> {
        match self {
            Self::Iptables(rules) => Ok(Rules::iptables(rules)),
            Self::Nftables(kernel, table) => kernel.table(table).map(Rules::nftables).context("no table was planned"),
        }
    }
}

/// The part of the kernel's rules that is a proxy's.
fn rules_of(kernel: &KernelRules, proxy: ServiceProxy) -> Option<Rules<'_>> {
    match proxy {
        ServiceProxy::Iptables(backend) => {
            let found = kernel.iptables.iter().find(|found| found.backend == backend)?;
            Some(Rules::iptables(&found.saved.rules))
        }
        ServiceProxy::FerrouteNftables => kernel.ferroute_table().map(|found| Rules::nftables(&found.table)),
        ServiceProxy::KubeProxyNftables => {
            kernel.kube_proxy_table().map(|found| Rules::kube_proxy_nftables(&found.table))
        }
    }
}

/// What could not be read of a proxy's rules.
fn doubts(kernel: &KernelRules, proxy: ServiceProxy) -> Vec<Doubt> {
    let doubt = |why: String| Doubt { service_port: None, why };
    let mut doubts = Vec::new();
    if kernel.reading == Reading::Interrupted {
        doubts.push(doubt("rules were changed while they were read".to_owned()));
    }
    let unread = |table: &MemoryTable| -> Vec<Doubt> {
        let sets = table.sets().map(|set| (&set.name, table.unread(&set.name))).filter(|(_, unread)| *unread > 0);
        sets.map(|(set, unread)| doubt(format!("{unread} elements of {set} are of a form that is not known"))).collect()
    };
    match proxy {
        ServiceProxy::Iptables(backend) => {
            let found = kernel.iptables.iter().find(|found| found.backend == backend);
            let partial = found.into_iter().flat_map(|found| &found.saved.partial);
            let ours = partial.filter(|table| [TableName::Nat, TableName::Filter].contains(table));
            doubts.extend(ours.map(|table| doubt(format!("iptables-save cannot show all of table {table}"))));
        }
        ServiceProxy::FerrouteNftables => {
            doubts.extend(kernel.ferroute_table().map(|found| unread(&found.table)).unwrap_or_default());
        }
        ServiceProxy::KubeProxyNftables => {
            doubts.extend(kernel.kube_proxy_table().map(|found| unread(&found.table)).unwrap_or_default());
        }
    }
    doubts
}

fn write(comparison: &Comparison, args: &DiffArgs, out: &mut impl Write) -> anyhow::Result<()> {
    match args.output {
        Output::Text => {
            let mut text = String::new();
            let most = if args.all { 0 } else { MOST_TOLD };
            for report in &comparison.reports {
                write_report_into(&mut text, report, most)?;
            }
            if comparison.reports.is_empty() {
                text.push_str("no Services, and no rules of a service proxy\n");
            }
            out.write_all(text.as_bytes())?;
        }
        Output::Json => {
            serde_json::to_writer_pretty(&mut *out, comparison)?;
            writeln!(out)?;
        }
    }
    Ok(out.flush()?)
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<std::io::Error>().is_some_and(|error| error.kind() == ErrorKind::BrokenPipe)
}

/// Differences of a kind that are told unless all are asked for.
const MOST_TOLD: usize = 20;
