//! Tests of `ferroute trace`.

#![expect(clippy::unwrap_used, reason = "missing prerequisites fail the test")]

use std::process::{Command, Output};

use ferroute_testing::NetNs;
use serde_json::Value;

fn example(name: &str) -> String {
    format!("{}/../../examples/{name}", env!("CARGO_MANIFEST_DIR"))
}

/// Traces a packet in the nginx example.
fn trace(arguments: &str) -> Output {
    trace_in(&["--manifests", &example("nginx.yaml")], arguments)
}

fn trace_in(source: &[&str], arguments: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ferroute"));
    command.arg("trace").args(source).args(arguments.split_whitespace()).env_remove("NO_COLOR").output().unwrap()
}

fn text(output: &Output) -> String {
    // On a busy machine, it takes a while.
    let error = String::from_utf8(output.stderr.clone()).unwrap();
    assert!(error.lines().all(|line| line.ends_with("which takes a while")), "{output:?}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn json(output: &Output) -> Value {
    serde_json::from_str(&text(output)).unwrap()
}

/// Returns the error of a failed trace.
fn error(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(output.stdout.is_empty(), "{output:?}");
    String::from_utf8(output.stderr.clone()).unwrap()
}

#[test]
fn addresses_are_printed_with_names_of_services_and_pods() {
    let output = trace("--from 172.17.0.14 --to 10.111.175.78:80");
    assert_eq!(output.status.code(), Some(0));
    for part in [
        "tcp from 172.17.0.14:50000 (pod default/web-server) to 10.111.175.78:80 (default/nginx-service, cluster IP)\n",
        "on node node, arriving on cni0, the interface to 172.17.0.14\n",
        "33.3 %  KUBE-SEP-C54WIGIB4NQVIFB3: 172.17.0.5:80 (pod default/nginx-deployment-2)\n",
        "=> delivered to one of these 3 through cni0, with source 172.17.0.14 (pod default/web-server)\n",
    ] {
        assert!(text(&output).contains(part), "{part} is missing in {}", text(&output));
    }
}

#[test]
fn pods_nodes_and_services_can_be_given_by_name() {
    let by_address = text(&trace("--from 172.17.0.14 --to 10.111.175.78:80"));
    for arguments in [
        "--from web-server --to nginx-service",
        "--from default/web-server --to default/nginx-service:80",
        "--from web-server --to 10.111.175.78:80 --proto TCP --in cni0",
    ] {
        let output = text(&trace(arguments));
        assert_eq!(output.lines().skip(3).collect::<Vec<_>>(), by_address.lines().skip(3).collect::<Vec<_>>());
    }
    let from_node = text(&trace("--local --to nginx-service"));
    assert!(
        from_node.contains("192.168.49.2:50000 (node node)") && from_node.contains("\nnat OUTPUT\n"),
        "{from_node}"
    );
    assert_eq!(
        text(&trace("--from node --to nginx-service")).lines().skip(3).collect::<Vec<_>>(),
        from_node.lines().skip(3).collect::<Vec<_>>()
    );
}

#[test]
fn input_interface_follows_from_the_source_by_default() {
    let arrival = |arguments: &str| text(&trace(arguments)).lines().nth(2).unwrap().to_owned();
    for (arguments, expected) in [
        ("--from outside --to 192.168.49.2:31628", "on node node, arriving on eth0, the interface to 192.168.49.100"),
        ("--from 172.17.0.1 --to nginx-service", "sent by node node itself, which has this address"),
        ("--from 172.17.0.14 --in veth7 --to nginx-service", "on node node, arriving on veth7"),
        ("--from 172.17.0.14 --local --to nginx-service", "sent by node node itself"),
    ] {
        assert_eq!(arrival(arguments), expected);
    }
    let note = "note: pod default/web-server is on another node";
    assert!(text(&trace("--from web-server --to nginx-service --hostname-override node2")).contains(note));
    assert!(!text(&trace("--from web-server --to nginx-service")).contains(note));
}

#[test]
fn exit_status_is_the_result_for_the_packet() {
    let cluster = ["--hostname-override", "node-1", "--manifests", &example("cluster.yaml")];
    let status = |output: &Output| output.status.code().unwrap();
    let delivered = trace_in(&cluster, "--local --to shop/web:http");
    assert_eq!(status(&delivered), 0, "{delivered:?}");
    let rejected = trace_in(&cluster, "--local --to shop/search");
    assert_eq!(status(&rejected), 1);
    assert!(text(&rejected).contains("=> rejected with icmp-port-unreachable\n"), "{}", text(&rejected));
    let no_service = trace("--local --to 10.111.175.78:81");
    assert_eq!(status(&no_service), 1);
    let note = "note: 10.111.175.78 is the cluster IP of default/nginx-service, which only has the ports 80/tcp\n";
    assert!(text(&no_service).contains(note), "{}", text(&no_service));
    assert_eq!(status(&trace("--to nginx-service")), 2);
}

#[test]
fn invalid_arguments_are_errors_with_the_cause() {
    for (arguments, parts) in [
        ("--from unknown --to nginx-service", vec!["--from unknown"]),
        ("--local --to nothing:80", vec!["--to nothing:80", "default/nothing"]),
        ("--local --to nginx-servise", vec!["default/nginx-service"]),
        ("--local --to 10.111.175.78", vec!["--to 10.111.175.78", "ADDRESS:PORT"]),
        ("--local --to nginx-service:81", vec!["tcp", "80/tcp"]),
        ("--local --to nginx-service --proto udp", vec!["udp", "80/tcp"]),
        ("--from fd00:172:17::14 --to 10.111.175.78:80", vec!["IP family"]),
        ("--local --to nginx-service --in eth0", vec!["--in"]),
        ("--local --to 10.0.0.1:0", vec!["port 0"]),
    ] {
        let error = error(&trace(arguments));
        for part in parts {
            assert!(error.contains(part), "{arguments}: {part} is missing in {error}");
        }
    }
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("two.yaml");
    let text = "apiVersion: v1\nkind: Service\nmetadata: {name: two, namespace: shop}\nspec:\n  clusterIP: 10.96.0.2\n  \
                ports: [{name: http, port: 80}, {name: https, port: 443}]\n";
    std::fs::write(&file, text).unwrap();
    let source = ["--hostname-override", "node-1", "--manifests", file.to_str().unwrap()];
    let message = error(&trace_in(&source, "--from 10.0.0.1 --in eth0 --to shop/two"));
    assert!(message.contains("443/tcp, 80/tcp"), "{message}");
    // Without an address of this IP family, the route to the source is unknown. Without a Node, it would be this host's.
    let node = "---\napiVersion: v1\nkind: Node\nmetadata: {name: node-1}\nstatus: {addresses: [{type: InternalIP, address: \"fd00:168::1\"}]}\n";
    std::fs::write(&file, format!("{text}{node}")).unwrap();
    let message = error(&trace_in(&source, "--from 10.0.0.1 --to shop/two:http"));
    assert!(message.contains("10.0.0.1") && message.contains("--in"), "{message}");
}

#[test]
fn protocol_is_that_of_the_port() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("ports.yaml");
    let text = "apiVersion: v1\nkind: Service\nmetadata: {name: dns}\nspec:\n  clusterIP: 10.96.0.2\n  ports:\n  \
                - {name: dns, port: 53, protocol: UDP}\n  - {name: dns-tcp, port: 53}\n  - {name: doq, port: 853, protocol: UDP}\n";
    std::fs::write(&file, text).unwrap();
    let protocol = |arguments: &str| {
        let output = trace_in(&["--manifests", file.to_str().unwrap(), "-o", "json"], arguments);
        json(&output)["packet"]["protocol"].as_str().unwrap().to_owned()
    };
    for (to, expected) in [
        ("dns:dns", "udp"),
        ("dns:53", "tcp"),
        ("dns:853", "udp"),
        ("dns", "tcp"),
        ("10.96.0.2:853", "tcp"),
        ("dns:53 --proto udp", "udp"),
    ] {
        assert_eq!(protocol(&format!("--from 10.0.0.1 --in eth0 --to {to}")), expected, "{to}");
    }
}

