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
        delete_listed(&mut list_request(IpFamily::V4, None), IpFamily::V4, Protocol::Udp, |entry| {
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
