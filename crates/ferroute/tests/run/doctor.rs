//! `ferroute doctor` on a host with a proxy.

use std::{
    net::{SocketAddr, TcpListener, TcpStream},
    time::Duration,
};

use ferroute_testing::NetNs;
use serde_json::Value;

use crate::{Case, Mode, cluster::pod_addresses, in_each_mode, in_every_mode, slices, web, web_tcp};

in_each_mode!(
    working_host_has_no_problems,
    translations_before_those_of_the_proxy_are_reported,
    dormant_tables_are_reported_without_a_proxy,
    firewalls_are_reported_beside_connections_that_they_accept
);
in_every_mode!(
    firewalls_in_other_tables_are_reported,
    rules_that_take_packets_before_the_proxy_are_reported,
    firewalls_that_stop_the_node_itself_are_reported
);

/// Returns the exit status and the JSON output of `ferroute doctor` on the cluster's node.
fn examine(case: &Case, arguments: &[&str]) -> (Option<i32>, Value) {
    let manifests = case.files.manifests();
    let mode = match case.mode {
        Mode::Iptables => "--proxy-mode=iptables",
        Mode::Nftables => "--proxy-mode=nftables",
        Mode::Userspace => "--proxy-mode=userspace",
    };
    let common =
        ["doctor", "-o", "json", "--hostname-override=node-1", mode, "--manifests", manifests.to_str().unwrap()];
    let arguments = [&common[..], arguments].concat();
    let output = case.cluster.node.try_command(env!("CARGO_BIN_EXE_ferroute"), &arguments);
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.code(), serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {stderr}")))
}

/// Returns the findings of a check.
fn findings_of<'a>(examination: &'a Value, check: &str) -> Vec<&'a Value> {
    let findings = examination["findings"].as_array().unwrap();
    findings.iter().filter(|finding| finding["check"] == check).collect()
}

fn working_host_has_no_problems(mode: Mode) {
    let case = Case::new(mode, &web(&[0, 1]));
    let (status, examination) = examine(&case, &[]);
    let problems: Vec<&Value> =
        examination["findings"].as_array().unwrap().iter().filter(|finding| finding["severity"] != "note").collect();
    assert_eq!((status, problems.as_slice(), &examination["unknown"]), (Some(0), &[][..], &serde_json::json!([])));
    for check in ["ip-forward", "other-proxies", "endpoints", "conntrack-table", "node-ports"] {
        assert!(examination["passed"].as_array().unwrap().contains(&check.into()), "{check}: {examination:#}");
    }
}

#[test]
fn disabled_forwarding_and_used_node_ports_are_reported() {
    let mut case = Case::new(Mode::Nftables, &web(&[0, 1]));
    let node_port = "type: NodePort\n  ports: [{name: tcp, port: 80, nodePort: 30080}, {name: udp";
    case.files.apply(&web(&[0, 1]).replace("ports: [{name: tcp, port: 80}, {name: udp", node_port));
    case.cluster.node.command("sysctl", &["-qw", "net.ipv4.ip_forward=0"]);
    let listener = case.cluster.node.run(|| TcpListener::bind("0.0.0.0:30080")).unwrap();
    assert!(case.proxy.stop("TERM").success());
    let (status, examination) = examine(&case, &[]);
    drop(listener);
    assert_eq!(status, Some(1), "{examination:#}");
    assert_eq!(findings_of(&examination, "ip-forward")[0]["problem"], "net.ipv4.ip_forward is 0");
    let node_port = findings_of(&examination, "node-ports")[0]["problem"].as_str().unwrap();
    assert!(node_port.contains("30080/tcp") && node_port.contains("default/web:tcp"), "{node_port}");
    // The test itself listens on the port.
    assert!(node_port.contains(&format!("(pid {})", std::process::id())), "{node_port}");
}

#[test]
fn unreachable_endpoints_are_reported_with_their_service() {
    let case = Case::new(Mode::Nftables, &web(&[0, 1]).replace("port: 8080}", "port: 8081}"));
    let (status, examination) = examine(&case, &[]);
    assert_eq!(status, Some(1));
    let findings = findings_of(&examination, "endpoints");
    let [finding] = findings.as_slice() else { panic!("{examination:#}") };
    assert_eq!(finding["severity"], "problem");
    let what = finding["problem"].as_str().unwrap();
    assert!(what.contains(&format!("{}:8081", pod_addresses(0)[0])) && what.contains("default/web:tcp"), "{finding:#}");
    let (_, unconnected) = examine(&case, &["--no-connect"]);
    assert_eq!(findings_of(&unconnected, "endpoints"), Vec::<&Value>::new());
}

#[test]
fn full_lists_of_session_affinity_are_reported() {
    let affinity = |yaml: &str| yaml.replace("spec:\n", "spec:\n  sessionAffinity: ClientIP\n");
    let case = Case::new(Mode::Iptables, &affinity(&web(&[0])));
    let limit = std::fs::read_to_string("/sys/module/xt_recent/parameters/ip_list_tot").unwrap();
    let limit: u16 = limit.trim().parse().unwrap();
    let connect = |client: u16| {
        let address = format!("fd00:168::1:{client:x}");
        case.cluster.client.add_address(&format!("{address}/64"), "eth0");
        let from = std::net::SocketAddr::new(address.parse().unwrap(), 0);
        case.cluster.client.run(|| {
            let socket = socket2::Socket::new(socket2::Domain::IPV6, socket2::Type::STREAM, None)?;
            socket.bind(&from.into())?;
            socket.connect(&crate::web_tcp()[1].into())
        })
    };
    (1..limit).for_each(|client| connect(client).unwrap());
    let (_, examination) = examine(&case, &[]);
    assert_eq!(findings_of(&examination, "affinity-lists"), Vec::<&Value>::new());
    connect(limit).unwrap();
    let (_, examination) = examine(&case, &[]);
    let findings = findings_of(&examination, "affinity-lists");
    let [finding] = findings.as_slice() else { panic!("{examination:#}") };
    assert!(finding["problem"].as_str().unwrap().contains("default/web:tcp"), "{finding:#}");
}

