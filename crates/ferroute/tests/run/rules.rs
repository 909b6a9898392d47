//! What the kernel holds on the node, as the tools of people print it.

use ferroute_testing::NetNs;

use crate::{Mode, wait};

/// Our rules of a mode in both families, in an order of their own; empty if there are none.
pub(crate) fn ours(node: &NetNs, mode: Mode) -> Vec<String> {
    match mode {
        Mode::Iptables => {
            let saved = ["iptables-save", "ip6tables-save"].map(|program| {
                let text = node.command(program, &[]);
                // The one that is shared with the kubelet stays when others go.
                let is_not_ours = |line: &str| ["KUBE-FIREWALL", "OTHERS"].iter().any(|word| line.contains(word));
                let is_ours = |line: &&str| line.contains("KUBE-") && !is_not_ours(line);
                text.lines().filter(is_ours).map(str::to_owned).collect::<Vec<_>>()
            });
            saved.concat()
        }
        Mode::Nftables => {
            let listed = ["ip", "ip6"].map(|family| {
                let output = node.try_command("nft", &["list", "table", family, "ferroute"]);
                String::from_utf8(output.stdout).unwrap()
            });
            // The kernel gives the elements of a set in any order.
            let words = listed.concat();
            let mut lines: Vec<String> = words
                .split(['\n', ','])
                .map(|part| part.trim().trim_start_matches("elements = {").trim_end_matches('}').trim().to_owned())
                .filter(|part| !part.is_empty())
                .collect();
            lines.sort_unstable();
            lines
        }
    }
}

/// Waits until no rule leads to an address any more.
#[track_caller]
pub(crate) fn wait_gone(node: &NetNs, mode: Mode, address: &str) {
    let ends_here = |rest: &str| !rest.starts_with(|next: char| next.is_ascii_hexdigit());
    let leads_there = |line: &String| line.match_indices(address).any(|(at, _)| ends_here(&line[at + address.len()..]));
    wait(&format!("no rule for {address}"), || (!ours(node, mode).iter().any(leads_there)).then_some(()));
}

/// What another program has on the node, beside us: chains `OTHERS` of iptables, a table `others` of nftables.
pub(crate) struct Others;

impl Others {
    /// Makes them.
    pub(crate) fn add(node: &NetNs) -> Self {
        for family in ["iptables", "ip6tables"] {
            for (table, chain) in [("nat", "PREROUTING"), ("filter", "FORWARD"), ("mangle", "POSTROUTING")] {
                for arguments in [
                    &["-N", "OTHERS"][..],
                    &[
                        "-A",
                        "OTHERS",
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
                    &["-A", chain, "-j", "OTHERS"],
                ] {
                    node.command(family, &[&["-w", "-t", table], arguments].concat());
                }
            }
        }
        let table = "
            add table inet others
            add set inet others known { type ipv4_addr; elements = { 192.0.2.1, 192.0.2.2 }; }
            add chain inet others forward { type filter hook forward priority 0; }
            add rule inet others forward ip saddr @known drop
            add chain inet others dstnat { type nat hook prerouting priority dstnat; }
            add rule inet others dstnat tcp dport 9 accept\n";
        node.feed("nft", &["-f", "-"], table);
        Self
    }

    /// What there is of them.
    pub(crate) fn list(&self, node: &NetNs) -> Vec<String> {
        let saved = ["iptables-save", "ip6tables-save"].map(|program| node.command(program, &[]));
        let saved = saved.concat();
        let chains = saved.lines().filter(|line| line.contains("OTHERS")).map(str::to_owned);
        let output = node.try_command("nft", &["list", "table", "inet", "others"]);
        let table = String::from_utf8(output.stdout).unwrap();
        chains.chain(table.lines().map(str::to_owned)).collect()
    }
}
