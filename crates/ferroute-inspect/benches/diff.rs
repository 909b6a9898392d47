//! How long it takes to compare the rules of a large cluster, in the pairs of modes.

#![expect(clippy::unwrap_used, reason = "what cannot be had ends the measurement")]

use criterion::{Criterion, criterion_group, criterion_main};
use ferroute_core::{HostState, IpFamily, ProxySettings, testing::Cluster};
use ferroute_inspect::diff::{Rules, Wanted, compare};
use ferroute_iptables::PlanContext;
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
    let host = Host { addresses: vec![source], routes: vec![default], route_localnet: true };
    let facts = HostState { addresses: host.addresses.clone(), ..HostState::default() };
    let iptables = ferroute_iptables::render(&services, &PlanContext::new(&settings, &services, &facts));
    let of_mode = NftablesSettings { proxy: settings.clone(), ..NftablesSettings::default() };
    let mut kernel = MemoryKernel::new();
    kernel.commit(&ferroute_nftables::plan::render(&services, &of_mode, &host.addresses)).unwrap();
    let nftables = kernel.table(&TableId { family: IpFamily::V4, name: TABLE }).unwrap();
    let mut group = criterion.benchmark_group("10,000 services of 10 endpoints");
    group.sample_size(10);
    for (name, wanted, found) in [
        ("iptables against iptables", Rules::iptables(&iptables), Rules::iptables(&iptables)),
        ("nftables against iptables", Rules::nftables(nftables), Rules::iptables(&iptables)),
        ("nftables against nftables", Rules::nftables(nftables), Rules::nftables(nftables)),
    ] {
        let wanted = Wanted { services: &services, settings: &settings, host: &host, rules: &wanted };
        group.bench_function(name, |bencher| bencher.iter(|| compare(&wanted, &found)));
    }
    group.finish();
}

criterion_group!(benches, diff);
criterion_main!(benches);
