use super::*;

fn node() -> NodeView {
    let networks = ["fd00:244::/64", "10.244.1.0/24", "10.244.2.0/24"];
    NodeView { pod_cidrs: networks.map(|net| net.parse().unwrap()).into(), ..NodeView::default() }
}

fn both(detector: &LocalTrafficDetector, node: &NodeView) -> [Option<LocalTraffic>; 2] {
    IpFamily::BOTH.map(|family| detector.resolve(family, node))
}

fn source(network: &str) -> Option<LocalTraffic> {
    Some(LocalTraffic::Source(network.parse().unwrap()))
}

#[test]
fn without_detector_there_is_no_match() {
    assert_eq!(both(&LocalTrafficDetector::None, &node()), [None, None]);
}

#[test]
fn first_cluster_network_of_each_family_is_used() {
    let networks =
        |texts: &[&str]| LocalTrafficDetector::ClusterCidr(texts.iter().map(|net| net.parse().unwrap()).collect());
    let dual = networks(&["fd00::/48", "10.244.0.0/16", "10.245.0.0/16"]);
    assert_eq!(both(&dual, &node()), [source("10.244.0.0/16"), source("fd00::/48")]);
    assert_eq!(both(&networks(&["10.244.0.0/16"]), &node()), [source("10.244.0.0/16"), None]);
    assert_eq!(both(&networks(&[]), &node()), [None, None]);
}

#[test]
fn node_networks_are_those_of_the_current_node() {
    assert_eq!(both(&LocalTrafficDetector::NodeCidr, &node()), [source("10.244.1.0/24"), source("fd00:244::/64")]);
    assert_eq!(both(&LocalTrafficDetector::NodeCidr, &NodeView::default()), [None, None]);
}

#[test]
fn interfaces_match_in_both_families() {
    let bridge = LocalTrafficDetector::BridgeInterface("cbr0".into());
    assert_eq!(both(&bridge, &node()), [(); 2].map(|()| Some(LocalTraffic::Interface("cbr0".into()))));
    let prefix = LocalTrafficDetector::InterfaceNamePrefix("veth".into());
    assert_eq!(both(&prefix, &node()), [(); 2].map(|()| Some(LocalTraffic::InterfacePrefix("veth".into()))));
}
