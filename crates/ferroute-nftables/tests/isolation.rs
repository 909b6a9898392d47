//! Transactions that the kernel refuses because of one service port.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

mod common;

use std::{
    collections::BTreeSet,
    net::IpAddr,
    sync::{Arc, Mutex},
};

use common::{Host, contents, settings, table_id};
use ferroute_core::{
    Changes, Dataplane, DataplaneError, IpFamily, ServicePortEntry, ServicePortName, ServiceTable, SyncReport,
    testing::{endpoint, entry, node, port_name, service_port},
};
use ferroute_nftables::{
    NftablesDataplane, Value,
    kernel::{ErrorKind, InterceptedKernel, Kernel, MemoryError, MemoryKernel},
    model::{Change, Data, Transaction},
    plan::render,
};

const FAMILY: IpFamily = IpFamily::V4;

/// Returns a kernel that refuses endpoints with one address, and identifies the change if `names` is set; and the
/// number of transactions that were sent to it.
fn picky(refused: &str, names: bool) -> (impl Kernel<Error = MemoryError> + AsRef<MemoryKernel>, Arc<Mutex<usize>>) {
    let (refused, attempts): (IpAddr, _) = (refused.parse().unwrap(), Arc::new(Mutex::new(0)));
    let counter = attempts.clone();
    let kernel = InterceptedKernel::new(
        MemoryKernel::new(),
        move |kernel: &mut MemoryKernel, transaction: &Transaction| {
            *counter.lock().unwrap() += 1;
            let is_refused = |change: &&Change| match change {
                Change::AddElement(_, element) => {
                    matches!(&element.data, Some(Data::Values(values)) if values.first() == Some(&Value::Address(refused)))
                }
                _ => false,
            };
            match transaction.changes.iter().find(is_refused) {
                Some(change) => Err(MemoryError {
                    change: change.text(&transaction.table),
                    kind: ErrorKind::Other,
                    refused: names.then(|| Box::new(change.clone())),
                }),
                None => kernel.commit(transaction),
            }
        },
    );
    (kernel, attempts)
}

fn version(number: u32, address: &str) -> (ServicePortName, ServicePortEntry) {
    let service = service_port(&format!("{}:80", std::net::Ipv4Addr::from(0x0a60_0001 + number)));
    (port_name(&format!("shop/web-{number:04}:http")), entry(service, [endpoint(&format!("{address}:8080"))]))
}

fn good(number: u32) -> (ServicePortName, ServicePortEntry) {
    version(number, &format!("10.244.{}.{}", number / 250, 1 + number % 250))
}

fn table(entries: impl IntoIterator<Item = (ServicePortName, ServicePortEntry)>) -> ServiceTable {
    ServiceTable { entries: entries.into_iter().collect(), ..ServiceTable::new(FAMILY, Arc::new(node("node-1"))) }
}

fn open<K: Kernel>(kernel: K) -> NftablesDataplane<K> {
    NftablesDataplane::with_kernel(kernel, FAMILY, settings(), Box::new(Host::default()))
}

#[track_caller]
fn assert_contents(kernel: &MemoryKernel, table: &ServiceTable) {
    let mut expected = MemoryKernel::new();
    expected.commit(&render(table, &settings(), &Host::default().0)).unwrap();
    let of = |kernel: &MemoryKernel| contents(kernel.table(&table_id(FAMILY)).unwrap(), FAMILY);
    assert_eq!(of(kernel), of(&expected));
}

const BAD: &str = "203.0.113.66";

#[test]
fn first_sync_leaves_out_only_refused_service_ports() {
    assert_left_out(1_000, [0, 17, 18, 999]);
}

#[test]
fn first_sync_of_several_transactions_leaves_out_only_refused_service_ports() {
    // In the first transaction, in consecutive ones, and in the last one. Whenever one is refused, the next one has
    // already been planned.
    assert_left_out(5_000, [0, 1_100, 1_900, 2_700, 2_701, 4_999]);
}

#[track_caller]
fn assert_left_out<const N: usize>(count: u32, bad: [u32; N]) {
    let bad: BTreeSet<u32> = bad.into();
    let (kernel, attempts) = picky(BAD, false);
    let mut dataplane = open(kernel);
    let all = table((0..count).map(|number| if bad.contains(&number) { version(number, BAD) } else { good(number) }));
    let report = dataplane.resync(&all).unwrap();
    let rejected: BTreeSet<ServicePortName> = report.rejected.into_iter().map(|it| it.service_port).collect();
    assert_eq!(rejected, bad.iter().map(|number| good(*number).0).collect());
    let accepted = table((0..count).filter(|number| !bad.contains(number)).map(good));
    assert_contents(dataplane.kernel().as_ref(), &accepted);
    assert!(*attempts.lock().unwrap() < 30 * bad.len(), "{attempts:?}");
    assert!(!dataplane.was_modified_externally().unwrap());
}

