//! Metrics that only some modes expose, as data: each mode lists its own, and the lists of kube-proxy's modes are here.

use ferroute_core::{DataplaneError, IpFamily, NfacctCounters, SyncReport};
use prometheus::{GaugeVec, IntCounter, IntCounterVec};

use super::registrar::{FAMILY, Registrar, number};

/// A metric of a mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModeMetric {
    /// Name.
    pub name: &'static str,
    /// Help text.
    pub help: &'static str,
    /// Value, which determines type and labels.
    pub value: ModeValue,
}

/// The value of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModeValue {
    /// Counter by IP family: failed syncs.
    FailedSyncs,
    /// Counter by IP family: syncs that failed to write rules, as opposed to reading them.
    FailedWrites,
    /// Counter by IP family: syncs of changes only that failed to write rules.
    FailedPartialWrites,
    /// Counter by IP family: [`SyncReport::refused_removals`].
    RefusedRemovals,
    /// Gauge by table and IP family: active rules.
    TableRules,
    /// Gauge by table and IP family: rules written by the last sync.
    TableRulesWritten,
    /// Counter without labels: packets of the nfacct counter with this name.
    Packets(&'static str),
}

const RESTORE_FAILURES: ModeMetric = ModeMetric {
    name: "kubeproxy_sync_proxy_rules_iptables_restore_failures_total",
    help: "Syncs that failed because of iptables-restore.",
    value: ModeValue::FailedWrites,
};

/// Metrics of kube-proxy's iptables mode.
pub const IPTABLES_METRICS: &[ModeMetric] = &[
    ModeMetric {
        name: "kubeproxy_sync_proxy_rules_iptables_total",
        help: "Active rules by table.",
        value: ModeValue::TableRules,
    },
    ModeMetric {
        name: "kubeproxy_sync_proxy_rules_iptables_last",
        help: "Rules written by the last sync, by table.",
        value: ModeValue::TableRulesWritten,
    },
    RESTORE_FAILURES,
    ModeMetric {
        name: "kubeproxy_sync_proxy_rules_iptables_partial_restore_failures_total",
        help: "Partial syncs that failed because of iptables-restore; a full sync follows.",
        value: ModeValue::FailedPartialWrites,
    },
    ModeMetric {
        name: "kubeproxy_iptables_ct_state_invalid_dropped_packets_total",
        help: "Packets dropped by iptables because their connection tracking state was INVALID.",
        value: ModeValue::Packets(NfacctCounters::INVALID_DROPPED),
    },
    ModeMetric {
        name: "kubeproxy_iptables_localhost_nodeports_accepted_packets_total",
        help: "Packets to node ports on loopback addresses accepted by iptables.",
        value: ModeValue::Packets(NfacctCounters::LOCALHOST_ACCEPTED),
    },
];

/// Metrics of kube-proxy's ipvs mode.
pub const IPVS_METRICS: &[ModeMetric] = &[RESTORE_FAILURES];

/// Metrics of userspace mode. kube-proxy's had none of its own.
pub const USERSPACE_METRICS: &[ModeMetric] = &[RESTORE_FAILURES];

/// Metrics of kube-proxy's nftables mode.
pub const NFTABLES_METRICS: &[ModeMetric] = &[
    ModeMetric {
        name: "kubeproxy_sync_proxy_rules_nftables_sync_failures_total",
        help: "Syncs that failed.",
        value: ModeValue::FailedSyncs,
    },
    ModeMetric {
        name: "kubeproxy_sync_proxy_rules_nftables_cleanup_failures_total",
        help: "Unused chains and sets that the kernel refused to delete; deletion is retried.",
        value: ModeValue::RefusedRemovals,
    },
];

/// The registered metrics of a mode.
pub(super) struct ModeMetrics(Vec<(ModeValue, Collector)>);

enum Collector {
    Counter(IntCounter),
    /// By IP family.
    Counters(IntCounterVec),
    /// By table and IP family.
    Gauges(GaugeVec),
}

impl ModeMetrics {
    pub(super) fn new(registrar: &Registrar<'_>, metrics: &[ModeMetric]) -> Self {
        let register = |metric: &ModeMetric| {
            let (name, help) = (metric.name, metric.help);
            let collector = match metric.value {
                ModeValue::FailedSyncs
                | ModeValue::FailedWrites
                | ModeValue::FailedPartialWrites
                | ModeValue::RefusedRemovals => Collector::Counters(registrar.counters(name, help, FAMILY)),
                ModeValue::TableRules | ModeValue::TableRulesWritten => {
                    Collector::Gauges(registrar.gauges(name, help, &["table", "ip_family"]))
                }
                ModeValue::Packets(_) => Collector::Counter(registrar.counter(name, help)),
            };
            (metric.value, collector)
        };
        Self(metrics.iter().map(register).collect())
    }

    /// Starts the family's counters at zero.
    pub(super) fn init(&self, family: IpFamily) {
        for (_, collector) in &self.0 {
            if let Collector::Counters(counters) = collector {
                counters.with_label_values(&[family.as_str()]);
            }
        }
    }

    pub(super) fn synced(&self, family: IpFamily, report: &SyncReport) {
        let family = family.as_str();
        for (value, collector) in &self.0 {
            match (value, collector) {
                (ModeValue::RefusedRemovals, Collector::Counters(counters)) => {
                    counters.with_label_values(&[family]).inc_by(report.refused_removals as u64);
                }
                (ModeValue::TableRules, Collector::Gauges(gauges)) => {
                    for table in &report.tables {
                        gauges.with_label_values(&[table.name, family]).set(number(table.total));
                    }
                }
                (ModeValue::TableRulesWritten, Collector::Gauges(gauges)) => {
                    for table in &report.tables {
                        gauges.with_label_values(&[table.name, family]).set(number(table.written));
                    }
                }
                _ => {}
            }
        }
    }

    pub(super) fn failed(&self, family: IpFamily, full: bool, error: &DataplaneError) {
        let is_write = match error {
            DataplaneError::Read { .. } | DataplaneError::ChangedWhileReading { .. } => false,
            DataplaneError::Write { .. } | DataplaneError::Rejected { .. } => true,
        };
        for (value, collector) in &self.0 {
            let counts = match value {
                ModeValue::FailedSyncs => true,
                ModeValue::FailedWrites => is_write,
                ModeValue::FailedPartialWrites => is_write && !full,
                _ => false,
            };
            if let (true, Collector::Counters(counters)) = (counts, collector) {
                counters.with_label_values(&[family.as_str()]).inc();
            }
        }
    }

    /// Sets counters to the kernel's values.
    pub(super) fn set_packets(&self, packets: &[(&'static str, u64)]) {
        for (value, collector) in &self.0 {
            if let (ModeValue::Packets(name), Collector::Counter(counter)) = (value, collector)
                && let Some((_, count)) = packets.iter().find(|(counter, _)| counter == name)
            {
                counter.reset();
                counter.inc_by(*count);
            }
        }
    }
}
