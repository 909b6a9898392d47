//! Which mode is taken, and what becomes of what other modes have left.

use std::{collections::BTreeSet, os::unix::fs::symlink, process::Command};

use ferroute_testing::NetNs;

use crate::{
    Files, Lab, Mode, Proxy, WEB, former, in_each_mode,
    proxy::{FERROUTE, run_command},
    refusals::without_tools,
    rules::{self, Others},
    slices,
    traffic::{Connection, Flow, Traffic, connect},
    wait, web, web_tcp, web_udp,
};

in_each_mode!(
    no_request_fails_while_kube_proxys_rules_are_taken_over,
    no_request_fails_while_kube_proxys_nftables_table_is_taken_over,
    what_kube_proxys_ipvs_mode_has_left_goes_once_our_rules_are_in_force,
);

#[test]
fn nftables_is_taken_when_no_mode_is_asked_for_and_iptables_under_the_name_of_kube_proxy() {
    let (lab, files) = (Lab::new(), Files::new());
    files.apply(&web(&[0]));
    let kube_proxy = files.path("kube-proxy");
    symlink(FERROUTE, &kube_proxy).unwrap();
    let mut by_its_name = Command::new(&kube_proxy);
    by_its_name.arg("--config").arg(files.config_asking_for("''")).arg("--manifests").arg(files.manifests());
    let ours = run_command(FERROUTE, &files.manifests(), &files.config_asking_for("''"));
    for (mut command, mode, word, reason) in [
        (ours, Mode::Nftables, "nftables", "supported by the kernel"),
        (by_its_name, Mode::Iptables, "iptables", "kube-proxy's default"),
    ] {
        let mut proxy = Proxy::spawn(&lab.node, &mut command);
        proxy.wait_in_force(&lab.node);
        let line = proxy.wait_log("mode selected");
        assert!(line.contains(word) && line.contains(reason), "{line}");
        for to in web_tcp() {
            connect(&lab.client, to).unwrap();
        }
        wait("the end of the other mode's rules", || rules::ours(&lab.node, mode.other()).is_empty().then_some(()));
        assert_ne!(rules::ours(&lab.node, mode), Vec::<String>::new());
        assert!(proxy.end_by("TERM").success());
    }
}

/// From rules that kube-proxy has left, a proxy takes over while requests are made all the time.
fn check_takeover(mode: Mode, lay: fn(&NetNs), is_left: fn(&NetNs) -> bool) {
    let (lab, files) = (Lab::new(), Files::new());
    files.apply(&web(&[0, 1, 2]));
    lay(&lab.node);
    let traffic = Traffic::start_all(&lab.client);
    let open = |to| Connection::open(&lab.client, to).unwrap();
    let mut connections: Vec<_> = [web_tcp(); 3].concat().into_iter().map(open).collect();
    let flows = web_udp().map(|to| Flow::open(&lab.client, to));
    let pods = flows.each_ref().map(Flow::pod);
    let proxy = Proxy::start(&lab.node, &files, mode);
    wait("the end of kube-proxy's rules", || (!is_left(&lab.node)).then_some(()));
    traffic.iter().for_each(Traffic::go_on);
    for connection in &mut connections {
        connection.echo("still here").unwrap();
    }
    assert_eq!(flows.each_ref().map(Flow::pod), pods);
    for traffic in traffic {
        assert_eq!(traffic.assert_no_failure(), BTreeSet::from([0, 1, 2]));
    }
    assert_ne!(rules::ours(&lab.node, mode), Vec::<String>::new());
    drop(proxy);
}

fn no_request_fails_while_kube_proxys_rules_are_taken_over(mode: Mode) {
    // Chains of its own, which none of our Services has.
    check_takeover(mode, former::iptables, |node| {
        ["iptables-save", "ip6tables-save"]
            .iter()
            .any(|program| node.command(program, &[]).contains("KUBE-SVC-4LVCYZMTA5CQO6SX"))
    });
}

