//! Selection and switching of modes, and removal of leftovers.

use std::{collections::BTreeSet, os::unix::fs::symlink, process::Command};

use ferroute_testing::NetNs;

use crate::{
    Cluster, Files, Mode, Proxy, WEB,
    failures::without_programs,
    http::get,
    in_every_mode, leftovers,
    proxy::{FERROUTE, run_command},
    rules::{self, ForeignRules},
    slices,
    status::METRICS,
    traffic::{Connection, Flow, Traffic, connect},
    wait, web, web_tcp, web_udp,
};

in_every_mode!(
    no_request_fails_during_takeover_from_kube_proxy_iptables,
    no_request_fails_during_takeover_from_kube_proxy_nftables,
    leftovers_of_ipvs_are_removed_after_the_first_sync,
);

#[test]
fn default_mode_is_nftables_but_iptables_for_the_program_name_kube_proxy() {
    let (cluster, files) = (Cluster::new(), Files::new());
    files.apply(&web(&[0]));
    let kube_proxy = files.path("kube-proxy");
    symlink(FERROUTE, &kube_proxy).unwrap();
    let mut as_kube_proxy = Command::new(&kube_proxy);
    as_kube_proxy.arg("--config").arg(files.config_with_mode("''")).arg("--manifests").arg(files.manifests());
    let as_ferroute = run_command(FERROUTE, &files.manifests(), &files.config_with_mode("''"));
    for (mut command, mode, name) in
        [(as_ferroute, Mode::Nftables, "nftables"), (as_kube_proxy, Mode::Iptables, "iptables")]
    {
        let mut proxy = Proxy::spawn(&cluster.node, &mut command);
        proxy.wait_synced(&cluster.node);
        assert_eq!(get(&cluster.node, METRICS, "/proxyMode").unwrap().body, name);
        for to in web_tcp() {
            connect(&cluster.client, to).unwrap();
        }
        wait("removal of the other mode's rules", || {
            rules::of_proxy(&cluster.node, mode.other()).is_empty().then_some(())
        });
        assert_ne!(rules::of_proxy(&cluster.node, mode), Vec::<String>::new());
        assert!(proxy.stop("TERM").success());
    }
}

#[test]
fn flowtable_is_used_or_its_absence_is_reported() {
    let (cluster, files) = (Cluster::new(), Files::new());
    files.apply(&web(&[0]));
    let mut command = run_command(FERROUTE, &files.manifests(), &files.config_with_mode("nftables"));
    command.args(["--nftables-flowtable", "*", "--nftables-flowtable-packets", "5"]);
    let mut proxy = Proxy::spawn(&cluster.node, &mut command);
    proxy.wait_synced(&cluster.node);
    let listed = cluster.node.command("nft", &["list", "ruleset"]);
    let has_flowtable = listed.contains("ct packets > 5") && listed.contains("flow add @established");
    let reported = proxy.log().contains("the kernel supports no flowtables");
    assert_ne!(has_flowtable, reported, "{listed}");
    for to in web_tcp() {
        let mut connection = Connection::open(&cluster.client, to).unwrap();
        (0..20).for_each(|_| connection.echo("hello").unwrap());
    }
    assert!(proxy.stop("TERM").success());
}

/// Checks that a proxy takes over from rules of kube-proxy while clients connect continuously.
fn check_takeover(mode: Mode, add_leftovers: fn(&NetNs), has_leftovers: fn(&NetNs) -> bool) {
    let (cluster, files) = (Cluster::new(), Files::new());
    files.apply(&web(&[0, 1, 2]));
    add_leftovers(&cluster.node);
    let traffic = Traffic::start_all(&cluster.client);
    let open = |to| Connection::open(&cluster.client, to).unwrap();
    let mut connections: Vec<_> = [web_tcp(); 3].concat().into_iter().map(open).collect();
    let flows = web_udp().map(|to| Flow::open(&cluster.client, to));
    let pods = flows.each_ref().map(Flow::pod);
    let proxy = Proxy::start(&cluster.node, &files, mode);
    wait("removal of kube-proxy's rules", || (!has_leftovers(&cluster.node)).then_some(()));
    traffic.iter().for_each(Traffic::wait_for_more);
    for connection in &mut connections {
        connection.echo("still here").unwrap();
    }
    assert_eq!(flows.each_ref().map(Flow::pod), pods);
    for traffic in traffic {
        assert_eq!(traffic.assert_no_failure(), BTreeSet::from([0, 1, 2]));
    }
    assert_ne!(rules::of_proxy(&cluster.node, mode), Vec::<String>::new());
    drop(proxy);
}

fn no_request_fails_during_takeover_from_kube_proxy_iptables(mode: Mode) {
    // This chain is not of a Service in the test.
    check_takeover(mode, leftovers::iptables, |node| rules::saved(node).concat().contains("KUBE-SVC-4LVCYZMTA5CQO6SX"));
}

fn no_request_fails_during_takeover_from_kube_proxy_nftables(mode: Mode) {
    check_takeover(mode, leftovers::nftables, has_kube_proxy_table);
}

