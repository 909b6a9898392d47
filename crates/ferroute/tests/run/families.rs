//! Single-stack IPv6 and dual-stack Services. Most other tests are dual-stack, too.

use std::net::SocketAddr;

use crate::{Case, Mode, in_each_mode, slices, traffic::Flow, wait};

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
