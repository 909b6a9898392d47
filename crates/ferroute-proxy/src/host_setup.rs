//! Kernel settings that the configuration requires: connection tracking, node ports on localhost, and the OOM score.
//!
//! They require privileges that the proxy otherwise does not need, so `--init-only` sets only these and exits. Settings that
//! a mode checks while it runs are not handled here.

use std::{fmt, fs, time::Duration};

use ferroute_config::{Conntrack, Resolved};
use ferroute_core::error_chain;
use ferroute_host::{Ensured, SysctlError, Sysctls, has_net_admin};
use ferroute_modes::{Mode, Sysctl};

/// Name and value of a setting.
type Setting = (&'static str, String);

/// The result of [`apply`].
#[derive(Debug, Default)]
pub struct HostSetup {
    /// Settings that have the required value.
    pub set: Vec<AppliedSetting>,
    /// Errors for settings that could not be changed.
    pub failed: Vec<SysctlError>,
}

/// A setting that has its required value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppliedSetting {
    /// Path below `/proc/sys`, `/proc/self` or `/sys/module`.
    pub name: &'static str,
    /// Value.
    pub value: String,
    /// Previous value, if that was different.
    pub from: Option<String>,
}

impl fmt::Display for AppliedSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, value, from } = self;
        write!(f, "{name} = {value}")?;
        from.as_ref().map_or(Ok(()), |from| write!(f, " (was {from})"))
    }
}

/// Checks that this process may read and write rules. Without the capability, every probe of a mode would fail for this
/// reason, and select another mode; commands would fail with one error for each object that they read.
///
/// # Errors
/// If the process lacks the capability.
pub fn require_net_admin() -> anyhow::Result<()> {
    match has_net_admin() {
        Ok(false) => anyhow::bail!(
            "the capability CAP_NET_ADMIN is missing, which the kernel requires for its rules and connections: run as root; in a \
             container, add NET_ADMIN to securityContext.capabilities.add"
        ),
        Ok(true) => Ok(()),
        // The mode fails with a better error.
        Err(error) => {
            tracing::debug!("cannot check capabilities: {}", error_chain(&error));
            Ok(())
        }
    }
}

/// Applies all settings: those of the configuration, and those that `mode` relies on. Errors are returned in the result,
/// and do not affect other settings.
pub fn apply(resolved: &Resolved, mode: &dyn Mode) -> HostSetup {
    apply_to(&Roots::from_kernel(), resolved, mode)
}

impl HostSetup {
    /// Describes each setting or error in one line.
    pub fn lines(&self) -> impl Iterator<Item = String> + '_ {
        self.set.iter().map(ToString::to_string).chain(self.failed.iter().map(|error| error_chain(error)))
    }

    /// Splits the errors into those that make `--init-only` fail, and those of settings of this process, which ends
    /// anyway.
    pub fn split_failed(&self) -> (Vec<&SysctlError>, Vec<&SysctlError>) {
        self.failed.iter().partition(|error| error.name() != OOM_SCORE)
    }

    fn ensure(&mut self, sysctls: &Sysctls, name: &'static str, value: String) -> bool {
        match sysctls.ensure(name, &value) {
            Ok(ensured) => {
                let from = match ensured {
                    Ensured::Unchanged => None,
                    Ensured::Changed { from } => Some(from),
                };
                self.set.push(AppliedSetting { name, value, from });
                true
            }
            Err(error) => {
                self.failed.push(error);
                false
            }
        }
    }

    /// Like [`ensure`](Self::ensure), but accepts larger values.
    fn ensure_at_least(&mut self, sysctls: &Sysctls, name: &'static str, least: u64) -> bool {
        match sysctls.read(name) {
            Ok(value) if value.parse::<u64>().is_ok_and(|value| value >= least) => {
                self.set.push(AppliedSetting { name, value, from: None });
                true
            }
            _ => self.ensure(sysctls, name, least.to_string()),
        }
    }
}