#[test]
fn all_modes_select_the_same_endpoints() {
    let endpoints = |mode: &str, arguments: &str| {
        let report = json(&trace(&format!("{arguments} -o json --proxy-mode {mode}")));
        assert_eq!(report["mode"], mode);
        let choices = report["branches"][0]["choices"].as_array().unwrap().clone();
        let mut endpoints: Vec<_> =
            choices.iter().map(|choice| (choice["to"].to_string(), choice["from"].to_string())).collect();
        endpoints.sort();
        assert_eq!(endpoints.len(), 3);
        endpoints
    };
    for arguments in
        ["--from web-server --to nginx-service", "--local --to nginx-service", "--from outside --to 192.168.49.2:31628"]
    {
        let iptables = endpoints("iptables", arguments);
        assert_eq!(endpoints("nftables", arguments), iptables);
        assert_eq!(endpoints("ipvs", arguments), iptables);
    }
}

#[test]
fn endpoint_that_several_elements_select_is_listed_once_with_its_share() {
    let manifests = example("weights.yaml");
    let arguments = "--from 10.244.1.9 --to shop:80 --proxy-mode nftables -o json";
    let report = json(&trace_in(&["--manifests", &manifests], arguments));
    let choices = report["branches"][0]["choices"].as_array().unwrap().iter();
    let share = |choice: &Value| (choice["to"].as_str().unwrap().to_owned(), choice["share"].as_f64().unwrap());
    let [(stable, nine), (canary, one)] = choices.map(share).collect::<Vec<_>>().try_into().unwrap();
    assert_eq!([stable.as_str(), &canary], ["172.17.0.20:8080", "172.17.0.21:8080"]);
    assert!((nine - 0.9).abs() < 1e-9 && (one - 0.1).abs() < 1e-9, "{nine} {one}");
}

