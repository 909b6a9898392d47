//! Random nodes: the result of `ferroute trace` for a packet, with the kernel or with a dump of it, equals that of a
//! real packet.
//!
//! ```text
//!   pod 10.244.1.5 ── cali1 ─┐        ┌─ eth0 ── router 192.168.6.9, 198.51.100.7
//!                            ├─ node ─┤
//!   pod 10.244.1.6 ── cali2 ─┘        └─ eth1 ── router 192.168.7.9, 198.51.100.7
//! ```
//!
//! The interfaces of pods have no addresses. Each seed creates policy routes, ipsets, rules of iptables, and a table in
//! `nft`'s syntax, for IPv4 and for IPv6. `SEEDS=200` tries this number of nodes; a failure prints the seed, and
//! `SEED=7` repeats it.
//!
//! All addresses in this file are IPv4 addresses. IPv6 addresses have the same numbers: see [`in_ipv6`].

#![expect(clippy::unwrap_used, reason = "missing prerequisites fail the test")]

use std::{
    collections::BTreeSet,
    fs,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
    path::Path,
    process::Command,
    thread,
    time::Duration,
};

use fastrand::Rng;
use ferroute_core::IpFamily;
use ferroute_testing::NetNs;

/// Receiver of a packet, with the port and the source that it saw; `None` if the packet was lost.
type End = Option<(&'static str, u16, IpAddr)>;

struct Lab {
    family: IpFamily,
    node: NetNs,
    /// Each with its name, its address, and its interface of the node.
    others: Vec<(&'static str, String, &'static str, NetNs)>,
    /// The name of the receiver, its port and the socket.
    listeners: Vec<(&'static str, u16, UdpSocket)>,
}

/// The ports on which packets are received.
const PORTS: [u16; 3] = [80, 8080, 9000];
/// An address that both routers have.
const FAR: &str = "198.51.100.7";
/// The address of a Service.
const VIP: &str = "10.96.0.1";

impl Lab {
    fn new(family: IpFamily) -> Self {
        let node = NetNs::new();
        let peers = [
            ("a", "10.244.1.5", "cali1"),
            ("b", "10.244.1.6", "cali2"),
            ("near", "192.168.6.9", "eth0"),
            ("other", "192.168.7.9", "eth1"),
        ];
        let set = |place: &NetNs, settings: &[&str]| {
            settings.iter().for_each(|setting| drop(place.command("sysctl", &["-qw", &format!("net.{setting}")])));
        };
        // Packets may return to their sender with its own address.
        let other_settings =
            ["ipv4.conf.all.accept_local=1", "ipv4.conf.all.rp_filter=0", "ipv4.conf.default.rp_filter=0", NO_DAD];
        set(&node, &["ipv4.ip_forward=1", "ipv6.conf.all.forwarding=1", NO_DAD]);
        set(&node, &["ipv4.conf.all.rp_filter=0", "ipv4.conf.default.rp_filter=0"]);
        let mut lab = Self { family, node, others: Vec::new(), listeners: Vec::new() };
        for (name, address, interface) in peers {
            let other = NetNs::new();
            set(&other, &other_settings);
            lab.node.link(interface, &other, "eth0");
            let is_pod = interface.starts_with("cali");
            let (gateway, to_node) = match (is_pod, family) {
                (false, _) => (address.replace(".9", ".1"), None),
                (true, IpFamily::V4) => ("169.254.1.1".to_owned(), Some("169.254.1.1 dev eth0")),
                (true, IpFamily::V6) => (LINK_LOCAL.to_owned(), None),
            };
            if is_pod {
                lab.ip(&other, &format!("address add {address}/32 dev eth0"));
                match family {
                    IpFamily::V4 => {
                        set(&lab.node, &[&format!("ipv4.conf.{interface}.proxy_arp=1")]);
                        set(&lab.node, &[&format!("ipv4.neigh.{interface}.proxy_delay=0")]);
                    }
                    IpFamily::V6 => lab.ip(&lab.node, &format!("address add {LINK_LOCAL}/64 dev {interface}")),
                }
                lab.ip(&lab.node, &format!("route add {address}/32 dev {interface}"));
            } else {
                lab.ip(&lab.node, &format!("address add {gateway}/24 dev {interface}"));
                lab.ip(&other, &format!("address add {address}/24 dev eth0"));
                lab.ip(&other, &format!("address add {FAR}/32 dev lo"));
            }
            to_node.iter().for_each(|route| lab.ip(&other, &format!("route add {route}")));
            lab.ip(&other, &format!("route add default via {gateway} dev eth0"));
            if family == IpFamily::V6 {
                // Rules may drop the packets of neighbour resolution, which for IPv6 are ordinary packets.
                let (here, there) = (hardware_address(&lab.node, interface), hardware_address(&other, "eth0"));
                // A rule of the output hook may write the other address, and the route remains.
                for known in [Some(address), Some(FAR).filter(|_| !is_pod)].into_iter().flatten() {
                    lab.ip(&lab.node, &format!("neighbour replace {known} lladdr {there} dev {interface}"));
                }
                lab.ip(&other, &format!("neighbour replace {gateway} lladdr {here} dev eth0"));
            }
            let address = lab.text(address);
            lab.others.push((name, address, interface, other));
        }
        lab.ip(&lab.node, "route add default via 192.168.6.9");
        lab.ip(&lab.node, "route add default via 192.168.7.9 table 101");
        let inet = lab.of("inet", "inet6");
        for (set, kind) in [("src", "hash:net"), ("ends", "hash:ip,port"), ("seen", "hash:ip")] {
            lab.node.command("ipset", &["create", set, kind, "family", inet]);
        }
        lab.node.command("ipset", &["create", "all", "list:set"]);
        let places = lab.others.iter().map(|(name, .., other)| (*name, other)).chain([("node", &lab.node)]);
        let mut listeners = Vec::new();
        for (name, place) in places {
            for port in PORTS {
                let socket = place.run(|| UdpSocket::bind((lab.text("0.0.0.0"), port)).unwrap());
                socket.set_nonblocking(true).unwrap();
                listeners.push((name, port, socket));
            }
        }
        lab.listeners = listeners;
        lab
    }

    /// Returns the value of the lab's IP family.
    fn of<T>(&self, ipv4: T, ipv6: T) -> T {
        if self.family == IpFamily::V6 { ipv6 } else { ipv4 }
    }

    /// Returns a text with the addresses of the lab's IP family.
    fn text(&self, text: &str) -> String {
        if self.family == IpFamily::V6 { in_ipv6(text) } else { text.to_owned() }
    }

    /// Runs `ip` with these words.
    fn ip(&self, place: &NetNs, words: &str) {
        let words = self.text(words);
        let words: Vec<&str> = [self.of("-4", "-6")].into_iter().chain(words.split(' ')).collect();
        place.command("ip", &words);
    }

    /// Replaces the routes and rules by those of a random node.
    fn randomize(&self, rng: &mut Rng) -> String {
        let node = &self.node;
        node.command("nft", &["flush", "ruleset"]);
        // The kernel destroys no sets of rules that were just deleted.
        node.command("ipset", &["flush"]);
        self.ip(node, "rule flush");
        self.ip(node, "rule add priority 32766 lookup main");
        let far = self.text("198.51.100.0/24");
        node.try_command("ip", &["route", "del", "blackhole", &far]);
        let mut script = Vec::new();
        for rule in ["from 10.244.1.5", "iif cali2", "fwmark 0x80/0xff", "to 198.51.100.0/24 from 10.244.1.6"] {
            if rng.u8(..4) == 0 {
                script.push(format!("rule add {rule} lookup 101"));
            }
        }
        if rng.u8(..6) == 0 {
            script.push("route add blackhole 198.51.100.0/24".to_owned());
        }
        script.iter().for_each(|words| self.ip(node, words));
        let mut entries = vec!["all src"];
        for entry in ["src 10.244.1.4/31", "src 192.168.6.0/24", "ends 10.244.1.6,udp:8080", "ends 10.96.0.1,udp:80"] {
            if rng.bool() {
                entries.push(entry);
            }
        }
        if rng.bool() {
            entries.push("src 10.244.1.5 nomatch");
        }
        for entry in &entries {
            let entry = self.text(entry);
            let words: Vec<&str> = ["add"].into_iter().chain(entry.split(' ')).collect();
            node.command("ipset", &words);
        }
        let (iptables, nft) = (self.text(&iptables_rules(rng)), self.text(&nft_rules(rng)));
        node.feed(self.of("iptables-nft-restore", "ip6tables-nft-restore"), &[], &iptables);
        node.feed("nft", &["-f", "-"], &nft);
        format!("{}\n{}\n{iptables}{nft}", script.join("\n"), entries.join("\n"))
    }

    /// Sends a packet and returns its receiver. Waits for long only if it cannot be lost.
    fn send(&self, socket: &UdpSocket, to: SocketAddr, allowed: &BTreeSet<End>) -> End {
        // Prevents a late packet from being mistaken for another one.
        let content = format!("{to} {}", socket.local_addr().unwrap());
        // If a rule rejects the packet, the call fails.
        drop(socket.send_to(content.as_bytes(), to));
        for _ in 0..if allowed.contains(&None) { FEW_POLLS } else { POLLS } {
            for (name, port, listener) in &self.listeners {
                let mut received = [0; 64];
                while let Ok((length, peer)) = listener.recv_from(&mut received) {
                    if received[..length] == *content.as_bytes() {
                        return Some((name, *port, peer.ip()));
                    }
                }
            }
            thread::sleep(PAUSE);
        }
        None
    }

    /// Writes the rules, sets, addresses and routes of the node to files, as users post them. Returns the flags that name the files.
    fn dump(&self, directory: &Path) -> [String; 2] {
        let family = self.of("-4", "-6");
        let rules = [
            self.node.command(self.of("iptables-nft-save", "ip6tables-nft-save"), &[]),
            self.node.command("nft", &["list", "table", "inet", "own"]),
            self.node.command("ipset", &["save"]),
        ];
        let routes = [&["address"][..], &["route", "show", "table", "all"], &["rule"]];
        let routes = routes.map(|words| self.node.command("ip", &[&[family], words].concat()));
        [("rules", rules.concat()), ("routes", routes.concat())].map(|(name, text)| {
            let file = directory.join(name);
            fs::write(&file, text).unwrap();
            format!("--{name}={}", file.display())
        })
    }

    /// Returns all ends of a packet that a trace allows, by the kernel or by the files that these flags name.
    fn trace(&self, source: &[&str], arguments: &[&str]) -> (BTreeSet<End>, String) {
        let output = self.node.run(|| {
            let mut command = Command::new(env!("CARGO_BIN_EXE_ferroute"));
            command.args(["trace", "--hostname-override", "node-a", "--proto", "udp", "-o", "json"]);
            command.args(source).args(arguments).output().unwrap()
        });
        let text = String::from_utf8(output.stdout).unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        if error.contains("the node has no route") {
            // A blackhole: the kernel refuses to send the packet.
            return (BTreeSet::from([None]), error.into_owned());
        }
        let report: serde_json::Value =
            serde_json::from_str(&text).unwrap_or_else(|reason| panic!("{reason}: {text}{error}"));
        let branches = report["branches"].as_array().unwrap();
        assert!(branches.iter().all(|branch| branch["assumptions"].is_null()), "all is decided: {text}");
        let ends = branches.iter().flat_map(|branch| {
            let choices = branch["choices"].as_array().cloned().unwrap_or_default();
            let delivered = branch["verdict"] == "delivered";
            assert!(branch["verdict"] != "unknown", "all is decided: {text}");
            let of = |value: &serde_json::Value| {
                let to: SocketAddr = value["to"].as_str()?.parse().ok()?;
                let interface = branch["interface"].as_str();
                Some((
                    self.receiver(to, value["interface"].as_str().or(interface))?,
                    to.port(),
                    value["from"].as_str()?.parse().ok()?,
                ))
            };
            let ends: Vec<End> = match (delivered, choices.len() > 1) {
                (false, _) => vec![None],
                (true, false) => vec![of(branch)],
                (true, true) => choices.iter().map(of).collect(),
            };
            ends
        });
        (ends.collect(), text)
    }

    /// Returns the owner of an address behind an interface.
    fn receiver(&self, to: SocketAddr, interface: Option<&str>) -> Option<&'static str> {
        if !PORTS.contains(&to.port()) {
            return None;
        }
        let Some(interface) = interface.filter(|name| *name != "lo") else { return Some("node") };
        let (name, address, ..) = self.others.iter().find(|(.., device, _)| *device == interface)?;
        let is_router = interface.starts_with("eth");
        let is_own = to.ip().to_string() == *address || (is_router && to.ip().to_string() == self.text(FAR));
        is_own.then_some(*name)
    }
}

fn hardware_address(place: &NetNs, interface: &str) -> String {
    let output = place.command("ip", &["-j", "link", "show", "dev", interface]);
    let links: serde_json::Value = serde_json::from_str(&output).unwrap();
    links[0]["address"].as_str().unwrap().to_owned()
}

/// Returns a text with the same in IPv6: `10.244.1.5` is `fd0a:f4:1::5`.
fn in_ipv6(text: &str) -> String {
    let mut result = String::new();
    let mut rest = text;
    while let Some(start) = rest.find(|c: char| c.is_ascii_digit()) {
        result.push_str(&rest[..start]);
        rest = &rest[start..];
        let Some((address, after)) = ipv4(rest) else {
            let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
            result.push_str(&rest[..end]);
            rest = &rest[end..];
            continue;
        };
        let last = after.strip_prefix('-').and_then(ipv4);
        let (addresses, after) = match last {
            Some((last, after)) => (format!("{}-{}", mapped(address), mapped(last)), after),
            None => (mapped(address).to_string(), after),
        };
        let has_port = after.starts_with(':') && after[1..].starts_with(|c: char| c.is_ascii_digit());
        result += &if has_port { format!("[{addresses}]") } else { addresses };
        rest = after;
        for (before, length) in [("/16", "/32"), ("/24", "/48"), ("/31", "/127"), ("/32", "/128")] {
            if let Some(after) = rest.strip_prefix(before) {
                result.push_str(length);
                rest = after;
                break;
            }
        }
    }
    result += rest;
    for (before, after) in [
        ("ip saddr", "ip6 saddr"),
        ("ip daddr", "ip6 daddr"),
        ("ipv4_addr", "ipv6_addr"),
        (",BROADCAST", ""),
        // Options and fragments have other headers.
        ("ip option lsrr", "exthdr frag"),
        ("ip option rr exists", "rt type != 1"),
        ("ip hdrlength 5", "frag more-fragments 0"),
    ] {
        result = result.replace(before, after);
    }
    result
}

/// Returns the IPv4 address at the start of a text, and the rest.
fn ipv4(text: &str) -> Option<(Ipv4Addr, &str)> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    Some((text[..end].parse().ok()?, &text[end..]))
}

