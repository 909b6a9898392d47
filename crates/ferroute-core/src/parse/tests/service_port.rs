use std::num::NonZeroU16;

use ferroute_api::{Service, ServicePort};

use super::{super::parse_service, InvalidObject, assert_errors};
use crate::{
    Protocol,
    testing::{ServiceBuilder, service},
    tracker::ServiceView,
};

fn web() -> ServiceBuilder {
    service("shop/web").cluster_ip("10.96.0.1")
}

fn with_ports(type_: &str, ports: Vec<ServicePort>) -> Result<Option<ServiceView>, InvalidObject> {
    let change = |service: &mut Service| {
        service.spec.type_ = Some(type_.into());
        service.spec.ports = ports;
    };
    parse_service(&web().with(change).build())
}

fn port(name: &str, protocol: &str, port: i32, node_port: i32) -> ServicePort {
    ServicePort {
        name: name.into(),
        protocol: Some(protocol.into()),
        port,
        node_port: Some(node_port),
        ..ServicePort::default()
    }
}

/// Returns the name, protocol, port and node port of each IPv4 port.
fn parse(service: ServiceBuilder) -> Vec<(String, Protocol, u16, Option<u16>)> {
    let [v4, _] = parse_service(&service.build()).unwrap().unwrap().ports;
    v4.into_iter()
        .map(|port| (port.name.to_string(), port.protocol, port.port.port, port.port.node_port.map(NonZeroU16::get)))
        .collect()
}

#[test]
fn ports_keep_their_order() {
    let service = web().port("http", 80).node_port(30080).udp("dns", 53).port("dns-tcp", 53).node_port(30053);
    assert_eq!(
        parse(service),
        [
            ("http".into(), Protocol::Tcp, 80, Some(30080)),
            ("dns".into(), Protocol::Udp, 53, None),
            ("dns-tcp".into(), Protocol::Tcp, 53, Some(30053)),
        ]
    );
}

#[test]
fn single_port_needs_no_name() {
    assert_eq!(parse(web().port("", 80)), [(String::new(), Protocol::Tcp, 80, None)]);
}

#[test]
fn several_ports_need_names() {
    let result = parse_service(&web().port("", 80).port("https", 443).port("", 81).build());
    assert_errors(result, &[("spec.ports[0].name", "invalid name \"\""), ("spec.ports[2].name", "invalid name \"\"")]);
}

#[test]
fn service_without_ports_is_rejected() {
    assert_errors(parse_service(&web().build()), &[("spec.ports", "at least one port is required")]);
}

#[test]
fn duplicate_name_is_rejected_for_any_protocol() {
    let result = with_ports("ClusterIP", vec![port("dns", "TCP", 53, 0), port("dns", "UDP", 53, 0)]);
    assert_errors(result, &[("spec.ports[1].name", "duplicate name \"dns\"")]);
}

#[test]
fn duplicate_port_is_rejected_for_the_same_protocol() {
    let result =
        with_ports("ClusterIP", vec![port("a", "TCP", 53, 0), port("b", "UDP", 53, 0), port("c", "TCP", 53, 0)]);
    assert_errors(result, &[("spec.ports[2].port", "duplicate port 53/tcp")]);
}

#[test]
fn duplicate_node_port_is_rejected_for_the_same_protocol() {
    let result = with_ports(
        "NodePort",
        vec![
            port("a", "TCP", 1, 30053),
            port("b", "UDP", 2, 30053),
            port("c", "TCP", 3, 30053),
            port("d", "TCP", 4, 0),
        ],
    );
    assert_errors(result, &[("spec.ports[2].nodePort", "duplicate node port 30053/tcp")]);
}

#[test]
fn node_port_is_rejected_for_type_cluster_ip() {
    for type_ in ["NodePort", "LoadBalancer"] {
        assert!(with_ports(type_, vec![port("a", "TCP", 80, 30080)]).is_ok());
        assert!(with_ports(type_, vec![port("a", "TCP", 80, 0)]).is_ok());
    }
    assert!(with_ports("ClusterIP", vec![port("a", "TCP", 80, 0)]).is_ok());
    assert_errors(
        with_ports("ClusterIP", vec![port("a", "TCP", 80, 30080)]),
        &[("spec.ports[0].nodePort", "may not be used with type ClusterIP")],
    );
}

#[test]
fn ports_out_of_range_are_rejected() {
    assert_errors(
        with_ports("NodePort", vec![port("a", "TCP", 0, -1), port("b", "TCP", 65_536, 70_000)]),
        &[
            ("spec.ports[0].port", "invalid port 0"),
            ("spec.ports[0].nodePort", "invalid port -1"),
            ("spec.ports[1].port", "invalid port 65536"),
            ("spec.ports[1].nodePort", "invalid port 70000"),
        ],
    );
}
