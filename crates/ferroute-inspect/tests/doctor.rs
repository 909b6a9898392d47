//! Each check finds its problem, passes on a healthy host, and is unknown if its input is missing.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

use std::{collections::BTreeMap, time::Duration};

use ferroute_config::ModeName;
use ferroute_core::{
    Client, IpFamily, Protocol,
    testing::{HOSTILE, assert_visible},
};
use ferroute_inspect::doctor::{
    BackendRules, ClockOffset, ConntrackEvents, ConntrackUsage, Diagnosis, EarlierEffect, EarlierRule, EndpointProbe,
    FamilyInputs, Finding, FirewallRefusal, FullAffinityList, Inputs, Listener, NodePort, ProbeResult, Process,
    Severity, Unrouted, UnroutedPod, diagnose, write_diagnosis_into,
};
use ferroute_nftables::MINIMUM_KERNEL;

/// A healthy host in a dual-stack cluster.
fn healthy() -> Inputs {
    let family = FamilyInputs {
        in_kernel: true,
        has_services: Some(true),
        unserved_node_ports: 0,
        ports_without_hairpin: Ok(Vec::new()),
        full_affinity_lists: Ok(Vec::new()),
        table_is_owned: Ok(false),
        dormant_tables: Ok(Vec::new()),
        earlier_rules: Ok(Vec::new()),
        firewall_refusals: Ok(Vec::new()),
        unrouted: Ok(None),
        unrouted_pod: Ok(None),
        supported: Ok(None),
        backends: Ok(vec![backend("nf_tables", 40)]),
        unread: Vec::new(),
        active_proxies: Ok(vec!["Ferroute in nftables mode".to_owned()]),
    };
    let sysctls = [
        ("net.ipv4.ip_forward", "1"),
        ("net.ipv6.conf.all.forwarding", "1"),
        ("net.ipv4.conf.all.rp_filter", "0"),
        ("net.ipv4.conf.eth0.rp_filter", "2"),
        ("net.ipv4.conf.eth1.rp_filter", "2"),
        ("net.bridge.bridge-nf-call-iptables", "1"),
        ("net.bridge.bridge-nf-call-ip6tables", "1"),
    ];
    Inputs {
        mode: ModeName::NFTABLES,
        net_admin: Ok(true),
        accepts_in_firewalls: false,
        families: [family.clone(), family],
        sysctls: Ok(sysctls.map(|(name, value)| (name.to_owned(), value.to_owned())).into()),
        required_sysctls: Vec::new(),
        missing_localhost_routes: Ok(Vec::new()),
        bridges: Ok(vec!["cni0".to_owned()]),
        conntrack: Ok(Some(ConntrackUsage { count: 100, max: 262_144, events: ConntrackEvents::default() })),
        listeners: Ok(vec![
            listener("0.0.0.0:22", "sshd"),
            listener("127.0.0.1:30080", "debugger"),
            listener("[::ffff:127.0.0.1]:30080", "debugger"),
        ]),
        proxies: Ok(vec![process("ferroute")]),
        proxy_problems: Some(Vec::new()),
        clock: Some(Ok(ClockOffset { difference: Duration::from_millis(900), ahead: true })),
        node_ports: Some(vec![NodePort { port: 30_080, protocol: Protocol::Tcp, service: "shop/web:http".to_owned() }]),
        unrestricted: Some(Vec::new()),
        endpoints: Some(vec![probe("10.244.0.2:8080", ProbeResult::Connected)]),
    }
}

fn backend(backend: &str, rules: usize) -> BackendRules {
    BackendRules { backend: backend.to_owned(), rules, forward_drops: false, input_drops: false }
}

fn process(name: &str) -> Process {
    Process { pid: 7, name: name.to_owned() }
}

fn listener(address: &str, name: &str) -> Listener {
    Listener { address: address.parse().unwrap(), protocol: Protocol::Tcp, process: Some(process(name)) }
}

fn probe(endpoint: &str, result: ProbeResult) -> EndpointProbe {
    EndpointProbe { service: "shop/web:http".to_owned(), endpoint: endpoint.parse().unwrap(), result }
}

/// Returns the findings after a change to a healthy host.
#[track_caller]
fn findings_after(change: impl FnOnce(&mut Inputs)) -> Vec<Finding> {
    let mut inputs = healthy();
    change(&mut inputs);
    let Diagnosis { findings, unknown, .. } = diagnose(&inputs);
    assert_eq!(unknown, []);
    findings
}

