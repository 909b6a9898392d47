use ferroute_core::{
    HostState,
    testing::{Cluster, pod, service, slice},
};

use super::*;
use crate::plan::IpvsSettings;

fn host() -> HostState {
    let addresses = ["127.0.0.1", "192.168.0.1", "203.0.113.9"].map(|address| address.parse().unwrap()).into();
    HostState { addresses, random_fully: true, ..HostState::default() }
}

fn plan(cluster: &Cluster) -> IpvsPlan {
    let table = cluster.table(IpFamily::V4);
    let context = IpvsContext::new(&IpvsSettings::default(), &table, &host());
    IpvsPlan::new(&table, context)
}

/// Returns the lines of the text form that contain `part`.
fn lines(state: &IpvsPlan, part: &str) -> Vec<String> {
    state.to_string().lines().filter(|line| line.contains(part)).map(str::to_owned).collect()
}

#[test]
fn an_address_of_another_device_is_served_but_not_bound() {
    let web = service("shop/web").cluster_ip("10.96.0.1").port("http", 80).external_ip("203.0.113.9");
    let state = plan(&Cluster::new("node-1").service(web));
    assert_eq!(state.addresses().map(|address| address.to_string()).collect::<Vec<_>>(), ["10.96.0.1"]);
    assert_eq!(lines(&state, "203.0.113.9"), ["add KUBE-EXTERNAL-IP 203.0.113.9,tcp:80", "-A -t 203.0.113.9:80 -s rr"]);
}

#[test]
fn a_node_within_the_source_ranges_may_use_the_load_balancer_and_another_may_not() {
    let web = || service("shop/web").cluster_ip("10.96.0.1").port("http", 80).load_balancer("198.51.100.1");
    let sources = |range| {
        let state = plan(&Cluster::new("node-1").service(web().source_range(range)));
        [lines(&state, "add KUBE-LOAD-BALANCER-SOURCE"), lines(&state, "-m ipvs")].concat().join("\n")
    };
    insta::assert_snapshot!(sources("192.168.0.0/24"), @r"
    add KUBE-LOAD-BALANCER-SOURCE-IP 198.51.100.1,tcp:80,198.51.100.1
    add KUBE-LOAD-BALANCER-SOURCE-CIDR 198.51.100.1,tcp:80,192.168.0.0/24
    ");
    insta::assert_snapshot!(sources("10.77.1.9/32"), @r"
    add KUBE-LOAD-BALANCER-SOURCE-CIDR 198.51.100.1,tcp:80,10.77.1.9
    -A KUBE-IPVS-OUT-FILTER -s 198.51.100.1/32 -m ipvs --vproto 6 --vaddr 198.51.100.1 --vport 80 -j DROP
    ");
}

#[test]
fn policy_local_uses_other_nodes_only_without_an_endpoint_on_this_node() {
    let cluster = |node| {
        let web = service("shop/web").cluster_ip("10.96.0.1").port("http", 80).load_balancer("198.51.100.1");
        let slice = slice("shop/web-1", "web").port("http", 8080);
        let slice = slice.pod(pod("10.244.1.1").on(node)).pod(pod("10.244.2.1").on("node-2"));
        Cluster::new("node-1").service(web.external_local()).slice(slice)
    };
    let local = plan(&cluster("node-1"));
    assert_eq!(lines(&local, "-a -t 198.51.100.1:80"), ["-a -t 198.51.100.1:80 -r 10.244.1.1:8080 -m -w 1"]);
    assert_eq!(lines(&local, "-a -t 10.96.0.1:80").len(), 2);
    let remote = plan(&cluster("node-3"));
    assert_eq!(lines(&remote, "-a -t 198.51.100.1:80").len(), 2);
}

#[test]
fn node_ports_have_a_virtual_server_on_each_reachable_address() {
    let web = service("shop/web").cluster_ip("10.96.0.1").port("http", 80).node_port(30080);
    let state = plan(&Cluster::new("node-1").service(web.affinity(600)));
    assert_eq!(
        lines(&state, ":30080"),
        ["-A -t 192.168.0.1:30080 -s rr -p 600", "-A -t 203.0.113.9:30080 -s rr -p 600"]
    );
    assert_eq!(lines(&state, "add KUBE-NODE-PORT"), ["add KUBE-NODE-PORT-TCP 30080"]);
    assert_eq!(state.set_size(SetKind::NodePortTcp), 1);
}

#[test]
fn input_accepts_only_what_virtual_servers_serve_and_source_ranges_permit() {
    let web = service("shop/web").cluster_ip("10.96.0.1").port("http", 80).udp("dns", 53).node_port(30080);
    let web = web.load_balancer("198.51.100.1").source_range("203.0.113.0/24").external_ip("198.51.100.2");
    let rules = lines(&plan(&Cluster::new("node-1").service(web)), "-A KUBE-IPVS-ACCEPT");
    let rules: Vec<String> = rules.iter().map(|rule| rule.split('"').skip(2).collect()).collect();
    insta::assert_snapshot!(rules.join("\n"), @r"
     -m set --match-set KUBE-LOAD-BALANCER-SOURCE-CIDR dst,dst,src -j ACCEPT
     -m set --match-set KUBE-LOAD-BALANCER-FW dst,dst -j RETURN
     -m set --match-set KUBE-CLUSTER-IP dst,dst -j ACCEPT
     -m set --match-set KUBE-EXTERNAL-IP dst,dst -j ACCEPT
     -m set --match-set KUBE-LOAD-BALANCER dst,dst -j ACCEPT
     -m set --match-set KUBE-NODE-PORT-UDP dst -m set --match-set FERROUTE-NODE-PORT-IPS dst -j ACCEPT
    ");
}

#[test]
fn own_connections_to_endpoints_of_other_nodes_are_masqueraded_with_policy_local() {
    let web = || service("shop/web").cluster_ip("10.96.0.1").port("http", 80).node_port(30080).external_local();
    let web = || web().load_balancer("198.51.100.1").external_ip("198.51.100.2");
    let cluster = |node| {
        let slice = slice("shop/web-1", "web").port("http", 8080).pod(pod("10.244.1.1").on(node));
        plan(&Cluster::new("node-1").service(web()).slice(slice))
    };
    assert_eq!(lines(&cluster("node-1"), "add FERROUTE-REMOTE"), [""; 0]);
    let remote = cluster("node-2");
    assert_eq!(
        lines(&remote, "add FERROUTE-REMOTE"),
        [
            "add FERROUTE-REMOTE 192.168.0.1,tcp:30080",
            "add FERROUTE-REMOTE 198.51.100.1,tcp:80",
            "add FERROUTE-REMOTE 198.51.100.2,tcp:80",
            "add FERROUTE-REMOTE 203.0.113.9,tcp:30080",
        ]
    );
    insta::assert_snapshot!(lines(&remote, "--match-set FERROUTE-REMOTE").join("\n"), @r#"-A KUBE-SERVICES -m comment --comment "Frontends with policy Local whose endpoints are on other nodes" -m set --match-set FERROUTE-REMOTE dst,dst -m addrtype --src-type LOCAL -j KUBE-MARK-MASQ"#);
}