#[test]
fn table_that_another_process_owns_is_reported_by_doctor_and_proxy() {
    let case = Case::new(Mode::Nftables, &web(&[0]));
    let mut command = std::process::Command::new("nft");
    command.arg("-i").stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::null());
    let mut nft = ferroute_testing::Running(case.cluster.node.run(|| command.spawn()).unwrap());
    let take = b"delete table ip ferroute\nadd table ip ferroute { flags owner; }\n";
    let mut input = nft.0.stdin.take().unwrap();
    std::io::Write::write_all(&mut input, take).unwrap();
    case.proxy.wait_log_line(&["owns table ip ferroute"]);
    let (status, examination) = examine(&case, &[]);
    assert_eq!(status, Some(1));
    let findings = findings_of(&examination, "table-owner");
    assert_eq!(findings.len(), 1, "{examination:#}");
    let problems = || {
        let output = case.cluster.node.try_command(env!("CARGO_BIN_EXE_ferroute"), &["status", "-o", "json"]);
        serde_json::from_slice::<Value>(&output.stdout).unwrap()["problems"].clone()
    };
    assert!(problems()[0].as_str().unwrap().contains("owns table ip ferroute"), "{}", problems());
    // The kernel deletes the table with its owner, and the proxy creates it again.
    drop((input, nft));
    crate::wait("the repair", || (case.connect(crate::web_tcp()[0]).ok()? == 0).then_some(()));
    crate::wait("the end of the problem", || problems().is_null().then_some(()));
}

#[test]
fn source_ranges_of_one_family_and_missing_node_port_addresses_are_reported() {
    let yaml = web(&[0]).replace(
        "spec:\n",
        "status: {loadBalancer: {ingress: [{ip: 198.51.100.1}, {ip: \"2001:db8::1\"}]}}\nspec:\n  type: LoadBalancer\n  \
         loadBalancerSourceRanges: [192.0.2.0/24]\n",
    );
    let yaml = yaml.replace("port: 80}", "port: 80, nodePort: 30080}");
    let case = Case::with_settings(Mode::Nftables, &yaml, "nodePortAddresses: [198.51.100.0/24]\n");
    case.proxy.wait_log_line(&["WARN", "loadBalancerSourceRanges", "IPv6"]);
    case.proxy.wait_log_line(&["WARN", "none of the host's IPv4 addresses is in nodePortAddresses"]);
    let output = case.cluster.node.try_command(env!("CARGO_BIN_EXE_ferroute"), &["doctor", "-o", "json"]);
    let examination: Value = serde_json::from_slice(&output.stdout).unwrap();
    for check in ["source-ranges", "node-port-addresses"] {
        assert_eq!(findings_of(&examination, check).len(), 1, "{examination:#}");
    }
}

fn dormant_tables_are_reported_without_a_proxy(mode: Mode) {
    let mut case = Case::new(mode, &web(&[0]));
    assert!(case.proxy.stop("TERM").success());
    let tables = if mode == Mode::Nftables { ["ip ferroute", "ip6 ferroute"] } else { ["ip nat", "ip6 filter"] };
    let script: String = tables.map(|table| format!("add table {table} {{ flags dormant; }}\n")).concat();
    case.cluster.node.feed("nft", &["-f", "-"], &script);
    let (status, examination) = examine(&case, &["--no-connect"]);
    assert_eq!(status, Some(1), "{examination:#}");
    let findings = findings_of(&examination, "dormant-tables");
    assert_eq!(findings.iter().map(|finding| &finding["values"]["table"]).collect::<Vec<_>>(), tables);
    // The words of the fix.
    for finding in findings {
        let command = finding["fix"].as_str().unwrap().split('`').nth(1).unwrap();
        case.cluster.node.command("sh", &["-c", command]);
    }
    let (_, examination) = examine(&case, &["--no-connect"]);
    assert_eq!(findings_of(&examination, "dormant-tables"), Vec::<&Value>::new());
}

fn translations_before_those_of_the_proxy_are_reported(mode: Mode) {
    let node_port = "type: NodePort\n  ports: [{name: tcp, port: 80, nodePort: 30080}, {name: udp";
    let case = Case::new(mode, &web(&[0, 1]).replace("ports: [{name: tcp, port: 80}, {name: udp", node_port));
    for (priority, is_first) in [("dstnat - 20", true), ("dstnat", mode != Mode::Nftables), ("dstnat + 20", false)] {
        let table = format!(
            "table inet netavark; delete table inet netavark; table inet netavark {{
                chain ports {{ tcp dport 30080 dnat ip to 10.88.0.2:80; }}
                chain prerouting {{ type nat hook prerouting priority {priority}; fib daddr type local jump ports; }}
            }}"
        );
        case.cluster.node.feed("nft", &["-f", "-"], &table);
        let (_, examination) = examine(&case, &["--no-connect"]);
        let findings = findings_of(&examination, "earlier-translation");
        assert_eq!(findings.len(), usize::from(is_first), "{priority}: {examination:#}");
        let problem = |finding: &&Value| finding["problem"].as_str().unwrap().to_owned();
        let is_named =
            |text: String| text.contains("default/web:tcp") && text.contains("chain ports of table inet netavark");
        assert!(findings.iter().map(problem).all(is_named), "{priority}: {findings:?}");
    }
}

