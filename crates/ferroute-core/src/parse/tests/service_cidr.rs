use ferroute_api::{ServiceCidr, ServiceCidrSpec};

use super::{super::parse_service_cidr, assert_faults};

fn cidr(texts: &[&str]) -> ServiceCidr {
    let spec = ServiceCidrSpec { cidrs: texts.iter().map(|text| (*text).to_owned()).collect() };
    ServiceCidr { spec, ..ServiceCidr::default() }
}

#[test]
fn networks_of_both_families_are_read() {
    let networks = parse_service_cidr(&cidr(&["10.96.0.0/16", "fd00:96::/112"])).unwrap();
    assert_eq!(networks, ["10.96.0.0/16", "fd00:96::/112"].map(|text| text.parse().unwrap()));
    assert_eq!(parse_service_cidr(&cidr(&[])).unwrap(), []);
}

#[test]
fn what_is_no_network_is_named() {
    let faults = [("spec.cidrs[1]", "invalid network \"10.96.0.0\"")];
    assert_faults(parse_service_cidr(&cidr(&["10.96.0.0/16", "10.96.0.0"])), &faults);
}
