//! `ferroute diff`, as a user calls it, against rules in network namespaces.

#![expect(clippy::unwrap_used, reason = "what cannot be had fails the test")]

use std::{path::PathBuf, process::Output};

use ferroute_core::{
    Dataplane, IpFamily, NodePortAddresses, ProxySettings,
    testing::{Cluster, pod, service, slice},
};
use ferroute_host::KernelAddresses;
use ferroute_nftables::{NftablesDataplane, plan::NftablesSettings};
use ferroute_testing::NetNs;

const PROGRAM: &str = env!("CARGO_BIN_EXE_ferroute");

/// A Service of two pods, one of which runs here.
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
    // What nftables mode has without a configuration.
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
struct Scene {
    host: NetNs,
    _outside: NetNs,
    folder: tempfile::TempDir,
    mode: &'static str,
}

impl Scene {
    /// A node whose rules are those that the proxy writes in this mode.
    fn new(mode: &'static str) -> Self {
        let scene = Self::without_rules(mode);
        match mode {
            "nftables" => scene.host.run(write_nftables),
            _ => {
                let rendered = scene.ferroute(&["render", "--family", "ipv4"]);
                scene.restore(&String::from_utf8(rendered.stdout).unwrap());
            }
        }
        scene
    }

    fn without_rules(mode: &'static str) -> Self {
        let [host, outside] = [NetNs::new(), NetNs::new()];
        host.link("eth0", &outside, "eth0");
        host.add_address("192.168.0.1/24", "eth0");
        let scene = Self { host, _outside: outside, folder: tempfile::tempdir().unwrap(), mode };
        scene.write(SHOP);
        scene
    }

    fn manifests(&self) -> PathBuf {
        self.folder.path().join("shop.yaml")
    }

    fn write(&self, manifests: &str) {
        std::fs::write(self.manifests(), manifests).unwrap();
    }

    /// A configuration that tells where pods are.
    fn configured(&self, pods: &str) -> PathBuf {
        let path = self.folder.path().join("config.conf");
        let text = format!(
            "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nclusterCIDR: {pods}\n"
        );
        std::fs::write(&path, text).unwrap();
        path
    }

    fn restore(&self, rules: &str) -> String {
        // The counters that some rules use are objects that somebody must make first.
        let lines: Vec<&str> = rules.lines().filter(|line| !line.contains("nfacct")).collect();
        self.host.feed("iptables-restore", &[], &(lines.join("\n") + "\n"))
    }

    fn ferroute(&self, arguments: &[&str]) -> Output {
        self.ferroute_as(&[], self.mode, arguments)
    }

    fn ferroute_as(&self, before: &[&str], mode: &str, arguments: &[&str]) -> Output {
        let path = self.manifests();
        let of_node = ["--manifests", path.to_str().unwrap(), "--hostname-override", "node-1", "--proxy-mode", mode];
        let all = [before, &[PROGRAM], arguments, &of_node].concat();
        self.host.try_command(all[0], &all[1..])
    }

    /// Runs the comparison, in any mode: its status and what it says.
    fn diff(&self, mode: &str) -> (i32, String) {
        let Output { status, stdout, stderr } = self.ferroute_as(&[], mode, &["diff"]);
        (status.code().unwrap(), String::from_utf8([stdout, stderr].concat()).unwrap())
    }

    /// Asserts that the comparison finds a difference and tells all of this.
    #[track_caller]
    fn assert_differs(&self, told: &[&str]) {
        let (status, text) = self.diff(self.mode);
        assert_eq!(status, 1, "{text}");
        for told in told {
            assert!(text.contains(told), "no «{told}»\nin\n{text}");
        }
    }
}

#[test]
fn rules_that_are_as_they_should_be_do_not_differ() {
    let loaded_by_nft = Scene::without_rules("nftables");
    let rendered = String::from_utf8(loaded_by_nft.ferroute(&["render"]).stdout).unwrap();
    loaded_by_nft.host.feed("nft", &["-f", "-"], &rendered);
    for scene in [Scene::new("nftables"), Scene::new("iptables"), loaded_by_nft] {
        let (status, text) = scene.diff(scene.mode);
        assert_eq!((status, text.lines().last()), (0, Some("  no difference")), "{text}");
    }
}

#[test]
fn the_other_modes_rules_differ_only_as_they_are_meant_to() {
    for (mode, other) in [("nftables", "iptables"), ("iptables", "nftables")] {
        let (status, text) = Scene::new(mode).diff(other);
        assert_eq!(status, 0, "{text}");
        assert!(text.contains("  as it is meant, ") && text.ends_with("  no difference\n"), "{text}");
    }
}

#[test]
fn an_element_that_is_gone_is_found_with_its_service() {
    let scene = Scene::new("nftables");
    let element = "delete element ip ferroute services { 0.0.0.0 . tcp . 30080 }";
    scene.host.command("nft", &[element]);
    scene.assert_differs(&[
        "  shop/web:http\n    node port 30080/tcp: is left alone by all rules, should be served by 2 endpoints",
    ]);
}

#[test]
fn a_rule_that_is_gone_is_found_with_its_service() {
    let scene = Scene::new("iptables");
    scene.host.command("iptables", &["-t", "nat", "-D", "KUBE-NODEPORTS", "1"]);
    scene.assert_differs(&["  shop/web:http\n    node port 30080/tcp: is left alone by all rules"]);
}