/// Returns a cluster whose Service has a node port, and a pod on its node that is not an endpoint.
fn with_node_port(mode: Mode) -> (Case, NetNs) {
    let node_port = "type: NodePort\n  ports: [{name: tcp, port: 80, nodePort: 30080}, {name: udp";
    let case = Case::new(mode, &web(&[0, 1, 2]).replace("ports: [{name: tcp, port: 80}, {name: udp", node_port));
    let (pod, node) = (NetNs::new(), &case.cluster.node);
    node.link("pod", &pod, "eth0");
    node.add_address("10.245.0.1/24", "pod");
    node.add_address("fd00:245::1/64", "pod");
    pod.add_address("10.245.0.99/24", "eth0");
    pod.add_address("fd00:245::99/64", "eth0");
    for gateway in ["10.245.0.1", "fd00:245::1"] {
        pod.command("ip", &["route", "add", "default", "via", gateway]);
    }
    (case, pod)
}

/// Asserts whether the pod reaches the cluster IPs, and the client the node ports.
fn assert_connections(case: &Case, pod: &NetNs, expected: [bool; 2], rules: &str) {
    let connects = |namespace: &NetNs, to: &SocketAddr| {
        namespace.run(|| TcpStream::connect_timeout(to, Duration::from_secs(1)).is_ok())
    };
    let node_ports = ["192.168.0.1:30080", "[fd00:168::1]:30080"].map(|address| address.parse().unwrap());
    for (cluster_ip, node_port) in web_tcp().iter().zip(&node_ports) {
        let found = [connects(pod, cluster_ip), connects(&case.cluster.client, node_port)];
        assert_eq!(found, expected, "{rules}: pod to {cluster_ip}, client to {node_port}");
    }
}

fn firewalls_in_other_tables_are_reported(mode: Mode) {
    let (case, pod) = with_node_port(mode);
    // Packets to the process of userspace mode pass input, those of the other modes forward.
    let chains = |rules: &str| {
        let mut text = "table inet fw; delete table inet fw; table inet fw {\n".to_owned();
        for hook in ["input", "forward"] {
            text += &match rules {
                "" => format!("chain {hook} {{ type filter hook {hook} priority 10; policy drop; }}\n"),
                _ => format!(
                    "chain {hook} {{ type filter hook {hook} priority 10; policy accept;\n\
                     iifname lo accept; meta l4proto ipv6-icmp accept; ct state established,related accept; {rules}; }}\n"
                ),
            };
        }
        text + "}"
    };
    let pods = "ip saddr 10.244.0.0/15 accept; ip6 saddr fd00:244::/31 accept";
    let neighbours = "ip saddr 192.168.0.0/24 accept; ip6 saddr fd00:168::/64 accept";
    let cases = [
        ("drop".to_owned(), true, true),
        ("reject".to_owned(), true, true),
        (format!("{pods}; drop"), false, true),
        // Some other hosts may use node ports.
        (format!("{neighbours}; counter drop"), true, false),
        (format!("{pods}; {neighbours}; drop"), false, false),
        // A policy alone.
        (String::new(), true, true),
    ];
    for (rules, refuses_pods, refuses_others) in cases {
        case.cluster.node.feed("nft", &["-f", "-"], &chains(&rules));
        assert_connections(&case, &pod, [!refuses_pods, !refuses_others], &rules);
        let (status, examination) = examine(&case, &["--no-connect"]);
        let found = |code: &str| {
            let findings = findings_of(&examination, "firewall-tables");
            findings.into_iter().filter(|finding| finding["code"] == format!("firewall-tables.{code}")).count()
        };
        // One finding for each IP family.
        let expected = [refuses_pods, refuses_others].map(|refuses| if refuses { 2 } else { 0 });
        assert_eq!([found("pods"), found("others")], expected, "{rules}: {examination:#}");
        assert_eq!(status, Some(i32::from(refuses_pods)), "{rules}: {examination:#}");
        for finding in findings_of(&examination, "firewall-tables") {
            let problem = finding["problem"].as_str().unwrap();
            assert!(problem.contains("default/web:tcp") && problem.contains("of table inet fw"), "{problem}");
        }
    }
}

/// In iptables mode, the proxy's rules in FORWARD accept masqueraded packets only.
#[test]
fn last_rule_of_forward_that_rejects_pods_is_reported_in_iptables_mode() {
    let (case, pod) = with_node_port(Mode::Iptables);
    let pods = |rules: &str, connects: bool| {
        for program in ["iptables-nft-restore", "ip6tables-nft-restore"] {
            case.cluster.node.feed(program, &["--noflush"], &format!("*filter\n{rules}COMMIT\n"));
        }
        assert_connections(&case, &pod, [connects, true], rules);
        let (_, examination) = examine(&case, &["--no-connect"]);
        let findings = findings_of(&examination, "firewall-tables");
        let codes: Vec<&str> = findings.iter().map(|finding| finding["code"].as_str().unwrap()).collect();
        let expected: &[&str] = if connects { &[] } else { &["firewall-tables.pods"; 2] };
        assert_eq!(codes, expected, "{rules}: {examination:#}");
    };
    pods("-A FORWARD -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT\n-A FORWARD -j REJECT\n", false);
    pods("-I FORWARD -m conntrack --ctstate DNAT -j ACCEPT\n", true);
}

