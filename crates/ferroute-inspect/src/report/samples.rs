//! Reports with every field, for the tests that compare the documentation and the page with the types.

#![expect(clippy::unwrap_used, reason = "the texts are valid")]

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    num::{NonZeroU16, NonZeroU32},
};

use ferroute_admin::{
    health::HealthCheck,
    history::{ChangeDelays, Unapplied},
};
use ferroute_config::ModeName;
use ferroute_core::{
    Affinity, ConnectionLimits, Ejection, Eligibility, Frontend, FrontendKind, IpFamily, Method, OverLimit, Protocol,
    Reservation, Share, TrafficPolicy,
};
use ferroute_proxy::{
    ServiceVersions,
    control::{NodeStatus, ObservedEndpoint, Pacing, TrafficCounts},
};
use ferroute_trace::{Assumption, Branch, Choice, Effect, Event, Hook, Packet, Step, Verdict};
use serde_json::Value;

use super::Versioned;
use crate::{
    about::{About, Fact, Origin, ProxyState},
    check,
    diff::{
        Answer, Client, Comparison, Conclusion, Coverage, DiffReport, Finding, Mismatch, ModeDifference, RulesKind,
        SourceAddress, StaleFrontend, Undetermined,
    },
    doctor::{self, Diagnosis, Severity, Unknown},
    explain::{
        self, Clients, ConnectionCount, EndpointState, ExplainedBalancing, ExplainedEndpoint, ExplainedFrontend,
        ExplainedHealthCheck, ExplainedPort, Explanation, FrontendOwner, Handling, KernelState, NodeAddresses, Outcome,
        Policies, Reason, ServiceRule, Source, UnusedSlice, Usage,
    },
    flows::{Counts, Edge, Flow, FlowEvent, FlowStart, FlowState, FlowSummary, Losses, Peer, PeerKind, RecentEnd},
    preflight::{self, Difference, Kind},
    top::{EndpointRate, Rates, Row},
    trace::{self, RulesSource, TracedFrontend},
};

/// A sample of a report.
pub struct Sample {
    /// The command that prints the report.
    pub command: &'static str,
    /// The report as JSON.
    pub json: Value,
    /// Returns the report after it was deserialized and serialized again.
    pub copy: fn(Value) -> serde_json::Result<Value>,
}

