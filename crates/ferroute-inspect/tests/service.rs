//! What an explanation says of somebody outside is what becomes of this one's packets in the planned rules.

#![expect(clippy::unwrap_used, reason = "helpers of tests only")]

use std::net::{IpAddr, SocketAddr};

use ferroute_core::{FrontendKind, HostState,
    IpFamily, LocalTrafficDetector, ProxySettings,
    testing::{Cluster, arbitrary},
};
use ferroute_inspect::{
    diff::{End, Ends, ends},
    service::{ExplainedFrontend, Facts, Handling, Outcome, Source, explain},
};
use ferroute_iptables::PlanContext;
use ferroute_trace::{Host, Packet, Route, Ruleset};
use proptest::{prelude::*, sample::select};

const NODE: [&str; 2] = ["192.168.0.1", "fd00:168::1"];
const OUTSIDE: [&str; 2] = ["192.0.2.123", "2001:db8:77::1"];

fn of(family: IpFamily, texts: [&str; 2]) -> IpAddr {
    texts[family.index()].parse().unwrap()
}

fn host() -> Host {
    let route =
        |to: &str, family| Route { to: to.parse().unwrap(), interface: "eth0".to_owned(), source: of(family, NODE) };
    Host {
        addresses: IpFamily::BOTH.map(|family| of(family, NODE)).into(),
        routes: vec![route("0.0.0.0/0", IpFamily::V4), route("::/0", IpFamily::V6)],
        route_localnet: true,
    }
}

/// Whether a packet from `client` ends as the last answer, which is the one for those outside, says.
fn is_as_told(frontend: &ExplainedFrontend, client: IpAddr, ends: &Ends) -> bool {
    match frontend.answers.last().unwrap().outcome {
        Outcome::Refused => ends.keys().eq([&End::Refused]),
        Outcome::Dropped => ends.keys().eq([&End::Dropped]),
        Outcome::Served { endpoints, source, .. } => {
            let delivered = |end: &End| match end {
                // What the node delivers to itself does not leave it, so it is not masqueraded.
                End::Delivered { through: None, .. } => true,
                End::Delivered { from, .. } => (*from == client) == (source == Source::Client),
                _ => false,
            };
            ends.len() == endpoints && ends.keys().all(delivered)
        }
    }
}

fn check(cluster: &Cluster, settings: &ProxySettings) -> Result<(), TestCaseError> {
    let (tracker, host) = (cluster.tracker(), host());
    let facts = Facts { tracker: &tracker, settings, addresses: &host.addresses, health_check: None, pod: &|_| None };
    let rules = IpFamily::BOTH.map(|family| {
        let table = tracker.table(family);
        let facts = HostState { addresses: host.addresses.clone(), ..HostState::default() };
        ferroute_iptables::render(table, &PlanContext::new(settings, table, &facts))
    });
    for service in &cluster.services {
        let explanation = explain(service, &facts);
        let Handling::Served { policies, ports, .. } = &explanation.handling else { continue };
        for port in ports {
            let client = of(port.family, OUTSIDE);
            for frontend in &port.frontends {
                if frontend.kind == FrontendKind::LoadBalancer && !policies.source_ranges.is_empty() {
                    continue;
                }
                let address = frontend.addresses.first().copied().unwrap_or(of(port.family, NODE));
                let to = SocketAddr::new(address, frontend.port);
                let packet = Packet::arriving(port.protocol, SocketAddr::new(client, 40_000), to, "eth0");
                let ends = ends(&packet, Ruleset::from_rules(&rules[port.family.index()]).verdicts(&host, &packet));
                prop_assert!(is_as_told(frontend, client, &ends), "{packet:?} ends in {ends:?}, told is {frontend:?}");
            }
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn what_is_told_of_those_outside_is_what_becomes_of_their_packets(
        cluster in arbitrary::cluster(),
        masquerade_all in any::<bool>(),
        detector in select(vec![LocalTrafficDetector::None, LocalTrafficDetector::NodeCidr]),
    ) {
        check(&cluster, &ProxySettings { masquerade_all, detector, ..ProxySettings::default() })?;
    }
}