/// The directories of settings.
struct Roots {
    /// `/proc/sys` in the network namespace of the calling thread.
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

fn apply_to(roots: &Roots, resolved: &Resolved, mode: &dyn Mode) -> HostSetup {
    let mut setup = HostSetup::default();
    let relied_on = relied_on(resolved, mode).into_iter().map(|Sysctl { name, value }| (name, value.to_owned()));
    for (name, value) in timeouts(resolved).into_iter().chain(relied_on) {
        setup.ensure(&roots.sysctls, name, value);
    }
    if let Some(score) = resolved.oom_score_adj {
        setup.ensure(&roots.process, OOM_SCORE, score.to_string());
    }
    if let Some(limit) = resolved.conntrack.limit {
        let entries = limit.entries(roots.cores);
        // Both are settings of the machine, and read-only in network namespaces other than the initial one.
        let is_writable = !roots.sysctls.is_read_only(CONNTRACK_MAX);
        if setup.ensure_at_least(&roots.sysctls, CONNTRACK_MAX, entries) && is_writable {
            // As in kube-proxy, four entries per bucket on average.
            setup.ensure_at_least(&roots.modules, CONNTRACK_BUCKETS, entries / 4);
        }
    }
    setup
}

/// Returns the sysctls without which packets of Services are lost or not counted in a mode.
pub fn relied_on(resolved: &Resolved, mode: &dyn Mode) -> Vec<Sysctl> {
    let mut sysctls = mode.sysctls(resolved);
    let others = [
        (mode.sets_route_localnet(&resolved.settings), ROUTE_LOCALNET),
        (resolved.conntrack.tcp_be_liberal, TCP_BE_LIBERAL),
        (resolved.flags.count_traffic, CONNTRACK_ACCT),
    ];
    sysctls.extend(others.into_iter().filter_map(|(is_used, sysctl)| is_used.then_some(sysctl)));
    sysctls
}

/// Returns the timeouts of connections, which are set only at the start.
fn timeouts(resolved: &Resolved) -> Vec<Setting> {
    let Conntrack {
        // A minimum, see `ensure_at_least`.
        limit: _,
        tcp_established_timeout,
        tcp_close_wait_timeout,
        // See `relied_on`.
        tcp_be_liberal: _,
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
    timeouts.collect()
}

/// Returns the number of CPU cores of the machine, not only of those that this process may use.
fn cores() -> usize {
    let present = fs::read_to_string("/sys/devices/system/cpu/present").ok();
    present
        .and_then(|text| count(&text))
        .or_else(|| std::thread::available_parallelism().ok().map(Into::into))
        .unwrap_or(1)
}

/// Counts the CPUs in a list such as `0-3,8`.
fn count(list: &str) -> Option<usize> {
    let ranges = list.trim().split(',').map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        (last.parse::<usize>().ok()? + 1).checked_sub(first.parse().ok()?)
    });
    ranges.sum()
}

/// Lets packets to 127.0.0.0/8 be routed, which node ports on localhost need.
const ROUTE_LOCALNET: Sysctl = Sysctl { name: "net/ipv4/conf/all/route_localnet", value: "1" };

/// Lets TCP packets outside of the window be translated. The configuration of iptables mode leaves out the rule that drops
/// them otherwise.
const TCP_BE_LIBERAL: Sysctl = Sysctl { name: "net/netfilter/nf_conntrack_tcp_be_liberal", value: "1" };
/// Counts packets and bytes of new connections.
const CONNTRACK_ACCT: Sysctl = Sysctl { name: "net/netfilter/nf_conntrack_acct", value: "1" };

const CONNTRACK_MAX: &str = "net/netfilter/nf_conntrack_max";

/// The OOM score adjustment, below `/proc/self`.
pub(crate) const OOM_SCORE: &str = "oom_score_adj";

/// The number of buckets of the connection tracking table, below `/sys/module`.
pub(crate) const CONNTRACK_BUCKETS: &str = "nf_conntrack/parameters/hashsize";

#[cfg(test)]
mod tests;