#[test]
fn bound_addresses_are_sources_of_the_node_without_a_route() {
    let objects = "{apiVersion: v1, kind: Node, metadata: {name: node}, status: {addresses: [{type: InternalIP, address: 192.0.2.9}]}}\n---\n\
                   {apiVersion: v1, kind: Service, metadata: {name: web}, spec: {clusterIP: 10.96.0.9, ports: [{port: 80}]}}\n";
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), objects).unwrap();
    // On the machine with the Node's address, which has no other route.
    let node = NetNs::new();
    node.command("ip", &["link", "add", "eth0", "type", "bridge"]);
    node.command("ip", &["link", "set", "eth0", "up"]);
    node.add_address("192.0.2.9/24", "eth0");
    let trace = |mode: &str| {
        node.run(|| {
            let source = ["--manifests", file.path().to_str().unwrap(), "--hostname-override", "node"];
            trace_in(&source, &format!("--local --to web --proxy-mode {mode}"))
        })
    };
    assert!(text(&trace("ipvs")).contains("tcp from 10.96.0.9:50000 to 10.96.0.9:80"), "{:?}", trace("ipvs"));
    assert!(error(&trace("nftables")).contains("no default route"), "{:?}", trace("nftables"));
}

#[test]
fn json_output_has_the_documented_structure() {
    let example = example("cluster.yaml");
    let cluster = ["--hostname-override", "node-1", "--manifests", &example];
    let report = text(&trace_in(&cluster, "--local --to shop/search -o json"));
    insta::assert_snapshot!(report.replace(&example, "cluster.yaml"));
}

#[test]
fn mermaid_output_is_a_flowchart() {
    let chart = text(&trace("--from web-server --to nginx-service -o mermaid"));
    assert!(chart.starts_with("flowchart TD\n    %% node node (assumed), iptables mode (assumed), "), "{chart}");
    assert!(chart.contains("\n    n1([\"tcp 172.17.0.14:50000 (pod default/web-server) to "), "{chart}");
}

#[test]
fn colors_are_not_written_to_pipes_by_default() {
    let arguments = "--from web-server --to nginx-service";
    assert!(!text(&trace(arguments)).contains('\x1b'));
    assert!(!text(&trace(&format!("{arguments} --color never"))).contains('\x1b'));
    assert!(text(&trace(&format!("{arguments} --color always"))).contains("\x1b["));
}

