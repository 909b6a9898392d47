//! The kernel's events, in network namespaces (root).

#![expect(clippy::unwrap_used, reason = "helpers panic as tests do")]

use std::{fmt::Write as _, fs};

use ferroute_core::{
    IpFamily, ModeTraits, ProxySettings,
    testing::{Cluster, service},
};
use ferroute_flows::{
    FlowEvent, FlowReceiver, FlowRequest, FlowState, Frontends, Hub, Limits, Losses, Services, SharedFrontends,
};
use ferroute_testing::{NetNs, wait};

fn hub(limits: Limits) -> Hub {
    let frontends = Frontends::new(&ModeTraits::IPTABLES, ProxySettings::default());
    Hub::new(SharedFrontends::new(frontends), Services::Unknown, limits)
}

fn subscribe(namespace: &NetNs, hub: &Hub, request: &FlowRequest) -> FlowReceiver {
    namespace.run(|| hub.subscribe(hub.reserve().unwrap(), request.clone())).unwrap()
}

/// Returns the events of the next lines.
fn next(flows: &mut FlowReceiver) -> Vec<FlowEvent> {
    let lines = flows.blocking_next().unwrap().unwrap();
    lines.split_inclusive(|byte| *byte == b'\n').map(|line| serde_json::from_slice(line).unwrap()).collect()
}

/// Adds established connections to a frontend with these source ports to the kernel's table, as fast as possible.
fn add_connections(namespace: &NetNs, ports: std::ops::Range<u16>) {
    let mut text = String::new();
    for port in ports {
        writeln!(
            text,
            "-A -p tcp -s 192.0.2.1 -d 10.96.0.1 --sport {port} --dport 80 --dst-nat 10.244.0.2:8080 --timeout 900 \
             --state ESTABLISHED -u SEEN_REPLY,ASSURED"
        )
        .unwrap();
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), text).unwrap();
    namespace.command("conntrack", &["-R", file.path().to_str().unwrap()]);
}

/// Reports whether a socket of this namespace is subscribed to events of connections.
fn is_subscribed(namespace: &NetNs) -> bool {
    let sockets = namespace.run(|| fs::read_to_string("/proc/thread-self/net/netlink")).unwrap();
    sockets.lines().skip(1).any(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let groups = u32::from_str_radix(fields[3], 16).unwrap();
        fields[1] == "12" && groups & 0b111 != 0
    })
}

#[test]
fn events_are_subscribed_only_while_a_reader_exists() {
    let (namespace, hub) = (NetNs::new(), hub(Limits::default()));
    assert!(!is_subscribed(&namespace) && !hub.has_readers());
    let request = FlowRequest { follow: true, ..FlowRequest::default() };
    let mut first = subscribe(&namespace, &hub, &request);
    let second = subscribe(&namespace, &hub, &request);
    assert!(matches!(next(&mut first)[..], [FlowEvent::Start(_)]));
    assert!(is_subscribed(&namespace));
    drop(first);
    assert!(hub.has_readers());
    drop(second);
    wait("the end of the subscription", || (!is_subscribed(&namespace)).then_some(()));
    assert!(!hub.has_readers());
    // The next reader gets flows again, in the same process.
    let mut third = subscribe(&namespace, &hub, &FlowRequest { recent: true, ..request });
    assert!(matches!(next(&mut third)[..], [FlowEvent::Start(_), FlowEvent::RecentEnd(_)]));
    add_connections(&namespace, 1000..1001);
    assert!(matches!(&next(&mut third)[..], [FlowEvent::Flow(flow)] if flow.state == FlowState::Open));
}

#[test]
fn readers_beyond_the_limit_are_refused() {
    let hub = hub(Limits { readers: 1, ..Limits::default() });
    let first = hub.reserve().unwrap();
    assert!(hub.reserve().is_err());
    drop(first);
    assert!(hub.reserve().is_ok());
}

/// Receives until a condition holds for the new flows and the last losses.
fn receive(flows: &mut FlowReceiver, is_done: impl Fn(usize, Losses) -> bool) -> (usize, Losses) {
    let (mut count, mut losses) = (0, Losses::default());
    while !is_done(count, losses) {
        for event in next(flows) {
            match event {
                FlowEvent::Flow(_) => count += 1,
                FlowEvent::Lost(lost) => losses = lost,
                _ => {}
            }
        }
    }
    (count, losses)
}