#[test]
fn refused_change_keeps_the_previous_elements_and_applies_all_others() {
    let (kernel, _) = picky(BAD, false);
    let mut dataplane = open(kernel);
    let before = table((0..50).map(good));
    assert_eq!(dataplane.resync(&before).unwrap().rejected, []);
    // New, changed and removed service ports with the refused one among them.
    let mut after = before.clone();
    after.entries.extend([version(7, BAD), version(20, "10.245.0.1"), good(70)]);
    after.entries.remove(&good(30).0);
    let names = [7, 20, 30, 70].map(|number| good(number).0);
    let previous = names.iter().map(|name| (name.clone(), before.entries.get(name).cloned())).collect();
    let report = dataplane.sync(&after, &Changes { previous, ..Changes::default() }).unwrap();
    let rejected: Vec<_> = report.rejected.into_iter().map(|it| it.service_port).collect();
    assert_eq!(rejected, [good(7).0]);
    let mut accepted = after.clone();
    accepted.entries.extend([good(7)]);
    assert_contents(dataplane.kernel().as_ref(), &accepted);
    // The next version is accepted.
    after.entries.extend([version(7, "10.245.0.2")]);
    let previous = [(good(7).0, Some(good(7).1))].into();
    assert_eq!(dataplane.sync(&after, &Changes { previous, ..Changes::default() }).unwrap().rejected, []);
    assert_contents(dataplane.kernel().as_ref(), &after);
    assert!(!dataplane.was_modified_externally().unwrap());
}

/// Returns a version that cannot be planned: the tracker never lists an endpoint twice.
fn defective(number: u32) -> (ServicePortName, ServicePortEntry) {
    let (name, mut version) = good(number);
    version.endpoints = version.endpoints.iter().chain(version.endpoints.iter()).collect::<Vec<_>>().into();
    (name, version)
}

#[test]
fn service_port_that_cannot_be_planned_is_reported_and_all_others_are_applied() {
    let mut dataplane = open(MemoryKernel::new());
    let rejected = |report: SyncReport| report.rejected.into_iter().map(|it| it.service_port).collect::<Vec<_>>();
    let before = table((0..50).map(|number| if number == 3 { defective(3) } else { good(number) }));
    let report = dataplane.resync(&before).unwrap();
    assert!(report.rejected[0].error.contains("twice"), "{:?}", report.rejected);
    assert_eq!(rejected(report), [good(3).0]);
    let mut accepted = table((0..50).filter(|number| *number != 3).map(good));
    assert_contents(dataplane.kernel(), &accepted);
    // A service port with a previous plan keeps it.
    let mut after = before.clone();
    after.entries.extend([defective(7), version(20, "10.245.0.1")]);
    let previous = [7, 20].map(|number| (good(number).0, Some(good(number).1))).into();
    let report = dataplane.sync(&after, &Changes { previous, ..Changes::default() }).unwrap();
    assert_eq!(rejected(report), [good(7).0]);
    accepted.entries.extend([version(20, "10.245.0.1")]);
    assert_contents(dataplane.kernel(), &accepted);
    // A full sync removes all of it; the sync loop has the last accepted version.
    assert_eq!(rejected(dataplane.resync(&after).unwrap()), [good(3).0, good(7).0]);
    accepted.entries.remove(&good(7).0);
    assert_contents(dataplane.kernel(), &accepted);
    assert!(!dataplane.was_modified_externally().unwrap());
}

#[test]
fn refused_repair_names_the_service_port() {
    let (kernel, _) = picky(BAD, true);
    let mut dataplane = open(kernel);
    dataplane.resync(&table((0..50).map(good))).unwrap();
    let changed = table((0..50).map(good).chain([version(7, BAD)]));
    match dataplane.resync(&changed) {
        Err(DataplaneError::Rejected { service_port, .. }) => assert_eq!(service_port, good(7).0),
        other => panic!("{other:?}"),
    }
}

#[test]
fn service_with_thousands_of_addresses_is_written_in_short_transactions() {
    let longest = Arc::new(Mutex::new(0));
    let writer = longest.clone();
    let kernel = InterceptedKernel::new(MemoryKernel::new(), move |_: &mut MemoryKernel, transaction: &Transaction| {
        let mut longest = writer.lock().unwrap();
        *longest = transaction.changes.len().max(*longest);
        Ok(())
    });
    let mut dataplane = open(kernel);
    dataplane.resync(&table([])).unwrap();
    let mut service = service_port("10.96.0.1:80");
    service.external_ips = (0..20_000_u32).map(|i| std::net::Ipv4Addr::from(0xcb00_0000 + i).into()).collect();
    let name = port_name("shop/web:http");
    let endpoints = |count: u8| (1..=count).map(|i| endpoint(&format!("10.244.0.{i}:8080"))).collect::<Vec<_>>();
    let two = entry(service, endpoints(2));
    let changes = |previous| Changes { previous: [(name.clone(), previous)].into(), ..Changes::default() };
    let mut sync = |entry: &ServicePortEntry, previous| {
        *longest.lock().unwrap() = 0;
        let report = dataplane.sync(&table([(name.clone(), entry.clone())]), &changes(previous)).unwrap();
        (report.written + report.removed, *longest.lock().unwrap())
    };
    let (written, longest) = sync(&two, None);
    assert!(written > 20_000 && longest < 10_000, "{written} changes in transactions of up to {longest}");
    // A changed endpoint costs the same as for one address.
    let three = ServicePortEntry { endpoints: endpoints(3).into(), ..two.clone() };
    let (written, _) = sync(&three, Some(two));
    assert!(written < 20, "{written}");
}
