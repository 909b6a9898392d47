//! Connections, packets and bytes by service port and endpoint.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::{
    Case, Mode,
    cluster::Cluster,
    http, in_each_mode,
    proxy::{FERROUTE, Files, Proxy, run_command},
    status::METRICS,
    traffic::{Connection, Flow, connect},
    wait, web, web_tcp, web_udp,
};

in_each_mode!(connections_packets_and_bytes_are_counted);

fn connections_packets_and_bytes_are_counted(mode: Mode) {
    let (cluster, files) = (Cluster::new(), Files::new());
    files.apply(&web(&[0]));
    let mut command = run_command(FERROUTE, &files.manifests(), &files.config(mode));
    let mut proxy = Proxy::spawn(&cluster.node, command.arg("--count-traffic"));
    proxy.wait_synced(&cluster.node);
    let case = Case { proxy, files, cluster, mode };
    let count = |what: &str, endpoint: &str, port: &str| {
        let body = http::get(&case.cluster.node, METRICS, "/metrics").unwrap().body;
        let line =
            format!("ferroute_traffic_{what}_total{{endpoint=\"{endpoint}\",service_port=\"default/web:{port}\"}} ");
        body.lines().find_map(|metric| metric.strip_prefix(&line)?.parse::<u64>().ok()).unwrap_or_default()
    };
    // Connections that exist when counting starts are not counted.
    wait("the first reading", || {
        let body = http::get(&case.cluster.node, METRICS, "/metrics").unwrap().body;
        body.contains("ferroute_traffic_bytes_total{endpoint=\"\",service_port=\"\"} 0").then_some(())
    });
    let client = &case.cluster.client;
    let [v4, v6] = web_tcp();
    let [pod_v4, pod_v6] = ["10.244.0.2:8080", "[fd00:244::2]:8080"];
    (0..3).for_each(|_| assert_eq!(connect(client, v4).unwrap(), 0));
    let mut lasting = Connection::open(client, v6).unwrap();
    let flow = Flow::open(client, web_udp()[0]);
    flow.pod();
    wait("the counts", || {
        (count("connections", pod_v4, "tcp") == 3 && count("connections", pod_v6, "tcp") == 1).then_some(())
    });
    wait("the count of the flow", || (count("connections", pod_v4, "udp") == 1).then_some(()));
    // At least SYN, SYN-ACK, ACK, data of both, FIN of both; at least 40 bytes each.
    assert!((21..90).contains(&count("packets", pod_v4, "tcp")));
    assert!(count("bytes", pod_v4, "tcp") >= 21 * 40);
    // `ferroute top` shows the same, also of endpoints without new connections.
    let text = case.cluster.node.command(FERROUTE, &["top", "--once", "--interval", "100ms", "-o", "json"]);
    let rates: Value = serde_json::from_str(&text).unwrap();
    let rows = rates["servicePorts"].as_array().unwrap().iter();
    let endpoints =
        rows.filter(|row| row["servicePort"] == "default/web:tcp").flat_map(|row| row["endpoints"].as_array().unwrap());
    let counted: BTreeMap<&str, &Value> =
        endpoints.map(|endpoint| (endpoint["endpoint"].as_str().unwrap(), &endpoint["traffic"])).collect();
    assert_eq!(counted[pod_v4]["connections"], 3, "{text}");
    assert_eq!(counted[pod_v4]["bytes"], count("bytes", pod_v4, "tcp"), "{text}");
    assert_eq!(counted[pod_v6]["connections"], 1, "{text}");
    // A connection counts while it is open.
    let before = ["packets", "bytes"].map(|what| count(what, pod_v6, "tcp"));
    let line = "x".repeat(1_000);
    (0..10).for_each(|_| lasting.echo(&line).unwrap());
    wait("the bytes of the open connection", || {
        let [packets, bytes] = ["packets", "bytes"].map(|what| count(what, pod_v6, "tcp"));
        (packets >= before[0] + 20 && (20_000..25_000).contains(&(bytes - before[1]))).then_some(())
    });
    assert_eq!(count("connections", pod_v6, "tcp"), 1);
}