#[test]
fn overruns_are_counted_and_the_lost_connections_are_found_again() {
    let namespace = NetNs::new();
    let hub = hub(Limits { buffer: 1, ..Limits::default() });
    let mut flows = subscribe(&namespace, &hub, &FlowRequest { follow: true, ..FlowRequest::default() });
    next(&mut flows);
    add_connections(&namespace, 1000..4000);
    let (count, losses) = receive(&mut flows, |count, losses| count >= 3000 && losses.overruns > 0);
    assert_eq!((count, losses.untracked), (3000, 0), "{losses:?}");
}

#[test]
fn connections_beyond_the_limit_are_counted_and_not_kept() {
    let namespace = NetNs::new();
    let hub = hub(Limits { open: 100, recent: 50, ..Limits::default() });
    let mut flows = subscribe(&namespace, &hub, &FlowRequest { follow: true, ..FlowRequest::default() });
    next(&mut flows);
    add_connections(&namespace, 1000..2000);
    let (count, losses) = receive(&mut flows, |count, losses| count as u64 + losses.untracked >= 1000);
    assert_eq!((count, losses.untracked), (100, 900));
    // All connections end; only the last ones are remembered.
    namespace.command("conntrack", &["-F"]);
    receive(&mut flows, |count, _| count >= 100);
    let mut recent = subscribe(&namespace, &hub, &FlowRequest { recent: true, ..FlowRequest::default() });
    let events = next(&mut recent);
    assert_eq!(events.iter().filter(|event| matches!(event, FlowEvent::Flow(_))).count(), 50);
}

#[test]
fn slow_reader_misses_lines_and_gets_their_number() {
    let (namespace, hub) = (NetNs::new(), hub(Limits { lines: 1000, ..Limits::default() }));
    let mut slow = subscribe(&namespace, &hub, &FlowRequest { follow: true, ..FlowRequest::default() });
    next(&mut slow);
    // Far more than the reader's buffer can hold.
    add_connections(&namespace, 1000..2000);
    let (received, losses) = receive(&mut slow, |count, losses| count as u64 + losses.missed >= 1000);
    let missed = losses.missed;
    assert_eq!(received as u64 + missed, 1000);
    assert!(missed > 0 && received > 0, "{received} {missed}");
}

/// Returns a hub with a Service without endpoints in both IP families.
fn hub_with_empty_service() -> Hub {
    let cluster = Cluster::new("node-1").service(service("shop/web").cluster_ip("10.96.0.1").port("http", 80));
    let mut frontends = Frontends::new(&ModeTraits::NFTABLES, ProxySettings::default());
    IpFamily::BOTH.into_iter().for_each(|family| frontends.set(&cluster.table(family), &[]));
    Hub::new(SharedFrontends::new(frontends), Services::Known, Limits::default())
}

#[test]
fn rules_that_log_refused_packets_exist_only_while_a_reader_does() {
    let namespace = NetNs::new();
    let rules = || namespace.command("nft", &["list", "ruleset"]);
    let request = FlowRequest { follow: true, ..FlowRequest::default() };
    let [hub, of_another_process] = [hub_with_empty_service(), hub_with_empty_service()];
    assert_eq!(rules(), "");
    let mut first = subscribe(&namespace, &hub, &request);
    assert!(matches!(next(&mut first)[..], [FlowEvent::Start(start)] if start.refusals));
    let second = subscribe(&namespace, &hub, &request);
    let other = subscribe(&namespace, &of_another_process, &request);
    // Each hub has a table in each IP family.
    wait("both tables", || (rules().matches("flags owner").count() == 4).then_some(()));
    // Neither `nft flush ruleset` by an administrator nor another reader removes them.
    namespace.command("nft", &["flush", "ruleset"]);
    drop(other);
    wait("the end of the other table", || (rules().matches("flags owner").count() == 2).then_some(()));
    drop(first);
    assert_eq!(rules().matches("flags owner").count(), 2, "{}", rules());
    drop(second);
    wait("the end of the rules", || rules().is_empty().then_some(()));
}