/// In nftables mode, the proxy's rules come first.
#[test]
fn rule_that_accepts_packets_before_they_are_translated_is_reported_in_iptables_mode() {
    for (mode, expected) in [(Mode::Iptables, &["earlier-translation.accepted"; 2][..]), (Mode::Nftables, &[])] {
        let (case, pod) = with_node_port(mode);
        for program in ["iptables", "ip6tables"] {
            let rule = ["-t", "nat", "-I", "PREROUTING", "-p", "tcp", "-m", "tcp", "--dport", "80", "-j", "ACCEPT"];
            case.cluster.node.command(program, &rule);
        }
        assert_connections(&case, &pod, [mode == Mode::Nftables, true], "accepted in nat");
        let (_, examination) = examine(&case, &["--no-connect"]);
        let findings = findings_of(&examination, "earlier-translation");
        let codes: Vec<&str> = findings.iter().map(|finding| finding["code"].as_str().unwrap()).collect();
        assert_eq!(codes, expected, "{examination:#}");
    }
}

/// Whether packets of other hosts to a node port are masqueraded shows in the source that the endpoint sees.
#[test]
fn rules_that_decide_on_masquerading_are_reported() {
    let [unmasqueraded, masqueraded] = ["earlier-translation.unmasqueraded", "earlier-translation.masqueraded"];
    for (mode, rules, expected) in [
        (Mode::Iptables, "*nat\n-I POSTROUTING -p tcp -j ACCEPT\n", unmasqueraded),
        (Mode::Iptables, "*nat\n-I POSTROUTING -m mark --mark 0x4000/0x4000 -j RETURN\n", unmasqueraded),
        (Mode::Iptables, "*nat\n-I POSTROUTING -m mark ! --mark 0x4000/0x4000 -j ACCEPT\n", ""),
        (Mode::Iptables, "*nat\n-A POSTROUTING -p tcp -j ACCEPT\n", ""),
        (Mode::Iptables, "*mangle\n-A FORWARD -p tcp -j MARK --set-mark 0x1\n", unmasqueraded),
        (Mode::Iptables, "*mangle\n-A FORWARD -p tcp -j MARK --set-mark 0x1/0xff\n", ""),
        (Mode::Nftables, "*nat\n-I POSTROUTING -p tcp -j ACCEPT\n", ""),
        (Mode::Nftables, "*mangle\n-A FORWARD -p tcp -j MARK --set-mark 0x1\n", unmasqueraded),
        (Mode::Nftables, "*nat\n-I POSTROUTING -p tcp -j MASQUERADE\n", ""),
        (Mode::Iptables, "*mangle\n-A PREROUTING -i pods -j MARK --set-xmark 0x4000/0x4000\n", masqueraded),
        (Mode::Nftables, "*mangle\n-A PREROUTING -i pods -j MARK --set-xmark 0x4000/0x4000\n", masqueraded),
        (Mode::Nftables, "*mangle\n-A PREROUTING -i client -j MARK --set-xmark 0x4000/0x4000\n", ""),
    ] {
        let (case, _) = with_node_port(mode);
        for program in ["iptables-nft-restore", "ip6tables-nft-restore"] {
            case.cluster.node.feed(program, &["--noflush"], &format!("{rules}COMMIT\n"));
        }
        let (_, examination) = examine(&case, &["--no-connect"]);
        let findings = findings_of(&examination, "earlier-translation");
        let codes: Vec<&str> = findings.iter().map(|finding| finding["code"].as_str().unwrap()).collect();
        let all = if expected.is_empty() { Vec::new() } else { vec![expected; 2] };
        assert_eq!(codes, all, "{rules}: {examination:#}");
        let connection = case.cluster.client.run(|| TcpStream::connect("192.168.0.1:30080")).unwrap();
        let client = connection.local_addr().unwrap().to_string();
        let peers = case.cluster.pods.command("ss", &["-Htan"]);
        assert_eq!(peers.contains(&client), expected == unmasqueraded, "{rules}: {peers}");
    }
}

/// The rules are for the last of many Services, by its node port and by a part of its cluster IP's network.
#[test]
fn rules_for_one_of_many_services_are_reported() {
    let service = |n: u16, kind: &str, port: &str| {
        let name = format!("web-{n:02}");
        format!(
            "---\napiVersion: v1\nkind: Service\nmetadata: {{name: {name}}}\nspec:\n  {kind}\n  clusterIP: 10.96.1.{n}\n  \
             clusterIPs: [10.96.1.{n}, \"fd00:96::1:{n}\"]\n  ipFamilies: [IPv4, IPv6]\n  ports: [{{name: tcp, port: 80{port}}}]\n{}",
            slices(&name, &[0])
        )
    };
    let many: String = (1..60).map(|n| service(n, "type: ClusterIP", "")).collect();
    let last = service(60, "type: NodePort", ", nodePort: 30099");
    let case = Case::new(Mode::Iptables, &format!("{}{many}{last}", web(&[0])));
    let port = "-I POSTROUTING -p tcp -m conntrack --ctorigdstport 30099 -j ACCEPT\n";
    for (program, network) in
        [("iptables-nft-restore", "10.96.1.60/31"), ("ip6tables-nft-restore", "fd00:96::1:60/127")]
    {
        let to = format!("-I POSTROUTING -p tcp -m conntrack --ctorigdst {network} -j ACCEPT\n");
        case.cluster.node.feed(program, &["--noflush"], &format!("*nat\n{port}{to}COMMIT\n"));
    }
    let (_, examination) = examine(&case, &["--no-connect"]);
    let findings = findings_of(&examination, "earlier-translation");
    let described = |finding: &&Value| {
        assert_eq!(finding["code"], "earlier-translation.unmasqueraded", "{finding:#}");
        let problem = finding["problem"].as_str().unwrap();
        assert!(problem.contains("default/web-60:tcp"), "{problem}");
        let is_port = problem.contains("30099");
        assert!(is_port || problem.contains("--ctorigdst 10.96.1.60/31") || problem.contains("fd00:96::1:60/127"));
        is_port
    };
    let mut by_port: Vec<bool> = findings.iter().map(described).collect();
    by_port.sort_unstable();
    assert_eq!(by_port, [false, false, true, true], "{examination:#}");
}

