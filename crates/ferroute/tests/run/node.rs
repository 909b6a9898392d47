//! Changes of the Node object, which take effect without a restart.

use std::{fs, net::SocketAddr, process::Command};

use ferroute_testing::NetNs;

use crate::{Case, Files, Mode, in_each_mode, proxy::FERROUTE, rules, slices, wait, web, web_tcp};

in_each_mode!(
    added_node_addresses_of_the_other_family_are_used,
    addresses_of_deleted_node_still_apply,
    changed_pod_cidrs_are_used,
    commands_plan_the_same_rules_as_the_proxy_without_a_node,
);

fn node_ports(pods: &[u8]) -> String {
    format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: six}}\n\
         spec: {{type: NodePort, clusterIPs: [10.96.0.6, \"fd00:96::6\"], ipFamilies: [IPv4, IPv6],\n  \
         ports: [{{name: tcp, port: 80, nodePort: 30080}}]}}\n{}",
        slices("six", pods)
    )
}

fn node(spec: &str, addresses: &[&str]) -> String {
    let addresses: String =
        addresses.iter().map(|address| format!("  - {{type: InternalIP, address: \"{address}\"}}\n")).collect();
    format!(
        "apiVersion: v1\nkind: Node\nmetadata: {{name: node-1}}\nspec: {{{spec}}}\nstatus:\n  addresses:\n{addresses}"
    )
}

fn added_node_addresses_of_the_other_family_are_used(mode: Mode) {
    let at = |address: &str| -> SocketAddr { address.parse().unwrap() };
    let files = Files::with_settings("nodePortAddresses: [primary]\n");
    files.write_node(&node("", &["192.168.0.1"]));
    files.apply(&node_ports(&[0]));
    let case = Case::with_files(mode, files);
    // As in kube-proxy, node ports of a family without Node addresses use all addresses.
    let all = ["10.96.0.6:80", "[fd00:96::6]:80", "192.168.0.1:30080", "[fd00:168::1]:30080"];
    let assert_pod = |pod| all.iter().for_each(|to| assert_eq!(case.connect(at(to)).unwrap(), pod, "{to}"));
    assert_pod(0);
    case.cluster.node.add_address("fd00:168::7/64", "client");
    let other = at("[fd00:168::7]:30080");
    wait("the additional address", || case.connect(other).ok());
    case.files.write_node(&node("", &["192.168.0.1", "fd00:168::1"]));
    wait("rejection at the additional address", || case.connect(other).err());
    assert_pod(0);
    // The other family is primary now.
    case.files.write_node(&node("", &["fd00:168::1"]));
    case.files.apply(&node_ports(&[1]));
    case.wait_gone(0);
    assert_pod(1);
}

fn addresses_of_deleted_node_still_apply(mode: Mode) {
    let at = |address: &str| -> SocketAddr { address.parse().unwrap() };
    let files = Files::with_settings("nodePortAddresses: [primary]\n");
    files.apply(&node_ports(&[0]));
    let case = Case::with_files(mode, files);
    case.cluster.node.add_address("192.168.0.7/24", "client");
    fs::remove_file(case.files.manifests().join("node.yaml")).unwrap();
    case.proxy.wait_log("Node deleted");
    case.files.apply(&node_ports(&[1]));
    case.wait_gone(0);
    for to in ["10.96.0.6:80", "[fd00:96::6]:80", "192.168.0.1:30080", "[fd00:168::1]:30080"] {
        assert_eq!(case.connect(at(to)).unwrap(), 1, "{to}");
    }
    case.connect(at("192.168.0.7:30080")).unwrap_err();
}

fn changed_pod_cidrs_are_used(mode: Mode) {
    let case = Case::with_settings(mode, &web(&[0]), "detectLocalMode: NodeCIDR\n");
    let spec = |v4: &str, v6: &str| format!("podCIDR: {v4}, podCIDRs: [{v4}, \"{v6}\"]");
    let addresses = ["192.168.0.1", "fd00:168::1"];
    let has_rule = |text: &str| case.rules().iter().any(|line| line.contains(text));
    case.files.write_node(&node(&spec("10.1.0.0/24", "fd00:1::/64"), &addresses));
    wait("the first CIDRs", || (has_rule("10.1.0.0/24") && has_rule("fd00:1::/64")).then_some(()));
    case.files.write_node(&node(&spec("10.2.0.0/24", "fd00:2::/64"), &addresses));
    wait("the changed CIDRs", || (has_rule("10.2.0.0/24") && has_rule("fd00:2::/64")).then_some(()));
    rules::wait_gone(&case.cluster.node, mode, "10.1.0.0/24");
    for to in web_tcp() {
        assert_eq!(case.connect(to).unwrap(), 0);
    }
}

fn commands_plan_the_same_rules_as_the_proxy_without_a_node(mode: Mode) {
    let files = Files::new();
    fs::remove_file(files.manifests().join("node.yaml")).unwrap();
    files.apply(&node_ports(&[0]));
    let case = Case::with_files(mode, files);
    let config = case.files.config(mode);
    let run = |command: &str| {
        let mut program = Command::new(FERROUTE);
        program.arg(command).arg("--config").arg(&config).arg("--manifests").arg(case.files.manifests());
        case.cluster.node.run(|| program.output()).unwrap()
    };
    let diff = run("diff");
    assert!(diff.status.success(), "{}", String::from_utf8_lossy(&diff.stdout));
    let rendered = String::from_utf8(run("render").stdout).unwrap();
    if mode == Mode::Nftables {
        let other = NetNs::new();
        other.feed("nft", &["-f", "-"], &rendered);
        assert_eq!(rules::of_proxy(&other, mode), case.rules());
    }
}
