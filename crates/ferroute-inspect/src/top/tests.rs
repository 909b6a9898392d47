use ferroute_core::{
    HostState, IpFamily, ProxySettings,
    testing::{Cluster, HOSTILE, assert_visible, pod, service, slice},
};
use ferroute_iptables::{IptablesContext, SavedRulesReader};
use insta::assert_snapshot;

use super::*;

const A: &str = "10.244.0.2:8080";
const B: &str = "10.244.0.3:8080";

fn sample(counted: &[(&str, &str, u64)]) -> Sample {
    let mut sample = Sample::default();
    for (service_port, endpoint, connections) in counted {
        sample.add(service_port, endpoint.parse().unwrap(), *connections);
    }
    sample
}

fn table_of_rates(before: &[(&str, &str, u64)], after: &[(&str, &str, u64)]) -> String {
    let mut text = String::new();
    let rows = rates(&sample(before), &sample(after), Duration::from_secs(2));
    write_rows_into(&mut text, &rows, 100, 10).unwrap();
    text
}

#[test]
fn rates_are_connections_per_second_between_samples() {
    let before = [("shop/web:http", A, 10), ("shop/web:http", B, 100), ("shop/cart:http", A, 7)];
    let after = [("shop/web:http", A, 40), ("shop/web:http", B, 110), ("shop/cart:http", A, 107)];
    assert_snapshot!(table_of_rates(&before, &after), @"
    new/s  service port    endpoints with their shares
     50.0  shop/cart:http  10.244.0.2:8080 100 %
     20.0  shop/web:http   10.244.0.2:8080 75 %  10.244.0.3:8080 25 %
    ");
}

#[test]
fn names_in_rules_control_no_terminal() {
    assert_visible(&table_of_rates(&[(HOSTILE, A, 1)], &[(HOSTILE, A, 2)]));
}

#[test]
fn decreased_counter_has_restarted_at_zero() {
    assert_snapshot!(table_of_rates(&[("shop/web:http", A, 1000)], &[("shop/web:http", A, 6)]), @"
    new/s  service port   endpoints with their shares
      3.0  shop/web:http  10.244.0.2:8080 100 %
    ");
}

#[test]
fn new_service_ports_are_shown_and_removed_ones_are_not() {
    let before = [("shop/old:http", A, 10), ("shop/web:http", A, 10)];
    let after = [("shop/new:http", A, 4), ("shop/web:http", B, 2)];
    assert_snapshot!(table_of_rates(&before, &after), @"
    new/s  service port   endpoints with their shares
      2.0  shop/new:http  10.244.0.2:8080 100 %
      1.0  shop/web:http  10.244.0.3:8080 100 %
    ");
}

#[test]
fn idle_service_ports_are_sorted_by_name_and_have_no_shares() {
    let idle = [("b/b:b", A, 5), ("a/a:a", A, 5)];
    assert_snapshot!(table_of_rates(&idle, &idle), @"
    new/s  service port  endpoints with their shares
      0.0  a/a:a         10.244.0.2:8080 0 %
      0.0  b/b:b         10.244.0.2:8080 0 %
    ");
    let rows = rates(&sample(&idle), &sample(&idle), Duration::ZERO);
    assert!(rows.iter().all(|row| row.per_second == 0.0));
}

#[test]
fn table_fits_terminal() {
    let after = [("shop/web:http", A, 3), ("shop/web:http", B, 1), ("shop/cart:http", A, 1), ("shop/x:y", A, 1)];
    let mut text = String::new();
    write_rows_into(&mut text, &rates(&Sample::default(), &sample(&after), Duration::from_secs(1)), 50, 3).unwrap();
    assert_snapshot!(text, @"
    new/s  service port    endpoints with their sh
      4.0  shop/web:http   10.244.0.2:8080 75 %
      1.0  shop/cart:http  10.244.0.2:8080 100 %
    ");
}

#[test]
fn each_iptables_rule_of_endpoint_is_counted_once() {
    let cluster = Cluster::new("node-1")
        .service(service("shop/web").cluster_ip("10.96.0.1").port("http", 80).node_port(30080).external_local())
        .slice(slice("shop/web-a", "web").port("http", 8080).pod(pod("10.244.0.2").on("node-1")).pod("10.244.1.2"));
    let table = cluster.table(IpFamily::V4);
    let context = IptablesContext::new(&ProxySettings::default(), &table, &HostState::default());
    let rules = ferroute_iptables::render(&table, &context).to_string();
    let mut reader = SavedRulesReader::new(IpFamily::V4);
    let counted = |line: &str| match line.starts_with("-A") {
        true if line.contains("-j DNAT") => format!("[5:300] {line}"),
        true => format!("[9:540] {line}"),
        false => line.to_owned(),
    };
    rules.lines().for_each(|line| reader.line(&counted(line)));
    let mut actual = Sample::default();
    actual.add_iptables(&reader.finish().unwrap());
    assert_eq!(actual, sample(&[("shop/web:http", A, 5), ("shop/web:http", "10.244.1.2:8080", 5)]));
}

#[test]
fn what_the_proxy_has_observed_is_marked_also_without_connections() {
    let socket = |text: &str| text.parse::<SocketAddr>().unwrap();
    let mut sample = Sample::default();
    sample.add("shop/web:http", socket("10.244.0.2:8080"), 3);
    sample.add("shop/web:http", socket("10.244.0.3:8080"), 1);
    let mut rows = rates(&Sample::default(), &sample, Duration::from_secs(1));
    let observed = [
        ("shop/cart:http", "10.244.1.2:8080", true, Share::FULL),
        ("shop/web:http", "10.244.0.3:8080", false, Share::new(2).unwrap()),
        ("shop/web:http", "10.244.1.2:8080", true, Share::FULL),
    ];
    let observed = observed.map(|(name, endpoint, ejected, sixteenths)| ObservedEndpoint {
        service_port: name.to_owned(),
        endpoint: socket(endpoint),
        ejected,
        sixteenths,
    });
    mark(&mut rows, &Observations { endpoints: observed.to_vec(), traffic: Vec::new() });
    let mut text = String::new();
    write_rows_into(&mut text, &rows, FILE_WIDTH, usize::MAX).unwrap();
    assert_snapshot!(text, @r"
    new/s  service port    endpoints with their shares
      4.0  shop/web:http   10.244.0.2:8080 75 %  10.244.0.3:8080 25 % weight 2/16  10.244.1.2:8080 0 % ejected
      0.0  shop/cart:http  10.244.1.2:8080 0 % ejected
    ");
}

fn counts(bytes: u64) -> TrafficCounts {
    let (connections, packets) = (bytes / 1_000, bytes / 100);
    TrafficCounts { connections, packets, bytes, packets_per_second: 1.0, bytes_per_second: 100.0 }
}

#[test]
fn counted_traffic_is_shown_by_service_port_and_summed_over_nodes() {
    let traffic = [("shop/web:http", A, 1_000_000), ("shop/web:http", B, 4_000), ("shop/cart:http", A, 7_000)];
    let traffic = traffic.map(|(service_port, endpoint, bytes)| EndpointTraffic {
        service_port: service_port.to_owned(),
        endpoint: endpoint.parse().unwrap(),
        ended: false,
        counts: counts(bytes),
    });
    let mut rows = rates(&sample(&[]), &sample(&[("shop/web:http", A, 4)]), Duration::from_secs(1));
    mark(&mut rows, &Observations { endpoints: Vec::new(), traffic: traffic.to_vec() });
    let text = |rows: &[Row]| {
        let mut text = String::new();
        write_rows_into(&mut text, rows, 140, 10).unwrap();
        text
    };
    assert_snapshot!(text(&rows), @"
    new/s  connections      packets        bytes  service port    endpoints with their shares
      4.0         1004        10040      1004000  shop/web:http   10.244.0.2:8080 100 %  10.244.0.3:8080 0 %
      0.0            7           70         7000  shop/cart:http  10.244.0.2:8080 0 %
    ");
    let both = sum([rows.clone(), rows]);
    assert_eq!(both[0].traffic().map(|traffic| (traffic.bytes, traffic.bytes_per_second)), Some((2_008_000, 400.0)));
    assert_eq!(both[0].endpoints[0].traffic.map(|traffic| traffic.packets), Some(20_000));
}

#[test]
fn former_endpoints_have_traffic_and_are_not_listed() {
    let traffic = |service_port: &str, endpoint: &str, ended| EndpointTraffic {
        service_port: service_port.to_owned(),
        endpoint: endpoint.parse().unwrap(),
        ended,
        counts: counts(1_000),
    };
    let traffic =
        vec![traffic("shop/web:http", A, false), traffic("shop/web:http", B, true), traffic("shop/old:http", A, true)];
    // Counters may include an endpoint for longer than the Service.
    let after = sample(&[("shop/web:http", A, 4), ("shop/web:http", B, 2)]);
    let mut rows = rates(&sample(&[("shop/web:http", B, 2)]), &after, Duration::from_secs(1));
    mark(&mut rows, &Observations { endpoints: Vec::new(), traffic });
    let listed = |rows: &[Row]| -> Vec<(String, Vec<SocketAddr>, Option<u64>)> {
        let endpoints = |row: &Row| row.endpoints.iter().map(|rate| rate.endpoint).collect();
        let row = |row: &Row| (row.service_port.clone(), endpoints(row), row.traffic().map(|counts| counts.bytes));
        rows.iter().map(row).collect()
    };
    let expected = |bytes| [("shop/web:http".to_owned(), vec![A.parse().unwrap()], Some(bytes))];
    assert_eq!(listed(&rows), expected(2_000));
    assert_eq!(listed(&sum([rows.clone(), rows])), expected(4_000));
}

#[test]
fn virtual_servers_are_rates_of_their_service_ports() {
    let web = service("shop/web").cluster_ip("10.96.0.1").external_ip("203.0.113.1").port("http", 80).node_port(30080);
    let tables = IpFamily::BOTH.map(|family| Cluster::new("node-1").service(web.clone()).table(family));
    let servers = ["10.96.0.1:80/tcp", "203.0.113.1:80/tcp", "192.168.0.1:30080/tcp", "10.96.0.9:80/tcp"];
    let servers = sample(&servers.map(|server| (server, A, 3)));
    let rows = by_service_port(rates(&Sample::default(), &servers, Duration::from_secs(1)), tables.each_ref());
    let named: Vec<(&str, f64)> = rows.iter().map(|row| (row.service_port.as_str(), row.per_second)).collect();
    assert_eq!(named, [("shop/web:http", 9.0), ("10.96.0.9:80/tcp", 3.0)]);
}
