use std::net::TcpStream;

use super::*;

const V4: IpFamily = IpFamily::V4;
const V6: IpFamily = IpFamily::V6;

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

fn port_of(listener: &TcpListener) -> u16 {
    listener.local_addr().expect("a bound socket").port()
}

#[test]
fn unspecified_address_means_any_address_of_both_families() {
    assert_eq!(ListenScope::from_bind_address(ip("0.0.0.0")), ListenScope::Any);
    assert_eq!(ListenScope::from_bind_address(ip("::")), ListenScope::Any);
    assert_eq!(ListenScope::from_bind_address(ip("127.0.0.1")), ListenScope::Address(ip("127.0.0.1")));
}

#[test]
fn dual_stack_node_ports_on_all_addresses_share_one_socket() {
    let any = NodePortMatch::AnyLocal;
    let some = |texts: &[&str]| NodePortMatch::Addresses(texts.iter().map(|text| ip(text)).collect());
    let scopes = ListenScope::for_node_ports;
    assert_eq!(scopes(&[(V4, any.clone()), (V6, any.clone())]), [ListenScope::Any]);
    assert_eq!(scopes(&[(V4, any.clone())]), [ListenScope::AnyOf(V4)]);
    assert_eq!(scopes(&[(V6, any.clone())]), [ListenScope::AnyOf(V6)]);
    assert_eq!(
        scopes(&[(V4, some(&["10.0.0.2", "10.0.0.1", "10.0.0.2"])), (V6, any)]),
        [ListenScope::AnyOf(V6), ListenScope::Address(ip("10.0.0.1")), ListenScope::Address(ip("10.0.0.2"))]
    );
    assert_eq!(scopes(&[(V4, some(&[])), (V6, some(&[]))]), []);
    assert_eq!(scopes(&[]), []);
}

#[test]
fn any_scope_accepts_connections_of_both_families() {
    let listener = listen(ListenScope::Any, 0).expect("a free port");
    let port = port_of(&listener);
    TcpStream::connect(("127.0.0.1", port)).expect("IPv4");
    let host_has_ipv6 = TcpListener::bind("[::1]:0").is_ok();
    assert_eq!(TcpStream::connect(("::1", port)).is_ok(), host_has_ipv6);
}

#[test]
fn families_can_listen_on_the_same_port_number() {
    let ipv4 = listen(ListenScope::AnyOf(V4), 0).expect("a free port");
    let port = port_of(&ipv4);
    let ipv6 = listen(ListenScope::AnyOf(V6), port);
    assert_eq!(ipv6.is_ok(), TcpListener::bind("[::1]:0").is_ok(), "{ipv6:?}");
}

#[test]
fn error_names_address_and_port() {
    let first = listen(ListenScope::Address(ip("127.0.0.1")), 0).expect("a free port");
    let port = port_of(&first);
    let error = listen(ListenScope::Address(ip("127.0.0.1")), port).expect_err("the port is taken");
    assert_eq!(error.to_string(), format!("cannot listen on 127.0.0.1:{port}"));
    assert_eq!(error.source.kind(), io::ErrorKind::AddrInUse);
    // Documentation network: no host has this address.
    let error = listen(ListenScope::Address(ip("192.0.2.1")), port).expect_err("no address of this host");
    assert_eq!(error.source.kind(), io::ErrorKind::AddrNotAvailable);
}

#[test]
fn port_can_be_reopened_immediately_after_a_connection() {
    let scope = ListenScope::Address(ip("127.0.0.1"));
    let first = listen(scope, 0).expect("a free port");
    first.set_nonblocking(false).expect("a socket");
    let port = port_of(&first);
    let client = TcpStream::connect(("127.0.0.1", port)).expect("a connection");
    let (server, _) = first.accept().expect("a connection");
    // Closing this end first leaves the connection in TIME_WAIT on the port.
    drop(server);
    drop(client);
    drop(first);
    listen(scope, port).expect("the port");
}
