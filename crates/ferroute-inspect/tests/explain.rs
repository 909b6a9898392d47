//! Explanations agree with the outcomes of packets from outside of the cluster in the planned rules.

#![expect(clippy::unwrap_used, reason = "test helpers fail like tests")]

use std::net::{IpAddr, SocketAddr};

use ferroute_core::{
    FrontendKind, HostState, IpFamily, LocalTrafficDetector, ProxySettings,
    testing::{Cluster, arbitrary},
};
use ferroute_inspect::{
    diff::{Outcomes, PacketOutcome, outcomes},
    explain::{ExplainedFrontend, Handling, Inputs, Outcome, Source, explain},
};
use ferroute_iptables::PlanContext;
use ferroute_trace::{Host, Packet, Route, Ruleset};
use proptest::{prelude::*, sample::select};

const NODE: [&str; 2] = ["192.168.0.1", "fd00:168::1"];
const OUTSIDE: [&str; 2] = ["192.0.2.123", "2001:db8:77::1"];

fn address(family: IpFamily, texts: [&str; 2]) -> IpAddr {
    texts[family.index()].parse().unwrap()
}

fn host() -> Host {
    let route = |to: &str, family| Route {
        to: to.parse().unwrap(),
        interface: "eth0".to_owned(),
        source: address(family, NODE),
    };
    Host {
        addresses: IpFamily::BOTH.map(|family| address(family, NODE)).into(),
        routes: vec![route("0.0.0.0/0", IpFamily::V4), route("::/0", IpFamily::V6)],
        route_localnet: true,
    }
}

/// Reports whether the outcomes of a packet from `client` agree with the frontend's last answer, which is the one for
/// clients outside of the cluster.
fn agrees(frontend: &ExplainedFrontend, client: IpAddr, outcomes: &Outcomes) -> bool {
    match frontend.answers.last().unwrap().outcome {
        Outcome::Rejected => outcomes.keys().eq([&PacketOutcome::Rejected]),
        Outcome::Dropped => outcomes.keys().eq([&PacketOutcome::Dropped]),
        Outcome::Served { endpoints, source, .. } => {
            let is_delivered = |outcome: &PacketOutcome| match outcome {
                // Packets to the node itself are not masqueraded.
                PacketOutcome::Delivered { interface: None, .. } => true,
                PacketOutcome::Delivered { from, .. } => (*from == client) == (source == Source::Client),
                _ => false,
            };
            outcomes.len() == endpoints && outcomes.keys().all(is_delivered)
        }
    }
}

fn check(cluster: &Cluster, settings: &ProxySettings) -> Result<(), TestCaseError> {
    let (tracker, host) = (cluster.tracker(), host());
    let (addresses, health_check) = (&host.addresses, None);
    let inputs = Inputs { tracker: &tracker, settings, addresses, health_check, pod: &|_| None, node: &|_| None };
    let rules = IpFamily::BOTH.map(|family| {
        let table = tracker.table(family);
        let host_state = HostState { addresses: host.addresses.clone(), ..HostState::default() };
        ferroute_iptables::render(table, &PlanContext::new(settings, table, &host_state))
    });
    for service in &cluster.services {
        let explanation = explain(service, &inputs);
        let Handling::Served { policies, ports, .. } = &explanation.handling else { continue };
        for port in ports {
            let client = address(port.family, OUTSIDE);
            for frontend in &port.frontends {
                if frontend.kind == FrontendKind::LoadBalancer && !policies.source_ranges.is_empty() {
                    continue;
                }
                let address = frontend.addresses.first().copied().unwrap_or(address(port.family, NODE));
                let to = SocketAddr::new(address, frontend.port);
                let packet = Packet::arriving(port.protocol, SocketAddr::new(client, 40_000), to, "eth0");
                let outcomes =
                    outcomes(&packet, Ruleset::from_rules(&rules[port.family.index()]).verdicts(&host, &packet));
                prop_assert!(
                    agrees(frontend, client, &outcomes),
                    "{packet:?}: {outcomes:?}, explained as {frontend:?}"
                );
            }
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn answers_for_outside_clients_agree_with_traced_packets(
        cluster in arbitrary::cluster(),
        masquerade_all in any::<bool>(),
        detector in select(vec![LocalTrafficDetector::None, LocalTrafficDetector::NodeCidr]),
    ) {
        check(&cluster, &ProxySettings { masquerade_all, detector, ..ProxySettings::default() })?;
    }
}
