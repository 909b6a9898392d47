//! Rules in a kernel, including those of other programs, and changes that other programs make to the proxy's rules.

use std::{
    io::Write,
    process::{Child, Command, Stdio},
};

use ferroute_core::Protocol;
use ferroute_testing::{NetNs, Running};

use crate::{listing, schedule::Interference};

/// Adds rules, sets, an address and a connection tracking entry of other programs.
pub(crate) fn add_canaries(node: &NetNs) {
    add_canary_rules(node);
    node.command("ip", &["link", "add", "canary0", "type", "veth", "peer", "name", "canary1"]);
    node.command("ip", &["address", "add", "192.0.2.77/32", "dev", "canary0"]);
    let entry = ["-I", "-p", "udp", "-s", "192.0.2.1", "-d", "192.0.2.2", "--sport", "7", "--dport", "9"];
    node.command("conntrack", &[&entry[..], &["--timeout", "86400"]].concat());
}

fn add_canary_rules(node: &NetNs) {
    for family in ["iptables", "ip6tables"] {
        for (table, chain) in [("nat", "PREROUTING"), ("filter", "FORWARD"), ("mangle", "POSTROUTING")] {
            let rule = ["-p", "udp", "--dport", "9", "-m", "comment", "--comment", "not KUBE-", "-j", "RETURN"];
            for arguments in
                [&["-N", "CANARY"][..], &[&["-A", "CANARY"], &rule[..]].concat(), &["-A", chain, "-j", "CANARY"]]
            {
                node.command(family, &[&["-w", "-t", table], arguments].concat());
            }
        }
    }
    let table = "
        add table inet canary
        add set inet canary sources { type ipv4_addr; elements = { 192.0.2.1, 192.0.2.2 }; }
        add chain inet canary forward { type filter hook forward priority 0; }
        add rule inet canary forward ip saddr @sources udp dport 9 drop
        add table ip kube-proxy-of-another-program
        add chain ip kube-proxy-of-another-program services\n";
    node.feed("nft", &["-f", "-"], table);
}

/// Returns all parts of the rules in both IP families, and addresses and connection tracking entries of other programs,
/// in a stable order and without parts that packets change.
pub(crate) fn state(node: &NetNs) -> Vec<String> {
    let mut lines = Vec::new();
    for program in SAVE_PROGRAMS {
        let saved = node.command(program, &[]);
        let mut table = "";
        let of_program: Vec<String> = saved
            .lines()
            .filter_map(|line| {
                if let Some(name) = line.strip_prefix('*') {
                    table = name;
                }
                let text = line.split('[').next().unwrap_or(line).trim();
                let is_rule = line.starts_with("-A");
                let is_own_chain = line.starts_with(':') && text.ends_with('-');
                // The kubelet uses it as well, so a proxy in another mode leaves it behind.
                let is_of_kubelet = line.contains("KUBE-FIREWALL");
                ((is_rule || is_own_chain) && !is_of_kubelet)
                    .then(|| format!("{program} {table} {}", if is_rule { line } else { text }))
            })
            .collect();
        lines.extend(of_program);
    }
    for table in node.command("nft", &["list", "tables"]).lines() {
        let words: Vec<&str> = table.split(' ').collect();
        let is_of_iptables = ["filter", "nat", "mangle", "raw", "security"].contains(&words[2]);
        if !is_of_iptables {
            let listed = node.command("nft", &["-s", "list", "table", words[1], words[2]]);
            lines.extend(listing::lines(&format!("{} {}", words[1], words[2]), &listed));
        }
    }
    lines.extend(node.command("ip", &["-o", "address", "show", "dev", "canary0"]).lines().filter_map(|line| {
        let line = line.split("valid_lft").next().unwrap_or(line);
        // The link-local address is random.
        (!line.contains("fe80:")).then(|| format!("address {}", line.split_once(' ').map_or(line, |(_, rest)| rest)))
    }));
    lines.push(format!("conntrack {}", canary_entry(node)));
    lines.sort_unstable();
    lines
}

/// Returns the connection tracking entries with a source port.
pub(crate) fn flow(node: &NetNs, protocol: Protocol, port: u16) -> String {
    let (protocol, port) = (protocol.as_str().to_lowercase(), port.to_string());
    let families = ["ipv4", "ipv6"];
    families.map(|family| node.command("conntrack", &["-L", "-f", family, "-p", &protocol, "--sport", &port])).concat()
}

