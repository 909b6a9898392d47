//! What `/proc` and `/sys` tell about this host.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    fs,
    path::Path,
};

use ferroute_core::Protocol;
use crate::doctor::{Conntrack, Listener, Looked, Process};
use ferroute_host::{ListenerError, SysctlError, Sysctls};
use procfs::{
    ProcError,
    process::{FDTarget, all_processes},
};

use ferroute_proxy::logging::chain;

/// What was seen.
pub struct Host {
    pub sysctls: Looked<BTreeMap<String, String>>,
    pub bridges: Looked<Vec<String>>,
    pub conntrack: Looked<Option<Conntrack>>,
    pub listeners: Looked<Vec<Listener>>,
    pub proxies: Looked<Vec<Process>>,
}

/// Looks.
pub fn look() -> Host {
    Host {
        sysctls: sysctls(),
        bridges: interfaces().map(|all| all.into_iter().filter(|name| is_bridge(name)).collect()),
        conntrack: conntrack(),
        listeners: listeners().map_err(|error| chain(&error)),
        proxies: proxies().map_err(|error| error.to_string()),
    }
}

/// The sysctls that checks ask for, as far as the kernel has them.
fn sysctls() -> Looked<BTreeMap<String, String>> {
    let kernel = Sysctls::from_kernel();
    let of_devices = interfaces()?.into_iter().chain(["all".to_owned(), "default".to_owned()]);
    let fixed = [
        "net.ipv4.ip_forward",
        "net.ipv6.conf.all.forwarding",
        "net.bridge.bridge-nf-call-iptables",
        "net.bridge.bridge-nf-call-ip6tables",
    ];
    let mut found = BTreeMap::new();
    for name in fixed {
        if let Some(value) = read(&kernel, &name.replace('.', "/"))? {
            found.insert(name.to_owned(), value);
        }
    }
    for device in of_devices {
        if let Some(value) = read(&kernel, &format!("net/ipv4/conf/{device}/rp_filter"))? {
            found.insert(format!("net.ipv4.conf.{device}.rp_filter"), value);
        }
    }
    Ok(found)
}

fn read(kernel: &Sysctls, name: &str) -> Looked<Option<String>> {
    match kernel.read(name) {
        Ok(value) => Ok(Some(value)),
        Err(SysctlError::Missing { .. }) => Ok(None),
        Err(error) => Err(chain(&error)),
    }
}

fn interfaces() -> Looked<Vec<String>> {
    let entries = procfs::net::dev_status().map_err(|error| error.to_string())?;
    let mut names: Vec<String> = entries.into_keys().collect();
    names.sort();
    Ok(names)
}

fn is_bridge(interface: &str) -> bool {
    Path::new("/sys/class/net").join(interface).join("bridge").exists()
}

fn conntrack() -> Looked<Option<Conntrack>> {
    let kernel = Sysctls::from_kernel();
    let number = |name: &str| -> Looked<Option<u64>> {
        let value = read(&kernel, name)?;
        value.map(|value| value.parse().map_err(|_| format!("{name} is {value:?}, which is no number"))).transpose()
    };
    let (Some(count), Some(max)) =
        (number("net/netfilter/nf_conntrack_count")?, number("net/netfilter/nf_conntrack_max")?)
    else {
        return Ok(None);
    };
    // Not every kernel has the counters; the table's size is told anyway.
    let dropped = fs::read_to_string("/proc/net/stat/nf_conntrack").map_or(0, |text| dropped(&text));
    Ok(Some(Conntrack { count, max, dropped }))
}

/// Packets that were dropped, from a table with a line of names and a line of hexadecimal numbers for each CPU.
fn dropped(text: &str) -> u64 {
    let mut lines = text.lines();
    let Some(names) = lines.next() else { return 0 };
    let places: Vec<usize> = names
        .split_whitespace()
        .enumerate()
        .filter(|(_, name)| ["drop", "early_drop"].contains(name))
        .map(|(place, _)| place)
        .collect();
    let of_line = |line: &str| {
        let numbers: Vec<u64> =
            line.split_whitespace().map(|number| u64::from_str_radix(number, 16).unwrap_or(0)).collect();
        places.iter().filter_map(|place| numbers.get(*place)).sum::<u64>()
    };
    lines.map(of_line).sum()
}

