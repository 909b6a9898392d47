mod address;
mod name;
mod node;
mod service;
mod service_cidr;
mod service_port;
mod slice;

use super::*;

/// Asserts that nothing came of an object because of these fields, each with a problem that has this text in it.
#[track_caller]
fn assert_faults<T: fmt::Debug>(result: Result<T, InvalidObject>, expected: &[(&str, &str)]) {
    let error = result.expect_err("an object with faults");
    let faults = error.faults.iter().map(|fault| (fault.field.as_str(), fault.problem.as_str()));
    let as_expected = faults.clone().count() == expected.len()
        && faults.zip(expected).all(|((field, problem), (want, text))| field == *want && problem.contains(text));
    assert!(as_expected, "{:#?}\ninstead of {expected:#?}", error.faults);
}

#[test]
fn an_error_names_the_object_and_everything_that_is_wrong_with_it() {
    let metadata = ferroute_api::ObjectMeta { name: "web".into(), namespace: "shop".into(), ..Default::default() };
    let mut faults = Faults::default();
    faults.add("spec.type", "unsupported");
    assert_eq!(faults.keep("spec.ports[0].port", parse_port(0)), None);
    assert_eq!(faults.keep("spec.ports[1].port", parse_port(80)).map(u16::from), Some(80));
    let error = faults.finish("Service", &metadata, ()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "Service shop/web: spec.type: unsupported; spec.ports[0].port: invalid port 0 (want 1 to 65535)"
    );
    let node = ferroute_api::ObjectMeta { name: "node-1".into(), ..Default::default() };
    let mut faults = Faults::default();
    faults.add("spec.podCIDR", "invalid");
    assert_eq!(faults.finish("Node", &node, ()).unwrap_err().to_string(), "Node node-1: spec.podCIDR: invalid");
    assert_eq!(Faults::default().finish("Node", &node, 7), Ok(7));
}

#[test]
fn ports_are_1_to_65535() {
    for number in [1, 80, 65_535] {
        assert_eq!(parse_port(number).map(|port| i32::from(port.get())), Ok(number));
    }
    for number in [i32::MIN, -1, 0, 65_536, 65_537, i32::MAX] {
        assert_eq!(parse_port(number), Err(format!("invalid port {number} (want 1 to 65535)")));
    }
}

#[test]
fn a_protocol_that_is_left_out_is_tcp() {
    use crate::Protocol;
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
