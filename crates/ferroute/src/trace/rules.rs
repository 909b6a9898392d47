//! The rules that a packet is walked through, of whichever mode.

use anyhow::{Context, bail};
use ferroute_config::{Mode, Resolved};
use ferroute_core::{IpFamily, ServiceTable};
use ferroute_iptables::{HostFacts, HostPrograms, PlanContext, RuleSet, runner::search_path};
use ferroute_kernel_rules::{KernelRules, Part, ServiceProxy};
use ferroute_nftables::{
    kernel::{Kernel, MemoryKernel, Reading},
    model::TableId,
};
use ferroute_trace::{Account, Host, Packet, Ruleset, Summary};

use super::scene::Scene;
use crate::{cli::TraceArgs, planes};

/// Rules of one IP family.
pub(crate) enum Rules {
    /// What the proxy would write in iptables mode.
    Iptables(RuleSet),
    /// What it would write in nftables mode.
    Nftables(TableId, Box<MemoryKernel>),
    /// Everything that is in the kernel, whoever wrote it.
    Kernel(Box<KernelRules>),
}

/// The rules that the arguments ask for.
pub(super) fn load(args: &TraceArgs, scene: &Scene, family: IpFamily) -> anyhow::Result<Rules> {
    if args.kernel {
        return of_kernel(family);
    }
    let desired = &scene.desired;
    let mut facts = desired.facts(family);
    if scene.here {
        facts.addresses.clone_from(&scene.host.addresses);
    }
    Rules::planned(&desired.resolved, desired.table(family), &facts)
}

fn of_kernel(family: IpFamily) -> anyhow::Result<Rules> {
    let rules = ferroute_kernel_rules::read(family, &HostPrograms, &search_path())
        .context("--kernel needs the right to read rules (CAP_NET_ADMIN)")?;
    for found in &rules.iptables {
        for table in &found.saved.partial {
            tracing::warn!(backend = %found.backend, %table, "iptables-save cannot show all of the table");
        }
    }
    if rules.iptables.len() > 1 {
        tracing::warn!(
            "there are rules of both backends of iptables, legacy and nf_tables; which come first is a guess"
        );
    }
    match rules.reading {
        Reading::Steady => Ok(Rules::Kernel(Box::new(rules))),
        _ => bail!("the rules were changed while they were read: try again"),
    }
}

impl Rules {
    /// What the proxy would write.
    pub(crate) fn planned(resolved: &Resolved, table: &ServiceTable, facts: &HostFacts) -> anyhow::Result<Self> {
        match resolved.mode {
            Mode::Nftables => {
                let settings = planes::nftables_settings(resolved);
                let transaction = ferroute_nftables::plan::render(table, &settings, &facts.addresses);
                let mut kernel = MemoryKernel::new();
                kernel.commit(&transaction).context("the planned rules contradict each other")?;
                Ok(Self::Nftables(transaction.table, Box::new(kernel)))
            }
            // Where there are no virtual servers to be had, mode ipvs takes the rules of iptables.
            Mode::Iptables | Mode::Ipvs(_) => {
                let context = PlanContext::new(&resolved.settings, table, facts);
                Ok(Self::Iptables(ferroute_iptables::render(table, &context)))
            }
        }
    }

    /// All that can become of a packet, rule by rule.
    pub(crate) fn account(&self, host: &Host, packet: &Packet) -> Account {
        self.ruleset().account(host, packet)
    }

    /// What changes and decides a packet's way.
    pub(crate) fn summary(&self, host: &Host, packet: &Packet) -> Summary {
        self.ruleset().summary(host, packet)
    }

    /// The mode that such rules belong to; of those in the kernel, the mode of the proxies that have written some.
    pub(crate) fn mode(&self) -> &'static str {
        let Self::Kernel(rules) = self else {
            return if matches!(self, Self::Nftables(..)) { "nftables" } else { "iptables" };
        };
        let is_iptables = |proxy: &ServiceProxy| matches!(proxy, ServiceProxy::Iptables(_));
        let proxies = rules.proxies();
        match (proxies.iter().any(is_iptables), proxies.iter().all(is_iptables)) {
            (true, true) => "iptables",
            (true, false) => "mixed",
            (false, _) if proxies.is_empty() => "none",
            (false, _) => "nftables",
        }
    }

    /// They are in the kernel, not just planned.
    pub(crate) fn are_in_kernel(&self) -> bool {
        matches!(self, Self::Kernel(_))
    }

    fn ruleset(&self) -> Ruleset<'_> {
        let mut ruleset = Ruleset::new();
        match self {
            Self::Iptables(rules) => ruleset.add_iptables(rules),
            Self::Nftables(id, kernel) => {
                if let Some(table) = kernel.table(id) {
                    ruleset.add_table(id.to_string(), table);
                }
            }
            Self::Kernel(rules) => {
                for part in rules.parts() {
                    match part {
                        Part::Iptables(rules, table) => ruleset.add_iptables_table(rules, table),
                        Part::Nftables(found) => {
                            ruleset.add_table(format!("{} {}", found.family, found.name), &found.table);
                        }
                    }
                }
            }
        }
        ruleset
    }
}