fn no_request_fails_while_kube_proxys_nftables_table_is_taken_over(mode: Mode) {
    check_takeover(mode, former::nftables, has_kube_proxys_table);
}

fn has_kube_proxys_table(node: &NetNs) -> bool {
    node.command("nft", &["list", "tables"]).contains("kube-proxy")
}

#[test]
fn rules_that_were_written_beside_the_kubelets_stay_when_those_of_other_modes_go() {
    let (lab, files) = (Lab::new(), Files::new());
    files.apply(&web(&[0, 1, 2]));
    let version = lab.node.command("iptables", &["--version"]);
    // Not the one that `iptables` leads to.
    let backend = if version.contains("legacy") { "nft" } else { "legacy" };
    for iptables in ["iptables", "ip6tables"] {
        lab.node.command(&format!("{iptables}-{backend}"), &["-w", "-t", "mangle", "-N", "KUBE-IPTABLES-HINT"]);
    }
    // Goes after all that is in iptables.
    former::nftables(&lab.node);
    let proxy = Proxy::start(&lab.node, &files, Mode::Iptables);
    wait("the end of kube-proxy's table", || (!has_kube_proxys_table(&lab.node)).then_some(()));
    for iptables in ["iptables", "ip6tables"] {
        let saved = lab.node.command(&format!("{iptables}-{backend}-save"), &["-t", "nat"]);
        assert!(saved.contains("-A PREROUTING") && saved.contains("KUBE-SVC-"), "{saved}");
    }
    for to in web_tcp() {
        connect(&lab.client, to).unwrap();
    }
    drop(proxy);
}

fn what_kube_proxys_ipvs_mode_has_left_goes_once_our_rules_are_in_force(mode: Mode) {
    let (lab, files) = (Lab::new(), Files::new());
    files.apply(&web(&[0, 1, 2]));
    former::ipvs(&lab.node);
    lab.node.command("ipset", &["create", "KUBE-OF-OTHERS", "hash:ip"]);
    // No kernel at hand has the kind of device that is kube-proxy's, so this one is somebody else's.
    lab.node.command("ip", &["link", "add", "kube-ipvs0", "type", "bridge"]);
    let _proxy = Proxy::start(&lab.node, &files, mode);
    wait("the end of the sets", || {
        (lab.node.command("ipset", &["save"]).lines().filter(|line| line.starts_with("create")).count() == 1)
            .then_some(())
    });
    assert!(lab.node.command("ipset", &["save"]).contains("KUBE-OF-OTHERS"));
    lab.node.command("ip", &["link", "show", "kube-ipvs0"]);
    let saved = lab.node.command("iptables-save", &[]);
    for trace in
        ["KUBE-NODE-PORT ", "KUBE-LOAD-BALANCER", "KUBE-IPVS", "KUBE-SOURCE-RANGES", "kube-proxy firewall rules"]
    {
        assert!(!saved.contains(trace), "{trace} is in {saved}");
    }
    for to in web_tcp() {
        connect(&lab.client, to).unwrap();
    }
}