/// Returns the IPv6 address for an IPv4 address. Masks have only the last byte.
fn mapped(address: Ipv4Addr) -> Ipv6Addr {
    let [a, b, c, d] = address.octets().map(u16::from);
    match a {
        0 => Ipv6Addr::new(0, 0, 0, 0, 0, 0, 0, d),
        _ => Ipv6Addr::new(0xfd00 | a, b, c, 0, 0, 0, 0, d),
    }
}

fn pick<'a>(rng: &mut Rng, of: &[&'a str]) -> &'a str {
    of[rng.usize(..of.len())]
}

fn iptables_match(rng: &mut Rng, is_forward: bool) -> String {
    let common = [
        "-s 10.244.1.5/32",
        "-s 192.168.6.0/24",
        "-d 10.244.1.6/32",
        "! -d 10.244.0.0/16",
        "-i cali+",
        "-p udp -m udp --dport 8080",
        "-p udp -m udp ! --dport 80:90",
        "-p tcp -m tcp --dport 8080",
        "-p udp -m multiport --dports 80,8080",
        "-m mark --mark 0x80/0xff",
        "-m connmark ! --mark 0x1/0x1",
        "-m set --match-set src src",
        "-m set ! --match-set ends dst,dst",
        "-m set --match-set all src",
        "-m set --match-set seen src",
        "-m set ! --match-set seen dst",
        "-m addrtype --dst-type LOCAL",
        "-m conntrack --ctstate NEW",
        "-m conntrack --ctorigdst 10.96.0.0/16",
        "-m iprange --src-range 10.244.1.1-10.244.1.5",
        "-m pkttype --pkt-type unicast",
        "-m addrtype ! --dst-type LOCAL,BROADCAST",
        "-m addrtype --dst-type LOCAL --limit-iface-in",
        "-m addrtype --src-type UNICAST --dst-type UNICAST",
        "-m addrtype ! --dst-type UNICAST --limit-iface-in",
        "-m conntrack --ctstatus NONE",
        "-m conntrack ! --ctstatus SEEN_REPLY,ASSURED",
        "-m conntrack --ctreplsrc 10.244.1.6 --ctrepldstport 1024:65535",
    ];
    if is_forward && rng.u8(..4) == 0 {
        return pick(rng, &["-o cali2", "! -o eth0", "-o eth+", "-m conntrack --ctstate DNAT"]).to_owned();
    }
    pick(rng, &common).to_owned()
}