#[test]
fn a_chain_that_is_gone_or_empty_is_found() {
    let scene = Scene::new("iptables");
    scene.host.command("iptables", &["-t", "nat", "-F", "OUTPUT"]);
    scene.host.command("iptables", &["-t", "mangle", "-X", "KUBE-PROXY-CANARY"]);
    scene.assert_differs(&["no jump from nat OUTPUT to KUBE-SERVICES", "no chain mangle KUBE-PROXY-CANARY"]);
    let scene = Scene::new("nftables");
    scene.host.command("nft", &["flush chain ip ferroute nat-postrouting"]);
    scene.assert_differs(&[
        "chain nat-postrouting has 0 rules",
        "endpoints see the client's address, should see the node's",
    ]);
}

#[test]
fn services_that_have_changed_or_gone_since_are_told() {
    for mode in ["nftables", "iptables"] {
        let scene = Scene::new(mode);
        scene.write(&SHOP.replace("10.244.1.2", "10.244.1.9"));
        scene.assert_differs(&[
            "10.96.0.10:80/tcp: does not reach 10.244.1.9:8080; reaches 10.244.1.2:8080 in addition",
        ]);
        scene.write(&SHOP.replace("10.96.0.10", "10.96.0.11"));
        scene.assert_differs(&["left over: 10.96.0.10:80/tcp, once of shop/web:http: no Service has it"]);
        scene.write(SHOP.split("---").next().unwrap());
        scene.assert_differs(&["left over: 10.96.0.10:80/tcp", "left over: node port 30080/tcp"]);
    }
}

#[test]
fn a_node_without_rules_differs() {
    Scene::without_rules("nftables").assert_differs(&["no rules of a service proxy"]);
}

#[test]
fn rules_that_kube_proxy_wrote_are_compared_in_meaning() {
    const CASE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../conformance/scenarios/nodeport-cluster");
    const NODES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../conformance/common/nodes.yaml");
    let read = |path: String| std::fs::read_to_string(path).unwrap();
    let scene = Scene::without_rules("nftables");
    // Addresses of the node on which these rules were recorded.
    scene.host.add_address("10.77.1.2/24", "eth0");
    scene.host.add_address("10.180.1.1/24", "lo");
    scene.write(&[read(format!("{CASE}/manifests.yaml")), read(NODES.to_owned())].join("\n---\n"));
    scene.restore(&read(format!("{CASE}/expected/iptables-save.txt")));
    let config = scene.configured("10.180.0.0/16");
    let path = scene.manifests();
    for mode in ["nftables", "iptables"] {
        let arguments = ["diff", "--manifests", path.to_str().unwrap(), "--config", config.to_str().unwrap()];
        let of_node = ["--hostname-override", "lab-node", "--proxy-mode", mode];
        let output = scene.host.try_command(PROGRAM, &[&arguments[..], &of_node].concat());
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        assert!(String::from_utf8(output.stdout).unwrap().starts_with("IPv4: iptables rules in the kernel against"));
    }
}

#[test]
fn kube_proxys_nftables_table_is_compared_in_meaning() {
    const TABLE: &str = include_str!("../../ferroute-trace/tests/common/kube_proxy.nft");
    let scene = Scene::without_rules("nftables");
    // Where the node may use a balancer's address, kube-proxy lets that address itself be a source, too.
    let table = TABLE.replace("192.168.0.0/29, 10.244.0.0/16 }", "192.168.0.0/29, 10.244.0.0/16, 198.51.100.4 }");
    assert_ne!(table, TABLE);
    scene.host.feed("nft", &["-f", "-"], &table);
    let node = SHOP.split("---").next().unwrap();
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
    let here = "node-1";
    let port = |node_port: u16| format!("ports: [{{port: 80, protocol: UDP, nodePort: {node_port}}}]");
    let manifests = [
        node.to_owned(),
        service(
            "all",
            &format!("spec: {{type: NodePort, clusterIP: 10.96.0.1, externalIPs: [203.0.113.1], {}}}", port(30001)),
        ),
        slice("all", &[("10.244.0.3", here), ("10.244.0.6", here), ("10.244.1.1", "node-2")]),
        service(
            "sticky",
            "spec: {clusterIP: 10.96.0.2, sessionAffinity: ClientIP, ports: [{port: 80, protocol: UDP}]}",
        ),
        slice("sticky", &[("10.244.0.3", here), ("10.244.0.6", here)]),
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
        slice("ranges", &[("10.244.0.6", here)]),
    ]
    .concat();
    let config = scene.configured("10.244.0.0/16");
    let compare = |mode: &str| {
        let Output { status, stdout, stderr } =
            scene.ferroute_as(&[], mode, &["diff", "--config", config.to_str().unwrap()]);
        (status.code().unwrap(), String::from_utf8([stdout, stderr].concat()).unwrap())
    };
    for mode in ["nftables", "iptables"] {
        scene.write(&manifests);
        let (status, text) = compare(mode);
        assert_eq!(status, 0, "{mode}: {text}");
        assert!(text.starts_with("IPv4: kube-proxy's nftables rules in the kernel against"), "{text}");
        scene.write(&manifests.replace("10.244.1.1", "10.244.1.9"));
        let (status, text) = compare(mode);
        assert_eq!(status, 1, "{mode}: {text}");
        assert!(text.contains("  lab/all\n") && !text.contains("lab/ranges"), "{text}");
    }
}

#[test]
fn who_may_not_read_rules_is_told_that_nothing_can_be_told() {
    let scene = Scene::new("nftables");
    let powerless = ["setpriv", "--bounding-set", "-all", "--inh-caps", "-all"];
    let output = scene.ferroute_as(&powerless, "nftables", &["diff"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(String::from_utf8(output.stderr).unwrap().contains("cannot read the IPv4"));
}
