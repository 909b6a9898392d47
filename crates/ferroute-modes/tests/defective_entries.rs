//! Entries of a service table that the tracker never creates do not make a sync fail in any mode: a defect that leads
//! to such an entry affects its Service only.

#![expect(clippy::unwrap_used, reason = "tests may panic")]

use std::sync::Arc;

use ferroute_config::KubeProxyConfiguration;
use ferroute_core::{
    Affinity, Changes, DataplaneError, IpFamily, ServicePort, ServicePortEntry, ServicePortName, ServiceTable, limits,
    testing::{endpoint, entry, node, port_name, service_port, table},
};
use ferroute_modes::REGISTRY;

const FAMILY: IpFamily = IpFamily::V4;

fn endpoints(sockets: impl IntoIterator<Item = String>) -> ServicePortEntry {
    entry(service_port("10.96.0.2:80"), sockets.into_iter().map(|socket| endpoint(&socket)))
}

fn many(count: usize) -> impl Iterator<Item = String> {
    (0..count).map(|i| format!("10.{}.{}.{}:8080", 128 + (i >> 16), i >> 8 & 255, i & 255))
}

fn with_service(change: impl FnOnce(&mut ServicePort)) -> ServicePortEntry {
    let mut entry = endpoints(many(2));
    change(Arc::make_mut(&mut entry.service));
    entry
}

/// Returns entries with one defect each, and a description of the defect.
fn defective() -> Vec<(&'static str, ServicePortEntry)> {
    let mut repeated = endpoints(many(2));
    repeated.endpoints = repeated.endpoints.iter().chain(repeated.endpoints.iter()).collect::<Vec<_>>().into();
    let mut sticky = endpoints(many(limits::MAX_ENDPOINTS + 10));
    Arc::make_mut(&mut sticky.service).affinity = Some(Affinity { timeout_seconds: 0 });
    vec![
        ("an endpoint twice", repeated),
        ("endpoints of the other family", endpoints((1..4).map(|i| format!("[fd00::{i}]:8080")))),
        ("endpoints of both families", endpoints(["10.244.1.1:80", "[fd00::1]:80"].map(str::to_owned))),
        ("endpoints without a port", endpoints(["10.244.1.1:0", "0.0.0.0:0"].map(str::to_owned))),
        ("too many sticky endpoints", sticky),
        ("no address", with_service(|service| service.cluster_ip = None)),
        (
            "an address of the other family",
            with_service(|service| service.cluster_ip = Some("fd00:96::1".parse().unwrap())),
        ),
        ("port 0", with_service(|service| service.port = 0)),
        (
            "the same address in all fields",
            with_service(|service| {
                service.external_ips = service.cluster_ip.into_iter().cycle().take(3).collect();
                service.load_balancer_vips = service.external_ips.clone();
            }),
        ),
    ]
}

fn table_of(entries: &[(&ServicePortName, &ServicePortEntry)]) -> ServiceTable {
    let entries = entries.iter().map(|(name, entry)| ((*name).clone(), (*entry).clone()));
    table(FAMILY, node("node-1"), entries)
}

#[test]
fn defective_entry_of_one_service_does_not_keep_others_from_being_served() {
    let [web, bad] = ["shop/web:http", "shop/bad:http"].map(port_name);
    let long = port_name(&format!("{}/{}:{}", "n".repeat(300), "s".repeat(300), "p".repeat(300)));
    let version = |address: &str| entry(service_port("10.96.0.1:80"), [endpoint(&format!("{address}:8080"))]);
    let (first, second, third) = (version("10.244.0.7"), version("10.244.0.8"), version("10.244.0.9"));
    let accepted = endpoints(many(1));
    for mode in REGISTRY.names() {
        let mut config = KubeProxyConfiguration::default().defaulted();
        config.mode = mode.as_str().to_owned();
        let resolved = REGISTRY.resolve(&config).unwrap();
        for (name, (defect, defective)) in
            defective().into_iter().map(|case| (&bad, case)).chain([(&long, ("a long name", endpoints(many(1))))])
        {
            let case = format!("{mode}, {defect}");
            let addresses = vec!["192.0.2.1".parse().unwrap()];
            let mut simulation = REGISTRY.active(mode).simulate(FAMILY, &resolved, addresses);
            let both = table_of(&[(&web, &first), (name, &accepted)]);
            simulation.resync(&both).unwrap_or_else(|error| panic!("{case}: {error:#}"));
            let after = table_of(&[(&web, &second), (name, &defective)]);
            let previous = [(web.clone(), Some(first.clone())), (name.clone(), Some(accepted.clone()))].into();
            let services = [web.service.clone(), name.service.clone()].into();
            let synced = simulation.sync(&after, &Changes { services, previous, ..Changes::default() });
            let text = synced.unwrap_or_else(|error| panic!("{case}: {error:#}")).text;
            assert!(text.contains("10.244.0.8"), "{case}: {text:.2000}");
            // With a full sync as well, with which the proxy starts.
            match simulation.resync(&table_of(&[(&web, &third), (name, &defective)])) {
                Ok(synced) => assert!(synced.text.contains("10.244.0.9"), "{case}: {:.2000}", synced.text),
                // The sync loop sets it aside and syncs again.
                Err(error) => match error.downcast_ref() {
                    Some(DataplaneError::Rejected { service_port, .. }) => assert_eq!(service_port, name, "{case}"),
                    _ => panic!("{case}: {error:#}"),
                },
            }
        }
    }
}
