//! Tests of `ferroute diff` with rules in network namespaces.

#![expect(clippy::unwrap_used, reason = "missing prerequisites fail the test")]

use std::{path::PathBuf, process::Output};

use ferroute_core::{
    Dataplane, IpFamily, NodePortAddresses, ProxySettings,
    testing::{Cluster, pod, service, slice},
};
use ferroute_host::KernelAddresses;
use ferroute_nftables::{NftablesDataplane, plan::NftablesSettings};
use ferroute_testing::NetNs;

const PROGRAM: &str = env!("CARGO_BIN_EXE_ferroute");

/// A Service with two pods, one of them on this node.
const SHOP: &str = "
apiVersion: v1
kind: Node
metadata: {name: node-1}
spec: {podCIDRs: [10.244.0.0/24]}
status: {addresses: [{type: InternalIP, address: 192.168.0.1}]}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {type: NodePort, clusterIP: 10.96.0.10, ports: [{name: http, port: 80, nodePort: 30080}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-a, namespace: shop, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: http, port: 8080, protocol: TCP}]
endpoints:
- {addresses: [10.244.0.2], nodeName: node-1, conditions: {ready: true}}
- {addresses: [10.244.1.2], nodeName: node-2, conditions: {ready: true}}
";

/// Writes the rules for [`SHOP`] into the namespace of this thread.
fn write_nftables() {
    let web = slice("shop/web-a", "web").port("http", 8080).pod(pod("10.244.0.2").on("node-1")).pod("10.244.1.2");
    let shop = Cluster::new("node-1")
        .service(service("shop/web").cluster_ip("10.96.0.10").port("http", 80).node_port(30080))
        .slice(web);
    // The defaults of nftables mode.
    let proxy = ProxySettings {
        localhost_node_ports: false,
        node_port_addresses: NodePortAddresses::Primary,
        ..ProxySettings::default()
    };
    let settings = NftablesSettings { proxy, ..NftablesSettings::default() };
    let addresses = Box::new(KernelAddresses::open().unwrap());
    let mut dataplane = NftablesDataplane::open(IpFamily::V4, settings, addresses).unwrap();
    dataplane.resync(&shop.table(IpFamily::V4)).unwrap();
}

/// A node with rules for manifests.
struct TestNode {
    host: NetNs,
    _outside: NetNs,
    folder: tempfile::TempDir,
    mode: &'static str,
}

impl TestNode {
    /// Creates a node with the rules of the proxy in this mode.
    fn new(mode: &'static str) -> Self {
        let node = Self::without_rules(mode);
        match mode {
            "nftables" => node.host.run(write_nftables),
            _ => {
                let rendered = node.ferroute(&["render", "--family", "ipv4"]);
                node.restore(&String::from_utf8(rendered.stdout).unwrap());
            }
        }
        node
    }

    fn without_rules(mode: &'static str) -> Self {
        let [host, outside] = [NetNs::new(), NetNs::new()];
        host.link("eth0", &outside, "eth0");
        host.add_address("192.168.0.1/24", "eth0");
        let node = Self { host, _outside: outside, folder: tempfile::tempdir().unwrap(), mode };
        node.write(SHOP);
        node
    }

    fn manifests(&self) -> PathBuf {
        self.folder.path().join("shop.yaml")
    }

    fn write(&self, manifests: &str) {
        std::fs::write(self.manifests(), manifests).unwrap();
    }

    /// Writes a configuration with the CIDR of the pods.
    fn config(&self, pods: &str) -> PathBuf {
        let path = self.folder.path().join("config.conf");
        let text = format!(
            "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nclusterCIDR: {pods}\n"
        );
        std::fs::write(&path, text).unwrap();
        path
    }

    fn restore(&self, rules: &str) -> String {
        // Packet counters of nfacct do not exist in the namespace.
        let lines: Vec<&str> = rules.lines().filter(|line| !line.contains("nfacct")).collect();
        self.host.feed("iptables-restore", &[], &(lines.join("\n") + "\n"))
    }

    fn ferroute(&self, arguments: &[&str]) -> Output {
        self.ferroute_as(&[], self.mode, arguments)
    }

    fn ferroute_as(&self, wrapper: &[&str], mode: &str, arguments: &[&str]) -> Output {
        let path = self.manifests();
        let node_arguments =
            ["--manifests", path.to_str().unwrap(), "--hostname-override", "node-1", "--proxy-mode", mode];
        let all = [wrapper, &[PROGRAM], arguments, &node_arguments].concat();
        self.host.try_command(all[0], &all[1..])
    }

    /// Compares with the rules of a mode. Returns the exit status and the output.
    fn diff(&self, mode: &str) -> (i32, String) {
        let Output { status, stdout, stderr } = self.ferroute_as(&[], mode, &["diff"]);
        (status.code().unwrap(), String::from_utf8([stdout, stderr].concat()).unwrap())
    }