/// Returns a sample of each report.
pub fn all() -> Vec<Sample> {
    fn sample<T>(command: &'static str, report: T) -> Sample
    where
        T: serde::Serialize + serde::de::DeserializeOwned,
    {
        let copy = |json| serde_json::to_value(serde_json::from_value::<Versioned<T>>(json)?);
        let report = match command.starts_with("ferroute status") {
            true => Versioned::from(report),
            false => Versioned::new(&about(), report),
        };
        Sample { command, json: serde_json::to_value(report).unwrap(), copy }
    }
    vec![
        sample("ferroute explain service", explanation(served())),
        sample("ferroute diff", comparison()),
        sample("ferroute check", checked()),
        sample("ferroute doctor", diagnosis()),
        sample("ferroute preflight", differences()),
        sample("ferroute trace", trace()),
        sample("ferroute top --once", rates()),
        sample("ferroute flows", FlowEvent::Start(FlowStart::default())),
        sample("ferroute flows", FlowEvent::Flow(Box::new(flow()))),
        sample("ferroute flows", FlowEvent::Lost(Losses { overruns: 1, untracked: 2, unread: 3, missed: 4 })),
        sample("ferroute flows", FlowEvent::RecentEnd(RecentEnd { flows: 1 })),
        sample("ferroute flows", FlowEvent::Summary(flow_summary())),
        sample("ferroute status", status()),
        sample("ferroute status --service", versions()),
    ]
}

/// Returns the keys of all objects in a report, except for maps from addresses and other data.
pub fn keys(json: &Value) -> BTreeSet<&str> {
    match json {
        Value::Array(values) => values.iter().flat_map(keys).collect(),
        Value::Object(fields) => {
            let own = fields.keys().map(String::as_str);
            let is_map = |key: &str| ["names", "remembered", "slices"].contains(&key);
            own.chain(fields.iter().filter(|(key, _)| !is_map(key)).flat_map(|(_, value)| keys(value))).collect()
        }
        _ => BTreeSet::new(),
    }
}

fn about() -> About {
    let fact = |value: &str| Fact::new(value, Origin::Proxy);
    About {
        proxy: ProxyState::Running,
        reason: Some("a reason".to_owned()),
        node: fact("node-1"),
        mode: Some(fact("nftables")),
        configuration: Some(fact("the running proxy")),
        objects: Some(fact("the running proxy")),
    }
}

fn checked() -> check::CheckReport {
    let problem = check::Problem {
        file: Some("shop.yaml".to_owned()),
        line: Some(7),
        object: Some("Service shop/web".to_owned()),
        field: Some("spec.ports[0].prot".to_owned()),
        effect: check::Effect::Ignored,
        problem: "unknown field".to_owned(),
    };
    let objects = vec![check::ObjectCount { kind: "Service".to_owned(), count: 1 }];
    check::CheckReport { files: 1, objects, problems: vec![problem] }
}

fn socket(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

/// Returns the samples of Services that are not served.
pub fn not_served() -> [Explanation; 2] {
    let skipped = Handling::Skipped { reason: "a reason".to_owned(), code: "headless".into() };
    let errors = vec!["spec.clusterIP: invalid".to_owned()];
    [skipped, Handling::Invalid { file: Some("shop.yaml".to_owned()), line: Some(10), errors }].map(explanation)
}

fn explanation(handling: Handling) -> Explanation {
    Explanation {
        service: "shop/web".to_owned(),
        type_: "LoadBalancer".to_owned(),
        node: "node-1".to_owned(),
        zone: Some("zone-a".to_owned()),
        handling,
        unrouted: vec![[10, 96, 0, 9].into()],
        kernel_error: Some("an error".to_owned()),
    }
}

fn served() -> Handling {
    let slice = UnusedSlice {
        slice: "shop/web-a".to_owned(),
        endpoints: 1,
        reason: "a reason".to_owned(),
        code: "otherPorts".into(),
    };
    let outcomes = [
        Outcome::Served { policy: TrafficPolicy::Local, endpoints: 1, source: Source::PodOrNode },
        Outcome::Rejected { reason: Reason::NoEndpoints },
        Outcome::Dropped { reason: Reason::SourceRanges },
        Outcome::NotHandled,
    ];
    let frontend = ExplainedFrontend {
        except: vec![NodeAddresses::Localhost],
        elsewhere: Some(explain::Outcome::Rejected { reason: Reason::NoEndpoints }),
        kind: FrontendKind::LoadBalancer,
        addresses: vec!["198.51.100.1".parse().unwrap()],
        port: 80,
        answers: outcomes.map(|outcome| explain::Answer { clients: Clients::PodsAndNode, outcome }).into(),
        unserved: true,
        owner: Some(FrontendOwner::ServicePort {
            service_port: "shop/cart:http".to_owned(),
            kind: FrontendKind::ExternalIp,
        }),
    };
    let owner = Some(FrontendOwner::Reserved { reserved: Reservation::ApiServer });
    let reserved = ExplainedFrontend { owner, ..frontend.clone() };
    let endpoint = ExplainedEndpoint {
        address: socket("10.244.0.2:8080"),
        pod: Some("web-1".to_owned()),
        node: Some("node-1".to_owned()),
        state: EndpointState::ServingTerminating,
        local: true,
        keeps_sources: true,
        weight: Some(3),
        node_unknown: true,
        hinted_zones: vec!["zone-a".to_owned()],
        hinted_nodes: vec!["node-1".to_owned()],
        cluster: Some(Usage(Eligibility::ServingTerminating)),
        local_only: Some(Usage(Eligibility::HintedOtherZone)),
    };
    let rule = ServiceRule {
        location: "nat KUBE-SERVICES".to_owned(),
        text: "-j KUBE-SVC-A".to_owned(),
        packets: Some(1),
        bytes: Some(60),
    };
    let connections = ConnectionCount {
        endpoint: socket("10.244.0.2:8080"),
        connections: 2,
        open: 1,
        current: true,
        terminating: false,
    };
    let port = ExplainedPort {
        name: "http".to_owned(),
        family: IpFamily::V4,
        protocol: Protocol::Tcp,
        not_applied: Some(unapplied()),
        frontends: vec![frontend, reserved],
        endpoints: vec![endpoint],
        excess_endpoints: 1,
        unused_slices: vec![slice.clone()],
        kernel: Some(KernelState { rules: Some(vec![rule]), connections: Some(vec![connections]) }),
    };
    let policies = Policies {
        internal_traffic: TrafficPolicy::Cluster,
        external_traffic: Some(TrafficPolicy::Local),
        affinity: Some(Affinity { timeout_seconds: 600 }),
        balancing: Some(ExplainedBalancing {
            method: Some(Method::SourceHash),
            passive_ejection: Some(Ejection::Refused),
            slow_start_seconds: NonZeroU32::new(60),
            zone_weight: NonZeroU16::new(8),
            drain_timeout_seconds: NonZeroU32::new(30),
            table_size: Some(32_768),
        }),
        source_ranges: vec!["192.0.2.0/24".parse().unwrap()],
        source_ranges_scope: vec!["node-ports".to_owned()],
        limits: Some(ConnectionLimits {
            connections: NonZeroU32::new(100),
            client_connections: NonZeroU32::new(10),
            rate: "50/second burst 100".parse().ok(),
            client_rate: "5/second".parse().ok(),
            over_limit: OverLimit::Reject,
        }),
        unrestricted_families: vec![IpFamily::V6],
        traffic_distribution: Some("PreferClose".to_owned()),
        health_check: Some(ExplainedHealthCheck {
            check: HealthCheck {
                port: NonZeroU16::MIN,
                local_endpoints: 1,
                load_balancer_addresses: ["198.51.100.1".parse().unwrap()].into(),
            },
            node_addresses: vec!["192.0.2.1".parse().unwrap()],
        }),
    };
    let ignored = vec!["spec.externalIPs: ignored".to_owned()];
    let invalid_update = vec!["spec.ports[0].port: invalid".to_owned()];
    Handling::Served { policies, ignored, invalid_update, ports: vec![port], unused_slices: vec![slice] }
}

fn unapplied() -> Unapplied {
    Unapplied { error: Some("an error".to_owned()), keeps_rules: true }
}

fn comparison() -> Comparison {
    let address = Some("10.96.0.1".parse().unwrap());
    let frontend = Frontend { address, protocol: Protocol::Tcp, port: 80 };
    let (one, two) = (socket("10.244.0.2:8080"), socket("[fd00::2]:8080"));
    let mismatches = [
        Mismatch::Endpoints { missing: vec![one], extra: vec![two] },
        Mismatch::Shares { endpoint: one, expected: 0.5, actual: 0.25 },
        Mismatch::Source { expected: SourceAddress::Client, actual: SourceAddress::Node },
        Mismatch::Answer { expected: Answer::Served(2), actual: Answer::Rejected },
        Mismatch::Answer { expected: Answer::Dropped, actual: Answer::Untouched },
        Mismatch::Answer { expected: Answer::Unreachable, actual: Answer::Mixed },
        Mismatch::Affinity { expected: Some(600), actual: None },
    ];
    let clients = vec![
        Client::Pod,
        Client::Node,
        Client::Outside,
        Client::Endpoint(one.ip()),
        Client::Source("192.0.2.1".parse().unwrap()),
    ];
    let finding = |mismatch| Finding {
        service_port: "shop/web:http".to_owned(),
        frontend: Some(frontend),
        clients: clients.clone(),
        not_applied: Some(unapplied()),
        mismatch,
    };
    let undetermined = Undetermined { service_port: Some("shop/web:http".to_owned()), reason: "a reason".to_owned() };
    let report = |actual| DiffReport {
        family: IpFamily::V4,
        expected: RulesKind::Nftables,
        actual,
        coverage: Coverage { service_ports: 1, frontends: 2, packets: 3 },
        findings: mismatches.iter().cloned().map(finding).collect(),
        stale: vec![
            StaleFrontend { frontend, name: Some("shop/web:http".to_owned()) },
            StaleFrontend { frontend: Frontend { address: None, ..frontend }, name: None },
        ],
        structure: vec!["a chain is missing".to_owned()],
        undetermined: vec![undetermined.clone()],
        limitation: Some("a limitation".into()),
        intended: vec![ModeDifference {
            name: "hairpin".into(),
            title: "a trait".into(),
            expected: "yes".to_owned(),
            actual: "no".to_owned(),
            packets: 4,
        }],
    };
    let formats = [RulesKind::Iptables, RulesKind::KubeProxyNftables, RulesKind::Other(ModeName::IPVS)];
    let reports = formats.into_iter().map(Some).chain([None]).map(report).collect();
    Comparison { conclusion: Conclusion::Different, reports }
}

fn diagnosis() -> Diagnosis {
    let finding = doctor::Finding {
        check: "ip-forward".into(),
        code: "ip-forward".into(),
        values: [("family".into(), "IPv4".to_owned())].into(),
        severity: Severity::Problem,
        problem: "a problem".to_owned(),
        effect: "an effect".to_owned(),
        fix: "a fix".to_owned(),
    };
    Diagnosis {
        findings: vec![finding],
        unknown: vec![Unknown { check: "clock".into(), reason: "a reason".to_owned() }],
        passed: vec!["endpoints".into()],
        access: vec!["IPv4 rules by netlink".to_owned()],
    }
}

fn differences() -> preflight::PreflightReport {
    let difference = Difference {
        kind: Kind::LocalhostNodePorts,
        family: IpFamily::V6,
        summary: "a summary".to_owned(),
        remedy: Some("a remedy".to_owned()),
        services: vec!["shop/web".to_owned()],
        rules: vec!["-A OTHER -j KUBE-SERVICES".to_owned()],
    };
    let (from, to) = (ModeName::IPTABLES, ModeName::USERSPACE);
    preflight::PreflightReport { node: "node-1".to_owned(), from, to, differences: vec![difference] }
}

fn trace() -> trace::TraceReport {
    let (before, after) = (socket("10.96.0.1:80"), socket("10.244.0.2:8080"));
    let (client, node) = ("192.0.2.1".parse().unwrap(), "192.168.0.1".parse().unwrap());
    let (hook, table, path) = (Hook::Prerouting, "nat", vec!["PREROUTING".to_owned()]);
    let effects = [
        Effect::Mark { before: 0, after: 0x4000 },
        Effect::Dnat { before, after },
        Effect::Connect { before, after },
        Effect::Masquerade { before: client, after: node },
        Effect::Accept,
        Effect::Drop,
        Effect::Reject { with: "tcp-reset".to_owned() },
    ];
    let effect = |effect| Event::Effect { hook, table: table.into(), path: path.clone(), effect };
    let rule = Event::Rule {
        chain: "PREROUTING".to_owned(),
        number: 1,
        text: "-j KUBE-SERVICES".to_owned(),
        depth: 0,
        mismatch: Some("protocol is tcp, not udp".to_owned()),
        chance: Some(0.5),
    };
    let mut events = vec![
        Event::Hook { hook, table: table.into(), chain: "PREROUTING".to_owned() },
        rule,
        Event::Policy { chain: "FORWARD".to_owned(), policy: "DROP".into() },
        Event::Routed { interface: Some("cni0".to_owned()) },
        Event::Discarded { reason: "martian source".into() },
    ];
    events.extend(effects.iter().cloned().map(effect));
    let step = |effect| Step::Effect { hook, table: table.into(), path: path.clone(), effect };
    let mut steps: Vec<Step> = effects.into_iter().map(step).collect();
    steps.extend([
        Step::Choice { hook, table: table.into(), path: path.clone(), before, relayed: true },
        Step::Masquerade { hook, table: table.into(), path: path.clone(), before: client },
        Step::Discarded { reason: "martian source".into() },
    ]);
    let interface = Some("cni0".to_owned());
    let verdicts = [
        Verdict::Delivered { to: after, from: client, translated: true, interface: interface.clone() },
        Verdict::Rejected { with: "tcp-reset".to_owned() },
        Verdict::Dropped,
        Verdict::NoRoute,
        Verdict::Unknown { reason: "a reason".to_owned() },
    ];
    let choice = Choice { share: 0.5, chain: "KUBE-SEP-A".to_owned(), to: after, from: client, interface };
    let branch = |verdict| Branch {
        share: 0.25,
        alternatives: vec![vec![Assumption { condition: "the mark is known".to_owned(), holds: false }]],
        assumptions: vec![Assumption { condition: "a condition".to_owned(), holds: true }],
        steps: steps.clone(),
        choices: vec![choice.clone()],
        verdict,
        events: events.clone(),
    };
    let packet = Packet::arriving(Protocol::Tcp, SocketAddr::new(client, 50_000), before, "eth0");
    trace::TraceReport {
        node: "node-1".to_owned(),
        mode: "iptables".to_owned(),
        rules: RulesSource::Planned,
        packet: Packet { remembered: BTreeMap::from([("KUBE-SEP-A".to_owned(), 7)]), ..packet },
        frontend: Some(TracedFrontend {
            namespace: "shop".to_owned(),
            service: "web".to_owned(),
            port: "http".to_owned(),
            kind: FrontendKind::LoadBalancer,
        }),
        not_applied: Some(unapplied()),
        outcome: ferroute_trace::Outcome::NotDelivered,
        branches: verdicts.into_iter().map(branch).collect(),
        names: BTreeMap::from([(node, "node node-1".to_owned())]),
    }
}

fn rates() -> Rates {
    let endpoint = EndpointRate {
        ejected: true,
        sixteenths: Share::new(4),
        traffic: Some(TrafficCounts {
            connections: 12,
            packets: 100,
            bytes: 9_000,
            packets_per_second: 2.0,
            bytes_per_second: 180.0,
        }),
        ..EndpointRate::new(socket("10.244.0.2:8080"), 2.5, 0.5)
    };
    Rates {
        service_ports: vec![Row {
            service_port: "shop/web:http".to_owned(),
            per_second: 5.0,
            ended: endpoint.traffic,
            endpoints: vec![endpoint],
        }],
    }
}

fn flow() -> Flow {
    let peer = |address: &str, name: &str| Peer {
        kind: Some(PeerKind::Pod),
        name: Some(name.into()),
        ..Peer::new(socket(address))
    };
    Flow {
        id: 7,
        time: ferroute_core::rfc3339::parse("2026-01-02T15:00:06.123456Z"),
        state: FlowState::Closed,
        protocol: Protocol::Tcp,
        client: peer("10.244.0.9:41234", "shop/client"),
        service_port: Some("shop/web:http".into()),
        kind: Some(FrontendKind::ClusterIp),
        destination: socket("10.96.0.1:80"),
        endpoint: Some(peer("10.244.0.2:8080", "shop/web-1")),
        reason: Some("noEndpoints".into()),
        answer_seconds: Some(0.0005),
        duration_seconds: Some(1.5),
        packets: Some(12),
        bytes: Some(1234),
    }
}

fn flow_summary() -> FlowSummary {
    let Flow { client, service_port, protocol, endpoint, .. } = flow();
    let counts = Counts { connections: 2, refused: 1, answered: 1, answer_seconds: 0.5, ..Counts::default() };
    FlowSummary {
        window_seconds: 300.0,
        edges: vec![Edge { client: client.without_port(), service_port, protocol, endpoint, counts }],
        omitted: 0,
    }
}

fn versions() -> ServiceVersions {
    let slices = BTreeMap::from([("web-a".to_owned(), Some(7))]);
    let reason = Some("a reason".to_owned());
    ServiceVersions { served: true, applied: false, refused: true, limited: true, reason, service: Some(5), slices }
}

fn status() -> NodeStatus {
    NodeStatus {
        node: "node-1".to_owned(),
        version: "0.1.0".to_owned(),
        mode: "nftables".to_owned(),
        ready: true,
        eligible: true,
        last_sync: Some("2026-01-02T15:00:06Z".to_owned()),
        pending: 1,
        lag_seconds: 0.5,
        pacing: Pacing { min_sync_period_seconds: 1.0, by_cost: true },
        delays: Some(ChangeDelays {
            changes: 128,
            waited_seconds: 0.0003,
            longest_wait_seconds: 0.02,
            sync_seconds: 0.0006,
        }),
        problems: vec!["another service proxy runs on this node".to_owned()],
        endpoints: vec![ObservedEndpoint {
            service_port: "shop/web:http".to_owned(),
            endpoint: socket("10.244.1.2:8080"),
            ejected: true,
            sixteenths: Share::FULL,
        }],
    }
}
