mod address;
mod endpoints;
mod name;
mod node;
mod service;
mod service_port;
mod slice;

use ferroute_api::ServiceCidrSpec;

use super::*;

/// Asserts that an object is rejected for exactly these fields, each with a problem that contains the text.
#[track_caller]
fn assert_errors<T: fmt::Debug>(result: Result<T, InvalidObject>, expected: &[(&str, &str)]) {
    let InvalidObject { errors, .. } = result.expect_err("an invalid object");
    let matches =
        |(error, (field, text)): (&FieldError, &(&str, &str))| error.field == *field && error.problem.contains(text);
    let is_expected = errors.len() == expected.len() && errors.iter().zip(expected).all(matches);
    assert!(is_expected, "{errors:#?}\ninstead of {expected:#?}");
}

#[test]
fn error_names_the_object_and_all_invalid_fields() {
    let metadata = ObjectMeta { name: "web".into(), namespace: "shop".into(), ..Default::default() };
    let mut errors = Errors::default();
    errors.add("spec.type", "unsupported");
    assert_eq!(errors.keep("spec.ports[0].port", parse_port(0)), None);
    assert_eq!(errors.keep("spec.ports[1].port", parse_port(80)).map(u16::from), Some(80));
    let error = errors.finish("Service", &metadata, ()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "Service shop/web: spec.type: unsupported; spec.ports[0].port: invalid port 0 (want 1 to 65535)"
    );
    let node = ObjectMeta { name: "node-1".into(), ..Default::default() };
    let mut errors = Errors::default();
    errors.add("spec.podCIDR", "invalid");
    assert_eq!(errors.finish("Node", &node, ()).unwrap_err().to_string(), "Node node-1: spec.podCIDR: invalid");
    assert_eq!(Errors::default().finish("Node", &node, 7), Ok(7));
}

#[test]
fn ports_are_between_1_and_65535() {
    for number in [1, 80, 65_535] {
        assert_eq!(parse_port(number).map(|port| i32::from(port.get())), Ok(number));
    }
    for number in [i32::MIN, -1, 0, 65_536, 65_537, i32::MAX] {
        assert_eq!(parse_port(number), Err(format!("invalid port {number} (want 1 to 65535)")));
    }
}

#[test]
fn missing_protocol_is_tcp() {
    for (text, protocol) in [
        (None, Protocol::Tcp),
        (Some(""), Protocol::Tcp),
        (Some("TCP"), Protocol::Tcp),
        (Some("UDP"), Protocol::Udp),
        (Some("SCTP"), Protocol::Sctp),
    ] {
        assert_eq!(parse_protocol(text), Ok(protocol));
    }
    let error = parse_protocol(Some("ICMP")).unwrap_err();
    assert_eq!(error.to_string(), r#"unsupported protocol "ICMP" (want TCP, UDP or SCTP)"#);
}

#[test]
fn protocols_in_lower_case_are_rejected_as_by_the_api_server() {
    for text in ["tcp", "udp", "sctp", "Tcp"] {
        assert_eq!(parse_protocol(Some(text)), Err(UnknownProtocol(text.to_owned())));
    }
}

#[test]
fn service_cidrs_are_parsed_in_both_families() {
    let parse = |texts: &[&str]| {
        let spec = ServiceCidrSpec { cidrs: texts.iter().map(|text| (*text).to_owned()).collect() };
        parse_service_cidr(&ServiceCidr { spec, ..ServiceCidr::default() })
    };
    let networks = parse(&["10.96.0.0/16", "fd00:96::/112"]).unwrap();
    assert_eq!(networks, ["10.96.0.0/16", "fd00:96::/112"].map(|text| text.parse().unwrap()));
    assert_eq!(parse(&[]).unwrap(), []);
    assert_errors(parse(&["10.96.0.0/16", "10.96.0.0"]), &[("spec.cidrs[1]", "invalid network \"10.96.0.0\"")]);
}

#[test]
fn errors_of_large_objects_are_small() {
    let long = "é".repeat(10_000);
    let spec = ServiceCidrSpec { cidrs: vec![long; 30] };
    let error = parse_service_cidr(&ServiceCidr { spec, ..ServiceCidr::default() }).unwrap_err();
    assert_eq!(error.errors.len(), MAX_ERRORS);
    let text = error.to_string();
    assert!(text.len() < 20_000, "{} bytes", text.len());
    assert!(
        text.contains("spec.cidrs[0]: invalid network \"éé") && text.contains("é\" (want ADDRESS/PREFIX)"),
        "{text}"
    );
}