#[test]
fn routes_that_refuse_packets_of_pods_are_reported() {
    let second = pod_addresses(1)[0];
    let elsewhere =
        web(&[0, 1]).replace(&format!("[\"{second}\"], nodeName: node-1"), "[\"10.244.9.9\"], nodeName: node-2");
    let case = Case::new(Mode::Nftables, &elsewhere);
    let found = || {
        let (_, examination) = examine(&case, &["--no-connect"]);
        let findings = findings_of(&examination, "service-routes").into_iter();
        findings.map(|finding| finding["code"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(found(), Vec::<String>::new());
    for kind in ["blackhole", "unreachable", "prohibit"] {
        let ip = |words: &str| _ = case.cluster.node.command("ip", &words.split(' ').collect::<Vec<_>>());
        ip(&format!("route add {kind} default table 77"));
        ip("rule add from 10.244.0.0/24 table 77 priority 1000");
        assert_eq!(found(), ["service-routes.pods"], "{kind}");
        ip("rule del priority 1000");
        ip("route flush table 77");
    }
}

#[test]
fn firewall_that_refuses_health_checks_of_load_balancers_is_reported() {
    let local = "type: LoadBalancer\n  externalTrafficPolicy: Local\n  healthCheckNodePort: 31000\n  ports: [";
    let case = Case::new(Mode::Nftables, &web(&[0]).replacen("ports: [", local, 1));
    for program in ["iptables", "ip6tables"] {
        let rule = ["-A", "INPUT", "-p", "tcp", "-m", "tcp", "--dport", "30000:32767", "-j", "DROP"];
        case.cluster.node.command(program, &rule);
    }
    let (_, examination) = examine(&case, &["--no-connect"]);
    let findings = findings_of(&examination, "firewall-tables");
    assert_eq!(findings.len(), 2, "{examination:#}");
    for finding in findings {
        let problem = finding["problem"].as_str().unwrap();
        assert!(
            finding["code"] == "firewall-tables.others" && problem.contains("healthCheckNodePort 31000"),
            "{problem}"
        );
    }
}

/// The only known pod is the endpoint of the only Service, so its connections return to itself.
#[test]
fn rule_that_drops_packets_between_pods_is_reported_with_one_known_pod() {
    for mode in [Mode::Iptables, Mode::Nftables] {
        let case = Case::new(mode, &web(&[0]));
        for (program, network) in
            [("iptables-nft-restore", "10.244.0.0/24"), ("ip6tables-nft-restore", "fd00:244::/64")]
        {
            let rules = format!("*filter\n-A FORWARD -s {network} -d {network} -j DROP\nCOMMIT\n");
            case.cluster.node.feed(program, &["--noflush"], &rules);
        }
        let (_, examination) = examine(&case, &["--no-connect"]);
        let findings = findings_of(&examination, "firewall-tables");
        let codes: Vec<&str> = findings.iter().map(|finding| finding["code"].as_str().unwrap()).collect();
        assert_eq!(codes, ["firewall-tables.pods"; 2], "{examination:#}");
    }
}

/// In nftables mode, no rule of the proxy can accept packets that the chain FORWARD of iptables drops; the rule that
/// `doctor` suggests does.
#[test]
fn firewalls_of_iptables_are_reported_until_a_rule_accepts_services() {
    let (case, pod) = with_node_port(Mode::Nftables);
    const REPLIES: &str = "-A FORWARD -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT\n";
    const SERVICES: &str = "-A FORWARD -m conntrack --ctstate DNAT -j ACCEPT\n";
    const PODS: &str = "-A FORWARD -i pod -j ACCEPT\n";
    // Ports of the endpoints.
    const PORTS: &str =
        "-A FORWARD -p tcp -m tcp --dport 8080 -j ACCEPT\n-A FORWARD -p udp -m udp --dport 8080 -j ACCEPT\n";
    // Whether the pod and the client can connect, and the findings of `doctor` in each IP family.
    for (policy, rules, connects, found) in [
        ("DROP", String::new(), [false, false], &["forward-policy.drops"][..]),
        ("DROP", [REPLIES, PODS].concat(), [true, false], &["forward-policy.drops"]),
        ("DROP", [REPLIES, SERVICES].concat(), [true, true], &[]),
        ("DROP", [REPLIES, PORTS].concat(), [true, true], &[]),
        (
            "ACCEPT",
            [REPLIES, "-A FORWARD -j DROP\n"].concat(),
            [false, false],
            &["firewall-tables.others", "firewall-tables.pods"],
        ),
        // Ports of the endpoints are refused.
        (
            "ACCEPT",
            [REPLIES, PODS, "-A FORWARD -j REJECT\n"].concat(),
            [true, false],
            &["firewall-tables.others", "firewall-tables.pods"],
        ),
        ("ACCEPT", [REPLIES, SERVICES, "-A FORWARD -j REJECT\n"].concat(), [true, true], &[]),
    ] {
        let text = format!("*filter\n:FORWARD {policy} [0:0]\n{rules}COMMIT\n");
        for program in ["iptables-nft-restore", "ip6tables-nft-restore"] {
            case.cluster.node.feed(program, &[], &text);
        }
        assert_connections(&case, &pod, connects, &text);
        let (_, examination) = examine(&case, &["--no-connect"]);
        for family in ["IPv4", "IPv6"] {
            let checks =
                ["forward-policy", "firewall-tables"].iter().flat_map(|check| findings_of(&examination, check));
            let mut codes: Vec<&str> = checks
                .filter(|finding| finding["values"]["family"] == family)
                .map(|finding| finding["code"].as_str().unwrap())
                .collect();
            codes.sort_unstable();
            assert_eq!(codes, found, "{text}: {examination:#}");
        }
    }
}

/// Returns a Service with a process of the node as its endpoint, which firewalls for forwarded packets do not concern.
fn service_of_process() -> String {
    let slice = |family: &str, address: &str| {
        format!(
            "---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\n\
             metadata: {{name: agent-{}, labels: {{kubernetes.io/service-name: agent}}}}\naddressType: {family}\n\
             ports: [{{port: 9999}}]\nendpoints: [{{addresses: [\"{address}\"], nodeName: node-1}}]\n",
            family.to_lowercase()
        )
    };
    "---\napiVersion: v1\nkind: Service\nmetadata: {name: agent}\nspec:\n  type: NodePort\n  clusterIP: 10.96.0.2\n  \
     clusterIPs: [10.96.0.2, \"fd00:96::2\"]\n  ipFamilies: [IPv4, IPv6]\n  ports: [{port: 80, nodePort: 30081}]\n"
        .to_owned()
        + &slice("IPv4", "192.168.0.1")
        + &slice("IPv6", "fd00:168::1")
}

/// Connections to a process of the node, and to some of the endpoints, pass the firewall.
fn firewalls_are_reported_beside_connections_that_they_accept(mode: Mode) {
    let (case, pod) = with_node_port(mode);
    std::fs::write(case.files.manifests().join("agent.yaml"), service_of_process()).unwrap();
    let _listener = case.cluster.node.run(|| TcpListener::bind("[::]:9999")).unwrap();
    let connects = |to: SocketAddr| pod.run(|| TcpStream::connect_timeout(&to, Duration::from_secs(1)).is_ok());
    let agent: [SocketAddr; 2] = ["10.96.0.2:80", "[fd00:96::2]:80"].map(|address| address.parse().unwrap());
    crate::wait("the Service of the process", || agent.into_iter().all(connects).then_some(()));
    const REPLIES: &str = "-A FORWARD -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT\n";
    // Whether connections of the pod to endpoints succeed, if not only some of them, and the findings in each family.
    let (pods, others) = ("firewall-tables.pods", "firewall-tables.others");
    let in_nftables = |codes: &[&'static str]| if mode == Mode::Nftables { codes.to_vec() } else { vec![pods] };
    for (policy, rules, all, codes) in [
        ("ACCEPT", "-A FORWARD -s NETWORK -j REJECT\n".to_owned(), Some(false), vec![pods]),
        // As rules of a network policy.
        ("ACCEPT", "-A FORWARD -d SECOND -j REJECT\n".to_owned(), None, vec![]),
        (
            "ACCEPT",
            [REPLIES, "-A FORWARD -d FIRST -j ACCEPT\n-A FORWARD -j REJECT\n"].concat(),
            None,
            in_nftables(&[others, pods]),
        ),
        ("DROP", [REPLIES, "-A FORWARD -d FIRST -j ACCEPT\n"].concat(), None, in_nftables(&["forward-policy.drops"])),
        (
            "DROP",
            [REPLIES, "-A FORWARD -s NETWORK -j ACCEPT\n-A FORWARD -p tcp -j ACCEPT\n-A FORWARD -p udp -j ACCEPT\n"]
                .concat(),
            Some(true),
            vec![],
        ),
    ] {
        let [first, second] = [pod_addresses(0), pod_addresses(1)];
        for (family, program, network) in
            [(0, "iptables-nft-restore", "10.244.0.0/15"), (1, "ip6tables-nft-restore", "fd00:244::/31")]
        {
            let rules = rules.replace("NETWORK", network).replace("FIRST", &first[family].to_string());
            let rules = rules.replace("SECOND", &second[family].to_string());
            let jumps = case.cluster.node.command(&program.replace("restore", "save"), &["-t", "filter"]);
            let jumps: String = jumps
                .lines()
                .filter(|line| line.starts_with("-A FORWARD") && line.contains("-j KUBE-"))
                .map(|line| format!("{line}\n"))
                .collect();
            case.cluster.node.feed(
                program,
                &["--noflush"],
                &format!("*filter\n:FORWARD {policy} [0:0]\n-F FORWARD\n{jumps}{rules}COMMIT\n"),
            );
            let to = web_tcp()[family];
            let mut results = std::collections::BTreeSet::new();
            for _ in 0..40 {
                results.insert(connects(to));
                if results.len() == 2 {
                    break;
                }
            }
            let expected: Vec<bool> = all.map_or_else(|| vec![false, true], |all| vec![all]);
            assert_eq!(results.into_iter().collect::<Vec<_>>(), expected, "{policy} {rules}: {to}");
            assert!(connects(agent[family]), "{policy} {rules}");
        }
        let (_, examination) = examine(&case, &["--no-connect"]);
        for family in ["IPv4", "IPv6"] {
            let checks =
                ["forward-policy", "firewall-tables"].iter().flat_map(|check| findings_of(&examination, check));
            let mut found: Vec<&str> = checks
                .filter(|finding| finding["values"]["family"] == family && finding["code"] != "forward-policy.accepted")
                .map(|finding| finding["code"].as_str().unwrap())
                .collect();
            found.sort_unstable();
            assert_eq!(found, codes, "{policy} {rules}: {examination:#}");
        }
    }
}

/// Writes rules of iptables beside those of the proxy.
fn feed_iptables(node: &NetNs, v4: &str, v6: &str) {
    for (program, rules) in [("iptables-nft-restore", v4), ("ip6tables-nft-restore", v6)] {
        node.feed(program, &["--noflush"], &format!("{rules}COMMIT\n"));
    }
}

fn rules_that_take_packets_before_the_proxy_are_reported(mode: Mode) {
    let (case, pod) = with_node_port(mode);
    let node = &case.cluster.node;
    let sets = "create ports bitmap:port range 30000-31000\nadd ports 30080\n\
                create services hash:net family inet\nadd services 10.96.0.0/12\n\
                create services6 hash:net family inet6\nadd services6 fd00:96::/64\n\
                create others hash:net family inet\nadd others 198.51.100.0/24\n";
    node.feed("ipset", &["restore"], sets);
    let nft_sets = "set ports { type inet_service; flags interval; elements = { 30000-30100 }; }
        set services { type ipv4_addr; flags interval; elements = { 10.96.0.0/12 }; }
        set services6 { type ipv6_addr; flags interval; elements = { fd00:96::/64 }; }
        set others { type ipv4_addr; flags interval; elements = { 198.51.100.0/24 }; }";
    let raw = "type filter hook prerouting priority raw";
    let untracked = "earlier-translation.untracked";
    let (both, pods, others, none) = ([true, true], [false, true], [true, false], [false, false]);
    // The rules for IPv4 and IPv6, whether the pod and the client can connect, and the finding in each family.
    for (v4, v6, connects, code) in [
        ("*raw\n-A PREROUTING -p tcp -m tcp --dport 30080 -j CT --notrack\n", "", others, untracked),
        ("*raw\n-A PREROUTING -m set --match-set ports dst -j CT --notrack\n", "", others, untracked),
        (
            "*raw\n-A PREROUTING -m set --match-set services dst -j CT --notrack\n",
            "*raw\n-A PREROUTING -m set --match-set services6 dst -j CT --notrack\n",
            pods,
            untracked,
        ),
        (
            "*raw\n-A PREROUTING -d 10.96.0.0/12 -j CT --notrack\n",
            "*raw\n-A PREROUTING -d fd00:96::/64 -j CT --notrack\n",
            pods,
            untracked,
        ),
        (
            "*raw\n-A PREROUTING -m set --match-set others dst -j CT --notrack\n",
            "*raw\n-A PREROUTING -m set ! --match-set services6 dst -p tcp -m tcp --dport 81 -j CT --notrack\n",
            both,
            "",
        ),
        (
            "*mangle\n-A PREROUTING -p tcp -m tcp --dport 30080 -j TPROXY --on-port 15006 --on-ip 127.0.0.1\n",
            "*mangle\n-A PREROUTING -p tcp -m tcp --dport 30080 -j TPROXY --on-port 15006 --on-ip ::1\n",
            others,
            "earlier-translation.tproxy",
        ),
        (
            "*raw\n-A PREROUTING -m set --match-set services dst -j DROP\n",
            "*raw\n-A PREROUTING -m set --match-set services6 dst -j DROP\n",
            pods,
            "firewall-tables.pods",
        ),
        ("tcp dport @ports notrack", raw, others, untracked),
        ("ip daddr @services notrack; ip6 daddr @services6 notrack", raw, pods, untracked),
        ("ip daddr 10.64.0.0-10.127.0.0 notrack; ip6 daddr fd00:96::-fd00:97:: notrack", raw, pods, untracked),
        (
            "ip daddr { 10.96.0.0/12, 198.51.100.0/24 } notrack; ip6 daddr { fd00:96::/64 } notrack",
            raw,
            pods,
            untracked,
        ),
        ("ip daddr @others notrack; ip6 daddr != fd00::/16 notrack", raw, both, ""),
        ("meta l4proto tcp notrack", raw, none, untracked),
        // Without a process at the port, the rule has no effect.
        (
            "tcp dport 30080 tproxy to :15006",
            "type filter hook prerouting priority mangle",
            both,
            "earlier-translation.tproxy",
        ),
        ("ip daddr @services drop; ip6 daddr @services6 drop", raw, pods, "firewall-tables.pods"),
        (
            "meta l4proto tcp ip daddr @services dnat ip to 10.88.0.2:80; meta l4proto tcp ip6 daddr @services6 dnat ip6 to [fd00:88::2]:80",
            "type nat hook prerouting priority dstnat - 20",
            pods,
            "earlier-translation",
        ),
        ("ip daddr @others dnat to 10.88.0.2", "type nat hook prerouting priority dstnat - 20", both, ""),
    ] {
        let rules = format!("{v4} {v6}");
        if v4.starts_with('*') {
            feed_iptables(node, v4, if v6.is_empty() { v4 } else { v6 });
        } else {
            let table = format!("table inet early {{ {nft_sets}\nchain first {{ {v6}; {v4}; }}\n}}");
            node.feed("nft", &["-f", "-"], &table);
        }
        assert_connections(&case, &pod, connects, &rules);
        let (_, examination) = examine(&case, &["--no-connect"]);
        let findings =
            ["earlier-translation", "firewall-tables"].iter().flat_map(|check| findings_of(&examination, check));
        let findings: Vec<&Value> = findings.collect();
        let codes: std::collections::BTreeSet<&str> =
            findings.iter().map(|finding| finding["code"].as_str().unwrap()).collect();
        let expected: Vec<&str> = Some(code).filter(|code| !code.is_empty()).into_iter().collect();
        assert_eq!(codes.into_iter().collect::<Vec<_>>(), expected, "{rules}: {findings:#?}");
        assert!(findings.is_empty() || findings.len() >= 2, "one in each family: {rules}: {findings:#?}");
        if v4.starts_with('*') {
            let undo = |rules: &str| rules.replace("-A ", "-D ");
            feed_iptables(node, &undo(v4), &undo(if v6.is_empty() { v4 } else { v6 }));
        } else {
            node.command("nft", &["delete", "table", "inet", "early"]);
        }
    }
    // A process of the node answers at the cluster IP, as NodeLocal DNSCache does.
    node.add_address(&format!("{}/32", web_tcp()[0].ip()), "lo");
    let rule = format!("*raw\n-A PREROUTING -d {}/32 -p tcp -m tcp --dport 80 -j CT --notrack\n", web_tcp()[0].ip());
    feed_iptables(node, &rule, "*raw\n");
    let (_, examination) = examine(&case, &["--no-connect"]);
    let findings = findings_of(&examination, "earlier-translation");
    let [finding] = findings.as_slice() else { panic!("{examination:#}") };
    assert_eq!((&finding["code"], &finding["severity"]), (&"earlier-translation.process".into(), &"note".into()));
}

fn firewalls_that_stop_the_node_itself_are_reported(mode: Mode) {
    let (case, _) = with_node_port(mode);
    let node = &case.cluster.node;
    const ACCEPTED: &str = "-A OUTPUT -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT
-A OUTPUT -m addrtype --dst-type LOCAL -j ACCEPT
-A OUTPUT -p ipv6-icmp -j ACCEPT\n";
    const NFT: &str = "ct state established,related accept; fib daddr type local accept; meta l4proto ipv6-icmp accept";
    const PODS: &str =
        "-A OUTPUT -p tcp -m tcp --dport 8080 -j ACCEPT\n-A OUTPUT -p udp -m udp --dport 8080 -j ACCEPT\n";
    for (rules, connects) in [
        // The policy, and a last rule.
        (format!("*filter\n:OUTPUT DROP [0:0]\n{ACCEPTED}"), false),
        (format!("*filter\n:OUTPUT ACCEPT [0:0]\n{ACCEPTED}-A OUTPUT -j DROP\n"), false),
        (format!("*filter\n:OUTPUT ACCEPT [0:0]\n{ACCEPTED}{PODS}-A OUTPUT -j REJECT\n"), true),
        (format!("policy drop; {NFT}"), false),
        (format!("policy accept; {NFT}; counter reject"), false),
        (format!("policy drop; {NFT}; ip daddr 10.244.0.0/16 accept; ip6 daddr fd00:244::/64 accept"), true),
    ] {
        if rules.starts_with('*') {
            feed_iptables(node, &rules, &rules);
        } else {
            let chain = format!("chain output {{ type filter hook output priority filter; {rules}; }}");
            node.feed("nft", &["-f", "-"], &format!("table inet fw {{\n{chain}\n}}"));
        }
        for to in web_tcp() {
            let found = node.run(|| TcpStream::connect_timeout(&to, Duration::from_secs(1)).is_ok());
            // The process of userspace mode may accept a connection before it fails to open another one.
            assert!(found == connects || !connects && mode == Mode::Userspace, "{rules}: {to}");
        }
        let (status, examination) = examine(&case, &["--no-connect"]);
        let findings = findings_of(&examination, "firewall-tables");
        let of_node: Vec<&Value> =
            findings.into_iter().filter(|finding| finding["code"] == "firewall-tables.node").collect();
        assert_eq!(of_node.len(), if connects { 0 } else { 2 }, "{rules}: {examination:#}");
        assert_eq!(status, Some(i32::from(!connects)), "{rules}: {examination:#}");
        if rules.starts_with('*') {
            for program in ["iptables-nft", "ip6tables-nft"] {
                node.command(program, &["-P", "OUTPUT", "ACCEPT"]);
            }
            let rules: String = rules.lines().skip(2).map(|rule| rule.replace("-A ", "-D ") + "\n").collect();
            feed_iptables(node, &format!("*filter\n{rules}"), &format!("*filter\n{rules}"));
        } else {
            node.command("nft", &["delete", "table", "inet", "fw"]);
        }
    }
}