#[test]
fn what_will_be_different_is_told_beforehand_and_when_it_happens() {
    let (lab, files) = (Lab::new(), Files::new());
    let service =
        WEB.replace("spec:\n", "spec:\n  type: NodePort\n").replace("port: 80}", "port: 80, nodePort: 30080}");
    files.apply(&format!("{service}{}", slices("web", &[0])));
    let manifests = files.manifests();
    let preflight = |arguments: &[&str]| {
        let source = ["preflight", "--hostname-override", "node-1", "--manifests", manifests.to_str().unwrap()];
        lab.node.try_command(FERROUTE, &[&source, arguments].concat())
    };
    let none = preflight(&["--proxy-mode", "nftables"]);
    assert!(!none.status.success());
    assert!(String::from_utf8_lossy(&none.stderr).contains("--from"), "{none:?}");

    former::iptables(&lab.node);
    lab.node.command("iptables", &["-w", "-t", "nat", "-N", "CNI-THEIRS"]);
    lab.node.command("iptables", &["-w", "-t", "nat", "-A", "CNI-THEIRS", "-j", "KUBE-MARK-MASQ"]);
    let told = String::from_utf8(preflight(&["--proxy-mode", "nftables"]).stdout).unwrap();
    let different = "node ports do not answer on 10.244.0.1 any more";
    for part in [
        "node node-1, from mode iptables to mode nftables",
        "node ports do not answer on 127.0.0.1 any more",
        different,
        "Services: default/web",
        "rule: -t nat -A CNI-THEIRS -j KUBE-MARK-MASQ",
    ] {
        assert!(told.contains(part), "{part:?} in {told}");
    }
    let json = preflight(&["--proxy-mode", "nftables", "--output", "json"]).stdout;
    let json: serde_json::Value = serde_json::from_slice(&json).unwrap();
    assert_eq!((&json["from"], &json["to"]), (&"iptables".into(), &"nftables".into()));
    let kinds: Vec<&str> =
        json["differences"].as_array().unwrap().iter().filter_map(|difference| difference["kind"].as_str()).collect();
    assert!(
        ["localhostNodePorts", "nodePortAddresses", "foreignRules"].iter().all(|kind| kinds.contains(kind)),
        "{json}"
    );
    let same = String::from_utf8(preflight(&["--proxy-mode", "iptables"]).stdout).unwrap();
    assert!(same.contains("nothing will behave differently"), "{same}");

    let proxy = Proxy::start(&lab.node, &files, Mode::Nftables);
    let line = proxy.wait_log("switched from iptables to nftables");
    assert!(["nodePortAddresses", "foreignRules", "ferroute preflight"].iter().all(|part| line.contains(part)), "{line}");
    proxy.wait_log("cannot delete chain KUBE-MARK-MASQ of table nat");
}

/// Runs `ferroute run --cleanup`; tells whether it has succeeded, and its log.
fn clean_up(node: &NetNs) -> (bool, String) {
    let output = node.try_command(FERROUTE, &["run", "--cleanup"]);
    (output.status.success(), String::from_utf8(output.stderr).unwrap())
}

/// Everything on a node that a proxy could touch.
fn everything(node: &NetNs) -> [String; 6] {
    let commands = [
        "iptables-save",
        "ip6tables-save",
        "ipset save",
        "ip address",
        "nft list tables",
        "nft list table inet others",
    ];
    let mut all = commands.map(|command| {
        let words: Vec<&str> = command.split(' ').collect();
        node.command(words[0], &words[1..])
    });
    for text in &mut all {
        // Counters of packets, and dates.
        let keeps = |line: &&str| !line.starts_with('#') && !line.contains("valid_lft");
        *text = text.lines().filter(keeps).map(without_counts).collect::<Vec<_>>().join("\n");
    }
    all
}

fn without_counts(line: &str) -> String {
    let words = line.split(' ').scan(0, |skip, word| {
        let keep = *skip == 0;
        *skip = match word {
            "packets" | "bytes" => 1,
            _ => 0,
        };
        Some(if keep && !word.starts_with('[') { word } else { "" })
    });
    words.collect::<Vec<_>>().join(" ")
}

