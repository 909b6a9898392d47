//! A mode that is added through a registry alone works like the program's own modes. `ferroute-inspect` has the same test
//! for its commands.

#![expect(clippy::unwrap_used, reason = "tests may panic")]

mod toy;

use std::process::ExitCode;

use ferroute_config::{FieldErrors, KubeProxyConfiguration, Resolved, settings::Settings};
use ferroute_core::{
    IpFamily, Protocol, ServiceTable,
    testing::{Cluster, pod, service, slice},
};
use ferroute_iptables::{HostExec, exec::search_path};
use ferroute_modes::{CalledAs, Mode, Reason, RulesView, cleanup::cleanup, kernel_rules};
use ferroute_testing::NetNs;
use ferroute_trace::{Host, Outcome, Packet, Route, Ruleset};

use self::toy::{REGISTRY, TOY, ToyRules, kernel, modify_kernel};

fn resolve(mode: &str) -> Result<Resolved, FieldErrors> {
    let config = KubeProxyConfiguration { mode: mode.to_owned(), ..KubeProxyConfiguration::default() };
    REGISTRY.resolve(&config.defaulted())
}

/// Returns the toy mode.
fn mode() -> &'static dyn Mode {
    REGISTRY.active(resolve("toy").unwrap().mode)
}

/// Returns a table with one Service and these endpoints.
fn table(endpoints: &[&str]) -> ServiceTable {
    let slice = endpoints.iter().fold(slice("shop/web-a", "web").port("http", 8080), |slice, ip| slice.pod(pod(ip)));
    let web = service("shop/web").cluster_ip("10.96.0.1").port("http", 80);
    Cluster::new("node-1").service(web).slice(slice).table(IpFamily::V4)
}

const RULES: &str = "10.96.0.1:80 tcp 10.0.0.1:8080 10.0.0.2:8080\n";

#[test]
fn configuration_accepts_only_modes_of_registry() {
    let resolved = resolve("toy").unwrap();
    assert_eq!(resolved.mode, TOY);
    assert_eq!((mode().name(), REGISTRY.names()), (TOY, vec![TOY]));
    assert!(resolve("nftables").is_err());
    let config = KubeProxyConfiguration { mode: "toy".to_owned(), ..KubeProxyConfiguration::default() }.defaulted();
    let mut settings = Settings { config, resolved, warnings: Vec::new(), file: None };
    assert_eq!(REGISTRY.select(&mut settings, CalledAs::Ferroute).unwrap(), Reason::Configured);
    assert_eq!(settings.resolved.mode, TOY);
    assert!(ferroute_modes::REGISTRY.resolve(&settings.config).is_err());
}

#[test]
fn unsupported_ip_family_fails_probe() {
    let resolved = resolve("toy").unwrap();
    let probes = IpFamily::BOTH.map(|family| mode().probe(&resolved, family));
    assert_eq!(probes, [Ok(None), Err("toys are for IPv4 only".to_owned())]);
}

#[test]
fn open_mode_writes_rules() {
    let table = table(&["10.0.0.1", "10.0.0.2"]);
    let mut open = REGISTRY.open(&resolve("toy").unwrap(), &table.node).unwrap();
    assert!(open.leftovers.is_empty(), "no other mode has leftovers: {:?}", open.leftovers);
    let [(IpFamily::V4, dataplane)] = open.dataplanes.as_mut_slice() else { panic!("not one IPv4 dataplane") };
    let report = dataplane.resync(&table).unwrap();
    assert_eq!((report.full, report.written, report.total), (true, 1, 1));
    assert_eq!(kernel().unwrap().to_string(), RULES);
}

#[test]
fn plan_prints_and_traces_rules() {
    let rules = mode().plan(&resolve("toy").unwrap(), &table(&["10.0.0.1", "10.0.0.2"]), &[]).unwrap();
    assert_eq!(rules.to_string(), RULES);
    let host = Host {
        addresses: vec!["192.168.0.1".parse().unwrap()],
        routes: vec![Route {
            to: "0.0.0.0/0".parse().unwrap(),
            interface: "eth0".to_owned(),
            source: "192.168.0.1".parse().unwrap(),
        }],
        ..Host::default()
    };
    let outcome = |to: &str| {
        let packet = Packet::arriving(Protocol::Tcp, "192.0.2.1:40000".parse().unwrap(), to.parse().unwrap(), "eth0");
        Ruleset::from_rules(rules.as_ref()).trace(&host, &packet).outcome()
    };
    assert_eq!(outcome("10.96.0.1:80"), Outcome::Delivered);
    assert_eq!(outcome("10.96.0.1:81"), Outcome::NotDelivered);
}

#[test]
fn simulation_writes_the_same_rules_as_dataplane() {
    let mut simulation = mode().simulate(IpFamily::V4, &resolve("toy").unwrap(), Vec::new());
    let sync = simulation.resync(&table(&["10.0.0.1"])).unwrap();
    assert_eq!((sync.written, sync.total, sync.rules.is_some()), (1, 1, true));
    let sync = simulation.sync(&table(&["10.0.0.1", "10.0.0.2"]), &Default::default()).unwrap();
    assert_eq!((sync.written, sync.total, sync.text.as_str()), (1, 1, RULES));
}

#[test]
fn rules_in_kernel_are_detected_and_removed() {
    let present = || REGISTRY.present();
    let kernel_rules = NetNs::new().run(|| kernel_rules::read(IpFamily::V4, &HostExec, &search_path())).unwrap();
    assert!(present().is_empty() && REGISTRY.active_proxies(&kernel_rules).is_empty());
    modify_kernel(|rules| *rules = ToyRules::default());
    assert_eq!(present(), [TOY]);
    let proxies = REGISTRY.active_proxies(&kernel_rules);
    let [proxy] = proxies.as_slice() else { panic!("{proxies:?}") };
    assert_eq!((proxy.mode, proxy.description), (TOY, "Ferroute in toy mode"));
    assert!(matches!(proxy.rules, RulesView::Other(rules) if rules.mode() == TOY));

    assert_eq!(format!("{:?}", cleanup(&REGISTRY)), format!("{:?}", ExitCode::SUCCESS));
    assert_eq!((kernel(), present()), (None, vec![]));
}