fn canary_entry(node: &NetNs) -> String {
    let listed = node.command("conntrack", &["-L", "-p", "udp", "--orig-src", "192.0.2.1"]);
    let words: Vec<&str> = listed.split_whitespace().filter(|word| word.contains('=')).collect();
    words.join(" ")
}

/// Reports whether rules of a mode exist.
pub(crate) fn has_rules(node: &NetNs, mode: &str) -> bool {
    if mode == "nftables" {
        return node.command("nft", &["list", "tables"]).lines().any(|table| table.ends_with(" ferroute"));
    }
    let chain = if mode == "userspace" { ":KUBE-PORTALS-HOST " } else { ":KUBE-SERVICES " };
    SAVE_PROGRAMS.iter().any(|program| node.command(program, &[]).contains(chain))
}

/// Returns the rules of iptables mode that do not depend on objects, and the elements of nftables mode that
/// [`Interference::Replace`] creates. A repair, which covers all rules, restores the former and removes the latter.
pub(crate) fn fixed_rules(node: &NetNs) -> Vec<String> {
    let chains = ["KUBE-FORWARD", "KUBE-MARK-MASQ", "KUBE-POSTROUTING"];
    let is_fixed = |line: &&str| chains.iter().any(|chain| line.starts_with(&format!("-A {chain} ")));
    let rules_of = |program: &&str| {
        let saved = node.command(program, &[]);
        saved.lines().filter(is_fixed).map(|line| format!("{program} {line}")).collect::<Vec<_>>()
    };
    let replaced = FAMILIES.map(|(family, other)| {
        let listed = node.try_command("nft", &["list", "map", family, "ferroute", "tcp-endpoints"]).stdout;
        format!("{family} {}", String::from_utf8_lossy(&listed).contains(other))
    });
    SAVE_PROGRAMS.iter().flat_map(rules_of).chain(replaced).collect()
}

/// The families of nftables tables, and the endpoint that replaces others.
const FAMILIES: [(&str, &str); 2] = [("ip", "203.0.113.200"), ("ip6", "2001:db8::c8")];

/// Changes rules as another program might.
pub(crate) fn interfere(node: &NetNs, mode: &str, how: Interference) {
    match (how, mode) {
        (Interference::FlushAll, _) => {
            node.command("nft", &["flush", "ruleset"]);
            for family in ["iptables-legacy", "ip6tables-legacy"] {
                for table in ["nat", "filter", "mangle"] {
                    node.command(family, &["-w", "-t", table, "-F"]);
                    node.command(family, &["-w", "-t", table, "-X"]);
                }
            }
            add_canary_rules(node);
        }
        (_, "nftables") => {
            for (family, other) in FAMILIES {
                interfere_with_table(node, family, other, how);
            }
        }
        _ => {
            for backend in ["", "-legacy"] {
                for family in ["iptables", "ip6tables"] {
                    interfere_with_chains(node, &format!("{family}{backend}"), how);
                }
            }
        }
    }
}

fn interfere_with_table(node: &NetNs, family: &str, other: &str, how: Interference) {
    if how == Interference::Replace {
        return replace_endpoints(node, family, other);
    }
    let Interference::Thin { offset } = how else {
        // The proxy may be about to create it.
        node.try_command("nft", &["delete", "table", family, "ferroute"]);
        return;
    };
    let output = node.try_command("nft", &["list", "table", family, "ferroute"]);
    let listed = String::from_utf8_lossy(&output.stdout).into_owned();
    let objects = listed.lines().filter_map(|line| line.trim().strip_suffix(" {"));
    let objects = objects.filter(|line| ["map ", "set ", "chain "].iter().any(|kind| line.starts_with(kind)));
    for object in objects.skip(offset).step_by(3) {
        let (kind, name) = object.split_once(' ').expect("a kind and a name");
        // The proxy may repair rules at the same time.
        node.try_command("nft", &["flush", kind, family, "ferroute", name]);
    }
}

/// Replaces the addresses of some endpoints.
fn replace_endpoints(node: &NetNs, family: &str, other: &str) {
    let output = node.try_command("nft", &["list", "map", family, "ferroute", "tcp-endpoints"]);
    let listed = String::from_utf8_lossy(&output.stdout).into_owned();
    let (_, elements) = listed.split_once("elements = {").unwrap_or_default();
    let keys = elements.split([',', '}']).filter_map(|element| element.trim().rsplit_once(" : ")).map(|(key, _)| key);
    for key in keys.take(20) {
        let map = format!("element {family} ferroute tcp-endpoints");
        // The proxy may repair elements at the same time.
        node.try_command("nft", &[&format!("delete {map} {{ {key} }}; add {map} {{ {key} : {other} . 9 }}")]);
    }
}