fn has_kube_proxy_table(node: &NetNs) -> bool {
    node.command("nft", &["list", "tables"]).contains("kube-proxy")
}

#[test]
fn rules_in_the_kubelets_iptables_backend_survive_the_removal_of_leftovers() {
    let (cluster, files) = (Cluster::new(), Files::new());
    files.apply(&web(&[0, 1, 2]));
    let version = cluster.node.command("iptables", &["--version"]);
    // The backend that `iptables` does not use.
    let backend = if version.contains("legacy") { "nft" } else { "legacy" };
    for iptables in ["iptables", "ip6tables"] {
        cluster.node.command(&format!("{iptables}-{backend}"), &["-w", "-t", "mangle", "-N", "KUBE-IPTABLES-HINT"]);
    }
    // The proxy removes this table after iptables rules.
    leftovers::nftables(&cluster.node);
    let proxy = Proxy::start(&cluster.node, &files, Mode::Iptables);
    wait("removal of kube-proxy's table", || (!has_kube_proxy_table(&cluster.node)).then_some(()));
    for iptables in ["iptables", "ip6tables"] {
        let saved = cluster.node.command(&format!("{iptables}-{backend}-save"), &["-t", "nat"]);
        assert!(saved.contains("-A PREROUTING") && saved.contains("KUBE-SVC-"), "{saved}");
    }
    for to in web_tcp() {
        connect(&cluster.client, to).unwrap();
    }
    drop(proxy);
}

fn leftovers_of_ipvs_are_removed_after_the_first_sync(mode: Mode) {
    let (cluster, files) = (Cluster::new(), Files::new());
    files.apply(&web(&[0, 1, 2]));
    leftovers::ipvs(&cluster.node);
    cluster.node.command("ipset", &["create", "KUBE-FOREIGN", "hash:ip"]);
    // kube-proxy's device is a dummy device, which test kernels may not support. The proxy must not delete a device of
    // another type.
    cluster.node.command("ip", &["link", "add", "kube-ipvs0", "type", "bridge"]);
    let _proxy = Proxy::start(&cluster.node, &files, mode);
    wait("removal of the sets", || {
        (cluster.node.command("ipset", &["save"]).lines().filter(|line| line.starts_with("create")).count() == 1)
            .then_some(())
    });
    assert!(cluster.node.command("ipset", &["save"]).contains("KUBE-FOREIGN"));
    cluster.node.command("ip", &["link", "show", "kube-ipvs0"]);
    let [saved, _] = rules::saved(&cluster.node);
    for name in
        ["KUBE-NODE-PORT ", "KUBE-LOAD-BALANCER", "KUBE-IPVS", "KUBE-SOURCE-RANGES", "kube-proxy firewall rules"]
    {
        assert!(!saved.contains(name), "{name} in {saved}");
    }
    for to in web_tcp() {
        connect(&cluster.client, to).unwrap();
    }
}

