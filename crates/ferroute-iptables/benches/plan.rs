//! Duration of planning without `iptables-restore`, for all Services and for one change, by size of the cluster.

use std::{hint::black_box, io, sync::Arc, time::Duration};

use criterion::{BatchSize, BenchmarkId, Criterion, criterion_group, criterion_main};
use ferroute_core::{
    Changes, Endpoints, HostState, IpFamily, LocalTrafficDetector, ProxySettings, ServicePortEntry, ServicePortName,
    ServiceTable,
    testing::{endpoint, entry, node, port_name, service_port, table},
};
use ferroute_iptables::{ChainState, Difference, IptablesContext, KernelChains, KernelChainsReader};

/// Services and endpoints of each.
const SIZES: [(usize, usize); 3] = [(100, 10), (1_000, 10), (10_000, 10)];

fn cluster(services: usize, endpoints: usize) -> (ServiceTable, IptablesContext) {
    let address = |first: u8, n: usize| {
        let [_, b, c, d] = u32::try_from(n + 1).expect("less than 2^24 addresses").to_be_bytes();
        format!("{first}.{b}.{c}.{d}")
    };
    let entries = (0..services).map(|i| {
        let endpoints = (0..endpoints).map(|j| endpoint(&format!("{}:8080", address(10, i * endpoints + j))));
        let service = service_port(&format!("{}:80", address(11, i)));
        (port_name(&format!("bench/svc-{i:05}:http")), entry(service, endpoints))
    });
    let table = table(IpFamily::V4, node("node-1"), entries);
    let detector = LocalTrafficDetector::ClusterCidr(vec!["10.0.0.0/8".parse().expect("a network")]);
    let settings = ProxySettings { detector, ..ProxySettings::default() };
    let context = IptablesContext::new(&settings, &table, &HostState { random_fully: true, ..HostState::default() });
    (table, context)
}

/// Removes one endpoint of a Service in the middle.
fn change(table: &mut ServiceTable) -> Changes {
    let middle = table.entries.len() / 2;
    let (name, entry): (&ServicePortName, &mut ServicePortEntry) =
        table.entries.iter_mut().nth(middle).expect("some entry");
    let previous = entry.clone();
    let fewer: Endpoints = entry.endpoints.iter().skip(1).collect();
    entry.endpoints = fewer;
    Changes {
        services: [name.service.clone()].into(),
        previous: [(name.clone(), Some(previous))].into(),
        ..Changes::default()
    }
}

fn saved(table: &ServiceTable, context: &IptablesContext) -> String {
    ferroute_iptables::render(table, context).to_string()
}

fn benches(criterion: &mut Criterion) {
    for (services, endpoints) in SIZES {
        let size = format!("{services}x{endpoints}");
        let (mut table, context) = cluster(services, endpoints);
        let everything = Difference::from_kernel(&table, context.clone(), KernelChains::empty());

        let mut group = criterion.benchmark_group("first sync");
        group.bench_function(BenchmarkId::new("compare", &size), |bench| {
            bench.iter(|| Difference::from_kernel(black_box(&table), context.clone(), KernelChains::empty()));
        });
        group.bench_function(BenchmarkId::new("write", &size), |bench| {
            bench.iter(|| everything.write(black_box(&table), io::sink()));
        });
        group.finish();

        let text = saved(&table, &context);
        let mut group = criterion.benchmark_group("resync");
        group.bench_function(BenchmarkId::new("read", &size), |bench| {
            bench.iter(|| {
                let mut reader = KernelChainsReader::new(IpFamily::V4);
                text.lines().try_for_each(|line| reader.line(line)).and_then(|()| reader.finish())
            });
        });
        group.finish();

        let state = ChainState::new(everything);
        let changes = change(&mut table);
        let table = Arc::new(table);
        let mut group = criterion.benchmark_group("one endpoint less");
        group.bench_function(BenchmarkId::new("compare and write", &size), |bench| {
            bench.iter_batched(
                || table.clone(),
                |table| state.difference(&table, &context, &changes).write(&table, io::sink()),
                BatchSize::SmallInput,
            );
        });
        group.finish();
    }
}

criterion_group! {
    name = plan;
    config = Criterion::default().sample_size(10).measurement_time(Duration::from_secs(3));
    targets = benches
}
criterion_main!(plan);
