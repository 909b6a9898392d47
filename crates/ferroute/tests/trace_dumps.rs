//! `ferroute trace --rules` with dumps of nodes as users publish them: addresses, routes and rules in one file, without
//! root.

#![expect(clippy::unwrap_used, reason = "missing prerequisites fail the test")]

use std::{
    io::Write,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

fn dump(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/dumps").join(format!("{name}.txt"))
}

fn trace(name: &str, arguments: &str) -> Output {
    let file = dump(name);
    let mut command = Command::new(env!("CARGO_BIN_EXE_ferroute"));
    command.arg("trace").arg("--rules").arg(&file).arg("--routes").arg(&file);
    command.args(arguments.split(' ')).output().unwrap()
}

/// Returns the last lines of all branches, and the assumptions before them.
fn results(name: &str, arguments: &str) -> Vec<String> {
    let output = trace(name, arguments);
    let text = String::from_utf8(output.stdout).unwrap();
    let is_result =
        |line: &&str| line.starts_with("=> ") || line.starts_with("assuming: ") || line.starts_with("or assuming");
    let results: Vec<String> = text.lines().filter(is_result).map(str::to_owned).collect();
    assert!(!results.is_empty(), "{name} {arguments}: {text}{}", String::from_utf8_lossy(&output.stderr));
    results
}

#[test]
fn packets_end_where_they_do_on_the_node() {
    for (name, arguments, expected) in [
        // Calico: a policy permits one pod to connect to the endpoint.
        (
            "calico",
            "--from 10.42.7.4 --to 10.43.0.77:8000",
            &["=> delivered to 10.42.7.9:9000 through cali7d2, with source 10.42.7.4"][..],
        ),
        ("calico", "--from 10.42.9.3 --to 10.43.0.77:8000", &["=> dropped"]),
        ("calico", "--from 10.42.7.9 --to 10.42.7.4:80", &["=> dropped"]),
        (
            "calico",
            "--from 10.42.7.4 --to 8.8.8.8:443",
            &["=> not translated, delivered to 8.8.8.8:443 through ens3, with source 172.30.1.11"],
        ),
        (
            "calico",
            "--from 10.42.7.4 --to 10.42.9.30:443",
            &["=> not translated, delivered to 10.42.9.30:443 through ens3, with source 10.42.7.4"],
        ),
        ("calico", "--from 10.42.7.4 --to 10.42.7.20:443", &["=> dropped"]),
        // EKS: pods keep their addresses within the VPC.
        (
            "eks",
            "--from 192.168.44.90 --to 10.100.0.10:53 --proto udp",
            &["=> delivered to 192.168.51.7:53 through eth0, with source 192.168.44.90"],
        ),
        (
            "eks",
            "--from 192.168.44.90 --to 203.0.113.9:443",
            &["=> not translated, delivered to 203.0.113.9:443 through eth0, with source 192.168.40.20"],
        ),
        // Cilium: only traffic of the cluster is forwarded.
        (
            "cilium",
            "--from 203.0.113.9 --in eth0 --to 10.0.1.7:80",
            &["=> not translated, delivered to 10.0.1.7:80 through cilium_host, with source 203.0.113.9"],
        ),
        ("cilium", "--from 203.0.113.9 --in eth0 --to 10.20.0.9:80", &["=> dropped"]),
        // k3s: a network policy and a host port.
        (
            "k3s",
            "--from 192.168.50.77 --to 192.168.50.10:443",
            &["=> delivered to 10.42.0.8:8443 through cni0, with source 192.168.50.77"],
        ),
        ("k3s", "--from 192.168.50.66 --to 192.168.50.10:443", &["=> rejected with icmp-port-unreachable"]),
        ("k3s", "--from 10.42.0.9 --to 10.42.0.8:8443", &["=> rejected with icmp-port-unreachable"]),
        (
            "k3s",
            "--from 10.42.0.9 --to 1.1.1.1:443",
            &["=> not translated, delivered to 1.1.1.1:443 through eth0, with source 192.168.50.10"],
        ),
        // Docker: published ports, isolated networks, the administrator's rule.
        (
            "docker",
            "--from 192.0.2.9 --to 198.51.100.20:8080",
            &["=> delivered to 172.17.0.2:80 through docker0, with source 192.0.2.9"],
        ),
        ("docker", "--from 203.0.113.9 --to 198.51.100.20:8080", &["=> dropped"]),
        ("docker", "--from 172.18.0.5 --to 172.17.0.2:80", &["=> dropped"]),
        (
            "docker",
            "--from 172.17.0.2 --to 1.1.1.1:443",
            &["=> not translated, delivered to 1.1.1.1:443 through enp1s0, with source 198.51.100.20"],
        ),
        // firewalld rejects packets that no zone permits.
        ("firewalld", "--from 203.0.113.9 --to 203.0.113.5:80", &["=> rejected with icmpx admin-prohibited"]),
        ("firewalld", "--from 198.51.100.7 --to 203.0.113.5:22", &["=> dropped"]),
        (
            "firewalld",
            "--from 198.51.100.201 --to 203.0.113.5:22",
            &["=> not translated, delivered to 203.0.113.5:22 on this host, with source 198.51.100.201"],
        ),
        (
            "firewalld",
            "--from 203.0.113.9 --to 203.0.113.5:30080",
            &[
                "assuming: `limit rate 10/second burst 5 packets` matches",
                "=> not translated, delivered to 203.0.113.5:30080 on this host, with source 203.0.113.9",
                "assuming: `limit rate 10/second burst 5 packets` does not match",
                "=> rejected with icmpx admin-prohibited",
            ],
        ),
        (
            "firewalld",
            "--from 10.244.3.7 --to 8.8.8.8:53",
            &["=> not translated, delivered to 8.8.8.8:53 through eth0, with source 10.244.3.7"],
        ),
        ("firewalld", "--from 203.0.113.9 --to 10.244.3.7:80", &["=> rejected with icmpx admin-prohibited"]),
        // Istio: connections of the application go to the proxy of the pod.
        (
            "istio",
            "--from 10.244.9.9 --to 10.244.2.6:8080",
            &["=> delivered to 10.244.2.6:15006 on this host, with source 10.244.9.9"],
        ),
        (
            "istio",
            "--from 10.244.9.9 --to 10.244.2.6:15020",
            &["=> not translated, delivered to 10.244.2.6:15020 on this host, with source 10.244.9.9"],
        ),
        // libvirt: guests can connect to other hosts, which cannot connect to them.
        (
            "libvirt",
            "--from 192.168.122.50 --to 1.1.1.1:443",
            &["=> not translated, delivered to 1.1.1.1:443 through eno1, with source 192.168.1.30"],
        ),
        ("libvirt", "--from 192.168.1.40 --to 192.168.122.50:22", &["=> rejected with icmp port-unreachable"]),
        // Antrea: pods that a rule has just added to a set leave with a separate address.
        (
            "antrea",
            "--from 10.71.2.30 --in antrea-gw0 --to 1.1.1.1:443",
            &["=> not translated, delivered to 1.1.1.1:443 through ens5, with source 10.70.0.200"],
        ),
        (
            "antrea",
            "--from 10.71.2.31 --in antrea-gw0 --to 1.1.1.1:443",
            &["=> not translated, delivered to 1.1.1.1:443 through ens5, with source 10.70.0.21"],
        ),
        (
            "antrea",
            "--from 10.70.0.9 --to 10.96.40.2:443",
            &["=> delivered to 10.71.2.9:8443 through antrea-gw0, with source 10.70.0.9"],
        ),
        ("antrea", "--from 10.70.0.9 --in ens5 --to 203.0.113.9:443", &["=> dropped"]),
        // kube-router: a network policy by sets, and routes of other nodes' pods in a separate table.
        (
            "kube-router",
            "--from 10.50.11.7 --to 10.100.3.3:80",
            &["=> delivered to 10.50.4.8:8080 through kube-bridge, with source 10.50.11.7"],
        ),
        ("kube-router", "--from 10.50.4.9 --to 10.100.3.3:80", &["=> rejected with icmp-port-unreachable"]),
        (
            "kube-router",
            "--from 10.50.4.9 --to 10.50.11.7:80",
            &["=> not translated, delivered to 10.50.11.7:80 through tun-172205111, with source 10.50.4.9"],
        ),
        (
            "kube-router",
            "--from 10.50.4.9 --to 8.8.8.8:53",
            &["=> not translated, delivered to 8.8.8.8:53 through eth0, with source 172.20.5.4"],
        ),
        // OVN: node ports lead to the service network through the management port; egress addresses by a map of chains.
        (
            "ovn",
            "--from 192.168.120.9 --to 192.168.120.20:31000",
            &["=> delivered to 172.30.9.1:80 through br-ex, with source 192.168.120.9"],
        ),
        (
            "ovn",
            "--from 10.128.0.9 --to 198.51.100.7:443",
            &["=> not translated, delivered to 198.51.100.7:443 through br-ex, with source 192.168.120.20"],
        ),
        (
            "ovn",
            "--from 10.128.1.44 --to 198.51.100.7:443",
            &["=> not translated, delivered to 198.51.100.7:443 through br-ex, with source 192.168.120.77"],
        ),
        ("ovn", "--from 10.128.0.9 --to 198.51.100.7:22623", &["=> rejected with icmpx port-unreachable"]),
    ] {
        let results = results(name, arguments);
        let results: Vec<&str> = results.iter().map(String::as_str).collect();
        assert_eq!(results, expected, "{name} {arguments}");
    }
}

#[test]
fn owner_of_local_packets_is_assumed_both_ways() {
    let results = results("istio", "--local --from 10.244.2.6 --to 10.96.0.10:80");
    let ends: Vec<&String> = results.iter().filter(|line| line.starts_with("=> ")).collect();
    assert!(ends.iter().any(|end| end.contains("delivered to 127.0.0.1:15001 on this host")), "{results:?}");
    assert!(
        ends.iter().any(|end| end.contains("not translated, delivered to 10.96.0.10:80 through eth0")),
        "{results:?}"
    );
    assert!(results.iter().any(|line| line.contains("--uid-owner 1337")), "{results:?}");
}

/// Traces a packet through rules without routes.
fn trace_text(rules: &str, from: &str, to: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ferroute"));
    command.args(["trace", "--rules", "-", "--from", from, "--to", to]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(rules.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

#[test]
fn modules_of_iptables_in_the_words_of_old_nft_are_conditions_and_targets() {
    const DELIVERED: &str = "=> not translated, delivered to 10.0.0.9:80 through eth0, with source 10.0.0.5";
    const DROPPED: &str = "=> dropped";
    for (rule, expected) in [
        ("# match-set pods dst,dst counter packets 3 bytes 180 drop", &[DROPPED, DELIVERED][..]),
        (
            "ip saddr != 10.1.0.0/16  # match-set pods dst tcp dport 80 counter packets 3 bytes 180 drop",
            &[DROPPED, DELIVERED],
        ),
        ("ip saddr 10.1.0.0/16  # match-set pods dst counter packets 3 bytes 180 drop", &[DELIVERED]),
        (
            "ct state new # recent: UPDATE seconds: 60 hit_count: 4 name: a side: source counter packets 0 bytes 0 jump c",
            &[DROPPED, DELIVERED],
        ),
        ("# ADDRTYPE match dst-type LOCAL counter packets 0 bytes 0 # LOG level 4", &[DELIVERED]),
        ("tcp dport 80 counter packets 0 bytes 0 # CHECKSUM fill", &[DELIVERED]),
        (
            "tcp dport 80 counter packets 0 bytes 0 # TPROXY redirect 127.0.0.1:15006 mark 0x1/0xff",
            &["=> unknown: effect of `-j TPROXY redirect 127.0.0.1:15006 mark 0x1/0xff`"],
        ),
        ("tcp dport 80 counter packets 0 bytes 0 xt target \"REDIRECT\"", &["=> unknown: effect of `-j REDIRECT …`"]),
        ("tcp dport 80 counter packets 0 bytes 0 xt target \"DELUDE\"", &["=> unknown: effect of `-j DELUDE …`"]),
        ("# tcp dport 80 drop", &[DELIVERED]),
        ("tcp flags & (fin|syn|rst|ack) != syn ct state new drop", &[DELIVERED]),
        ("tcp flags & (fin|syn|rst|ack) == syn ct state new drop", &[DROPPED]),
    ] {
        let rules = format!(
            "table ip t {{\n chain f {{\n type filter hook forward priority 0; policy accept;\n {rule} # handle 9\n }}\n \
             chain c {{\n drop\n }}\n}}\n"
        );
        let text = String::from_utf8(trace_text(&rules, "10.0.0.5", "10.0.0.9:80").stdout).unwrap();
        let ends: Vec<&str> = text.lines().filter(|line| line.starts_with("=> ")).collect();
        assert_eq!(ends, expected, "{rule}: {text}");
    }
}

/// Parts of the output of `iptables-save`, also copied from chats and pages.
#[test]
fn rules_of_iptables_that_are_missing_or_unreadable_leave_the_result_open() {
    let rules = |rule: &str| {
        format!("*nat\n:PREROUTING ACCEPT [0:0]\n{rule}\n-A SVC -j DNAT --to-destination 10.0.0.7\nCOMMIT\n")
    };
    let translated = "=> delivered to 10.0.0.7:80";
    for (rule, expected) in [
        ("-A PREROUTING -j KUBE-SERVICES", "=> unknown: effect of `-j KUBE-SERVICES`, which is no chain of table nat"),
        ("-A PREROUTING -m comment --comment \u{201c}kubernetes service portals\u{201c} -j SVC", translated),
        ("-A PREROUTING -m comment --comment &quot;kubernetes service portals&quot; -j SVC", translated),
        ("-A PREROUTING -s ! 10.1.0.0/16 -p tcp \u{2014}dport 80 -j SVC", translated),
        ("-A PREROUTING -s 10.1.0.1,10.0.0.5 -j SVC", translated),
        (
            "-A PREROUTING -m comment --comment kubernetes service portals -j SVC",
            "assuming: `-m comment --comment kubernetes service portals` matches",
        ),
    ] {
        let text = String::from_utf8(trace_text(&rules(rule), "10.0.0.5", "10.96.0.1:80").stdout).unwrap();
        assert!(text.contains(expected), "{rule}: {text}");
        assert_eq!(text.contains("assuming: "), expected.contains("assuming: "), "{rule}: {text}");
    }
}

#[test]
fn rules_are_read_from_standard_input_and_assumptions_are_noted() {
    let rules = "*filter\n-A FORWARD -d fd00::9/128 -p tcp -m tcp --dport 80 -j DROP\nCOMMIT\n";
    let output = trace_text(rules, "fd00::5", "[fd00::9]:80");
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(
        text.contains("=> dropped") && text.contains("note: the addresses and routes of the node are not known"),
        "{text}"
    );
}

#[test]
fn files_without_rules_are_errors() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "hello\n").unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_ferroute"))
        .args(["trace", "--from", "10.0.0.1", "--to", "10.0.0.2:80", "--rules"])
        .arg(file.path())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("neither output of iptables-save, of nft list ruleset nor of ipset save"), "{error}");
}

/// Traces a packet through files with these texts, the first of which also has the addresses and routes.
fn trace_texts(texts: &[&str], arguments: &str) -> (Option<i32>, String) {
    let directory = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_ferroute"));
    command.arg("trace");
    for (n, text) in texts.iter().enumerate() {
        let file = directory.path().join(n.to_string());
        std::fs::write(&file, text).unwrap();
        command.arg("--rules").arg(&file);
        if n == 0 {
            command.arg("--routes").arg(&file);
        }
    }
    let output = command.args(arguments.split(' ')).output().unwrap();
    (output.status.code(), String::from_utf8([output.stdout, output.stderr].concat()).unwrap())
}

const NODE: &str = "2: eth0: <UP>\n    inet 192.168.6.121/24 scope global eth0\n\
                    3: kube-ipvs0: <NOARP>\n    inet 10.96.0.10/32 scope global kube-ipvs0\n\
                    default via 192.168.6.1 dev eth0\n10.244.1.0/24 dev cni0 scope link\n\
                    # Generated by iptables-save v1.8.9 (nf_tables) on Mon\n*nat\n:PREROUTING ACCEPT [0:0]\n\
                    -A PREROUTING -d 10.96.0.9/32 -p tcp -m tcp --dport 80 -j DNAT --to-destination 10.244.1.6:8080\nCOMMIT\n\
                    *filter\n:FORWARD ACCEPT [0:0]\nCOMMIT\n";

#[test]
fn virtual_servers_in_files_are_followed_and_missed() {
    let to_server = "--from 192.168.6.9 --to 10.96.0.10:80";
    let (status, text) = trace_texts(&[NODE], to_server);
    assert!(text.contains("=> unknown: virtual servers of kube-ipvs0, which has 10.96.0.10"), "{text}");
    assert!(text.contains("ipvsadm -Sn") && status == Some(2), "{text}");
    let servers = "-A -t 10.96.0.10:80 -s rr\n-a -t 10.96.0.10:80 -r 10.244.1.6:8080 -m -w 1\n\
                   -A -t 10.96.0.11:80 -s rr\n-a -t 10.96.0.11:80 -r 10.244.1.6:80 -g -w 1\n";
    let (status, text) = trace_texts(&[NODE, servers], to_server);
    assert!(text.contains("=> delivered to 10.244.1.6:8080 through cni0") && status == Some(0), "{text}");
    let (_, text) = trace_texts(&[&format!("{NODE}{servers}")], "--from 192.168.6.9 --to 10.96.0.10:81");
    assert!(text.contains("=> not translated, delivered to 10.96.0.10:81 on this host"), "{text}");
    let direct = NODE.replace("10.96.0.10/32", "10.96.0.11/32");
    let (status, text) = trace_texts(&[&direct, servers], "--from 192.168.6.9 --to 10.96.0.11:80");
    assert!(text.contains("=> unknown: effect of virtual server 10.96.0.11:80/tcp") && status == Some(2), "{text}");
}

#[test]
fn packets_are_not_certainly_delivered_if_files_show_that_rules_are_missing() {
    let to_endpoint = "--from 192.168.6.9 --to 10.96.0.9:80";
    let (status, text) = trace_texts(&[NODE, ""], to_endpoint);
    assert!(text.contains("=> delivered to 10.244.1.6:8080 through cni0") && status == Some(0), "{text}");
    let warning = "# Warning: iptables-legacy tables present, use iptables-legacy-save to see them\n";
    let (status, text) = trace_texts(&[NODE, &format!("{warning}*mangle\nCOMMIT\n")], to_endpoint);
    assert_eq!(status, Some(0), "the file has rules of the other backend: {text}");
    let (status, text) = trace_texts(&[&format!("{NODE}{warning}")], to_endpoint);
    assert!(
        text.contains("note: the node also has rules of iptables-legacy: add the output of iptables-legacy-save"),
        "{text}"
    );
    assert!(text.contains("=> delivered") && status == Some(2), "{text}");
    let terse = "table ip kube-proxy {\n\tmap ips {\n\t\ttype ipv4_addr . inet_service : verdict\n\t}\n\tchain c {\n\
                 \t\ttype nat hook prerouting priority dstnat; policy accept;\n\t\tip daddr . tcp dport vmap @ips\n\t}\n}\n";
    let (status, text) = trace_texts(&[NODE, terse], "--from 192.168.6.9 --to 10.96.0.8:80");
    assert!(text.contains("note: no set or map in the files has elements") && text.contains("=> unknown"), "{text}");
    assert_eq!(status, Some(2), "{text}");
}
