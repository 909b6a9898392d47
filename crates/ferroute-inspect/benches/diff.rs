//! Compares the rules of a large cluster in pairs of modes.

#![expect(clippy::unwrap_used, reason = "a failed setup ends the benchmark")]

use criterion::{Criterion, criterion_group, criterion_main};
use ferroute_core::{HostState, IpFamily, ProxySettings, testing::Cluster};
use ferroute_inspect::diff::{Expected, Rules, compare};
use ferroute_iptables::IptablesContext;
use ferroute_nftables::{
    kernel::{Kernel, MemoryKernel},
    model::TableId,
    plan::{NftablesSettings, TABLE},
};
use ferroute_trace::{Host, Route};

fn diff(criterion: &mut Criterion) {
    let services = Cluster::uniform(10_000, 10).table(IpFamily::V4);
    let settings = ProxySettings::default();
    let source = "192.168.0.1".parse().unwrap();
    let default = Route { to: "0.0.0.0/0".parse().unwrap(), interface: "eth0".to_owned(), source };
    let host = Host { addresses: vec![source], routes: vec![default], route_localnet: true, ..Host::default() };
    let host_state = HostState { addresses: host.addresses.clone(), ..HostState::default() };
    let iptables = ferroute_iptables::render(&services, &IptablesContext::new(&settings, &services, &host_state));
    let nftables_settings = NftablesSettings { proxy: settings.clone(), ..NftablesSettings::default() };
    let mut kernel = MemoryKernel::new();
    kernel.commit(&ferroute_nftables::plan::render(&services, &nftables_settings, &host.addresses)).unwrap();
    let nftables = kernel.table(&TableId { family: IpFamily::V4, name: TABLE }).unwrap();
    let mut group = criterion.benchmark_group("10,000 services of 10 endpoints");
    group.sample_size(10);
    for (name, expected, actual) in [
        ("iptables against iptables", Rules::iptables(&iptables), Rules::iptables(&iptables)),
        ("nftables against iptables", Rules::nftables(nftables), Rules::iptables(&iptables)),
        ("nftables against nftables", Rules::nftables(nftables), Rules::nftables(nftables)),
    ] {
        let settings_in = |_| settings.clone();
        let expected = Expected {
            services: &services,
            settings: &settings,
            settings_in: &settings_in,
            host: &host,
            rules: &expected,
        };
        group.bench_function(name, |bencher| bencher.iter(|| compare(&expected, &actual)));
    }
    group.finish();
}

criterion_group!(benches, diff);
criterion_main!(benches);