#[test]
fn a_cleanup_removes_every_trace_of_every_mode_and_nothing_else() {
    let (lab, files) = (Lab::new(), Files::new());
    files.apply(&web(&[0, 1, 2]));
    let node = &lab.node;
    let _others = Others::add(node);
    node.command("ipset", &["create", "theirs", "hash:net"]);
    node.command("ipset", &["add", "theirs", "192.0.2.0/24"]);
    node.command("ip", &["link", "add", "theirs0", "type", "bridge"]);
    // What the kubelet has, and shares.
    node.feed("iptables-restore", &["--noflush"], KUBELET);
    node.feed("ip6tables-restore", &["--noflush"], &KUBELET.replace("127.0.0.0/8", "::1"));
    let before = everything(node);
    assert!(before[0].contains("OTHERS") && before[2].contains("theirs"), "{before:?}");

    for mode in [Mode::Iptables, Mode::Nftables] {
        // Left as they are after a sudden end.
        drop(Proxy::start(node, &files, mode));
    }
    former::iptables(node);
    former::nftables(node);
    former::ipvs(node);
    let (is_clean, log) = clean_up(node);
    assert!(is_clean, "{log}");
    for gone in [
        "IPv4 iptables",
        "nftables table ip ferroute",
        "nftables table ip6 ferroute",
        "table ip kube-proxy",
        "ipset KUBE-6-CLUSTER-IP",
    ] {
        assert!(log.lines().any(|line| line.contains("removed ") && line.contains(gone)), "{gone:?} in {log}");
    }
    assert_eq!(everything(node), before);

    let (is_clean, log) = clean_up(node);
    assert!(is_clean && log.contains("nothing to clean up"), "{log}");
    assert_eq!(everything(node), before);
}

#[test]
fn a_cleanup_that_cannot_remove_everything_removes_the_rest_says_so_and_fails() {
    let (lab, files) = (Lab::new(), Files::new());
    files.apply(&web(&[0]));
    let node = &lab.node;
    drop(Proxy::start(node, &files, Mode::Iptables));
    former::nftables(node);
    node.command("ipset", &["create", "KUBE-CLUSTER-IP", "hash:ip,port"]);
    node.command("iptables", &["-w", "-t", "nat", "-N", "THEIRS"]);
    node.command("iptables", &["-w", "-t", "nat", "-A", "THEIRS", "-j", "KUBE-MARK-MASQ"]);
    node.command(
        "iptables",
        &["-w", "-A", "INPUT", "-m", "set", "--match-set", "KUBE-CLUSTER-IP", "dst,dst", "-j", "DROP"],
    );
    let (is_clean, log) = clean_up(node);
    assert!(!is_clean, "{log}");
    for stays in ["cannot delete chain KUBE-MARK-MASQ of table nat", "cannot destroy ipset KUBE-CLUSTER-IP"] {
        assert!(log.contains(stays), "{stays:?} in {log}");
    }
    assert!(!has_kube_proxys_table(node));
    let saved = node.command("iptables-save", &[]);
    assert!(!saved.contains("KUBE-SERVICES"), "{saved}");
}

#[test]
fn a_cleanup_without_iptables_says_which_of_its_chains_stay_and_fails() {
    let lab = Lab::new();
    former::iptables(&lab.node);
    former::nftables(&lab.node);
    let mut cleanup = Command::new(FERROUTE);
    cleanup.args(["run", "--cleanup"]);
    let mut proxy = Proxy::spawn(&lab.node, &mut without_tools(&cleanup));
    assert!(!proxy.wait_end().success());
    let log = proxy.log();
    for part in ["nat KUBE-SERVICES", "part of the package \"iptables\"", "removed nftables table ip kube-proxy"] {
        assert!(log.contains(part), "{part:?} in {log}");
    }
}

const KUBELET: &str = "*mangle
:KUBE-IPTABLES-HINT - [0:0]
:KUBE-KUBELET-CANARY - [0:0]
COMMIT
*filter
:KUBE-FIREWALL - [0:0]
:KUBE-KUBELET-CANARY - [0:0]
-A INPUT -j KUBE-FIREWALL
-A OUTPUT -j KUBE-FIREWALL
-A KUBE-FIREWALL ! -s 127.0.0.0/8 -d 127.0.0.0/8 -m comment --comment \"block incoming localnet connections\" -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP
COMMIT
*nat
:KUBE-KUBELET-CANARY - [0:0]
COMMIT
";
