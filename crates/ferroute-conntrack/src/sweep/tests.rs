use ferroute_testing::NetNs;

use super::*;

/// Entries of all protocols that the kernel tracks, ICMP among them, which has no ports.
fn namespace_with_flows() -> NetNs {
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
fn a_kernel_that_ignores_the_filter_does_no_harm() {
    let namespace = namespace_with_flows();
    let mut asked = Vec::new();
    let removed = namespace.run(|| {
        sweep(&mut list_request(IpFamily::V4, None), IpFamily::V4, Protocol::Udp, |flow| {
            asked.push((flow.protocol, flow.original_source.port()));
            true
        })
    });
    asked.sort_unstable();
    assert_eq!(removed.unwrap(), Removed { seen: 2, removed: 2 });
    assert_eq!(asked, [(Protocol::Udp, 1000), (Protocol::Udp, 1001)]);
    let left = namespace.command("conntrack", &["-L"]);
    assert_eq!(left.lines().count(), 3, "{left}");
    assert!(!left.contains("udp"), "{left}");
}

#[test]
fn a_kernel_that_knows_the_filter_lists_only_what_was_asked_for() {
    let namespace = namespace_with_flows();
    let listed = |family, protocol| {
        let mut socket = namespace.run(|| Socket::open(netlink::Protocol::Netfilter)).unwrap();
        let messages = socket.collect::<_, netlink::Error>(&mut list_request(family, protocol), |_| Ok(Some(())));
        messages.unwrap().len()
    };
    assert_eq!(listed(IpFamily::V4, None), 5);
    assert_eq!(listed(IpFamily::V4, Some(Protocol::Udp)), 2);
    assert_eq!(listed(IpFamily::V4, Some(Protocol::Tcp)), 1);
    assert_eq!(listed(IpFamily::V4, Some(Protocol::Sctp)), 1);
    assert_eq!(listed(IpFamily::V6, Some(Protocol::Udp)), 0);
}
