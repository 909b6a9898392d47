//! The rules that a packet is traced through, of any mode.

use anyhow::bail;
use ferroute_config::{ModeName, Resolved};
use ferroute_core::{IpFamily, ServiceTable};
use ferroute_iptables::{HostExec, exec::search_path};
use ferroute_modes::{
    PlannedRules, REGISTRY,
    kernel_rules::{self, KernelRules},
};
use ferroute_nftables::kernel::Consistency;
use ferroute_proxy::host_setup::require_net_admin;
use ferroute_trace::{Host, Outcome, Packet, Ruleset, Tie, Trace};

use super::{DumpedRules, Request, RulesSource, TraceNode};

/// Rules of one IP family.
pub enum Rules {
    /// The rules that the proxy would write in this mode.
    Planned(ModeName, Box<dyn PlannedRules>),
    /// All rules in the kernel, of every program.
    Kernel(Box<KernelRules>),
    /// Rules in files, of any host.
    Files(Box<DumpedRules>),
}

/// Loads the requested rules.
///
/// # Errors
/// If the kernel's rules, or those in files, cannot be read.
pub fn load(request: &Request, node: &TraceNode, family: IpFamily) -> anyhow::Result<Rules> {
    if request.kernel {
        return from_kernel(family);
    }
    if !request.rules.is_empty() {
        let rules = DumpedRules::read(&request.rules, family)?;
        return Ok(Rules::Files(Box::new(rules.with_service_addresses(node.service_addresses.clone()))));
    }
    let desired = &node.desired;
    let table = desired.table(family);
    Rules::planned(&desired.resolved, table, &node.host.addresses)
}

fn from_kernel(family: IpFamily) -> anyhow::Result<Rules> {
    require_net_admin()?;
    let rules = kernel_rules::read(family, &HostExec, &search_path())?;
    for reason in &rules.unread {
        tracing::warn!("the trace lacks rules: {reason}");
    }
    if rules.iptables.len() > 1 {
        tracing::warn!("both iptables backends, legacy and nf_tables, have rules; their order is not known");
    }
    match rules.reading {
        Consistency::Consistent => Ok(Rules::Kernel(Box::new(rules))),
        _ => bail!("the rules were modified while they were read; try again"),
    }
}

impl Rules {
    /// Plans the rules that the proxy would write on a node with these addresses.
    ///
    /// # Errors
    /// If the planned rules are inconsistent, which is a bug.
    pub fn planned(resolved: &Resolved, table: &ServiceTable, addresses: &[std::net::IpAddr]) -> anyhow::Result<Self> {
        let mode = REGISTRY.active(resolved.mode);
        Ok(Self::Planned(mode.name(), mode.plan(resolved, table, addresses)?))
    }

    /// Traces a packet through the rules.
    pub fn trace(&self, host: &Host, packet: &Packet) -> Trace {
        self.ruleset().trace(host, packet)
    }

    /// Returns the overall result of a trace. It is not certain that a packet is delivered if rules are missing.
    pub fn outcome(&self, trace: &Trace, family: IpFamily) -> Outcome {
        let is_incomplete = matches!(self, Self::Files(rules) if !rules.missing(family).is_empty());
        match trace.outcome() {
            Outcome::Delivered if is_incomplete => Outcome::Unknown,
            outcome => outcome,
        }
    }

    /// Traces a packet through the rules, with steps but without events.
    pub fn summary(&self, host: &Host, packet: &Packet) -> Trace {
        self.ruleset().summary(host, packet)
    }

    /// Returns the mode of the rules. For rules in the kernel, this is the mode of the proxies with rules, `mixed` or
    /// `none`; for rules in files it is `none`.
    pub fn mode(&self) -> &'static str {
        let rules = match self {
            Self::Planned(mode, _) => return mode.as_str(),
            Self::Files(_) => return "none",
            Self::Kernel(rules) => rules,
        };
        let mut modes: Vec<ModeName> = REGISTRY.active_proxies(rules).iter().map(|proxy| proxy.mode).collect();
        modes.dedup();
        match modes.as_slice() {
            [] => "none",
            [mode] => mode.as_str(),
            _ => "mixed",
        }
    }

    /// Returns where the rules are from.
    pub fn source(&self) -> RulesSource {
        match self {
            Self::Planned(..) => RulesSource::Planned,
            Self::Kernel(_) => RulesSource::Kernel,
            Self::Files(_) => RulesSource::Files,
        }
    }

    /// Describes the order of chains that the trace assumes, if the rules do not show it and the result depends on it.
    pub(super) fn assumed_order(&self, host: &Host, packet: &Packet) -> Option<String> {
        let may_be_younger = |table: &str| match self {
            Self::Planned(..) => false,
            Self::Files(_) => true,
            Self::Kernel(rules) => rules.nftables.iter().any(|snapshot| {
                !snapshot.late_base_chains.is_empty() && format!("{} {}", snapshot.family, snapshot.name) == table
            }),
        };
        let ruleset = self.ruleset();
        let mut ties = ruleset.ties().into_iter().filter(|tie| may_be_younger(&tie.older)).peekable();
        ties.peek()?;
        let assumed = ruleset.summary(host, packet);
        let Tie { hook, older, newer, is_nat, .. } = ties.find(|tie| {
            let mut reversed = self.ruleset();
            reversed.reverse(tie);
            !reversed.summary(host, packet).ends_like(&assumed)
        })?;
        let (chains, hook) = (if is_nat { "NAT chains" } else { "chains" }, hook.as_str());
        Some(format!(
            "tables {older} and {newer} have {chains} of equal priority at {hook}, and the result depends on their order; the trace assumes \
             that those of {newer} are younger and run first"
        ))
    }

    fn ruleset(&self) -> Ruleset<'_> {
        match self {
            Self::Planned(_, rules) => Ruleset::from_rules(rules.as_ref()),
            Self::Kernel(rules) => Ruleset::from_rules(rules.as_ref()),
            Self::Files(rules) => Ruleset::from_rules(rules.as_ref()),
        }
    }
}
