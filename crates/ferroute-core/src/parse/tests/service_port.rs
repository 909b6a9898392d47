use std::num::NonZeroU16;

use ferroute_api::{Service, ServicePort};

use super::{super::parse_service, InvalidObject, assert_faults};
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

/// Name, protocol, port and node port of each IPv4 port.
fn read(service: ServiceBuilder) -> Vec<(String, Protocol, u16, Option<u16>)> {
    let [v4, _] = parse_service(&service.build()).unwrap().unwrap().ports;
    v4.into_iter()
        .map(|port| (port.name.to_string(), port.protocol, port.port.port, port.port.node_port.map(NonZeroU16::get)))
        .collect()
}

#[test]
fn ports_keep_their_order_and_differ_by_name() {
    let service = web().port("http", 80).node_port(30080).udp("dns", 53).port("dns-tcp", 53).node_port(30053);
    assert_eq!(
        read(service),
        [
            ("http".into(), Protocol::Tcp, 80, Some(30080)),
            ("dns".into(), Protocol::Udp, 53, None),
            ("dns-tcp".into(), Protocol::Tcp, 53, Some(30053)),
        ]
    );
}

#[test]
fn a_port_that_is_alone_needs_no_name() {
    assert_eq!(read(web().port("", 80)), [(String::new(), Protocol::Tcp, 80, None)]);
}

#[test]
fn ports_without_a_name_need_one_where_there_are_several() {
    let result = parse_service(&web().port("", 80).port("https", 443).port("", 81).build());
    assert_faults(result, &[("spec.ports[0].name", "invalid name \"\""), ("spec.ports[2].name", "invalid name \"\"")]);
}

#[test]
fn a_service_without_ports_is_at_fault() {
    assert_faults(parse_service(&web().build()), &[("spec.ports", "at least one port is needed")]);
}

#[test]
fn a_name_belongs_to_one_port_whatever_its_protocol() {
    let result = with_ports("ClusterIP", vec![port("dns", "TCP", 53, 0), port("dns", "UDP", 53, 0)]);
    assert_faults(result, &[("spec.ports[1].name", "another port is called \"dns\" too")]);
}

#[test]
fn a_number_belongs_to_one_port_of_a_protocol() {
    let result =
        with_ports("ClusterIP", vec![port("a", "TCP", 53, 0), port("b", "UDP", 53, 0), port("c", "TCP", 53, 0)]);
    assert_faults(result, &[("spec.ports[2].port", "another port has 53/tcp too")]);
}

#[test]
fn a_node_port_belongs_to_one_port_of_a_protocol() {
    let result = with_ports(
        "NodePort",
        vec![
            port("a", "TCP", 1, 30053),
            port("b", "UDP", 2, 30053),
            port("c", "TCP", 3, 30053),
            port("d", "TCP", 4, 0),
        ],
    );
    assert_faults(result, &[("spec.ports[2].nodePort", "another port has 30053/tcp too")]);
}

#[test]
fn node_ports_are_for_types_that_have_them() {
    for type_ in ["NodePort", "LoadBalancer"] {
        assert!(with_ports(type_, vec![port("a", "TCP", 80, 30080)]).is_ok());
        assert!(with_ports(type_, vec![port("a", "TCP", 80, 0)]).is_ok());
    }
    assert!(with_ports("ClusterIP", vec![port("a", "TCP", 80, 0)]).is_ok());
    assert_faults(
        with_ports("ClusterIP", vec![port("a", "TCP", 80, 30080)]),
        &[("spec.ports[0].nodePort", "may not be used with type ClusterIP")],
    );
}

#[test]
fn numbers_out_of_range_are_faults() {
    assert_faults(
        with_ports("NodePort", vec![port("a", "TCP", 0, -1), port("b", "TCP", 65_536, 70_000)]),
        &[
            ("spec.ports[0].port", "invalid port 0"),
            ("spec.ports[0].nodePort", "invalid port -1"),
            ("spec.ports[1].port", "invalid port 65536"),
            ("spec.ports[1].nodePort", "invalid port 70000"),
        ],
    );
}