fn iptables_rules(rng: &mut Rng) -> String {
    let mut text = "*raw\n".to_owned();
    for _ in 0..rng.u8(..2) {
        // Before connection tracking.
        let target = pick(rng, &["CT --notrack", "DROP", "ACCEPT", "MARK --set-xmark 0x80/0xff"]);
        let condition = match target {
            "CT --notrack" => "-s 10.244.1.5/32 -d 10.244.1.6/32".to_owned(),
            _ => iptables_match(rng, false),
        };
        text += &format!("-A PREROUTING {condition} -j {target}\n");
    }
    text += "COMMIT\n*mangle\n";
    for _ in 0..rng.u8(..5) {
        let target = pick(
            rng,
            &[
                "SET --add-set seen src",
                "SET --add-set seen dst",
                "SET --del-set ends dst,dst",
                "SET --del-set seen src",
                "MARK --set-xmark 0x80/0xff",
                "MARK --or-mark 0x100",
                "CONNMARK --set-xmark 0x1/0x1",
                "CONNMARK --save-mark",
                "ACCEPT",
            ],
        );
        text += &format!("-A PREROUTING {} -j {target}\n", iptables_match(rng, false));
    }
    text += &output_rules(
        rng,
        &["MARK --set-xmark 0x80/0xff", "MARK --set-xmark 0x0/0xff", "ACCEPT"],
        ("-A OUTPUT", "-j "),
    );
    text += "COMMIT\n*nat\n:SVC - [0:0]\n";
    text += &output_rules(rng, &["MARK --set-xmark 0x80/0xff"], ("-A OUTPUT", "-j "));
    text += &format!("-A PREROUTING -d {VIP}/32 -p udp -m udp --dport 80 -j SVC\n");
    text += &format!("-A OUTPUT -d {VIP}/32 -p udp -m udp --dport 80 -j SVC\n");
    if rng.bool() {
        text += "-A SVC -p udp -m statistic --mode random --probability 0.5 -j DNAT --to-destination 10.244.1.5:8080\n";
    }
    if rng.u8(..4) > 0 {
        let to = pick(
            rng,
            &[
                "10.244.1.6:8080",
                "10.244.1.5:9000",
                "192.168.6.9:9000",
                ":9000",
                "198.51.100.7",
                "10.244.1.5-10.244.1.6:8080 --random",
                "10.244.1.6-10.244.1.7 --persistent",
                "10.244.1.6:8080-8180/80",
            ],
        );
        text += &format!("-A SVC -p udp -j DNAT --to-destination {to}\n");
    }
    for _ in 0..rng.u8(..3) {
        let target = pick(
            rng,
            &[
                "MASQUERADE",
                "MASQUERADE --random-fully",
                "SNAT --to-source 192.168.6.1",
                "SNAT --to-source 192.168.6.1-192.168.6.3",
                "RETURN",
            ],
        );
        text += &format!(
            "-A POSTROUTING {} -j {target}\n",
            pick(
                rng,
                &[
                    "-s 10.244.0.0/16 ! -d 10.244.0.0/16",
                    "-m mark --mark 0x80/0x80",
                    "-o eth1",
                    "-m set --match-set src src",
                    "-m connmark --mark 0x1/0x1"
                ]
            )
        );
    }
    text += "COMMIT\n*filter\n:FW - [0:0]\n";
    text += pick(rng, &[":FORWARD ACCEPT [0:0]\n", ":FORWARD ACCEPT [0:0]\n", ":FORWARD DROP [0:0]\n"]);
    for _ in 0..rng.u8(..4) {
        let target = pick(rng, &["ACCEPT", "DROP", "FW", "REJECT", "LOG --log-prefix \"x \""]);
        text += &format!("-A FORWARD {} -j {target}\n", iptables_match(rng, true));
    }
    for _ in 0..rng.u8(..3) {
        let target = pick(rng, &["ACCEPT", "DROP", "RETURN"]);
        text += &format!(
            "-A FW {} {} -j {target}\n",
            iptables_match(rng, true),
            pick(rng, &["", "-m comment --comment \"a b\""])
        );
    }
    text + "COMMIT\n"
}

