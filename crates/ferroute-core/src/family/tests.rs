use super::*;

#[test]
fn families_index_the_array_of_both() {
    for (i, family) in IpFamily::BOTH.into_iter().enumerate() {
        assert_eq!(family.index(), i);
    }
}

#[test]
fn an_address_has_the_family_that_it_is_written_in() {
    for (address, family) in [("10.0.0.1", IpFamily::V4), ("fd00::1", IpFamily::V6), ("::ffff:10.0.0.1", IpFamily::V6)]
    {
        assert_eq!(IpFamily::of(address.parse().unwrap()), family);
    }
}

#[test]
fn families_are_written_as_kubernetes_writes_them() {
    assert_eq!(IpFamily::BOTH.map(|family| family.to_string()), ["IPv4", "IPv6"]);
}

#[test]
fn protocols_are_read_in_either_case_and_written_in_lower_case() {
    let all = [(Protocol::Tcp, "TCP", 6), (Protocol::Udp, "UDP", 17), (Protocol::Sctp, "SCTP", 132)];
    for (protocol, upper, number) in all {
        assert_eq!(upper.parse(), Ok(protocol));
        assert_eq!(protocol.to_string().parse(), Ok(protocol));
        assert_eq!(protocol.to_string(), upper.to_lowercase());
        assert_eq!(protocol.number(), number);
    }
}

#[test]
fn what_is_no_protocol_is_named() {
    for text in ["", "Tcp", "ICMP", " TCP", "TCP "] {
        assert_eq!(text.parse::<Protocol>(), Err(UnknownProtocol(text.to_owned())));
    }
}
