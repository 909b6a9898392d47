use super::*;

#[test]
fn index_is_the_position_in_both() {
    for (i, family) in IpFamily::BOTH.into_iter().enumerate() {
        assert_eq!(family.index(), i);
    }
}

#[test]
fn ipv4_mapped_addresses_are_ipv6() {
    for (address, family) in [("10.0.0.1", IpFamily::V4), ("fd00::1", IpFamily::V6), ("::ffff:10.0.0.1", IpFamily::V6)]
    {
        assert_eq!(IpFamily::of(address.parse().unwrap()), family);
    }
}

#[test]
fn families_have_the_names_of_the_api() {
    assert_eq!(IpFamily::BOTH.map(|family| family.to_string()), ["IPv4", "IPv6"]);
}

#[test]
fn protocols_are_parsed_in_either_case_and_written_in_lower_case() {
    let all = [(Protocol::Tcp, "TCP", 6), (Protocol::Udp, "UDP", 17), (Protocol::Sctp, "SCTP", 132)];
    for (protocol, upper, number) in all {
        assert_eq!(upper.parse(), Ok(protocol));
        assert_eq!(protocol.to_string().parse(), Ok(protocol));
        assert_eq!(protocol.to_string(), upper.to_lowercase());
        assert_eq!(protocol.number(), number);
    }
}

#[test]
fn other_protocols_are_rejected() {
    for text in ["", "Tcp", "ICMP", " TCP", "TCP "] {
        assert_eq!(text.parse::<Protocol>(), Err(UnknownProtocol(text.to_owned())));
    }
}