/// Returns rules for packets of the node itself.
fn output_rules(rng: &mut Rng, verdicts: &[&str], (start, before): (&str, &str)) -> String {
    let is_nft = start.is_empty();
    let conditions = match is_nft {
        true => ["ip daddr 10.96.0.1", "udp dport 8080", "meta mark & 0xff == 0x80", "ip daddr 198.51.100.7"],
        false => ["-d 10.96.0.1", "-p udp --dport 8080", "-m mark --mark 0x80/0xff", "-d 198.51.100.7"],
    };
    let mut text = String::new();
    for _ in 0..rng.u8(..3) {
        let (condition, verdict) = (pick(rng, &conditions), pick(rng, verdicts));
        text += &format!("{start} {condition} {before}{verdict}\n");
    }
    text
}

fn nft_condition(rng: &mut Rng, is_forward: bool) -> String {
    if is_forward && rng.u8(..4) == 0 {
        return pick(
            rng,
            &[
                "oifname \"eth*\"",
                "oif \"cali2\"",
                "ct status dnat",
                "oifname . udp dport { \"cali2\" . 8080 }",
                "fib daddr . oif type local",
                "fib saddr . oif type { local, unicast }",
            ],
        )
        .to_owned();
    }
    pick(
        rng,
        &[
            "ip saddr 10.244.1.5",
            "ip saddr 10.244.1.4-10.244.1.5",
            "ip daddr @addresses",
            "ip saddr @seen",
            "ip daddr != @seen",
            "meta priority \"1:2\"",
            "ip saddr . udp dport { 10.244.1.5 . 80, 10.244.1.6 . 8000-8100 }",
            "ip saddr & 0.0.0.1 == 0.0.0.1",
            "ip saddr != { 10.244.1.6, 192.168.0.0/16 }",
            "meta mark & 0xff == 0x80",
            "meta mark 0x10-0x90",
            "meta mark | 0x80 == 0x81",
            "meta mark ^ 0x1 != 0x81",
            "ip option lsrr missing",
            "ip option rr exists",
            "ip hdrlength 5",
            "meta mark { 0x80, 0x180 }",
            "ct mark != 0x1",
            "ct state vmap { established : accept, related : accept }",
            "ct original ip daddr 10.96.0.0/16",
            "iifname \"cali1\"",
            "iif { \"cali2\", \"eth0\" }",
            "fib daddr type local",
            "fib daddr type { unicast, broadcast }",
            "fib daddr type { blackhole, unreachable }",
            "fib saddr . iif oif exists",
            "fib daddr oifname \"eth0\"",
            "udp dport 8000-9000",
            "meta l4proto . th dport { udp . 8080, tcp . 80 }",
            "meta pkttype host",
            "ct reply ip daddr 10.244.1.6",
            "meta protocol { ip, ip6 }",
            "udp dport vmap { 80 : continue, 8080 : accept, 1-79 : drop }",
            "ct state vmap { invalid : drop, new : continue }",
            "ct direction original",
            "fib daddr . iif type { local, broadcast }",
        ],
    )
    .to_owned()
}