/// Returns the check and severity of the only finding.
#[track_caller]
fn only(findings: &[Finding]) -> (&str, Severity) {
    let [finding] = findings else { panic!("{findings:#?}") };
    (&finding.check, finding.severity)
}

fn conntrack(count: u64, events: ConntrackEvents) -> ConntrackUsage {
    ConntrackUsage { count, max: 100, events }
}

fn set(inputs: &mut Inputs, name: &str, value: &str) {
    inputs.sysctls.as_mut().unwrap().insert(name.to_owned(), value.to_owned());
}

#[test]
fn sysctl_that_the_mode_relies_on_is_a_problem_with_another_value() {
    let required = |inputs: &mut Inputs, value: &str| {
        inputs.required_sysctls = vec![("net.ipv4.vs.conntrack".to_owned(), "1".to_owned())];
        set(inputs, "net.ipv4.vs.conntrack", value);
    };
    let findings = findings_after(|inputs| required(inputs, "0"));
    assert_eq!(only(&findings), ("mode-sysctls", Severity::Problem));
    assert_eq!(findings_after(|inputs| required(inputs, "1")), []);
    let missing = |inputs: &mut Inputs| inputs.required_sysctls = vec![("net.ipv4.vs.conntrack".into(), "1".into())];
    assert_eq!(findings_after(missing), [], "the module is not loaded yet");
}

#[test]
fn healthy_host_has_no_findings() {
    let diagnosis = diagnose(&healthy());
    assert_eq!((diagnosis.findings.as_slice(), diagnosis.unknown.as_slice()), (&[][..], &[][..]));
    assert_eq!(diagnosis.passed.len(), 24, "all but those for other modes: {:?}", diagnosis.passed);
}

fn set_refusal(inputs: &mut Inputs, client: Client) {
    let (rule, service) = ("drop in chain input of table inet filter".to_owned(), "shop/web:http".to_owned());
    inputs.families[0].firewall_refusals = Ok(vec![FirewallRefusal { rule, service, client }]);
}

fn set_earlier(inputs: &mut Inputs, effect: EarlierEffect) {
    let (rule, service) = ("iptables -t nat -A DOCKER -j DNAT".to_owned(), "shop/web:http".to_owned());
    inputs.families[0].earlier_rules = Ok(vec![EarlierRule { effect, rule, service }]);
}

