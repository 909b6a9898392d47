//! Commands work with a mode that is added through a registry alone. `ferroute-proxy` has the same test for the daemon.

#![expect(clippy::unwrap_used, reason = "tests may panic")]

#[path = "../../ferroute-proxy/tests/toy_mode/toy.rs"]
mod toy;

use std::time::{Duration, SystemTime};

use ferroute_config::{KubeProxyConfiguration, Resolved};
use ferroute_core::{
    Dataplane, IpFamily, ServiceTable, Tracker,
    testing::{Cluster, pod, service, slice},
    tracker::TrackerEvent,
};
use ferroute_inspect::{
    diff::{Conclusion, DiffReport, Expected, Rules, RulesKind, compare},
    replay::{Options, Verdict, replay},
};
use ferroute_iptables::{HostExec, exec::search_path};
use ferroute_modes::{OpenMode, kernel_rules};
use ferroute_proxy::recording::{Bundle, FamilyRecord, Limits, Recorder};
use ferroute_testing::NetNs;
use ferroute_trace::{Host, Route};

use self::toy::{REGISTRY, TOY, modify_kernel};

fn config() -> KubeProxyConfiguration {
    KubeProxyConfiguration { mode: "toy".to_owned(), ..KubeProxyConfiguration::default() }.defaulted()
}

fn resolved() -> Resolved {
    REGISTRY.resolve(&config()).unwrap()
}

fn cluster() -> Cluster {
    let web = service("shop/web").cluster_ip("10.96.0.1").port("http", 80);
    Cluster::new("node-1").service(web).slice(slice("shop/web-a", "web").port("http", 8080).pod(pod("10.0.0.1")))
}

/// Opens the IPv4 dataplane.
fn dataplane(table: &ServiceTable) -> Box<dyn Dataplane> {
    let OpenMode { mut dataplanes, .. } = REGISTRY.open(&resolved(), &table.node).unwrap();
    dataplanes.pop().unwrap().1
}

/// Compares the rules in the kernel with those planned for a table.
fn diff(table: &ServiceTable) -> DiffReport {
    let kernel = NetNs::new().run(|| kernel_rules::read(IpFamily::V4, &HostExec, &search_path())).unwrap();
    let proxies = REGISTRY.active_proxies(&kernel);
    let resolved = resolved();
    let planned = REGISTRY.active(resolved.mode).plan(&resolved, table, &[]).unwrap();
    let host = Host {
        addresses: vec!["192.168.0.1".parse().unwrap()],
        routes: vec![Route {
            to: "0.0.0.0/0".parse().unwrap(),
            interface: "eth0".to_owned(),
            source: "192.168.0.1".parse().unwrap(),
        }],
        ..Host::default()
    };
    let rules = Rules::from(planned.view());
    let expected = Expected {
        services: table,
        settings: &resolved.settings,
        settings_in: &|_| resolved.settings.clone(),
        host: &host,
        rules: &rules,
    };
    compare(&expected, &Rules::from(proxies[0].rules))
}

#[test]
fn diff_compares_rules_by_packets() {
    let table = cluster().table(IpFamily::V4);
    dataplane(&table).resync(&table).unwrap();
    let report = diff(&table);
    assert_eq!((report.expected, report.actual), (RulesKind::Other(TOY), Some(RulesKind::Other(TOY))));
    assert_eq!(report.conclusion(), Conclusion::Equal, "{report:?}");
    assert!(report.coverage.packets > 0);

    modify_kernel(|rules| {
        rules.0.values_mut().for_each(|endpoints| *endpoints = vec!["10.0.0.9:8080".parse().unwrap()]);
    });
    assert_eq!(diff(&table).conclusion(), Conclusion::Different);
}

/// Records a sync of one IP family.
fn sync(dataplane: &mut dyn Dataplane, tracker: &mut Tracker, recorder: &mut Recorder, full: bool) {
    let changes = if full { tracker.update_for_resync(IpFamily::V4) } else { tracker.update(IpFamily::V4) };
    let table = tracker.table(IpFamily::V4);
    let report = if full { dataplane.resync(table) } else { dataplane.sync(table, &changes) }.unwrap();
    let mut record = FamilyRecord::synced(IpFamily::V4, &changes, Some(&report), 0, Duration::ZERO);
    if full {
        record = record.with_digest(dataplane.digest(table));
    }
    recorder.synced(SystemTime::UNIX_EPOCH, record);
}

#[test]
fn replay_repeats_recorded_syncs() {
    let mut tracker = cluster().tracker();
    let mut recorder = Recorder::new(Limits::default());
    let mut dataplane = dataplane(tracker.table(IpFamily::V4));
    sync(&mut *dataplane, &mut tracker, &mut recorder, true);
    let dns = service("shop/dns").cluster_ip("10.96.0.10").udp("dns", 53).build();
    let event = TrackerEvent::from_service(&dns).unwrap();
    recorder.record(&event, &tracker);
    tracker.apply(event);
    sync(&mut *dataplane, &mut tracker, &mut recorder, false);
    sync(&mut *dataplane, &mut tracker, &mut recorder, true);

    let snapshot = recorder.snapshot(&tracker);
    let bundle = Bundle::new(snapshot, "1.0.0", SystemTime::UNIX_EPOCH, "toy", config().to_yaml(), Vec::new());
    assert_eq!(bundle.syncs.len(), 2);
    let mut out = Vec::new();
    let verdict = replay(&REGISTRY, &bundle, &Options { rules: true, ..Options::default() }, &mut out).unwrap();
    let text = String::from_utf8(out).unwrap();
    assert_eq!(verdict, Verdict::Same, "{text}");
    assert!(text.contains("10.96.0.1:80 tcp 10.0.0.1:8080\n"), "{text}");
}