fn nft_rules(rng: &mut Rng) -> String {
    let mut rules = |is_forward: bool, verdicts: &[&str]| {
        let mut text = String::new();
        for _ in 0..rng.u8(..3) {
            let verdict = pick(rng, verdicts);
            text += &format!("{} {} {verdict}\n", nft_condition(rng, is_forward), nft_condition(rng, is_forward));
        }
        text
    };
    let raw = rules(
        false,
        &[
            "drop",
            "accept",
            "meta mark set 0x80",
            "meta mark set ct mark",
            "add @seen { ip saddr }",
            "ip daddr set 10.244.1.6",
        ],
    );
    let before = rules(
        false,
        &[
            "meta mark set 0x80",
            "meta mark set ct mark",
            "ct mark set meta mark | 0x1",
            "accept",
            "add @seen { ip daddr }",
            "delete @seen { ip saddr }",
            "meta priority set \"1:2\"",
            "udp dport set 9000",
            "update @marks { ip daddr : meta mark }",
            "meta mark set ip daddr map @marks",
        ],
    );
    let forward = rules(true, &["drop", "accept", "jump more", "goto more", "counter reject"]);
    let more = rules(true, &["drop", "accept", "return", "log prefix \"x\""]);
    let marks = ["meta mark set 0x80", "meta mark set 0x1", "ip daddr set 198.51.100.7"];
    let sent = output_rules(rng, &marks, ("", ""));
    let routed = output_rules(rng, &marks, ("", ""));
    format!(
        "table inet own {{
            set seen {{ type ipv4_addr; size 100; flags dynamic,timeout; timeout 1h; }}
            map marks {{ type ipv4_addr : mark; size 100; flags dynamic,timeout; timeout 1h; }}
            chain sent {{ type filter hook output priority -170;\n{sent}}}
            chain routed {{ type route hook output priority -140;\n{routed}}}
            set addresses {{ type ipv4_addr; flags interval; elements = {{ 10.244.1.6, 192.168.6.0/24 }}; }}
            chain more {{\n{more}}}
            chain raw {{ type filter hook prerouting priority -290;\n{raw}}}
            chain before {{ type filter hook prerouting priority -160;\n{before}}}
            chain forward {{ type filter hook forward priority -5;\n{forward}}}
        }}\n"
    )
}