    /// Asserts that the comparison reports differences with all these texts.
    #[track_caller]
    fn assert_differs(&self, texts: &[&str]) {
        let (status, text) = self.diff(self.mode);
        assert_eq!(status, 1, "{text}");
        for expected in texts {
            assert!(text.contains(expected), "{expected:?}\nis missing in\n{text}");
        }
    }
}

#[test]
fn unmodified_rules_do_not_differ() {
    let loaded_by_nft = TestNode::without_rules("nftables");
    let rendered = String::from_utf8(loaded_by_nft.ferroute(&["render"]).stdout).unwrap();
    loaded_by_nft.host.feed("nft", &["-f", "-"], &rendered);
    for node in [TestNode::new("nftables"), TestNode::new("iptables"), loaded_by_nft] {
        let (status, text) = node.diff(node.mode);
        assert_eq!((status, text.lines().last()), (0, Some("  no difference")), "{text}");
    }
}

#[test]
fn rules_of_another_mode_have_only_intended_differences() {
    for (mode, other) in [("nftables", "iptables"), ("iptables", "nftables")] {
        let (status, text) = TestNode::new(mode).diff(other);
        assert_eq!(status, 0, "{text}");
        assert!(text.contains("  intended difference (") && text.ends_with("  no difference\n"), "{text}");
    }
}

#[test]
fn deleted_element_is_reported_with_its_service() {
    let node = TestNode::new("nftables");
    let element = "delete element ip ferroute node-ports { tcp . 30080 }";
    node.host.command("nft", &[element]);
    node.assert_differs(&[
        "  shop/web:http\n    node port 30080/tcp: not handled by any rule (expected: served by 2 endpoints)",
    ]);
}

#[test]
fn deleted_rule_is_reported_with_its_service() {
    let node = TestNode::new("iptables");
    node.host.command("iptables", &["-t", "nat", "-D", "KUBE-NODEPORTS", "1"]);
    node.assert_differs(&["  shop/web:http\n    node port 30080/tcp: not handled by any rule"]);
}

#[test]
fn deleted_and_flushed_chains_are_reported() {
    let node = TestNode::new("iptables");
    node.host.command("iptables", &["-t", "nat", "-F", "OUTPUT"]);
    node.host.command("iptables", &["-t", "mangle", "-X", "KUBE-PROXY-CANARY"]);
    node.assert_differs(&["missing jump from nat OUTPUT to KUBE-SERVICES", "missing chain mangle KUBE-PROXY-CANARY"]);
    let node = TestNode::new("nftables");
    node.host.command("nft", &["flush chain ip ferroute nat-postrouting"]);
    node.assert_differs(&[
        "chain nat-postrouting has 0 rules",
        "endpoints see the client's address (expected: the node's)",
    ]);
}

#[test]
fn changed_and_deleted_services_are_reported() {
    for mode in ["nftables", "iptables"] {
        let node = TestNode::new(mode);
        node.write(&SHOP.replace("10.244.1.2", "10.244.1.9"));
        node.assert_differs(&[
            "10.96.0.10:80/tcp: missing endpoint 10.244.1.9:8080; unexpected endpoint 10.244.1.2:8080",
        ]);
        node.write(&SHOP.replace("10.96.0.10", "10.96.0.11"));
        node.assert_differs(&["stale: 10.96.0.10:80/tcp of shop/web:http: no Service has this frontend"]);
        node.write(SHOP.split("---").next().unwrap());
        node.assert_differs(&["stale: 10.96.0.10:80/tcp", "stale: node port 30080/tcp"]);
    }
}

#[test]
fn node_without_rules_differs() {
    TestNode::without_rules("nftables").assert_differs(&["no rules of a service proxy"]);
}

#[test]
fn iptables_rules_of_kube_proxy_are_compared_by_effect() {
    const CASE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../conformance/scenarios/nodeport-cluster");
    const NODES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../conformance/common/nodes.yaml");
    let read = |path: String| std::fs::read_to_string(path).unwrap();
    let node = TestNode::without_rules("nftables");
    // The addresses of the node in the recording.
    node.host.add_address("10.77.1.2/24", "eth0");
    node.host.add_address("10.180.1.1/24", "lo");
    node.write(&[read(format!("{CASE}/manifests.yaml")), read(NODES.to_owned())].join("\n---\n"));
    node.restore(&read(format!("{CASE}/expected/iptables-save.txt")));
    let config = node.config("10.180.0.0/16");
    let path = node.manifests();
    for mode in ["nftables", "iptables"] {
        let arguments = ["diff", "--manifests", path.to_str().unwrap(), "--config", config.to_str().unwrap()];
        let node_arguments = ["--hostname-override", "lab-node", "--proxy-mode", mode];
        let output = node.host.try_command(PROGRAM, &[&arguments[..], &node_arguments].concat());
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        assert!(
            String::from_utf8(output.stdout).unwrap().contains("\nIPv4: iptables rules in the kernel, compared with")
        );
    }
}