#[test]
fn preflight_and_log_list_the_effects_of_a_switch() {
    let (cluster, files) = (Cluster::new(), Files::new());
    let service =
        WEB.replace("spec:\n", "spec:\n  type: NodePort\n").replace("port: 80}", "port: 80, nodePort: 30080}");
    files.apply(&format!("{service}{}", slices("web", &[0])));
    let manifests = files.manifests();
    let preflight = |arguments: &[&str]| {
        let source = ["preflight", "--hostname-override", "node-1", "--manifests", manifests.to_str().unwrap()];
        cluster.node.try_command(FERROUTE, &[&source, arguments].concat())
    };
    let no_rules = preflight(&["--proxy-mode", "nftables"]);
    assert!(!no_rules.status.success());
    assert!(String::from_utf8_lossy(&no_rules.stderr).contains("--from"), "{no_rules:?}");

    leftovers::iptables(&cluster.node);
    cluster.node.command("iptables", &["-w", "-t", "nat", "-N", "CNI-CHAIN"]);
    cluster.node.command("iptables", &["-w", "-t", "nat", "-A", "CNI-CHAIN", "-j", "KUBE-MARK-MASQ"]);
    let text = String::from_utf8(preflight(&["--proxy-mode", "nftables"]).stdout).unwrap();
    for part in ["127.0.0.1", "10.244.0.1", "default/web", "-t nat -A CNI-CHAIN -j KUBE-MARK-MASQ"] {
        assert!(text.contains(part), "{part:?} is missing in {text}");
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
    let same = preflight(&["--proxy-mode", "iptables", "--output", "json"]).stdout;
    let same: serde_json::Value = serde_json::from_slice(&same).unwrap();
    assert_eq!(same["differences"], serde_json::json!([]), "{same}");

    let proxy = Proxy::start(&cluster.node, &files, Mode::Nftables);
    let line = proxy.wait_log("switched from iptables to nftables");
    assert!(
        ["nodePortAddresses", "foreignRules", "ferroute preflight"].iter().all(|part| line.contains(part)),
        "{line}"
    );
    proxy.wait_log("cannot delete chain KUBE-MARK-MASQ of table nat");
}

/// Runs `ferroute run --cleanup`. Returns whether it succeeded, and its log.
fn clean_up(node: &NetNs) -> (bool, String) {
    let output = node.try_command(FERROUTE, &["run", "--cleanup"]);
    (output.status.success(), String::from_utf8(output.stderr).unwrap())
}

/// Returns all kernel state on a node that a proxy can change.
fn kernel_state(node: &NetNs) -> [String; 6] {
    let commands = [
        "iptables-save",
        "ip6tables-save",
        "ipset save",
        "ip address",
        "nft list tables",
        "nft list table inet foreign",
    ];
    let mut outputs = commands.map(|command| {
        let words: Vec<&str> = command.split(' ').collect();
        node.command(words[0], &words[1..])
    });
    for text in &mut outputs {
        // Without comments with dates, lifetimes and packet counters.
        let keeps = |line: &&str| !line.starts_with('#') && !line.contains("valid_lft");
        *text = text.lines().filter(keeps).map(without_counts).collect::<Vec<_>>().join("\n");
    }
    outputs
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
fn cleanup_removes_the_leftovers_of_all_modes_and_nothing_else() {
    let (cluster, files) = (Cluster::new(), Files::new());
    files.apply(&web(&[0, 1, 2]));
    let node = &cluster.node;
    let _foreign = ForeignRules::add(node);
    node.command("ipset", &["create", "foreign", "hash:net"]);
    node.command("ipset", &["add", "foreign", "192.0.2.0/24"]);
    node.command("ip", &["link", "add", "foreign0", "type", "bridge"]);
    // The kubelet's chains, some of which it shares with kube-proxy.
    node.feed("iptables-restore", &["--noflush"], KUBELET);
    node.feed("ip6tables-restore", &["--noflush"], &KUBELET.replace("127.0.0.0/8", "::1"));
    let before = kernel_state(node);
    assert!(before[0].contains("FOREIGN") && before[2].contains("foreign"), "{before:?}");

    for mode in [Mode::Iptables, Mode::Nftables] {
        // Dropping the proxy kills it, so its rules stay.
        drop(Proxy::start(node, &files, mode));
    }
    leftovers::iptables(node);
    leftovers::nftables(node);
    leftovers::ipvs(node);
    let (is_clean, log) = clean_up(node);
    assert!(is_clean, "{log}");
    for removed in [
        "IPv4 iptables",
        "nftables table ip ferroute",
        "nftables table ip6 ferroute",
        "table ip kube-proxy",
        "ipset KUBE-6-CLUSTER-IP",
    ] {
        assert!(
            log.lines().any(|line| line.contains("removed ") && line.contains(removed)),
            "{removed:?} is missing in {log}"
        );
    }
    assert_eq!(kernel_state(node), before);

    let (is_clean, log) = clean_up(node);
    assert!(is_clean && log.contains("nothing to clean up"), "{log}");
    assert_eq!(kernel_state(node), before);
}

#[test]
fn cleanup_with_errors_removes_the_rest_reports_them_and_fails() {
    let (cluster, files) = (Cluster::new(), Files::new());
    files.apply(&web(&[0]));
    let node = &cluster.node;
    drop(Proxy::start(node, &files, Mode::Iptables));
    leftovers::nftables(node);
    node.command("ipset", &["create", "KUBE-CLUSTER-IP", "hash:ip,port"]);
    node.command("iptables", &["-w", "-t", "nat", "-N", "FOREIGN"]);
    node.command("iptables", &["-w", "-t", "nat", "-A", "FOREIGN", "-j", "KUBE-MARK-MASQ"]);
    node.command(
        "iptables",
        &["-w", "-A", "INPUT", "-m", "set", "--match-set", "KUBE-CLUSTER-IP", "dst,dst", "-j", "DROP"],
    );
    let (is_clean, log) = clean_up(node);
    assert!(!is_clean, "{log}");
    for error in ["cannot delete chain KUBE-MARK-MASQ of table nat", "cannot destroy ipset KUBE-CLUSTER-IP"] {
        assert!(log.contains(error), "{error:?} is missing in {log}");
    }
    assert!(!has_kube_proxy_table(node));
    let saved = node.command("iptables-save", &[]);
    assert!(!saved.contains("KUBE-SERVICES"), "{saved}");
}

#[test]
fn cleanup_without_iptables_programs_removes_rules_of_nf_tables() {
    let cluster = Cluster::new();
    leftovers::iptables(&cluster.node);
    leftovers::nftables(&cluster.node);
    let mut cleanup = Command::new(FERROUTE);
    cleanup.args(["run", "--cleanup"]);
    let mut proxy = Proxy::spawn(&cluster.node, &mut without_programs(&cleanup));
    assert!(proxy.wait_exit().success());
    let log = proxy.log();
    for part in ["from IPv4 iptables (nf_tables)", "removed nftables table ip kube-proxy"] {
        assert!(log.contains(part), "{part:?} is missing in {log}");
    }
    let saved = cluster.node.command("iptables-save", &[]);
    assert!(!saved.contains("KUBE-SERVICES"), "{saved}");
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
