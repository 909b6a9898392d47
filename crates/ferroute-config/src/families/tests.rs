use super::*;
use crate::KubeProxyConfiguration;

const BOTH: FamilySupport = FamilySupport { ipv4: true, ipv6: true };
const IPV4: FamilySupport = FamilySupport { ipv4: true, ipv6: false };
const IPV6: FamilySupport = FamilySupport { ipv4: false, ipv6: true };

fn resolved(change: impl FnOnce(&mut KubeProxyConfiguration)) -> Resolved {
    let mut config = KubeProxyConfiguration::default().defaulted();
    change(&mut config);
    config.resolve().expect("the configuration is valid")
}

fn node(addresses: &[&str], pod_cidrs: &[&str]) -> NodeView {
    NodeView {
        addresses: addresses.iter().map(|text| text.parse().expect("valid test address")).collect(),
        pod_cidrs: pod_cidrs.iter().map(|text| text.parse().expect("valid test network")).collect(),
        ..NodeView::default()
    }
}

/// Returns the families to serve, the primary one first.
fn served(config: &Resolved, node: &NodeView, support: FamilySupport) -> Result<Vec<IpFamily>, FamilyError> {
    let families = config.families(node, support)?;
    let mut served: Vec<IpFamily> = families.iter().collect();
    assert!(served.is_sorted());
    served.sort_by_key(|family| *family != families.primary());
    Ok(served)
}

#[test]
fn both_families_are_served_if_the_host_supports_them_whatever_the_node_has() {
    let config = resolved(|_| {});
    let (v4, v6) = (IpFamily::V4, IpFamily::V6);
    assert_eq!(served(&config, &node(&["10.0.0.1"], &[]), BOTH), Ok(vec![v4, v6]));
    assert_eq!(served(&config, &node(&["fd00::1", "10.0.0.1"], &[]), BOTH), Ok(vec![v6, v4]));
    assert_eq!(served(&config, &node(&[], &[]), BOTH), Ok(vec![v4, v6]));
    assert_eq!(served(&config, &node(&["10.0.0.1"], &[]), IPV4), Ok(vec![v4]));
    assert_eq!(served(&config, &node(&["fd00::1"], &[]), IPV6), Ok(vec![v6]));
}

#[test]
fn bind_address_determines_the_primary_family_and_becomes_the_first_address() {
    let config = resolved(|config| config.bind_address = "fd00::9".into());
    let node = node(&["10.0.0.1", "fd00::1"], &[]);
    assert_eq!(served(&config, &node, BOTH), Ok(vec![IpFamily::V6, IpFamily::V4]));
    let effective = config.effective_node(node);
    assert_eq!(effective.primary_address(IpFamily::V6), "fd00::9".parse().ok());
    assert_eq!(effective.primary_address(IpFamily::V4), "10.0.0.1".parse().ok());
}

#[test]
fn unsupported_primary_family_is_an_error() {
    let config = resolved(|_| {});
    assert_eq!(served(&config, &node(&["10.0.0.1"], &[]), IPV6), Err(FamilyError::Unsupported(IpFamily::V4)));
    assert_eq!(served(&config, &node(&["fd00::1"], &[]), IPV4), Err(FamilyError::Unsupported(IpFamily::V6)));
}

#[test]
fn cluster_cidr_of_the_other_family_is_an_error_on_a_single_stack_host() {
    let config = resolved(|config| config.cluster_cidr = "fd00:1::/48".into());
    let node = node(&["10.0.0.1"], &[]);
    assert_eq!(served(&config, &node, IPV4), Err(FamilyError::ClusterCidr(IpFamily::V4)));
    assert!(served(&config, &node, BOTH).is_ok());
    let pair = resolved(|config| config.cluster_cidr = "fd00:1::/48,10.0.0.0/8".into());
    assert!(served(&pair, &node, IPV4).is_ok());
}

#[test]
fn pod_cidrs_of_the_other_family_are_an_error_if_they_detect_local_traffic() {
    let node = node(&["10.0.0.1"], &["fd00:1::/64"]);
    let config = resolved(|config| config.detect_local_mode = "NodeCIDR".into());
    assert_eq!(served(&config, &node, BOTH), Err(FamilyError::PodCidrs(IpFamily::V4)));
    assert!(served(&resolved(|_| {}), &node, BOTH).is_ok());
}