/// Sockets that take connections or datagrams from anybody, with their processes.
fn listeners() -> Result<Vec<Listener>, ListenerError> {
    let owners = owners();
    let mut found = Vec::new();
    for protocol in [Protocol::Tcp, Protocol::Udp] {
        found.extend(ferroute_host::listeners(protocol)?.into_iter().map(|socket| Listener {
            address: socket.address,
            protocol,
            process: owners.get(&u64::from(socket.inode)).cloned(),
        }));
    }
    Ok(found)
}

/// Processes by the sockets that they hold, as far as we may see them.
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

/// Service proxies that share our network namespace.
fn proxies() -> Result<Vec<Process>, ProcError> {
    let here = fs::read_link("/proc/self/ns/net").ok();
    let mut found = Vec::new();
    for process in all_processes()?.flatten() {
        let (Ok(stat), Ok(arguments)) = (process.stat(), process.cmdline()) else { continue };
        let there = fs::read_link(format!("/proc/{}/ns/net", process.pid)).ok();
        // Where that cannot be seen, a proxy too many is better than one too few.
        let elsewhere = there.is_some() && there != here;
        if !elsewhere && is_proxy(&arguments) {
            found.push((stat.ppid, Process { pid: process.pid, name: stat.comm }));
        }
    }
    Ok(without_children(found))
}

/// Without those whose parent is another one: what a proxy starts looks like itself until it is another program.
fn without_children(found: Vec<(i32, Process)>) -> Vec<Process> {
    let pids: HashSet<i32> = found.iter().map(|(_, process)| process.pid).collect();
    found.into_iter().filter(|(parent, _)| !pids.contains(parent)).map(|(_, process)| process).collect()
}

fn is_proxy(arguments: &[String]) -> bool {
    let program = arguments.first().map(|path| path.rsplit('/').next().unwrap_or(path));
    match program {
        Some("kube-proxy") => true,
        Some("ferroute") => arguments.get(1).is_some_and(|command| command == "run"),
        Some("kube-router") => !arguments.iter().any(|argument| argument == "--run-service-proxy=false"),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dropped_packets_of_all_cpus_are_summed_up() {
        let text = "entries  searched found drop early_drop icmp_error\n\
                    0000000a 00000000 00000000 00000002 00000001 00000009\n\
                    0000000a 00000000 00000000 00000010 00000000 00000000\n";
        assert_eq!(dropped(text), 2 + 1 + 16);
        assert_eq!(dropped(""), 0);
        assert_eq!(dropped("entries\n0000000a\n"), 0);
    }

    #[test]
    fn proxies_are_told_from_other_commands_of_the_same_program() {
        let is = |line: &str| is_proxy(&line.split(' ').map(str::to_owned).collect::<Vec<_>>());
        assert!(is("/usr/local/bin/kube-proxy --config=/var/lib/kube-proxy/config.conf"));
        assert!(is("ferroute run --manifests services.yaml"));
        assert!(!is("ferroute doctor"));
        assert!(!is("vim kube-proxy"));
        assert!(is("/usr/local/bin/kube-router --run-router=true"));
        assert!(!is("/usr/local/bin/kube-router --run-service-proxy=false"));
    }

    #[test]
    fn what_a_proxy_is_about_to_start_is_no_other_proxy() {
        let process = |pid, name: &str| Process { pid, name: name.to_owned() };
        let found = vec![(1, process(7, "ferroute")), (7, process(8, "sync")), (2, process(9, "kube-proxy"))];
        assert_eq!(without_children(found), [process(7, "ferroute"), process(9, "kube-proxy")]);
    }
}