/// Starts a process of another user that binds names of the proxy's sockets, accepts no connections, and keeps some
/// waiting.
pub(crate) fn hostile_process(node: &NetNs) -> Running {
    const HOSTILE: &str = r#"
        use Socket;
        $> = 65534;
        for my $name ("ferroute/x", "ferroute-userspace/\xfc\n\xff", "ferroute-userspace/00000000-0000-0000-0000-000000000000", "xtables") {
            socket(my $socket, PF_UNIX, SOCK_STREAM, 0) or die;
            bind($socket, pack_sockaddr_un("\0$name")) or next;
            listen($socket, 0) or die;
            push @open, $socket;
            for (1 .. 3) {
                socket(my $client, PF_UNIX, SOCK_STREAM | 2048, 0) or die;
                connect($client, pack_sockaddr_un("\0$name"));
                push @open, $client;
            }
        }
        sleep 3600;
    "#;
    let mut command = Command::new("perl");
    command.args(["-e", HOSTILE]).stdin(Stdio::null());
    Running(node.run(|| command.spawn()).unwrap())
}

fn interfere_with_chains(node: &NetNs, program: &str, how: Interference) {
    let saved = node.command(&format!("{program}-save"), &[]);
    let mut input = String::new();
    let mut rules = 0;
    for line in saved.lines() {
        let line = if line.starts_with(":KUBE-") && how == Interference::FlushOwn {
            // Declares the chain, which removes its rules.
            line.to_owned()
        } else if line.starts_with('*') || line == "COMMIT" {
            line.to_owned()
        } else if how == Interference::Replace {
            // The mark is of no rule then.
            let Some(rule) = line.strip_prefix("-A KUBE-MARK-MASQ ").filter(|rule| rule.contains("0x4000/0x4000"))
            else {
                continue;
            };
            let other = rule.replace("0x4000/0x4000", "0x2000/0x2000");
            format!("-D KUBE-MARK-MASQ {rule}\n-A KUBE-MARK-MASQ {other}")
        } else if let Some(rule) = line.strip_prefix("-A KUBE-").filter(|_| how != Interference::FlushOwn) {
            rules += 1;
            let Interference::Thin { offset } = how else { continue };
            if rules % 3 != offset {
                continue;
            }
            format!("-D KUBE-{rule}")
        } else {
            continue;
        };
        input.push_str(&line);
        input.push('\n');
    }
    let restore = format!("{program}-restore");
    let mut command = Command::new(&restore);
    command.args(["--noflush"]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = node.run(|| command.spawn()).unwrap();
    // It fails if the proxy has changed these rules since they were read; in this case the proxy has repaired nothing
    // yet.
    _ = child.stdin.take().map(|mut stdin| stdin.write_all(input.as_bytes()));
    _ = child.wait();
}

/// Programs that list the rules of both backends and IP families.
const SAVE_PROGRAMS: [&str; 4] = ["iptables-save", "ip6tables-save", "iptables-legacy-save", "ip6tables-legacy-save"];

/// A process that executes commands of `nft` while it exists, and is killed on drop.
pub(crate) struct NftSession(Child);

impl NftSession {
    pub(crate) fn start(node: &NetNs) -> Self {
        let mut command = Command::new("nft");
        command.arg("-i").stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        Self(node.run(|| command.spawn()).unwrap())
    }

    /// Starts a process that owns the proxy's tables.
    pub(crate) fn owning_tables(node: &NetNs) -> Self {
        let mut session = Self::start(node);
        for family in ["ip", "ip6"] {
            let table = format!("{family} ferroute");
            session.execute(&format!("add table {table}; delete table {table}; add table {table} {{ flags owner; }}"));
        }
        session
    }

    pub(crate) fn execute(&mut self, line: &str) {
        let stdin = self.0.stdin.as_mut().expect("stdin is piped");
        // The process exits only at the end of its input.
        _ = writeln!(stdin, "{line}");
    }

    /// Executes a last command and waits for the end of the process.
    pub(crate) fn finish(mut self, line: &str) {
        self.execute(line);
        drop(self.0.stdin.take());
        _ = self.0.wait();
    }
}

impl Drop for NftSession {
    fn drop(&mut self) {
        _ = self.0.kill();
        _ = self.0.wait();
    }
}
