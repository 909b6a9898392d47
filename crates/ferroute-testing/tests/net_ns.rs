//! The helper itself.

use std::{
    fs,
    net::{IpAddr, UdpSocket},
};

use ferroute_testing::NetNs;

#[test]
fn two_namespaces_have_nothing_but_loopback_and_nothing_in_common() {
    let (one, two) = (NetNs::new(), NetNs::new());
    one.command("ip", &["address", "add", "192.0.2.1/32", "dev", "lo"]);
    assert!(one.command("ip", &["-brief", "address"]).contains("192.0.2.1/32"));
    let others = two.command("ip", &["-brief", "address"]);
    assert!(others.starts_with("lo ") && others.lines().count() == 1, "{others}");
    assert!(!others.contains("192.0.2.1"), "{others}");
}

#[test]
fn the_thread_that_asks_stays_where_it_was() {
    let before = fs::read_link("/proc/thread-self/ns/net").unwrap();
    let inside = NetNs::new().run(|| fs::read_link("/proc/thread-self/ns/net").unwrap());
    assert_ne!(inside, before);
    assert_eq!(fs::read_link("/proc/thread-self/ns/net").unwrap(), before);
}

#[test]
fn packets_cross_a_link() {
    let (one, two) = (NetNs::new(), NetNs::new());
    one.link("left", &two, "right");
    for (prefix, first, second) in [("24", "192.0.2.1", "192.0.2.2"), ("64", "2001:db8::1", "2001:db8::2")] {
        one.add_address(&format!("{first}/{prefix}"), "left");
        two.add_address(&format!("{second}/{prefix}"), "right");
        let [first, second]: [IpAddr; 2] = [first, second].map(|address| address.parse().unwrap());
        let receiver = two.run(|| UdpSocket::bind((second, 9)).unwrap());
        one.run(|| UdpSocket::bind((first, 0)).unwrap().send_to(b"hello", (second, 9)).unwrap());
        let mut buffer = [0; 16];
        let (length, from) = receiver.recv_from(&mut buffer).unwrap();
        assert_eq!((&buffer[..length], from.ip()), (&b"hello"[..], first));
    }
}

#[test]
fn a_program_gets_its_input_and_its_output_comes_back() {
    let text = "x".repeat(1 << 20);
    assert_eq!(NetNs::new().feed("cat", &[], &text), text);
}

#[test]
#[should_panic(expected = "\"nowhere\" does not exist")]
fn a_program_that_fails_fails_the_test_and_says_why() {
    NetNs::new().command("ip", &["link", "show", "nowhere"]);
}