#[test]
fn all_prints_rules_that_do_not_match() {
    let cluster = ["--hostname-override", "node-1", "--manifests", &example("cluster.yaml")];
    let some = text(&trace_in(&cluster, "--local --to 10.99.99.99:80"));
    let all = text(&trace_in(&cluster, "--local --to 10.99.99.99:80 --all"));
    assert!(some.contains("no match ("), "{some}");
    assert!(!all.contains("no match (") && all.lines().count() > some.lines().count(), "{all}");
}

/// Creates the node of the nginx example in a network namespace, without pods.
fn node() -> NetNs {
    let (node, outside) = (NetNs::new(), NetNs::new());
    node.link("eth0", &outside, "far");
    node.command("ip", &["link", "add", "cni0", "type", "bridge"]);
    node.command("ip", &["link", "set", "cni0", "up"]);
    node.add_address("192.168.49.2/24", "eth0");
    node.add_address("172.17.0.1/24", "cni0");
    node.command("ip", &["route", "add", "default", "via", "192.168.49.1"]);
    node.command("sysctl", &["-qw", "net.ipv4.conf.all.route_localnet=1"]);
    node
}

fn rendered(mode: &str) -> String {
    let arguments = ["render", "--family", "ipv4", "--proxy-mode", mode, "--manifests", &example("nginx.yaml")];
    let output = Command::new(env!("CARGO_BIN_EXE_ferroute")).args(arguments).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    // Packet counters of nfacct do not exist in the namespace.
    let text = String::from_utf8(output.stdout).unwrap();
    text.replace(" -m nfacct --nfacct-name  ct_state_invalid_dropped_pkts", "")
        .replace(" -m nfacct --nfacct-name  localhost_nps_accepted_pkts", "")
}

#[test]
fn kernel_rules_are_traced_with_addresses_and_routes_of_the_host() {
    for (mode, program, arguments) in
        [("iptables", "iptables-restore", &["--noflush"][..]), ("nftables", "nft", &["-f", "-"])]
    {
        let node = node();
        node.feed(program, arguments, &rendered(mode));
        let traced = |arguments: &str| {
            let arguments = format!("--kernel --from web-server {arguments} -o json");
            node.run(|| trace(&arguments))
        };
        let delivered = traced("--to nginx-service");
        assert_eq!(delivered.status.code(), Some(0), "{delivered:?}");
        let report = json(&delivered);
        assert_eq!((&report["rules"], &report["mode"]), (&Value::from("kernel"), &Value::from(mode)));
        let planned = json(&trace(&format!("--from web-server --to nginx-service -o json --proxy-mode {mode}")));
        assert_eq!(report["branches"][0]["choices"], planned["branches"][0]["choices"]);

        // Rules of other programs apply, too.
        node.feed("nft", &["-f", "-"], "table inet guard {\n chain forward {\n type filter hook forward priority 10; ip daddr 172.17.0.5 drop\n }\n}\n");
        let dropped = traced("--to nginx-service");
        assert_eq!(dropped.status.code(), Some(1), "{dropped:?}");
        let branches = json(&dropped)["branches"].clone();
        let shares: Vec<_> =
            branches.as_array().unwrap().iter().map(|branch| (&branch["verdict"], &branch["share"])).collect();
        assert_eq!(shares.len(), 2, "{shares:?}");
        assert!(branches.to_string().contains("inet guard"), "{branches}");
    }
}

#[test]
fn kernel_rules_are_traced_without_services() {
    let node = node();
    node.feed("iptables-restore", &["--noflush"], &rendered("iptables"));
    let output = node.run(|| trace_in(&["--hostname-override", "here"], "--kernel --local --to 127.0.0.1:31628"));
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let output = text(&output);
    assert!(output.contains("sent by node here itself\nthrough the rules in the kernel\n"), "{output}");
    assert!(output.contains("33.3 %  KUBE-SEP-C54WIGIB4NQVIFB3: 172.17.0.5:80\n"), "{output}");
    // If a Service cannot be found, the reason is not that there is none with this name.
    let named = error(&node.run(|| trace_in(&["--hostname-override", "here"], "--kernel --local --to nginx-service")));
    assert!(named.contains("no Ferroute proxy runs here"), "{named}");
}
