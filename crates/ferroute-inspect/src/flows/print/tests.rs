use std::time::{Duration, SystemTime};

use ferroute_core::{
    FrontendKind, Protocol,
    testing::{HOSTILE, assert_visible},
};
use ferroute_flows::{FlowState, PeerKind};
use insta::assert_snapshot;

use super::*;

fn flow() -> Flow {
    Flow {
        id: 1,
        time: Some(SystemTime::UNIX_EPOCH + Duration::from_millis(1_767_366_245_123)),
        state: FlowState::Closed,
        protocol: Protocol::Tcp,
        client: Peer {
            kind: Some(PeerKind::Pod),
            name: Some("shop/client".into()),
            ..Peer::new("10.244.0.9:41234".parse().unwrap())
        },
        service_port: Some("shop/web:http".into()),
        kind: Some(FrontendKind::ClusterIp),
        destination: "10.96.0.1:80".parse().unwrap(),
        endpoint: Some(Peer::new("10.244.0.2:8080".parse().unwrap())),
        reason: None,
        answer_seconds: Some(0.000_42),
        duration_seconds: Some(1.25),
        packets: Some(12),
        bytes: Some(1234),
    }
}

#[test]
fn flow_is_one_line_under_the_titles() {
    let (mut text, mut table) = (String::new(), FlowTable::new(false));
    table.write_titles_into(&mut text).unwrap();
    table.write_into(&mut text, "node-1", &flow()).unwrap();
    let unknown = Flow { time: None, endpoint: None, answer_seconds: None, packets: None, bytes: None, ..flow() };
    let rejected = Flow { state: FlowState::Rejected, reason: Some("noEndpoints".into()), ..unknown };
    table.write_into(&mut text, "node-1", &rejected).unwrap();
    assert_snapshot!(text, @r"
    TIME (UTC)    STATE       CLIENT                           SERVICE                   FRONTEND                        ENDPOINT                    ANSWER  DURATION  PACKETS     BYTES
    15:04:05.123  closed      pod shop/client:41234            shop/web:http             cluster IP 10.96.0.1:80/tcp     10.244.0.2:8080              420us      1.2s       12      1234
    -             rejected    pod shop/client:41234            shop/web:http             cluster IP 10.96.0.1:80/tcp     (noEndpoints)                    -      1.2s        -         -
    ");
}

#[test]
fn columns_become_wider_with_long_addresses_and_titles_are_repeated_once() {
    let long = Flow {
        kind: Some(FrontendKind::LoadBalancer),
        destination: "[2001:db8:1b:2:3:4:5:6789]:30080".parse().unwrap(),
        endpoint: Some(Peer::new("[fd00:244:0:1:2:3:4:5]:8080".parse().unwrap())),
        ..flow()
    };
    let (mut text, mut table) = (String::new(), FlowTable::new(true));
    table.write_titles_into(&mut text).unwrap();
    for (node, flow) in [("node-1", &flow()), ("a-node-with-a-name", &long), ("node-1", &flow()), ("node-2", &long)] {
        table.write_into(&mut text, node, flow).unwrap();
    }
    assert_snapshot!(text, @r"
    NODE          TIME (UTC)    STATE       CLIENT                           SERVICE                   FRONTEND                        ENDPOINT                    ANSWER  DURATION  PACKETS     BYTES
    node-1        15:04:05.123  closed      pod shop/client:41234            shop/web:http             cluster IP 10.96.0.1:80/tcp     10.244.0.2:8080              420us      1.2s       12      1234
    NODE                TIME (UTC)    STATE       CLIENT                           SERVICE                   FRONTEND                                               ENDPOINT                       ANSWER  DURATION  PACKETS     BYTES
    a-node-with-a-name  15:04:05.123  closed      pod shop/client:41234            shop/web:http             load balancer IP [2001:db8:1b:2:3:4:5:6789]:30080/tcp  [fd00:244:0:1:2:3:4:5]:8080     420us      1.2s       12      1234
    node-1              15:04:05.123  closed      pod shop/client:41234            shop/web:http             cluster IP 10.96.0.1:80/tcp                            10.244.0.2:8080                 420us      1.2s       12      1234
    node-2              15:04:05.123  closed      pod shop/client:41234            shop/web:http             load balancer IP [2001:db8:1b:2:3:4:5:6789]:30080/tcp  [fd00:244:0:1:2:3:4:5]:8080     420us      1.2s       12      1234
    ");
    let (mut fitted, mut table) = (String::new(), FlowTable::new(true));
    table.fit("a-node-with-a-name", &long);
    table.write_titles_into(&mut fitted).unwrap();
    table.write_into(&mut fitted, "a-node-with-a-name", &long).unwrap();
    assert!(text.contains(&fitted), "{fitted}");
}

#[test]
fn names_of_other_programs_control_no_terminal() {
    let mut text = String::new();
    let client = Peer { name: Some(HOSTILE.into()), ..flow().client };
    let flow = Flow { service_port: Some(HOSTILE.into()), client, ..flow() };
    FlowTable::new(true).write_into(&mut text, HOSTILE, &flow).unwrap();
    assert_visible(&text);
}

#[test]
fn summary_has_services_with_their_clients_and_endpoints() {
    let edge = |client: &str, counts| Edge {
        client: Peer { port: None, ..Peer::new(client.parse().unwrap()) },
        service_port: Some("shop/web:http".into()),
        protocol: Protocol::Tcp,
        endpoint: flow().endpoint,
        counts,
    };
    let counts = Counts {
        connections: 20,
        refused: 2,
        answered: 18,
        answer_seconds: 0.018,
        longest_answer_seconds: 0.01,
        ..Counts::default()
    };
    let edges =
        vec![edge("10.244.0.9:0", counts), edge("10.244.0.8:0", Counts { connections: 10, ..Counts::default() })];
    let (mut text, mut table) = (String::new(), FlowTable::new(false));
    let summary = FlowSummary { window_seconds: 10.0, edges, omitted: 3 };
    table.write_summary_into(&mut text, &summary).unwrap();
    assert_snapshot!(text, @r"
    10 s of the last five minutes
    SERVICE, CLIENT -> ENDPOINT                                      CONN       /S UNANSWERED REFUSED  RESET REJECTED DROPPED   ANSWER  LONGEST
    shop/web:http                                                      30      3.0          0       2      0        0       0    1.0ms   10.0ms
      10.244.0.9 -> 10.244.0.2:8080                                    20      2.0          0       2      0        0       0    1.0ms   10.0ms
      10.244.0.8 -> 10.244.0.2:8080                                    10      1.0          0       0      0        0       0        -        -
    not listed, because there are too many clients: 3 connections
    ");
    let is_known = |table: &FlowTable, seconds: f64| {
        let mut summary = summary.clone();
        let counts = &mut summary.edges[0].counts;
        (counts.answer_seconds, counts.longest_answer_seconds) = (18.0 * seconds, seconds);
        let mut text = String::new();
        table.write_summary_into(&mut text, &summary).unwrap();
        text.lines().nth(2).unwrap().split_whitespace().rev().take(2).all(|time| time != NOTHING)
    };
    assert!(is_known(&table, 0.000_001));
    table.start("node-1", &FlowStart::default());
    assert!(!is_known(&table, 0.000_001) && is_known(&table, 0.25));
}

#[test]
fn summary_has_one_row_for_both_ip_families_of_the_same_names() {
    let named = |address: &str, port, name: &str| Peer {
        port,
        name: Some(name.into()),
        kind: Some(PeerKind::Pod),
        ..Peer::new(format!("{address}:80").parse().unwrap())
    };
    let edge = |client: &str, endpoint: &str, connections| Edge {
        client: named(client, None, "shop/client"),
        service_port: Some("shop/web:http".into()),
        protocol: Protocol::Tcp,
        endpoint: Some(named(endpoint, Some(8080), "shop/web-1")),
        counts: Counts { connections, ..Counts::default() },
    };
    let edges = vec![edge("10.244.0.9", "10.244.0.2", 4), edge("[fd00::9]", "[fd00::2]", 3)];
    let mut text = String::new();
    let summary = FlowSummary { window_seconds: 10.0, edges, omitted: 0 };
    FlowTable::new(false).write_summary_into(&mut text, &summary).unwrap();
    let rows: Vec<&str> = text.lines().skip(3).collect();
    assert!(rows.len() == 1 && rows[0].starts_with("  pod shop/client -> shop/web-1:8080  "), "{text}");
    assert!(rows[0].contains(" 7 "), "{text}");
}

#[test]
fn times_below_the_accuracy_of_receiving_are_not_shown() {
    let mut table = FlowTable::new(true);
    table.start("exact", &FlowStart { timestamps: true, ..FlowStart::default() });
    table.start("inexact", &FlowStart::default());
    let mut times = |node: &str, seconds: f64| {
        let flow = Flow { answer_seconds: Some(seconds), duration_seconds: Some(seconds), ..flow() };
        let mut text = String::new();
        table.write_into(&mut text, node, &flow).unwrap();
        let words: Vec<String> = text.split_whitespace().rev().skip(2).take(2).map(str::to_owned).collect();
        words.into_iter().rev().collect::<Vec<_>>().join(" ")
    };
    assert_eq!(times("exact", 0.000_001), "1us 1us");
    assert_eq!(times("inexact", 0.000_001), "- <1ms");
    assert_eq!(times("inexact", 0.25), "250ms 250ms");
}
