//! What a configuration wants of the kernel's settings: the connection table, node ports on localhost, and how readily
//! the kernel ends this process.
//!
//! All of it needs rights that the proxy itself can do without, so `--init-only` sets just these and ends. What is *not*
//! here: the settings that a mode looks after by itself while it runs.

use std::{fs, time::Duration};

use ferroute_config::{Conntrack, Mode, Resolved};
use ferroute_core::IpFamily;
use ferroute_host::{Ensured, SysctlError, Sysctls};

/// A setting and its value.
type Setting = (&'static str, String);

/// Sets everything. What could not be set is left as it was, and is told.
pub(crate) fn apply(resolved: &Resolved) -> Vec<SysctlError> {
    apply_to(&Roots::of_kernel(), resolved)
}

/// Where settings are.
struct Roots {
    /// Of the calling thread's network namespace.
    sysctls: Sysctls,
    process: Sysctls,
    modules: Sysctls,
    cores: usize,
}

impl Roots {
    fn of_kernel() -> Self {
        Self {
            sysctls: Sysctls::of_kernel(),
            process: Sysctls::rooted_at("/proc/self"),
            modules: Sysctls::rooted_at("/sys/module"),
            cores: cores(),
        }
    }
}

fn apply_to(roots: &Roots, resolved: &Resolved) -> Vec<SysctlError> {
    let mut unset = Vec::new();
    let mut set = |sysctls: &Sysctls, name: &str, value: &str| match sysctls.ensure(name, value) {
        Ok(Ensured::AsBefore) => {}
        Ok(Ensured::Changed { from }) => tracing::info!("set {name} to {value} (it was {from})"),
        Err(error) => unset.push(error),
    };
    for (name, value) in sysctls(resolved) {
        set(&roots.sysctls, name, &value);
    }
    if let Some(score) = resolved.oom_score_adj {
        set(&roots.process, "oom_score_adj", &score.to_string());
    }
    if let Some(limit) = resolved.conntrack.limit {
        let entries = limit.entries(roots.cores);
        // As in kube-proxy, lists of four on average. A table that is larger already stays as it is.
        let sizes = [
            (&roots.sysctls, "net/netfilter/nf_conntrack_max", entries),
            (&roots.modules, "nf_conntrack/parameters/hashsize", entries / 4),
        ];
        for (root, name, least) in sizes {
            let found = root.read(name).ok().and_then(|text| text.parse::<u64>().ok());
            if found.is_none_or(|found| found < least) {
                set(root, name, &least.to_string());
            }
        }
    }
    unset
}

/// Those below `/proc/sys`.
fn sysctls(resolved: &Resolved) -> Vec<Setting> {
    let Conntrack {
        // A least size, not a value.
        limit: _,
        tcp_established_timeout,
        tcp_close_wait_timeout,
        tcp_be_liberal,
        udp_timeout,
        udp_stream_timeout,
    } = resolved.conntrack;
    let timeouts: [(&'static str, Option<Duration>); 4] = [
        ("net/netfilter/nf_conntrack_tcp_timeout_established", tcp_established_timeout),
        ("net/netfilter/nf_conntrack_tcp_timeout_close_wait", tcp_close_wait_timeout),
        ("net/netfilter/nf_conntrack_udp_timeout", udp_timeout),
        ("net/netfilter/nf_conntrack_udp_timeout_stream", udp_stream_timeout),
    ];
    let timeouts = timeouts.into_iter().filter_map(|(name, value)| Some((name, value?.as_secs().to_string())));
    let mut settings: Vec<Setting> = timeouts.collect();
    if tcp_be_liberal {
        settings.push(("net/netfilter/nf_conntrack_tcp_be_liberal", "1".to_owned()));
    }
    if resolved.mode == Mode::Iptables && resolved.settings.localhost_node_ports(IpFamily::V4) {
        settings.push(("net/ipv4/conf/all/route_localnet", "1".to_owned()));
    }
    settings
}

/// CPU cores of the machine, not those that this process may use: connections come by all of them.
fn cores() -> usize {
    let present = fs::read_to_string("/sys/devices/system/cpu/present").ok();
    present
        .and_then(|text| count(&text))
        .or_else(|| std::thread::available_parallelism().ok().map(Into::into))
        .unwrap_or(1)
}

/// How many numbers there are in a list such as `0-3,8`.
fn count(list: &str) -> Option<usize> {
    let ranges = list.trim().split(',').map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        (last.parse::<usize>().ok()? + 1).checked_sub(first.parse().ok()?)
    });
    ranges.sum()
}

#[cfg(test)]
mod tests;
