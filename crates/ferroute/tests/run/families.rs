//! Single-stack IPv6 and dual-stack Services. Most other tests are dual-stack, too.

use std::{net::SocketAddr, process::Command};

use crate::{
    Case, Cluster, Files, Mode, Proxy,
    failures::wrapped,
    in_each_mode,
    proxy::{FERROUTE, run_command},
    slices,
    traffic::{Flow, connect},
    wait, web, web_tcp,
};

in_each_mode!(ipv6_only_service_is_served, families_of_a_service_have_independent_endpoints);

/// Returns a Service with these addresses, and EndpointSlices of both IP families.
fn service(addresses: &str, families: &str, pods: &[u8]) -> String {
    format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: six}}\n\
         spec: {{type: NodePort, clusterIPs: [{addresses}], ipFamilies: [{families}],\n  \
         ports: [{{name: tcp, port: 80, nodePort: 30080}}, {{name: udp, port: 53, protocol: UDP, nodePort: 30053}}]}}\n{}",
        slices("six", pods)
    )
}

fn at(address: &str) -> SocketAddr {
    address.parse().unwrap()
}

fn ipv6_only_service_is_served(mode: Mode) {
    let service = |pods: &[u8]| service("\"fd00:96::6\"", "IPv6", pods);
    let case = Case::new(mode, &service(&[0]));
    for to in ["[fd00:96::6]:80", "[fd00:168::1]:30080"] {
        assert_eq!(case.connect(at(to)).unwrap(), 0);
    }
    let flow = Flow::open(&case.cluster.client, at("[fd00:168::1]:30053"));
    assert_eq!(flow.pod(), 0);
    assert!(case.connect(at("192.168.0.1:30080")).is_err(), "the Service has no IPv4 address");
    case.files.apply(&service(&[1]));
    case.wait_gone(0);
    for to in ["[fd00:96::6]:80", "[fd00:168::1]:30080"] {
        assert_eq!(case.connect(at(to)).unwrap(), 1);
    }
    wait("a reply from the new pod", || (flow.pod() == 1).then_some(()));
}

fn families_of_a_service_have_independent_endpoints(mode: Mode) {
    let both = service("10.96.0.6, \"fd00:96::6\"", "IPv4, IPv6", &[0]);
    let case = Case::new(mode, &both);
    for to in ["10.96.0.6:80", "[fd00:96::6]:80", "192.168.0.1:30080", "[fd00:168::1]:30080"] {
        assert_eq!(case.connect(at(to)).unwrap(), 0, "{to}");
    }
    // Remove the IPv6 slice, which is the last object.
    let (without, _) = both.rsplit_once("---").unwrap();
    case.files.apply(without);
    let refused = || {
        case.connect(at("[fd00:96::6]:80")).is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionRefused)
    };
    wait("the rejection", || refused().then_some(()));
    for to in ["10.96.0.6:80", "192.168.0.1:30080"] {
        assert_eq!(case.connect(at(to)).unwrap(), 0, "{to}");
    }
}

/// Returns a command that runs in a mount namespace where the programs for rules of IPv6 are missing.
fn without_ip6tables(command: &Command) -> Command {
    let hide = "d=$(mktemp -d) && cp -a /usr/sbin/xtables-* /usr/sbin/iptables* \"$d\" && \
                for at in /sbin /usr/sbin /usr/local/sbin; do mount -t tmpfs none \"$at\" || exit 99; done && \
                cp -a \"$d\"/* /usr/sbin && rm -r \"$d\" && exec \"$@\"";
    wrapped(&["unshare", "--mount", "sh", "-c", hide, "sh"], command)
}

/// Stale rules would lead to endpoints that no longer exist.
#[test]
fn rules_of_a_family_that_is_given_up_are_removed() {
    for mode in [Mode::Iptables, Mode::Userspace] {
        let (cluster, files) = (Cluster::new(), Files::new());
        let node = &cluster.node;
        files.apply(&web(&[0]));
        drop(Proxy::start(node, &files, mode));
        let [ipv4, ipv6] = web_tcp();
        let has_rules = || {
            let rules = node.command("ip6tables-save", &[]);
            ["KUBE-SERVICES", "KUBE-PORTALS"].iter().any(|chain| rules.contains(chain))
        };
        assert!(has_rules(), "{mode:?}");
        let mut command = run_command(FERROUTE, &files.manifests(), &files.config(mode));
        let mut proxy = Proxy::spawn(node, &mut without_ip6tables(command.arg("--iptables-programs")));
        wait("the removal of IPv6 rules", || (!has_rules()).then_some(()));
        assert!(proxy.log().contains("IPv6 is not served, although the node has it"), "{}", proxy.log());
        connect(&cluster.client, ipv4).unwrap();
        assert!(connect(&cluster.client, ipv6).is_err(), "{mode:?}");
        assert!(proxy.stop("TERM").success());
    }
}
