//! The recorded rules of kube-proxy's iptables mode handle packets like the planned rules of both modes.

#![expect(clippy::unwrap_used, reason = "test helpers fail like tests")]

#[path = "../../ferroute-iptables/tests/common/records.rs"]
mod records;

use ferroute_core::IpFamily;
use ferroute_inspect::diff::{Conclusion, Expected, Rules, RulesKind, compare, write_report_into};
use ferroute_iptables::{IptablesContext, RuleSet};
use ferroute_nftables::{
    kernel::{Kernel, MemoryKernel},
    model::TableId,
    plan::{NftablesSettings, TABLE},
};
use ferroute_trace::{Host, Route};

/// The node of the lab, see its README.
fn host(record: &records::Record) -> Host {
    let route = |to: &str, interface: &str, source: &str| Route {
        to: to.parse().unwrap(),
        interface: interface.to_owned(),
        source: source.parse().unwrap(),
    };
    let routes = match record.family {
        IpFamily::V4 => vec![route("0.0.0.0/0", "eth0", "10.77.1.2"), route("10.180.1.0/24", "cbr0", "10.180.1.1")],
        IpFamily::V6 => vec![route("::/0", "eth0", "fd77::2"), route("fd00:10:180:1::/64", "cbr0", "fd00:10:180:1::1")],
    };
    Host { addresses: record.host().addresses, routes, route_localnet: true, ..Host::default() }
}

#[test]
fn recorded_rules_are_equal_to_planned_rules_of_both_modes() {
    let mut compared = 0;
    for record in records::records() {
        let (services, settings, host) = (record.table(), record.settings(), host(&record));
        let recorded = RuleSet::parse_save(record.family, &record.text).unwrap();
        let planned = ferroute_iptables::render(&services, &IptablesContext::new(&settings, &services, &record.host()));
        let mut kernel = MemoryKernel::new();
        let nftables_settings = NftablesSettings { proxy: settings.clone(), ..NftablesSettings::default() };
        kernel.commit(&ferroute_nftables::plan::render(&services, &nftables_settings, &host.addresses)).unwrap();
        let table = kernel.table(&TableId { family: record.family, name: TABLE }).unwrap();
        for rules in [Rules::iptables(&planned), Rules::nftables(table)] {
            let expected = Expected {
                services: &services,
                settings: &settings,
                settings_in: &|_| settings.clone(),
                host: &host,
                rules: &rules,
            };
            let report = compare(&expected, &Rules::iptables(&recorded));
            let mut text = String::new();
            write_report_into(&mut text, &report, 0).unwrap();
            assert_eq!(report.conclusion(), Conclusion::Equal, "{}\n{text}", record.name());
            assert!(rules.kind() == RulesKind::Nftables || report.intended.is_empty(), "{}\n{text}", record.name());
            compared += report.coverage.packets;
        }
    }
    assert!(compared > 1000, "only {compared} packets");
}
