use super::super::{parse_ip, parse_network};

#[test]
fn addresses_are_parsed_like_kubernetes() {
    for (text, address) in [
        ("10.0.0.1", "10.0.0.1"),
        ("0.0.0.0", "0.0.0.0"),
        ("255.255.255.255", "255.255.255.255"),
        // Go parsed leading zeros as decimal before it rejected them.
        ("010.001.000.09", "10.1.0.9"),
        ("0000000010.0.0.00000001", "10.0.0.1"),
        ("fd00:0::1", "fd00::1"),
        ("FD00::A", "fd00::a"),
        ("::", "::"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("::ffff:a00:1", "10.0.0.1"),
    ] {
        assert_eq!(parse_ip(text).map(|ip| ip.to_string()), Ok(address.to_owned()), "{text}");
    }
}

#[test]
fn invalid_addresses_are_rejected() {
    for text in [
        "",
        " 10.0.0.1",
        "10.0.0.1 ",
        "10.0.0",
        "10.0.0.",
        "10.0.0.1.",
        "10.0.0.1.2",
        "10.0.0.256",
        "10.0.0.-1",
        "10.0.0.+1",
        "10.0.0.0x1",
        "10..0.1",
        ".10.0.1",
        "1.0.0.1000",
        "None",
        "localhost",
        "fe80::1%eth0",
        "[::1]",
        "10.0.0.1/32",
        "10.0.0.1:80",
        "١.0.0.1",
        "1:2:3:4:5:6:7:8:9",
        ":::",
    ] {
        assert_eq!(parse_ip(text), Err(format!("invalid IP address {text:?}")));
    }
}

#[test]
fn white_space_and_host_bits_of_networks_are_ignored() {
    for (text, network) in [
        ("10.0.0.0/8", "10.0.0.0/8"),
        ("10.1.2.3/8", "10.0.0.0/8"),
        ("  010.1.2.3/08\n", "10.0.0.0/8"),
        ("0.0.0.0/0", "0.0.0.0/0"),
        ("10.0.0.1/32", "10.0.0.1/32"),
        ("fd00::1/64", "fd00::/64"),
        ("::/0", "::/0"),
    ] {
        assert_eq!(parse_network(text).map(|net| net.to_string()), Ok(network.to_owned()), "{text}");
    }
}

#[test]
fn invalid_networks_are_rejected() {
    for text in [
        "",
        "/",
        "10.0.0.0",
        "10.0.0.0/",
        "/8",
        "10.0.0.0/33",
        "fd00::/129",
        "10.0.0.0/-1",
        "10.0.0.0/+8",
        "10.0.0.0/ 8",
        "10.0.0.0 /8",
        "10.0.0.0/8/8",
        "10.0.0.0/255.0.0.0",
        "10.0.0/8",
        "10.0.0.0/256",
    ] {
        let error = parse_network(text).expect_err(text);
        assert!(error.contains("(want ADDRESS/PREFIX)"), "{error}");
        assert!(error.contains(&format!("{text:?}")), "{error}");
    }
}
