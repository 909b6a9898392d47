//! Metrics that only some modes expose, as data: each mode lists its metrics, and the lists of kube-proxy's modes are
//! in this module.

use ferroute_core::{DataplaneError, IpFamily, NfacctCounters, Protocol, SyncReport};
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
    /// Gauge by service port, protocol and IP family: [`RelayedPort::open`].
    OpenConnections,
    /// Counter by service port, protocol and IP family: [`RelayedPort::connections`].
    RelayedConnections,
    /// Counter by service port, protocol and IP family: [`RelayedPort::failed_attempts`].
    FailedAttempts,
    /// Counter by service port, protocol and IP family: [`RelayedPort::refused`].
    RefusedConnections,
    /// Counter by service port, protocol and IP family: [`RelayedPort::limited`].
    LimitedConnections,
    /// Counter by direction, service port, protocol and IP family: [`RelayedPort::bytes_to_endpoints`] and
    /// [`RelayedPort::bytes_to_clients`].
    RelayedBytes,
    /// Gauge by IP family: node ports that are served on localhost.
    LocalhostNodePorts,
    /// Counter by IP family: failures to serve node ports on localhost.
    LocalhostFailures,
    /// Counter by IP family and protocol: packets to localhost that are rejected because the protocol is not served there. All are.
    LocalhostRejections,
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

/// Metrics of userspace mode. kube-proxy's userspace mode had no specific ones.
pub const USERSPACE_METRICS: &[ModeMetric] = &[
    RESTORE_FAILURES,
    ModeMetric {
        name: "ferroute_userspace_open_connections",
        help: "Open TCP connections and UDP flows of the userspace proxy by service port; the name is empty for those beyond the first 1000.",
        value: ModeValue::OpenConnections,
    },
    ModeMetric {
        name: "ferroute_userspace_connections_total",
        help: "TCP connections and UDP flows that the userspace proxy has accepted and connected to an endpoint.",
        value: ModeValue::RelayedConnections,
    },
    ModeMetric {
        name: "ferroute_userspace_failed_attempts_total",
        help: "Attempts of the userspace proxy to reach an endpoint that failed; each was followed by another one, if an endpoint was left.",
        value: ModeValue::FailedAttempts,
    },
    ModeMetric {
        name: "ferroute_userspace_refused_total",
        help: "TCP connections that were reset because the userspace proxy could reach no endpoint, and UDP datagrams that it dropped.",
        value: ModeValue::RefusedConnections,
    },
    ModeMetric {
        name: "ferroute_userspace_limited_total",
        help: "TCP connections that were reset, and UDP datagrams that were dropped, because the client had its share of the userspace proxy.",
        value: ModeValue::LimitedConnections,
    },
    ModeMetric {
        name: "ferroute_userspace_bytes_total",
        help: "Bytes that the userspace proxy has relayed, by direction: to_endpoint or to_client.",
        value: ModeValue::RelayedBytes,
    },
];

/// Connections of a service port that a process relays, since it started to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RelayedPort {
    /// IP family.
    pub family: IpFamily,
    /// Name of the service port (`shop/web:http`); empty for all that are not listed by name.
    pub service_port: String,
    /// Protocol.
    pub protocol: Protocol,
    /// Open connections or flows.
    pub open: u64,
    /// Connections or flows that reached an endpoint.
    pub connections: u64,
    /// Attempts to reach an endpoint that failed.
    pub failed_attempts: u64,
    /// Connections that reached no endpoint, and dropped datagrams.
    pub refused: u64,
    /// Connections that were reset, and datagrams that were dropped, because the client had reached its share.
    pub limited: u64,
    /// Bytes from clients to endpoints.
    pub bytes_to_endpoints: u64,
    /// Bytes from endpoints to clients.
    pub bytes_to_clients: u64,
}

/// Labels of connections that a process relays.
const RELAYED: &[&str] = &["service_port", "protocol", "ip_family"];

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
    ModeMetric {
        name: "kubeproxy_nftables_localhost_nodeport_listeners",
        help: "Node ports with endpoints that are served on localhost. The kernel serves them, without listeners.",
        value: ModeValue::LocalhostNodePorts,
    },
    ModeMetric {
        name: "kubeproxy_nftables_localhost_nodeport_listener_creation_failures_total",
        help: "Failures to add the local routes that node ports on ::1 need; they are retried.",
        value: ModeValue::LocalhostFailures,
    },
    ModeMetric {
        name: "kubeproxy_nftables_localhost_nodeport_rejected_packets_total",
        help: "Always 0: node ports of all protocols are served on localhost.",
        value: ModeValue::LocalhostRejections,
    },
];