#[test]
fn nftables_rules_of_kube_proxy_are_compared_by_effect() {
    const TABLE: &str = include_str!("../../ferroute-trace/tests/common/kube_proxy.nft");
    let node = TestNode::without_rules("nftables");
    // If the node is in loadBalancerSourceRanges, kube-proxy also allows the load balancer's address as a source.
    let table = TABLE.replace("192.168.0.0/29, 10.244.0.0/16 }", "192.168.0.0/29, 10.244.0.0/16, 198.51.100.4 }");
    assert_ne!(table, TABLE);
    node.host.feed("nft", &["-f", "-"], &table);
    let node_manifest = SHOP.split("---").next().unwrap();
    let service = |name: &str, spec: &str| {
        format!("---\napiVersion: v1\nkind: Service\nmetadata: {{name: {name}, namespace: lab}}\n{spec}\n")
    };
    let slice = |name: &str, endpoints: &[(&str, &str)]| {
        let endpoints: Vec<String> = endpoints
            .iter()
            .map(|(address, node)| {
                format!("- {{addresses: [{address}], nodeName: {node}, conditions: {{ready: true}}}}")
            })
            .collect();
        format!(
            "---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {{name: {name}-a, namespace: lab, \
             labels: {{kubernetes.io/service-name: {name}}}}}\naddressType: IPv4\nports: [{{port: 8080, protocol: \
             UDP}}]\nendpoints:\n{}\n",
            endpoints.join("\n")
        )
    };
    let local = "node-1";
    let port = |node_port: u16| format!("ports: [{{port: 80, protocol: UDP, nodePort: {node_port}}}]");
    let manifests = [
        node_manifest.to_owned(),
        service(
            "all",
            &format!("spec: {{type: NodePort, clusterIP: 10.96.0.1, externalIPs: [203.0.113.1], {}}}", port(30001)),
        ),
        slice("all", &[("10.244.0.3", local), ("10.244.0.6", local), ("10.244.1.1", "node-2")]),
        service(
            "sticky",
            "spec: {clusterIP: 10.96.0.2, sessionAffinity: ClientIP, ports: [{port: 80, protocol: UDP}]}",
        ),
        slice("sticky", &[("10.244.0.3", local), ("10.244.0.6", local)]),
        service(
            "empty",
            &format!("spec: {{type: NodePort, clusterIP: 10.96.0.3, externalIPs: [203.0.113.3], {}}}", port(30003)),
        ),
        service(
            "ranges",
            &format!(
                "spec: {{type: LoadBalancer, clusterIP: 10.96.0.4, externalTrafficPolicy: Local, \
                 loadBalancerSourceRanges: [192.168.0.0/29, 10.244.0.0/16], {}}}\nstatus: {{loadBalancer: {{ingress: \
                 [{{ip: 198.51.100.4}}]}}}}",
                port(30004)
            ),
        ),
        slice("ranges", &[("10.244.0.6", local)]),
    ]
    .concat();
    let config = node.config("10.244.0.0/16");
    let compare = |mode: &str| {
        let Output { status, stdout, stderr } =
            node.ferroute_as(&[], mode, &["diff", "--config", config.to_str().unwrap()]);
        (status.code().unwrap(), String::from_utf8([stdout, stderr].concat()).unwrap())
    };
    for mode in ["nftables", "iptables"] {
        node.write(&manifests);
        let (status, text) = compare(mode);
        assert_eq!(status, 0, "{mode}: {text}");
        assert!(text.contains("\nIPv4: kube-proxy's nftables rules in the kernel, compared with"), "{text}");
        node.write(&manifests.replace("10.244.1.1", "10.244.1.9"));
        let (status, text) = compare(mode);
        assert_eq!(status, 1, "{mode}: {text}");
        assert!(text.contains("  lab/all\n") && !text.contains("lab/ranges"), "{text}");
    }
}

#[test]
fn missing_privileges_are_an_error() {
    let node = TestNode::new("nftables");
    let unprivileged = ["setpriv", "--bounding-set", "-all", "--inh-caps", "-all"];
    for command in [&["diff"][..], &["trace", "--kernel", "--local", "--to", "192.168.0.9:80"]] {
        let output = node.ferroute_as(&unprivileged, "nftables", command);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        assert!(
            String::from_utf8(output.stderr).unwrap().contains("capability CAP_NET_ADMIN is missing"),
            "{command:?}"
        );
    }
}