/// A change, and the check and severity of its finding.
type Case = (fn(&mut Inputs), &'static str, Severity);

#[test]
fn each_problem_is_found_by_one_check() {
    let cases: &[Case] = &[
        (|inputs| set_earlier(inputs, EarlierEffect::Translated), "earlier-translation", Severity::Warning),
        (|inputs| set_earlier(inputs, EarlierEffect::Untracked), "earlier-translation", Severity::Warning),
        (|inputs| set_earlier(inputs, EarlierEffect::Accepted), "earlier-translation", Severity::Warning),
        (|inputs| set_earlier(inputs, EarlierEffect::LeftToProcess), "earlier-translation", Severity::Note),
        (|inputs| set_earlier(inputs, EarlierEffect::TransparentProxy), "earlier-translation", Severity::Warning),
        (|inputs| set_earlier(inputs, EarlierEffect::Unmasqueraded), "earlier-translation", Severity::Warning),
        (|inputs| set_earlier(inputs, EarlierEffect::Masqueraded), "earlier-translation", Severity::Note),
        (|inputs| set_refusal(inputs, Client::Pod), "firewall-tables", Severity::Warning),
        (|inputs| set_refusal(inputs, Client::Node), "firewall-tables", Severity::Warning),
        (|inputs| set_refusal(inputs, Client::Outside), "firewall-tables", Severity::Note),
        (|inputs| inputs.net_admin = Ok(false), "capabilities", Severity::Problem),
        (|inputs| inputs.families[1].table_is_owned = Ok(true), "table-owner", Severity::Problem),
        (
            |inputs| inputs.families[0].dormant_tables = Ok(vec!["ip nat".to_owned()]),
            "dormant-tables",
            Severity::Problem,
        ),
        (
            |inputs| {
                inputs.mode = ModeName::IPTABLES;
                let list = FullAffinityList { service: "shop/web:http (KUBE-SEP-A)".to_owned(), clients: 100 };
                inputs.families[0].full_affinity_lists = Ok(vec![list]);
            },
            "affinity-lists",
            Severity::Warning,
        ),
        (|inputs| inputs.families[0].unserved_node_ports = 2, "node-port-addresses", Severity::Problem),
        (
            |inputs| inputs.unrestricted = Some(vec![("shop/web".to_owned(), IpFamily::V6)]),
            "source-ranges",
            Severity::Note,
        ),
        (|inputs| inputs.families[1].in_kernel = false, "ip-families", Severity::Problem),
        (|inputs| inputs.families[0].supported = Err("no nf_tables".to_owned()), "kernel-nftables", Severity::Problem),
        (
            |inputs| {
                inputs.mode = ModeName::IPTABLES;
                inputs.families[0].supported = Err("iptables is missing".to_owned());
            },
            "iptables-tools",
            Severity::Problem,
        ),
        (
            |inputs| inputs.families[0].backends.as_mut().unwrap().push(backend("legacy", 3)),
            "iptables-backends",
            Severity::Warning,
        ),
        (|inputs| inputs.proxies.as_mut().unwrap().push(process("kube-proxy")), "other-proxies", Severity::Problem),
        (
            |inputs| inputs.proxy_problems = Some(vec!["IPv6 is not served".to_owned()]),
            "running-proxy",
            Severity::Problem,
        ),
        (|inputs| (inputs.proxies, inputs.proxy_problems) = (Ok(Vec::new()), None), "other-proxies", Severity::Warning),
        (
            |inputs| inputs.families[0].active_proxies.as_mut().unwrap().push("kube-proxy in nftables mode".to_owned()),
            "other-proxies",
            Severity::Warning,
        ),
        (|inputs| set(inputs, "net.ipv4.ip_forward", "0"), "ip-forward", Severity::Problem),
        (|inputs| set(inputs, "net.ipv6.conf.all.forwarding", "0"), "ip-forward", Severity::Problem),
        (|inputs| set(inputs, "net.ipv4.conf.cni0.forwarding", "0"), "ip-forward", Severity::Warning),
        (
            |inputs| inputs.families[0].backends.as_mut().unwrap()[0].forward_drops = true,
            "forward-policy",
            Severity::Warning,
        ),
        (
            |inputs| {
                inputs.accepts_in_firewalls = true;
                inputs.families[0].backends.as_mut().unwrap()[0].forward_drops = true;
            },
            "forward-policy",
            Severity::Note,
        ),
        (
            |inputs| {
                let address = "fd00::1".parse().unwrap();
                inputs.families[1].unrouted = Ok(Some(Unrouted { address, is_refused: false }));
            },
            "service-routes",
            Severity::Problem,
        ),
        (
            |inputs| {
                let address = "10.96.0.1".parse().unwrap();
                inputs.families[0].unrouted = Ok(Some(Unrouted { address, is_refused: true }));
            },
            "service-routes",
            Severity::Problem,
        ),
        (
            |inputs| {
                let [pod, endpoint] = ["10.244.1.5", "10.244.2.7"].map(|address| address.parse().unwrap());
                let reason = "blackhole route".to_owned();
                inputs.families[0].unrouted_pod = Ok(Some(UnroutedPod { pod, endpoint, reason }));
            },
            "service-routes",
            Severity::Warning,
        ),
        (
            |inputs| inputs.missing_localhost_routes = Ok(vec!["eth0".to_owned(), "pods".to_owned()]),
            "localhost-routes",
            Severity::Problem,
        ),
        (
            |inputs| inputs.families[0].unread = vec!["cannot read the tables of iptables (legacy): nat".to_owned()],
            "unread-rules",
            Severity::Warning,
        ),
        (
            |inputs| {
                inputs.mode = ModeName::IPVS;
                inputs.families[0].backends.as_mut().unwrap()[0].input_drops = true;
            },
            "input-firewall",
            Severity::Warning,
        ),
        (
            |inputs| {
                inputs.mode = ModeName::USERSPACE;
                inputs.families[0].backends.as_mut().unwrap()[0].input_drops = true;
            },
            "input-firewall",
            Severity::Warning,
        ),
        (
            |inputs| {
                set(inputs, "net.ipv4.conf.eth0.rp_filter", "1");
                set(inputs, "net.ipv4.conf.eth1.rp_filter", "1");
            },
            "rp-filter",
            Severity::Note,
        ),
        (|inputs| set(inputs, "net.bridge.bridge-nf-call-iptables", "0"), "bridge-nf-call", Severity::Warning),
        (
            |inputs| inputs.conntrack = Ok(Some(conntrack(95, ConntrackEvents::default()))),
            "conntrack-table",
            Severity::Problem,
        ),
        (
            |inputs| inputs.conntrack = Ok(Some(conntrack(80, ConntrackEvents::default()))),
            "conntrack-table",
            Severity::Warning,
        ),
        (
            |inputs| {
                inputs.conntrack = Ok(Some(conntrack(1, ConntrackEvents { dropped: 5, ..ConntrackEvents::default() })));
            },
            "conntrack-table",
            Severity::Warning,
        ),
        (
            |inputs| inputs.families[0].ports_without_hairpin = Ok(vec!["veth1".to_owned()]),
            "hairpin",
            Severity::Warning,
        ),
        (
            |inputs| {
                inputs.conntrack = Ok(Some(conntrack(1, ConntrackEvents { evicted: 5, ..ConntrackEvents::default() })));
            },
            "conntrack-table",
            Severity::Warning,
        ),
        (
            |inputs| {
                let events = ConntrackEvents { not_inserted: 6, ..ConntrackEvents::default() };
                inputs.conntrack = Ok(Some(conntrack(1, events)));
            },
            "conntrack-table",
            Severity::Note,
        ),
        (
            |inputs| {
                let events = ConntrackEvents { chain_too_long: 6, ..ConntrackEvents::default() };
                inputs.conntrack = Ok(Some(conntrack(1, events)));
            },
            "conntrack-table",
            Severity::Warning,
        ),
        (
            |inputs| inputs.listeners.as_mut().unwrap().push(listener("[::]:30080", "old-server")),
            "node-ports",
            Severity::Warning,
        ),
        (
            |inputs| inputs.clock = Some(Ok(ClockOffset { difference: Duration::from_secs(20), ahead: false })),
            "api-server-clock",
            Severity::Warning,
        ),
        (
            |inputs| inputs.clock = Some(Ok(ClockOffset { difference: Duration::from_secs(300), ahead: false })),
            "api-server-clock",
            Severity::Problem,
        ),
        (
            |inputs| inputs.endpoints = Some(vec![probe("10.244.0.2:8080", ProbeResult::Refused)]),
            "endpoints",
            Severity::Problem,
        ),
        (
            |inputs| inputs.endpoints.as_mut().unwrap().push(probe("10.244.0.3:8080", ProbeResult::TimedOut)),
            "endpoints",
            Severity::Warning,
        ),
    ];
    for (number, (change, check, severity)) in cases.iter().enumerate() {
        assert_eq!(only(&findings_after(change)), (*check, *severity), "case {number}");
    }
}

#[test]
fn required_kernel_is_that_of_nftables_mode_everywhere() {
    let findings = findings_after(|inputs| inputs.families[0].supported = Err("no nf_tables".to_owned()));
    assert!(findings[0].fix.contains(&format!("use kernel {MINIMUM_KERNEL} or later")), "{}", findings[0].fix);
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    for document in ["README.md", "docs/modes.md"] {
        let text = std::fs::read_to_string(format!("{root}/{document}")).unwrap();
        assert!(text.contains(&format!("nftables mode requires Linux {MINIMUM_KERNEL} or newer")), "{document}");
    }
}

#[test]
fn unused_features_are_not_problems() {
    let without_ipv6 = |inputs: &mut Inputs| {
        inputs.families[1] = FamilyInputs {
            ports_without_hairpin: Ok(Vec::new()),
            in_kernel: false,
            has_services: Some(false),
            unserved_node_ports: 0,
            full_affinity_lists: Ok(Vec::new()),
            table_is_owned: Ok(false),
            dormant_tables: Ok(Vec::new()),
            earlier_rules: Ok(Vec::new()),
            firewall_refusals: Ok(Vec::new()),
            unrouted: Ok(None),
            unrouted_pod: Ok(None),
            supported: Err("no such family".to_owned()),
            backends: Ok(Vec::new()),
            unread: Vec::new(),
            active_proxies: Ok(Vec::new()),
        };
        set(inputs, "net.ipv6.conf.all.forwarding", "0");
        set(inputs, "net.bridge.bridge-nf-call-ip6tables", "0");
    };
    assert_eq!(findings_after(without_ipv6), []);
    // A proxy in another PID namespace is not listed, but answers.
    assert_eq!(findings_after(|inputs| inputs.proxies = Ok(Vec::new())), []);
    // A strict filter has no effect with a single interface.
    assert_eq!(findings_after(|inputs| set(inputs, "net.ipv4.conf.eth0.rp_filter", "1")), []);
    // The sysctls only matter with a bridge.
    assert_eq!(
        findings_after(|inputs| {
            inputs.bridges = Ok(Vec::new());
            set(inputs, "net.bridge.bridge-nf-call-iptables", "0");
        }),
        []
    );
}

#[test]
fn checks_without_input_do_not_pass() {
    let mut inputs = healthy();
    let reason = || "permission denied".to_owned();
    inputs.sysctls = Err(reason());
    inputs.conntrack = Err(reason());
    inputs.listeners = Err(reason());
    inputs.proxies = Err(reason());
    inputs.clock = Some(Err(reason()));
    inputs.families[0].backends = Err(reason());
    let diagnosis = diagnose(&inputs);
    let unknown: Vec<&str> = diagnosis.unknown.iter().map(|unknown| &*unknown.check).collect();
    assert_eq!(
        unknown,
        [
            "iptables-backends",
            "other-proxies",
            "ip-forward",
            "forward-policy",
            "rp-filter",
            "bridge-nf-call",
            "conntrack-table",
            "node-ports",
            "api-server-clock"
        ]
    );
    assert!(diagnosis.findings.is_empty());
    assert!(diagnosis.passed.iter().all(|check| !unknown.contains(&&**check)));
}

#[test]
fn checks_of_cluster_are_skipped_without_cluster() {
    let mut inputs = healthy();
    (inputs.clock, inputs.node_ports, inputs.endpoints) = (None, None, None);
    let diagnosis = diagnose(&inputs);
    let unknown = diagnosis.unknown.iter().map(|unknown| &unknown.check);
    let checks: Vec<&str> = diagnosis.passed.iter().chain(unknown).map(AsRef::as_ref).collect();
    assert!(["node-ports", "api-server-clock", "endpoints"].iter().all(|check| !checks.contains(check)), "{checks:?}");
}

#[test]
fn report_lists_worst_findings_first_with_effect_and_fix() {
    let mut inputs = healthy();
    set(&mut inputs, "net.ipv4.ip_forward", "0");
    (inputs.mode, inputs.accepts_in_firewalls) = (ModeName::IPTABLES, true);
    inputs.families[0].supported = Ok(Some("by netlink: the host's iptables uses nf_tables".to_owned()));
    inputs.families[0].backends.as_mut().unwrap()[0].forward_drops = true;
    inputs.endpoints = Some(vec![
        probe("10.244.0.2:8080", ProbeResult::Unreachable("no route to host".to_owned())),
        probe("10.244.0.3:8080", ProbeResult::Unreachable("no route to host".to_owned())),
        probe("10.244.0.4:8080", ProbeResult::Connected),
    ]);
    inputs.listeners = Err("cannot read /proc/net/tcp: permission denied".to_owned());
    inputs.sysctls.as_mut().unwrap().retain(|name, _| !name.starts_with("net.bridge"));
    let mut text = String::new();
    write_diagnosis_into(&mut text, &diagnose(&inputs)).unwrap();
    insta::assert_snapshot!(text);
}

#[test]
fn names_in_findings_control_no_terminal() {
    let mut inputs = healthy();
    inputs.endpoints = Some(vec![probe("10.244.0.2:8080", ProbeResult::Unreachable(HOSTILE.to_owned()))]);
    inputs.listeners = Err(HOSTILE.to_owned());
    inputs.families[0].supported = Ok(Some(HOSTILE.to_owned()));
    let diagnosis = diagnose(&inputs);
    let mut text = String::new();
    write_diagnosis_into(&mut text, &diagnosis).unwrap();
    assert_visible(&text);
    assert!(diagnosis.unknown.iter().any(|unknown| unknown.reason.contains(HOSTILE)));
}

#[test]
fn json_has_stable_fields() {
    let mut inputs = healthy();
    inputs.sysctls = Ok(BTreeMap::from([("net.ipv4.ip_forward".to_owned(), "0".to_owned())]));
    inputs.bridges = Ok(Vec::new());
    let json = serde_json::to_value(diagnose(&inputs)).unwrap();
    assert_eq!(json["findings"][0]["check"], "ip-forward");
    assert_eq!(json["findings"][0]["severity"], "problem");
    for field in ["problem", "effect", "fix"] {
        assert!(json["findings"][0][field].is_string(), "{field}");
    }
    assert!(json["passed"].is_array() && json["access"].is_array());
    assert_eq!(json["unknown"], serde_json::json!([]));
}