#[test]
fn real_packets_end_where_traces_end() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let seeds: Vec<u64> = match number("SEED") {
        Some(seed) => vec![seed],
        None => (1..=number("SEEDS").unwrap_or(24)).collect(),
    };
    for family in IpFamily::BOTH {
        compare(&Lab::new(family), &seeds);
    }
}

fn compare(lab: &Lab, seeds: &[u64]) {
    let (directory, mut reached) = (tempfile::tempdir().unwrap(), BTreeSet::new());
    for &seed in seeds {
        let mut rng = Rng::with_seed(seed);
        let rules = lab.randomize(&mut rng);
        let files = lab.dump(directory.path());
        for _ in 0..4 {
            let sender = rng.usize(..4);
            let any = lab.text("0.0.0.0");
            let (name, address, interface, from) = match lab.others.get(sender).filter(|_| sender < 3) {
                Some((name, address, interface, from)) => (*name, &**address, *interface, from),
                None => ("node", &*any, "lo", &lab.node),
            };
            let to = pick(
                &mut rng,
                &[
                    "10.96.0.1:80",
                    "10.96.0.1:80",
                    "10.244.1.6:8080",
                    "10.244.1.5:9000",
                    "198.51.100.7:8080",
                    "192.168.6.1:80",
                    "192.168.6.9:8080",
                ],
            );
            let to: SocketAddr = lab.text(to).parse().unwrap();
            let is_own = to.ip().to_string() == lab.text(FAR) && interface.starts_with("eth");
            // The trace does not know the owner of a socket, and conditions on it are evaluated on the way back.
            let is_looped = name == "node" && to.ip().to_string() == lab.text("192.168.6.1");
            if is_own || is_looped || to.ip().to_string() == address {
                continue;
            }
            let socket = from.run(|| UdpSocket::bind((address, 0)).unwrap());
            let port = socket.local_addr().unwrap().port().to_string();
            let to_text = to.to_string();
            let source = match name {
                "node" => vec!["--local"],
                _ => vec!["--from", address, "--in", interface],
            };
            let question = [&source[..], &["--to", &to_text, "--source-port", &port]].concat();
            let (allowed, text) = lab.trace(&["--kernel"], &question);
            let (by_files, text_by_files) = lab.trace(&files.each_ref().map(String::as_str), &question);
            assert_eq!(
                by_files, allowed,
                "SEED={seed}: {}: from {name} to {to}: the trace of files differs\n{rules}\n{text_by_files}",
                lab.family
            );
            let observed = lab.send(&socket, to, &allowed);
            assert!(
                allowed.contains(&observed),
                "SEED={seed}: {}: from {name} to {to}: received {observed:?}, the trace allows {allowed:?}\n{rules}\n{text}",
                lab.family
            );
            reached.insert(observed.map(|(name, ..)| name));
        }
    }
    assert!(reached.len() >= 2, "packets are delivered, and lost: {reached:?}");
}

/// New addresses are used at once, without a search for duplicates.
const NO_DAD: &str = "ipv6.conf.default.accept_dad=0";
/// The node's address for pods.
const LINK_LOCAL: &str = "fe80::1";

/// Maximum time of a packet, generous for machines under load.
const POLLS: u32 = 1000;
/// The number of polls for a packet that may be lost.
const FEW_POLLS: u32 = 10;
const PAUSE: Duration = Duration::from_millis(10);
