use std::net::TcpStream;

use super::*;

const V4: IpFamily = IpFamily::V4;
const V6: IpFamily = IpFamily::V6;

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

fn port_of(listener: &TcpListener) -> u16 {
    listener.local_addr().expect("it is bound").port()
}

#[test]
fn an_unspecified_address_of_either_family_means_all_of_both() {
    assert_eq!(ListenScope::of(ip("0.0.0.0")), ListenScope::All);
    assert_eq!(ListenScope::of(ip("::")), ListenScope::All);
    assert_eq!(ListenScope::of(ip("127.0.0.1")), ListenScope::One(ip("127.0.0.1")));
}

#[test]
fn node_ports_of_all_addresses_share_one_socket_if_both_families_are_served() {
    let any = NodePortMatch::AnyLocal;
    let some = |texts: &[&str]| NodePortMatch::Addresses(texts.iter().map(|text| ip(text)).collect());
    let scopes = ListenScope::of_node_ports;
    assert_eq!(scopes(&[(V4, any.clone()), (V6, any.clone())]), [ListenScope::All]);
    assert_eq!(scopes(&[(V4, any.clone())]), [ListenScope::AllOf(V4)]);
    assert_eq!(scopes(&[(V6, any.clone())]), [ListenScope::AllOf(V6)]);
    assert_eq!(
        scopes(&[(V4, some(&["10.0.0.2", "10.0.0.1", "10.0.0.2"])), (V6, any)]),
        [ListenScope::AllOf(V6), ListenScope::One(ip("10.0.0.1")), ListenScope::One(ip("10.0.0.2"))]
    );
    assert_eq!(scopes(&[(V4, some(&[])), (V6, some(&[]))]), []);
    assert_eq!(scopes(&[]), []);
}

#[test]
fn one_socket_takes_connections_of_every_family_that_the_host_has() {
    let listener = listen(ListenScope::All, 0).expect("a free port");
    let port = port_of(&listener);
    TcpStream::connect(("127.0.0.1", port)).expect("IPv4");
    let host_has_ipv6 = TcpListener::bind("[::1]:0").is_ok();
    assert_eq!(TcpStream::connect(("::1", port)).is_ok(), host_has_ipv6);
}

#[test]
fn the_families_can_have_one_port_each_with_the_same_number() {
    let ipv4 = listen(ListenScope::AllOf(V4), 0).expect("a free port");
    let port = port_of(&ipv4);
    let ipv6 = listen(ListenScope::AllOf(V6), port);
    assert_eq!(ipv6.is_ok(), TcpListener::bind("[::1]:0").is_ok(), "{ipv6:?}");
}

#[test]
fn an_error_names_the_address_and_the_port() {
    let first = listen(ListenScope::One(ip("127.0.0.1")), 0).expect("a free port");
    let port = port_of(&first);
    let error = listen(ListenScope::One(ip("127.0.0.1")), port).expect_err("the port is taken");
    assert_eq!(error.to_string(), format!("failed to listen on 127.0.0.1:{port}"));
    assert_eq!(error.source.kind(), io::ErrorKind::AddrInUse);
    // A network for documentation: no host has addresses of it.
    let error = listen(ListenScope::One(ip("192.0.2.1")), port).expect_err("the address is elsewhere");
    assert_eq!(error.source.kind(), io::ErrorKind::AddrNotAvailable);
}

#[test]
fn a_port_is_free_again_at_once_even_after_a_connection() {
    let scope = ListenScope::One(ip("127.0.0.1"));
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
