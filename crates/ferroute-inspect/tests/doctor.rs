//! Each check finds what is wrong, says nothing about a host that is well, and says so when it could not look.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

use std::{collections::BTreeMap, time::Duration};

use ferroute_config::ModeName;
use ferroute_core::Protocol;
use ferroute_inspect::doctor::{
    BackendRules, Clock, Conntrack, EndpointProbe, Examination, Facts, FamilyFacts, Finding, Listener, NodePort,
    Process, Reached, Severity, examine, write_examination_into,
};

/// A host on which all is well, in a cluster of both families.
fn well() -> Facts {
    let family = FamilyFacts {
        in_kernel: true,
        wanted: Some(true),
        supported: Ok(()),
        backends: Ok(vec![backend("nf_tables", 40)]),
        rules_of: Ok(vec!["Ferroute in nftables mode".to_owned()]),
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
    Facts {
        mode: ModeName::NFTABLES,
        families: [family.clone(), family],
        sysctls: Ok(sysctls.map(|(name, value)| (name.to_owned(), value.to_owned())).into()),
        bridges: Ok(vec!["cni0".to_owned()]),
        conntrack: Ok(Some(Conntrack { count: 100, max: 262_144, dropped: 0 })),
        listeners: Ok(vec![
            listener("0.0.0.0:22", "sshd"),
            listener("127.0.0.1:30080", "debugger"),
            listener("[::ffff:127.0.0.1]:30080", "debugger"),
        ]),
        proxies: Ok(vec![process("ferroute")]),
        clock: Some(Ok(Clock { difference: Duration::from_millis(900), ahead: true })),
        node_ports: Some(vec![NodePort { port: 30_080, protocol: Protocol::Tcp, service: "shop/web:http".to_owned() }]),
        endpoints: Some(vec![probe("10.244.0.2:8080", Reached::Yes)]),
    }
}

fn backend(backend: &str, rules: usize) -> BackendRules {
    BackendRules { backend: backend.to_owned(), rules, forward_drops: false }
}

fn process(name: &str) -> Process {
    Process { pid: 7, name: name.to_owned() }
}

fn listener(address: &str, name: &str) -> Listener {
    Listener { address: address.parse().unwrap(), protocol: Protocol::Tcp, process: Some(process(name)) }
}

fn probe(endpoint: &str, reached: Reached) -> EndpointProbe {
    EndpointProbe { service: "shop/web:http".to_owned(), endpoint: endpoint.parse().unwrap(), reached }
}

/// What is found when one thing is not well.
#[track_caller]
fn found(spoil: impl FnOnce(&mut Facts)) -> Vec<Finding> {
    let mut facts = well();
    spoil(&mut facts);
    let Examination { findings, unknown, .. } = examine(&facts);
    assert_eq!(unknown, []);
    findings
}

/// The one finding, as check and severity.
#[track_caller]
fn only(findings: &[Finding]) -> (&'static str, Severity) {
    let [finding] = findings else { panic!("{findings:#?}") };
    (finding.check, finding.severity)
}

fn set(facts: &mut Facts, name: &str, value: &str) {
    facts.sysctls.as_mut().unwrap().insert(name.to_owned(), value.to_owned());
}

#[test]
fn a_host_that_is_well_has_no_findings() {
    let examination = examine(&well());
    assert_eq!((examination.findings.as_slice(), examination.unknown.as_slice()), (&[][..], &[][..]));
    assert_eq!(examination.sound.len(), 12, "all but the tools of the other mode: {:?}", examination.sound);
}

/// A fault, and the check that finds it.
type Case = (fn(&mut Facts), &'static str, Severity);

#[test]
fn each_fault_is_found_by_its_check_and_by_no_other() {
    let cases: &[Case] = &[
        (|facts| facts.families[1].in_kernel = false, "ip-families", Severity::Problem),
        (|facts| facts.families[0].supported = Err("no nf_tables".to_owned()), "kernel-nftables", Severity::Problem),
        (
            |facts| {
                facts.mode = ModeName::IPTABLES;
                facts.families[0].supported = Err("iptables is missing".to_owned());
            },
            "iptables-tools",
            Severity::Problem,
        ),
        (
            |facts| facts.families[0].backends.as_mut().unwrap().push(backend("legacy", 3)),
            "iptables-backends",
            Severity::Warning,
        ),
        (|facts| facts.proxies.as_mut().unwrap().push(process("kube-proxy")), "other-proxies", Severity::Problem),
        (|facts| facts.proxies = Ok(Vec::new()), "other-proxies", Severity::Warning),
        (
            |facts| facts.families[0].rules_of.as_mut().unwrap().push("kube-proxy in nftables mode".to_owned()),
            "other-proxies",
            Severity::Warning,
        ),
        (|facts| set(facts, "net.ipv4.ip_forward", "0"), "ip-forward", Severity::Problem),
        (|facts| set(facts, "net.ipv6.conf.all.forwarding", "0"), "ip-forward", Severity::Problem),
        (
            |facts| facts.families[0].backends.as_mut().unwrap()[0].forward_drops = true,
            "forward-policy",
            Severity::Note,
        ),
        (
            |facts| {
                set(facts, "net.ipv4.conf.eth0.rp_filter", "1");
                set(facts, "net.ipv4.conf.eth1.rp_filter", "1");
            },
            "rp-filter",
            Severity::Note,
        ),
        (|facts| set(facts, "net.bridge.bridge-nf-call-iptables", "0"), "bridge-nf-call", Severity::Warning),
        (
            |facts| facts.conntrack = Ok(Some(Conntrack { count: 95, max: 100, dropped: 0 })),
            "conntrack-table",
            Severity::Problem,
        ),
        (
            |facts| facts.conntrack = Ok(Some(Conntrack { count: 80, max: 100, dropped: 0 })),
            "conntrack-table",
            Severity::Warning,
        ),
        (
            |facts| facts.conntrack = Ok(Some(Conntrack { count: 1, max: 100, dropped: 5 })),
            "conntrack-table",
            Severity::Warning,
        ),
        (
            |facts| facts.listeners.as_mut().unwrap().push(listener("[::]:30080", "old-server")),
            "node-ports",
            Severity::Warning,
        ),
        (
            |facts| facts.clock = Some(Ok(Clock { difference: Duration::from_secs(20), ahead: false })),
            "api-server-clock",
            Severity::Warning,
        ),
        (
            |facts| facts.clock = Some(Ok(Clock { difference: Duration::from_secs(300), ahead: false })),
            "api-server-clock",
            Severity::Problem,
        ),
        (
            |facts| facts.endpoints = Some(vec![probe("10.244.0.2:8080", Reached::Refused)]),
            "endpoints",
            Severity::Problem,
        ),
        (
            |facts| facts.endpoints.as_mut().unwrap().push(probe("10.244.0.3:8080", Reached::Silent)),
            "endpoints",
            Severity::Warning,
        ),
    ];
    for (number, (spoil, check, severity)) in cases.iter().enumerate() {
        assert_eq!(only(&found(spoil)), (*check, *severity), "case {number}");
    }
}

#[test]
fn what_nobody_wants_is_no_fault() {
    let without_ipv6 = |facts: &mut Facts| {
        facts.families[1] = FamilyFacts {
            in_kernel: false,
            wanted: Some(false),
            nftables: Err("no such family".to_owned()),
            iptables: Err("no such family".to_owned()),
            backends: Ok(Vec::new()),
            rules_of: Ok(Vec::new()),
        };
        set(facts, "net.ipv6.conf.all.forwarding", "0");
        set(facts, "net.bridge.bridge-nf-call-ip6tables", "0");
    };
    assert_eq!(found(without_ipv6), []);
    // One interface is strict with nothing to compare it to.
    assert_eq!(found(|facts| set(facts, "net.ipv4.conf.eth0.rp_filter", "1")), []);
    // A bridge's sysctls are looked at where there is a bridge.
    assert_eq!(
        found(|facts| {
            facts.bridges = Ok(Vec::new());
            set(facts, "net.bridge.bridge-nf-call-iptables", "0");
        }),
        []
    );
}

#[test]
fn what_could_not_be_looked_at_is_not_called_sound() {
    let mut facts = well();
    let why = || "permission denied".to_owned();
    facts.sysctls = Err(why());
    facts.conntrack = Err(why());
    facts.listeners = Err(why());
    facts.proxies = Err(why());
    facts.clock = Some(Err(why()));
    facts.families[0].backends = Err(why());
    let examination = examine(&facts);
    let unknown: Vec<&str> = examination.unknown.iter().map(|unknown| unknown.check).collect();
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
    assert!(examination.findings.is_empty());
    assert!(examination.sound.iter().all(|check| !unknown.contains(check)));
}

#[test]
fn without_a_cluster_nothing_is_said_about_one() {
    let mut facts = well();
    (facts.clock, facts.node_ports, facts.endpoints) = (None, None, None);
    let examination = examine(&facts);
    let said: Vec<&str> =
        examination.sound.iter().copied().chain(examination.unknown.iter().map(|u| u.check)).collect();
    assert!(["node-ports", "api-server-clock", "endpoints"].iter().all(|check| !said.contains(check)), "{said:?}");
}

#[test]
fn a_person_reads_the_worst_first_with_what_it_breaks_and_how_to_mend_it() {
    let mut facts = well();
    set(&mut facts, "net.ipv4.ip_forward", "0");
    facts.families[0].backends.as_mut().unwrap()[0].forward_drops = true;
    facts.endpoints = Some(vec![
        probe("10.244.0.2:8080", Reached::NoWay("no route to host".to_owned())),
        probe("10.244.0.3:8080", Reached::NoWay("no route to host".to_owned())),
        probe("10.244.0.4:8080", Reached::Yes),
    ]);
    facts.listeners = Err("cannot read /proc/net/tcp: permission denied".to_owned());
    facts.sysctls.as_mut().unwrap().retain(|name, _| !name.starts_with("net.bridge"));
    let mut text = String::new();
    write_examination_into(&mut text, &examine(&facts)).unwrap();
    insta::assert_snapshot!(text);
}

#[test]
fn a_program_reads_the_same() {
    let mut facts = well();
    facts.sysctls = Ok(BTreeMap::from([("net.ipv4.ip_forward".to_owned(), "0".to_owned())]));
    facts.bridges = Ok(Vec::new());
    let json = serde_json::to_value(examine(&facts)).unwrap();
    assert_eq!(json["findings"][0]["check"], "ip-forward");
    assert_eq!(json["findings"][0]["severity"], "problem");
    assert_eq!(json["unknown"], serde_json::json!([]));
}
