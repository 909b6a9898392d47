use super::*;

/// Describes leftovers, in order.
fn describe(leftovers: &[Box<dyn Leftovers>]) -> Vec<String> {
    leftovers.iter().map(|leftovers| format!("{leftovers:?}")).collect()
}

const IPTABLES: [&str; 3] =
    ["Rules { family: V4, active: None }", "Rules { family: V6, active: None }", "PacketCounters"];
const FERROUTE_TABLES: [&str; 2] = ["Table { owner: Ferroute, family: V4 }", "Table { owner: Ferroute, family: V6 }"];
const KUBE_PROXY_TABLES: [&str; 2] =
    ["Table { owner: KubeProxy, family: V4 }", "Table { owner: KubeProxy, family: V6 }"];
const VIRTUAL_SERVERS: &str = "VirtualServersAndSets { drain: false }";
const DRAINED_VIRTUAL_SERVERS: &str = "VirtualServersAndSets { drain: true }";
const WORKERS: &str = "Workers { all: true, drain: false }";
const DRAINED_WORKERS: &str = "Workers { all: true, drain: true }";

#[test]
fn each_configured_mode_has_one_active_mode() {
    for mode in ModeName::KUBE_PROXY.into_iter().chain([ModeName::USERSPACE]) {
        assert_eq!(REGISTRY.active(mode).name(), mode);
    }
}

#[test]
fn node_ports_are_served_by_default_as_the_traits_say() {
    for mode in REGISTRY.names() {
        let config = KubeProxyConfiguration { mode: mode.as_str().to_owned(), ..KubeProxyConfiguration::default() };
        let settings = REGISTRY.resolve(&config.defaulted()).unwrap().settings;
        assert_eq!(settings.node_port_addresses, REGISTRY.active(mode).traits().node_ports_by_default.into(), "{mode}");
    }
}

#[test]
fn cleanup_removes_rules_before_objects_that_they_refer_to() {
    let others = ["RoutesToLocalhost", VIRTUAL_SERVERS, WORKERS];
    let expected = [&IPTABLES[..], &FERROUTE_TABLES, &KUBE_PROXY_TABLES, &others].concat();
    assert_eq!(describe(&REGISTRY.leftovers()), expected);
}

#[test]
fn switch_to_nftables_removes_all_modes_except_its_own_table() {
    let leftovers = REGISTRY.leftovers_beside(ModeName::NFTABLES, nftables::leftovers_beside_own_table());
    let expected = [&IPTABLES[..], &KUBE_PROXY_TABLES, &[DRAINED_VIRTUAL_SERVERS, DRAINED_WORKERS]].concat();
    assert_eq!(describe(&leftovers), expected);
}

#[test]
fn switch_to_iptables_removes_all_modes_except_rules_in_active_backend() {
    let active = [(IpFamily::V4, Some(ferroute_iptables::exec::Backend::Legacy)), (IpFamily::V6, None)];
    let own = active.map(|(family, backend)| iptables::leftovers_beside_own_rules(family, backend));
    let leftovers = REGISTRY.leftovers_beside(ModeName::IPTABLES, own.into());
    let own = ["Rules { family: V4, active: Some((Legacy, Iptables)) }", "Rules { family: V6, active: None }"];
    let expected =
        [&own[..], &FERROUTE_TABLES, &KUBE_PROXY_TABLES, &[DRAINED_VIRTUAL_SERVERS, DRAINED_WORKERS]].concat();
    assert_eq!(describe(&leftovers), expected);
}

#[test]
fn switch_to_ipvs_keeps_the_chains_that_it_shares_with_iptables_mode() {
    let leftovers = describe(&REGISTRY.leftovers_beside(ModeName::IPVS, Vec::new()));
    // The machine's backend is that of the programs found.
    let rules: Vec<&String> = leftovers.iter().filter(|leftovers| leftovers.starts_with("Rules")).collect();
    assert!(rules.len() == 2 && rules.iter().all(|rules| rules.ends_with(", Ipvs)) }")), "{rules:?}");
    assert_eq!(leftovers[3..], [&FERROUTE_TABLES[..], &KUBE_PROXY_TABLES, &[DRAINED_WORKERS]].concat());
    assert!(!leftovers.iter().any(|leftovers| leftovers.starts_with("VirtualServers")));
    assert!(leftovers.iter().any(|leftovers| leftovers == "PacketCounters"));
}

#[test]
fn switch_to_userspace_keeps_its_chains_and_drains_other_workers() {
    let leftovers = describe(&REGISTRY.leftovers_beside(ModeName::USERSPACE, Vec::new()));
    // The machine's backend is that of the programs found. The mode itself drains the workers of earlier proxies.
    let rules: Vec<&String> = leftovers.iter().filter(|leftovers| leftovers.starts_with("Rules")).collect();
    assert!(rules.len() == 2 && rules.iter().all(|rules| rules.ends_with(", Userspace)) }")), "{rules:?}");
    let rest = [&FERROUTE_TABLES[..], &KUBE_PROXY_TABLES, &[DRAINED_VIRTUAL_SERVERS]].concat();
    assert_eq!(leftovers[3..], rest);
}