/// The registered metrics of a mode.
pub(super) struct ModeMetrics(Vec<(ModeValue, Collector)>);

enum Collector {
    Counter(IntCounter),
    /// By IP family.
    Counters(IntCounterVec),
    /// By IP family and protocol.
    Rejections(IntCounterVec),
    /// By several labels.
    Gauges(GaugeVec),
    /// By service port, protocol and IP family.
    Relayed(IntCounterVec),
}

impl ModeMetrics {
    pub(super) fn new(registrar: &Registrar<'_>, metrics: &[ModeMetric]) -> Self {
        let register = |metric: &ModeMetric| {
            let (name, help) = (metric.name, metric.help);
            let collector = match metric.value {
                ModeValue::FailedSyncs
                | ModeValue::FailedWrites
                | ModeValue::FailedPartialWrites
                | ModeValue::RefusedRemovals
                | ModeValue::LocalhostFailures => Collector::Counters(registrar.counters(name, help, FAMILY)),
                ModeValue::TableRules | ModeValue::TableRulesWritten => {
                    Collector::Gauges(registrar.gauges(name, help, &["table", "ip_family"]))
                }
                ModeValue::LocalhostNodePorts => Collector::Gauges(registrar.gauges(name, help, FAMILY)),
                ModeValue::LocalhostRejections => {
                    Collector::Rejections(registrar.counters(name, help, &["ip_family", "protocol"]))
                }
                ModeValue::OpenConnections => Collector::Gauges(registrar.gauges(name, help, RELAYED)),
                ModeValue::RelayedConnections
                | ModeValue::FailedAttempts
                | ModeValue::RefusedConnections
                | ModeValue::LimitedConnections => Collector::Relayed(registrar.counters(name, help, RELAYED)),
                ModeValue::RelayedBytes => {
                    let labels = &[&["direction"], RELAYED].concat();
                    Collector::Relayed(registrar.counters(name, help, labels))
                }
                ModeValue::Packets(_) => Collector::Counter(registrar.counter(name, help)),
            };
            (metric.value, collector)
        };
        Self(metrics.iter().map(register).collect())
    }

    /// Starts the family's counters at zero.
    pub(super) fn init(&self, family: IpFamily) {
        self.set_localhost_node_ports(family, 0);
        for (_, collector) in &self.0 {
            match collector {
                Collector::Counters(counters) => _ = counters.with_label_values(&[family.as_str()]),
                Collector::Rejections(counters) => {
                    for protocol in Protocol::ALL {
                        counters.with_label_values(&[family.as_str(), &protocol.as_str().to_uppercase()]);
                    }
                }
                _ => {}
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

    pub(super) fn set_localhost_node_ports(&self, family: IpFamily, count: usize) {
        for (value, collector) in &self.0 {
            if let (ModeValue::LocalhostNodePorts, Collector::Gauges(gauges)) = (value, collector) {
                gauges.with_label_values(&[family.as_str()]).set(number(count));
            }
        }
    }

    pub(super) fn localhost_node_ports_failed(&self, family: IpFamily) {
        for (value, collector) in &self.0 {
            if let (ModeValue::LocalhostFailures, Collector::Counters(counters)) = (value, collector) {
                counters.with_label_values(&[family.as_str()]).inc();
            }
        }
    }

    /// Replaces all counts, so that deleted Services disappear.
    pub(super) fn set_relayed(&self, ports: &[RelayedPort]) {
        for (value, collector) in &self.0 {
            let set: &dyn Fn(&RelayedPort, &[&str]) = match (value, collector) {
                (ModeValue::OpenConnections, Collector::Gauges(gauges)) => {
                    gauges.reset();
                    &|port, labels| gauges.with_label_values(labels).set(port.open as f64)
                }
                (_, Collector::Relayed(counters)) => {
                    counters.reset();
                    let count = |labels: &[&str], count| counters.with_label_values(labels).inc_by(count);
                    &move |port, labels| match value {
                        ModeValue::RelayedConnections => count(labels, port.connections),
                        ModeValue::FailedAttempts => count(labels, port.failed_attempts),
                        ModeValue::RefusedConnections => count(labels, port.refused),
                        ModeValue::LimitedConnections => count(labels, port.limited),
                        _ => {
                            count(&[&["to_endpoint"], labels].concat(), port.bytes_to_endpoints);
                            count(&[&["to_client"], labels].concat(), port.bytes_to_clients);
                        }
                    }
                }
                _ => continue,
            };
            for port in ports {
                set(port, &[&port.service_port, port.protocol.as_str(), port.family.as_str()]);
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
