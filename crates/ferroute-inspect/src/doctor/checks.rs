//! The checks, each for one problem that occurs on real hosts.

mod cluster;
mod kernel;
mod proxies;
mod traffic;

use super::{Inputs, diagnosis::CheckResult};

/// A check.
pub(super) struct Check {
    /// The name, for output and scripts.
    pub(super) name: &'static str,
    /// Runs the check.
    pub(super) run: fn(&Inputs) -> CheckResult,
}

/// All checks, from the general to the particular.
pub(super) const ALL: &[Check] = &[
    Check { name: "capabilities", run: kernel::capabilities },
    Check { name: "ip-families", run: kernel::families },
    Check { name: "kernel-nftables", run: kernel::nftables },
    Check { name: "iptables-tools", run: kernel::iptables },
    Check { name: "kernel-ipvs", run: kernel::ipvs },
    Check { name: "mode-support", run: kernel::other_mode },
    Check { name: "table-owner", run: kernel::table_owner },
    Check { name: "dormant-tables", run: kernel::dormant_tables },
    Check { name: "unread-rules", run: proxies::unread },
    Check { name: "iptables-backends", run: proxies::backends },
    Check { name: "other-proxies", run: proxies::proxies },
    Check { name: "running-proxy", run: proxies::running },
    Check { name: "ip-forward", run: traffic::forwarding },
    Check { name: "mode-sysctls", run: traffic::required_sysctls },
    Check { name: "service-routes", run: traffic::service_routes },
    Check { name: "localhost-routes", run: traffic::localhost_routes },
    Check { name: "forward-policy", run: traffic::forward_policy },
    Check { name: "input-firewall", run: traffic::input_firewall },
    Check { name: "firewall-tables", run: traffic::firewall_tables },
    Check { name: "rp-filter", run: traffic::reverse_path },
    Check { name: "bridge-nf-call", run: traffic::bridges },
    Check { name: "hairpin", run: traffic::hairpin },
    Check { name: "conntrack-table", run: traffic::conntrack },
    Check { name: "earlier-translation", run: traffic::earlier_rules },
    Check { name: "affinity-lists", run: traffic::affinity_lists },
    Check { name: "node-ports", run: cluster::node_ports },
    Check { name: "node-port-addresses", run: cluster::node_port_addresses },
    Check { name: "source-ranges", run: cluster::source_ranges },
    Check { name: "api-server-clock", run: cluster::clock },
    Check { name: "endpoints", run: cluster::endpoints },
];
