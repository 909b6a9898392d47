//! Tests of [`NetNs`].

use std::{
    fs,
    net::{IpAddr, UdpSocket},
};

use ferroute_testing::NetNs;

#[test]
fn namespaces_are_separate_and_have_only_loopback() {
    let (one, two) = (NetNs::new(), NetNs::new());
    one.command("ip", &["address", "add", "192.0.2.1/32", "dev", "lo"]);
    assert!(one.command("ip", &["-brief", "address"]).contains("192.0.2.1/32"));
    let addresses = two.command("ip", &["-brief", "address"]);
    assert!(addresses.starts_with("lo ") && addresses.lines().count() == 1, "{addresses}");
    assert!(!addresses.contains("192.0.2.1"), "{addresses}");
}

#[test]
fn calling_thread_stays_in_its_namespace() {
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
fn program_receives_input_and_output_is_returned() {
    let text = "x".repeat(1 << 20);
    assert_eq!(NetNs::new().feed("cat", &[], &text), text);
}

#[test]
#[should_panic(expected = "\"nowhere\" does not exist")]
fn failing_program_fails_the_test_with_its_error() {
    NetNs::new().command("ip", &["link", "show", "nowhere"]);
}
