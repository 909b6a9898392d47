//! IPv6 alone, and both families side by side. Most other tests use both as well.

use std::net::SocketAddr;

use crate::{Case, Mode, in_each_mode, slices, traffic::Flow, wait};

in_each_mode!(a_service_of_ipv6_alone_is_served, a_service_may_have_endpoints_in_one_family_only);

/// A Service of these addresses, and slices of both families in any case.
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

fn a_service_of_ipv6_alone_is_served(mode: Mode) {
    let service = |pods: &[u8]| service("\"fd00:96::6\"", "IPv6", pods);
    let case = Case::new(mode, &service(&[0]));
    for to in ["[fd00:96::6]:80", "[fd00:168::1]:30080"] {
        assert_eq!(case.connect(at(to)).unwrap(), 0);
    }
    let flow = Flow::open(&case.lab.client, at("[fd00:168::1]:30053"));
    assert_eq!(flow.pod(), 0);
    assert!(case.connect(at("192.168.0.1:30080")).is_err(), "it has no address of IPv4");
    case.files.apply(&service(&[1]));
    case.wait_gone(0);
    for to in ["[fd00:96::6]:80", "[fd00:168::1]:30080"] {
        assert_eq!(case.connect(at(to)).unwrap(), 1);
    }
    wait("the flow's move", || (flow.pod() == 1).then_some(()));
}

fn a_service_may_have_endpoints_in_one_family_only(mode: Mode) {
    let both = service("10.96.0.6, \"fd00:96::6\"", "IPv4, IPv6", &[0]);
    let case = Case::new(mode, &both);
    for to in ["10.96.0.6:80", "[fd00:96::6]:80", "192.168.0.1:30080", "[fd00:168::1]:30080"] {
        assert_eq!(case.connect(at(to)).unwrap(), 0, "{to}");
    }
    // The slice of IPv6, the last one, goes.
    let (without, _) = both.rsplit_once("---").unwrap();
    case.files.apply(without);
    let refused = || {
        case.connect(at("[fd00:96::6]:80")).is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionRefused)
    };
    wait("the refusal", || refused().then_some(()));
    for to in ["10.96.0.6:80", "192.168.0.1:30080"] {
        assert_eq!(case.connect(at(to)).unwrap(), 0, "{to}");
    }
}
