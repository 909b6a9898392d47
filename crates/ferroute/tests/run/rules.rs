//! The rules in the node's kernel, as printed by the standard tools where they are installed.

use ferroute_core::IpFamily;
use ferroute_iptables::{
    HostExec,
    exec::{search_path, snapshot_rules},
};
use ferroute_testing::NetNs;

use crate::{Mode, wait};

/// Returns the proxy's rules of a mode in both IP families, in a stable order.
pub(crate) fn of_proxy(node: &NetNs, mode: Mode) -> Vec<String> {
    match mode {
        Mode::Userspace => {
            let mut rules: Vec<String> =
                of_proxy(node, Mode::Iptables).iter().map(|rule| without_listener_ports(rule)).collect();
            let listeners = node.run(|| {
                let workers = ferroute_userspace::running_workers().unwrap();
                // A worker that ends in the meantime has no listeners.
                workers.into_iter().flat_map(|mut worker| worker.listeners().unwrap_or_default()).collect::<Vec<_>>()
            });
            let mut listeners: Vec<String> =
                listeners.iter().map(|listener| format!("{} {:?}", listener.key, listener.endpoints)).collect();
            listeners.sort_unstable();
            rules.extend(listeners);
            rules
        }
        Mode::Iptables => {
            let saved = saved(node).map(|text| {
                // The kubelet uses KUBE-FIREWALL, so the proxy does not remove it.
                let is_foreign = |line: &str| ["KUBE-FIREWALL", "FOREIGN"].iter().any(|name| line.contains(name));
                let is_of_proxy = |line: &&str| line.contains("KUBE-") && !is_foreign(line);
                text.lines().filter(is_of_proxy).map(str::to_owned).collect::<Vec<_>>()
            });
            saved.concat()
        }
        Mode::Nftables => {
            let listed = ["ip", "ip6"].map(|family| {
                let output = node.try_command("nft", &["list", "table", family, "ferroute"]);
                String::from_utf8(output.stdout).unwrap()
            });
            // The kernel lists the elements of a set in any order.
            let listed = listed.concat();
            let mut lines: Vec<String> = listed
                .split(['\n', ','])
                .map(|part| part.trim().trim_start_matches("elements = {").trim_end_matches('}').trim().to_owned())
                .filter(|part| !part.is_empty())
                .collect();
            lines.sort_unstable();
            lines
        }
    }
}

/// Returns all iptables rules of both IP families as `iptables-save` prints them. They are read by the program under
/// test only if `iptables-save` is not installed.
pub(crate) fn saved(node: &NetNs) -> [String; 2] {
    let path = search_path();
    [("iptables-save", IpFamily::V4), ("ip6tables-save", IpFamily::V6)].map(|(program, family)| {
        if path.iter().any(|directory| directory.join(program).exists()) {
            return node.command(program, &[]);
        }
        let snapshot = node.run(|| snapshot_rules(family, &HostExec, &path).unwrap());
        snapshot.backends.iter().map(|backend| backend.saved.rules.to_string()).collect()
    })
}

/// Replaces the ports of listeners, which differ after each start.
fn without_listener_ports(rule: &str) -> String {
    let words = rule.split(' ').scan("", |previous, word| {
        let is_ports = std::mem::replace(previous, word) == "--dports";
        let is_socket = rule.ends_with(word) && rule.contains("--to-destination");
        Some(match word.rsplit_once(':') {
            _ if is_ports => "PORTS",
            Some((address, _)) if is_socket => address,
            _ => word,
        })
    });
    words.collect::<Vec<_>>().join(" ")
}

/// Waits until no rule contains an address.
#[track_caller]
pub(crate) fn wait_gone(node: &NetNs, mode: Mode, address: &str) {
    let ends = |rest: &str| !rest.starts_with(|next: char| next.is_ascii_hexdigit());
    let has_address = |line: &String| line.match_indices(address).any(|(at, _)| ends(&line[at + address.len()..]));
    wait(&format!("no rule for {address}"), || (!of_proxy(node, mode).iter().any(has_address)).then_some(()));
}

/// The rules of another program: iptables chains `FOREIGN` and an nftables table `foreign`.
pub(crate) struct ForeignRules;

impl ForeignRules {
    /// Adds the rules to a node.
    pub(crate) fn add(node: &NetNs) -> Self {
        for family in ["iptables", "ip6tables"] {
            for (table, chain) in [("nat", "PREROUTING"), ("filter", "FORWARD"), ("mangle", "POSTROUTING")] {
                for arguments in [
                    &["-N", "FOREIGN"][..],
                    &[
                        "-A",
                        "FOREIGN",
                        "-m",
                        "comment",
                        "--comment",
                        "KUBE-like",
                        "-p",
                        "udp",
                        "--dport",
                        "9",
                        "-j",
                        "RETURN",
                    ],
                    &["-A", chain, "-j", "FOREIGN"],
                ] {
                    node.command(family, &[&["-w", "-t", table], arguments].concat());
                }
            }
        }
        let table = "
            add table inet foreign
            add set inet foreign sources { type ipv4_addr; elements = { 192.0.2.1, 192.0.2.2 }; }
            add chain inet foreign forward { type filter hook forward priority 0; }
            add rule inet foreign forward ip saddr @sources drop
            add chain inet foreign dstnat { type nat hook prerouting priority dstnat; }
            add rule inet foreign dstnat tcp dport 9 accept\n";
        node.feed("nft", &["-f", "-"], table);
        Self
    }

    /// Lists the rules that exist.
    pub(crate) fn list(&self, node: &NetNs) -> Vec<String> {
        let saved = saved(node).concat();
        let chains = saved.lines().filter(|line| line.contains("FOREIGN")).map(str::to_owned);
        let output = node.try_command("nft", &["list", "table", "inet", "foreign"]);
        let table = String::from_utf8(output.stdout).unwrap();
        chains.chain(table.lines().map(str::to_owned)).collect()
    }
}
