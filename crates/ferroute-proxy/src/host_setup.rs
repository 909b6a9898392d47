//! What a configuration wants of the kernel's settings: the connection table, node ports on localhost, and how readily
//! the kernel ends this process.
//!
//! All of it needs rights that the proxy itself can do without, so `--init-only` sets just these and ends. What is *not*
//! here: the settings that a mode looks after by itself while it runs.

use std::{fs, time::Duration};

use ferroute_config::{Conntrack, Resolved};
use ferroute_core::IpFamily;
use ferroute_host::{Ensured, SysctlError, Sysctls};

use crate::logging::chain;

/// A setting and its value.
type Setting = (&'static str, String);

/// What has become of the settings.
#[derive(Debug, Default)]
pub struct HostSetup {
    /// Those that were set, or were right already.
    pub set: Vec<InForce>,
    /// Those that could not be set, and are as they were.
    pub failed: Vec<SysctlError>,
}

/// A setting that is as it is wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InForce {
    /// Its path.
    pub name: &'static str,
    /// Its value.
    pub value: String,
    /// What it was before; `None` if it was right already.
    pub from: Option<String>,
}

/// Sets everything. What could not be set is left as it was, and is told.
pub fn apply(resolved: &Resolved) -> HostSetup {
    apply_to(&Roots::from_kernel(), resolved)
}

impl HostSetup {
    /// A line for each setting, for people.
    pub fn lines(&self) -> impl Iterator<Item = String> + '_ {
        let set = self.set.iter().map(|InForce { name, value, from }| match from {
            Some(from) => format!("{name} = {value} (was {from})"),
            None => format!("{name} = {value}"),
        });
        set.chain(self.failed.iter().map(|error| chain(error)))
    }

    fn ensure(&mut self, sysctls: &Sysctls, name: &'static str, value: String) -> bool {
        match sysctls.ensure(name, &value) {
            Ok(ensured) => {
                let from = match ensured {
                    Ensured::Unchanged => None,
                    Ensured::Changed { from } => Some(from),
                };
                self.set.push(InForce { name, value, from });
                true
            }
            Err(error) => {
                self.failed.push(error);
                false
            }
        }
    }

    /// The same for a size, of which more is no harm.
    fn ensure_at_least(&mut self, sysctls: &Sysctls, name: &'static str, least: u64) -> bool {
        match sysctls.read(name) {
            Ok(found) if found.parse::<u64>().is_ok_and(|found| found >= least) => {
                self.set.push(InForce { name, value: found, from: None });
                true
            }
            _ => self.ensure(sysctls, name, least.to_string()),
        }
    }
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
    fn from_kernel() -> Self {
        Self {
            sysctls: Sysctls::from_kernel(),
            process: Sysctls::with_root("/proc/self"),
            modules: Sysctls::with_root("/sys/module"),
            cores: cores(),
        }
    }
}

fn apply_to(roots: &Roots, resolved: &Resolved) -> HostSetup {
    let mut setup = HostSetup::default();
    for (name, value) in sysctls(resolved) {
        setup.ensure(&roots.sysctls, name, value);
    }
    if let Some(score) = resolved.oom_score_adj {
        setup.ensure(&roots.process, OOM_SCORE, score.to_string());
    }
    if let Some(limit) = resolved.conntrack.limit {
        let entries = limit.entries(roots.cores);
        // Both belong to the whole machine: in a network namespace of its own a proxy has no say in them.
        let is_machines = !roots.sysctls.is_read_only(CONNTRACK_MAX);
        if setup.ensure_at_least(&roots.sysctls, CONNTRACK_MAX, entries) && is_machines {
            // As in kube-proxy, lists of four on average.
            setup.ensure_at_least(&roots.modules, CONNTRACK_BUCKETS, entries / 4);
        }
    }
    setup
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
    if resolved.settings.localhost_node_ports(IpFamily::V4) {
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

const CONNTRACK_MAX: &str = "net/netfilter/nf_conntrack_max";

/// How readily the kernel ends this process, below `/proc/self`.
pub const OOM_SCORE: &str = "oom_score_adj";

/// Lists in the connection table, below `/sys/module`.
pub const CONNTRACK_BUCKETS: &str = "nf_conntrack/parameters/hashsize";

#[cfg(test)]
mod tests;
