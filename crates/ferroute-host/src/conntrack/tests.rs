use ferroute_testing::NetNs;

use super::*;

/// Returns a namespace with an entry of each tracked protocol, including ICMP, which has no ports.
fn namespace_with_entries() -> NetNs {
    let namespace = NetNs::new();
    let insert = |entry: &str| {
        let common = "-I --timeout 900 --src 192.0.2.1 --dst 192.0.2.2";
        let arguments: Vec<&str> = common.split(' ').chain(entry.split(' ')).collect();
        namespace.command("conntrack", &arguments);
    };
    insert("--proto udp --sport 1000 --dport 53");
    insert("--proto udp --sport 1001 --dport 53");
    insert("--proto tcp --sport 1000 --dport 53 --state ESTABLISHED");
    insert("--proto sctp --sport 1000 --dport 53 --state ESTABLISHED --orig-vtag 1 --reply-vtag 2");
    insert("--proto icmp --icmp-type 8 --icmp-code 0 --icmp-id 5");
    namespace
}

#[test]
fn only_selected_protocol_is_deleted_if_kernel_ignores_the_filter() {
    let namespace = namespace_with_entries();
    let mut checked = Vec::new();
    let deleted = namespace.run(|| {
        delete_listed(&mut list_request(IpFamily::V4, None), IpFamily::V4, Some(Protocol::Udp), |entry| {
            checked.push((entry.protocol, entry.original_source.port()));
            true
        })
    });
    checked.sort_unstable();
    assert_eq!(deleted.unwrap(), Deleted { seen: 2, deleted: 2 });
    assert_eq!(checked, [(Protocol::Udp, 1000), (Protocol::Udp, 1001)]);
    let remaining = namespace.command("conntrack", &["-L"]);
    assert_eq!(remaining.lines().count(), 3, "{remaining}");
    assert!(!remaining.contains("udp"), "{remaining}");
}

#[test]
fn kernel_filters_the_dump_by_protocol() {
    let namespace = namespace_with_entries();
    let count = |family, protocol| {
        let mut socket = namespace.run(|| Socket::open(netlink::Protocol::Netfilter)).unwrap();
        let messages = socket.collect::<_, netlink::Error>(&mut list_request(family, protocol), |_| Ok(Some(())));
        messages.unwrap().len()
    };
    assert_eq!(count(IpFamily::V4, None), 5);
    assert_eq!(count(IpFamily::V4, Some(Protocol::Udp)), 2);
    assert_eq!(count(IpFamily::V4, Some(Protocol::Tcp)), 1);
    assert_eq!(count(IpFamily::V4, Some(Protocol::Sctp)), 1);
    assert_eq!(count(IpFamily::V6, Some(Protocol::Udp)), 0);
}

#[test]
fn kernel_filters_the_dump_by_endpoint() {
    let namespace = NetNs::new();
    for (endpoint, port) in [("10.0.0.1", "5300"), ("10.0.0.1", "5301"), ("10.0.0.2", "5300")] {
        for protocol in ["udp", "tcp"] {
            let sport = if endpoint == "10.0.0.1" { port } else { "6000" };
            let state = if protocol == "tcp" { "--state ESTABLISHED" } else { "" };
            let entry = format!(
                "-I --timeout 900 --proto {protocol} --orig-src 10.1.0.9 --orig-dst 10.96.0.10 --sport {sport} --dport 53 \
                 --reply-src {endpoint} --reply-dst 10.1.0.9 --reply-port-src {port} --reply-port-dst {sport} {state}"
            );
            namespace.command("conntrack", &entry.split_whitespace().collect::<Vec<_>>());
        }
    }
    let count = |endpoint: &str, protocol| {
        let mut socket = namespace.run(|| Socket::open(netlink::Protocol::Netfilter)).unwrap();
        let mut request = reply_source_request(endpoint.parse().unwrap(), protocol);
        socket.collect::<_, netlink::Error>(&mut request, |_| Ok(Some(()))).unwrap().len()
    };
    assert_eq!([count("10.0.0.1", Protocol::Udp), count("10.0.0.2", Protocol::Tcp)], [2, 1]);
    assert_eq!([count("10.0.0.3", Protocol::Udp), count("10.0.0.1", Protocol::Sctp)], [0, 0]);
    let addresses = BTreeSet::from(["10.0.0.1".parse().unwrap()]);
    let mut ports = Vec::new();
    let each = |entry: &Entry| ports.push(entry.reply_source.port());
    namespace.run(|| list_from(&addresses, IpFamily::V4, Protocol::Tcp, each)).unwrap();
    ports.sort_unstable();
    assert_eq!(ports, [5300, 5301]);
}

#[test]
fn closed_tcp_connections_are_not_open() {
    let namespace = NetNs::new();
    let states = ["SYN_SENT", "SYN_RECV", "ESTABLISHED", "FIN_WAIT", "CLOSE_WAIT", "LAST_ACK", "TIME_WAIT", "CLOSE"];
    for (port, state) in (1000..).zip(states) {
        let entry = format!(
            "-I --timeout 900 --src 192.0.2.1 --dst 192.0.2.2 --proto tcp --sport {port} --dport 80 --state {state}"
        );
        namespace.command("conntrack", &entry.split(' ').collect::<Vec<_>>());
    }
    let mut open = Vec::new();
    let each = |entry: &Entry| open.extend(entry.is_open.then(|| entry.original_source.port()));
    namespace.run(|| list(IpFamily::V4, Protocol::Tcp, each)).unwrap();
    open.sort_unstable();
    assert_eq!(open, [1000, 1001, 1002, 1003, 1004]);
}
