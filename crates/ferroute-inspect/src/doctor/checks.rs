//! The checks. Each knows one thing that goes wrong on real hosts.

mod cluster;
mod kernel;
mod others;
mod traffic;

use crate::doctor::{Facts, examination::Verdict};

/// A check with its name.
pub(crate) struct Check {
    /// Short, for lists and programs.
    pub(crate) name: &'static str,
    /// What it says of these facts.
    pub(crate) look: fn(&Facts) -> Verdict,
}

/// In the order in which a person would look.
pub(crate) const ALL: &[Check] = &[
    Check { name: "ip-families", look: kernel::families },
    Check { name: "kernel-nftables", look: kernel::nftables },
    Check { name: "iptables-tools", look: kernel::iptables },
    Check { name: "iptables-backends", look: others::backends },
    Check { name: "other-proxies", look: others::proxies },
    Check { name: "ip-forward", look: traffic::forwarding },
    Check { name: "forward-policy", look: traffic::forward_policy },
    Check { name: "rp-filter", look: traffic::reverse_path },
    Check { name: "bridge-nf-call", look: traffic::bridges },
    Check { name: "conntrack-table", look: traffic::conntrack },
    Check { name: "node-ports", look: cluster::node_ports },
    Check { name: "api-server-clock", look: cluster::clock },
    Check { name: "endpoints", look: cluster::endpoints },
];
