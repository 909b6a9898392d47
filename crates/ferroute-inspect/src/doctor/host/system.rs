//! Inputs from `/proc` and `/sys`.

use std::{
    collections::{BTreeMap, HashMap},
    fs,
};

use ferroute_core::{IpFamily, Protocol, error_chain};
use ferroute_host::{ListenerError, SysctlError, Sysctls, bridge_nf_call};
use ferroute_proxy::{ProxyProcess, proxy_processes};
use procfs::process::{FDTarget, all_processes};

use crate::doctor::{ConntrackEvents, ConntrackUsage, Listener, Process, Reading};

/// The inputs.
pub(super) struct System {
    pub(super) sysctls: Reading<BTreeMap<String, String>>,
    pub(super) conntrack: Reading<Option<ConntrackUsage>>,
    pub(super) listeners: Reading<Vec<Listener>>,
    pub(super) proxies: Reading<Vec<Process>>,
}

/// Reads the inputs, with these sysctls, which have dotted names.
pub(super) fn read<'a>(required_sysctls: impl Iterator<Item = &'a str>) -> System {
    let process = |ProxyProcess { pid, name }| Process { pid, name };
    let proxies = proxy_processes().map(|found| found.into_iter().map(process).collect::<Vec<_>>());
    let proxies = proxies.map_err(|error| error.to_string());
    System {
        sysctls: sysctls(required_sysctls),
        conntrack: conntrack(),
        listeners: listeners(proxies.as_deref().unwrap_or_default()).map_err(|error| error_chain(&error)),
        proxies,
    }
}

/// Reads the sysctls that checks depend on, and `others`, except for those that the kernel does not have.
fn sysctls<'a>(others: impl Iterator<Item = &'a str>) -> Reading<BTreeMap<String, String>> {
    let kernel = Sysctls::from_kernel();
    let devices = interfaces()?.into_iter().chain(["all".to_owned(), "default".to_owned()]);
    let fixed = [
        "net.ipv4.ip_forward",
        "net.ipv6.conf.all.forwarding",
        bridge_nf_call(IpFamily::V4),
        bridge_nf_call(IpFamily::V6),
    ];
    let mut sysctls = BTreeMap::new();
    for name in fixed.into_iter().chain(others) {
        if let Some(value) = read_sysctl(&kernel, &name.replace('.', "/"))? {
            sysctls.insert(name.to_owned(), value);
        }
    }
    for device in devices {
        let is_host = ["all", "default", "lo"].contains(&device.as_str());
        for setting in ["rp_filter", "forwarding"].into_iter().take(if is_host { 1 } else { 2 }) {
            if let Some(value) = read_sysctl(&kernel, &format!("net/ipv4/conf/{device}/{setting}"))? {
                sysctls.insert(format!("net.ipv4.conf.{device}.{setting}"), value);
            }
        }
    }
    Ok(sysctls)
}

fn read_sysctl(kernel: &Sysctls, name: &str) -> Reading<Option<String>> {
    match kernel.read(name) {
        Ok(value) => Ok(Some(value)),
        Err(SysctlError::Missing { .. }) => Ok(None),
        Err(error) => Err(error_chain(&error)),
    }
}

fn interfaces() -> Reading<Vec<String>> {
    let entries = procfs::net::dev_status().map_err(|error| error.to_string())?;
    let mut names: Vec<String> = entries.into_keys().collect();
    names.sort();
    Ok(names)
}

fn conntrack() -> Reading<Option<ConntrackUsage>> {
    let kernel = Sysctls::from_kernel();
    let number = |name: &str| -> Reading<Option<u64>> {
        let value = read_sysctl(&kernel, name)?;
        value.map(|value| value.parse().map_err(|_| format!("invalid value of {name}: {value:?}"))).transpose()
    };
    let (Some(count), Some(max)) =
        (number("net/netfilter/nf_conntrack_count")?, number("net/netfilter/nf_conntrack_max")?)
    else {
        return Ok(None);
    };
    // Some kernels do not have the counters.
    let text = fs::read_to_string("/proc/net/stat/nf_conntrack").unwrap_or_default();
    Ok(Some(ConntrackUsage { count, max, events: conntrack_events(&text) }))
}

/// Returns the events in a table with a header and a line of hexadecimal numbers for each CPU.
fn conntrack_events(text: &str) -> ConntrackEvents {
    let mut lines = text.lines();
    let names: Vec<&str> = lines.next().unwrap_or_default().split_whitespace().collect();
    let rows: Vec<Vec<&str>> = lines.map(|line| line.split_whitespace().collect()).collect();
    let sum = |name: &str| -> u64 {
        let Some(column) = names.iter().position(|candidate| *candidate == name) else { return 0 };
        rows.iter().filter_map(|row| u64::from_str_radix(row.get(column)?, 16).ok()).sum()
    };
    // The kernel counts a packet whose entry exists already as `insert_failed` and `drop`, and a packet for which a
    // chain of the hash table is too long only as `insert_failed` (`__nf_conntrack_confirm` in
    // `net/netfilter/nf_conntrack_core.c`). Kernels before 5.15 have no such limit.
    let chain_too_long = sum("chainlength");
    let not_inserted = sum("insert_failed").saturating_sub(chain_too_long);
    let dropped = sum("drop").saturating_sub(not_inserted);
    ConntrackEvents { dropped, evicted: sum("early_drop"), not_inserted, chain_too_long }
}

/// Returns the listening sockets with their owners. A proxy has UDP sockets only to hold node ports; they are not listed.
fn listeners(proxies: &[Process]) -> Result<Vec<Listener>, ListenerError> {
    let owners = owners();
    let mut listeners = Vec::new();
    for protocol in [Protocol::Tcp, Protocol::Udp] {
        listeners.extend(ferroute_host::listeners(protocol)?.into_iter().map(|socket| Listener {
            address: socket.address,
            protocol,
            process: owners.get(&u64::from(socket.inode)).cloned(),
        }));
    }
    let is_proxy = |listener: &Listener| {
        listener.process.as_ref().is_some_and(|process| proxies.iter().any(|proxy| proxy.pid == process.pid))
    };
    listeners.retain(|listener| listener.protocol != Protocol::Udp || !is_proxy(listener));
    Ok(listeners)
}

/// Returns the visible processes by the inodes of their sockets.
fn owners() -> HashMap<u64, Process> {
    let mut owners = HashMap::new();
    for process in all_processes().into_iter().flatten().flatten() {
        let Ok(stat) = process.stat() else { continue };
        for descriptor in process.fd().into_iter().flatten().flatten() {
            if let FDTarget::Socket(inode) = descriptor.target {
                owners.insert(inode, Process { pid: process.pid, name: stat.comm.clone() });
            }
        }
    }
    owners
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conntrack_events_of_all_cpus_are_added_up_and_distinguished() {
        let text = "entries  clashres chainlength insert_failed drop early_drop icmp_error\n\
                    0000000a 00000000 00000002 00000006 00000005 00000001 00000009\n\
                    0000000a 00000000 00000001 00000003 00000010 00000000 00000000\n";
        let events = ConntrackEvents { dropped: 5 + 16 - 6, evicted: 1, not_inserted: 6, chain_too_long: 3 };
        assert_eq!(conntrack_events(text), events);
        assert_eq!(conntrack_events(""), ConntrackEvents::default());
        assert_eq!(conntrack_events("entries\n0000000a\n"), ConntrackEvents::default());
    }
}
