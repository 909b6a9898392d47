//! `kubectl ferroute status`: one line for each node.

use std::fmt;

use ferroute_inspect::doctor::{Diagnosis, Finding};
use ferroute_proxy::control::NodeStatus;
use serde::Serialize;

use crate::{
    Fleet, NodeAnswer, NodeProxy,
    answer::{answered, decode},
    table::write_table_into,
};

/// The state of one node.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeReport {
    /// The name of the node.
    pub node: String,
    /// The pod of the proxy.
    pub pod: String,
    /// The state of the proxy; `None` if the node does not answer.
    #[serde(flatten)]
    pub status: Option<StatusFields>,
    /// Whether the kernel's rules differ from the desired ones.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drift: Option<Drift>,
    /// The findings of `ferroute doctor`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub doctor: Option<Doctor>,
    /// Reason why there is no answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// The fields of [`NodeStatus`], without the name of the node.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct StatusFields {
    version: String,
    mode: String,
    ready: bool,
    eligible: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_sync: Option<String>,
    pending: usize,
    lag_seconds: f64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    problems: Vec<String>,
}

/// The result of `ferroute diff`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Drift {
    /// The kernel's rules are equivalent to the desired ones.
    None,
    /// The rules differ.
    Found,
    /// The rules cannot be compared.
    Unknown,
}

/// The result of `ferroute doctor`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Doctor {
    /// The number of findings, or `None` if the doctor did not answer.
    pub findings: Option<usize>,
    /// The most severe finding.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worst: Option<Finding>,
}

impl From<NodeStatus> for StatusFields {
    fn from(status: NodeStatus) -> Self {
        let NodeStatus { version, mode, ready, eligible, last_sync, pending, lag_seconds, problems, .. } = status;
        Self { version, mode, ready, eligible, last_sync, pending, lag_seconds, problems }
    }
}

/// Returns the state of all nodes; `thorough` also compares rules and runs the doctor, which reads all Services on each node.
pub async fn statuses(fleet: &Fleet, proxies: &[NodeProxy], thorough: bool) -> Vec<NodeReport> {
    let answers = fleet.ask(proxies, |fleet, proxy| async move {
        let status: NodeStatus = decode(&answered(fleet.run(&proxy, &["status", "-o", "json"]).await?, &[0, 1])?)?;
        let (mut drift, mut doctor) = (None, None);
        if thorough {
            drift = Some(match fleet.run(&proxy, &["diff"]).await {
                Ok(output) if output.status == 0 => Drift::None,
                Ok(output) if output.status == 1 => Drift::Found,
                Ok(_) | Err(_) => Drift::Unknown,
            });
            let output = fleet.run(&proxy, &["doctor", "--no-connect", "-o", "json"]).await;
            let findings = output.and_then(|output| decode::<Diagnosis>(&output.stdout)).ok();
            let findings = findings.map(|diagnosis| diagnosis.findings);
            doctor = Some(Doctor {
                findings: findings.as_ref().map(Vec::len),
                worst: findings.and_then(|findings| findings.into_iter().next()),
            });
        }
        Ok((status, drift, doctor))
    });
    answers.await.into_iter().map(NodeReport::from).collect()
}

impl From<NodeAnswer<(NodeStatus, Option<Drift>, Option<Doctor>)>> for NodeReport {
    fn from(answer: NodeAnswer<(NodeStatus, Option<Drift>, Option<Doctor>)>) -> Self {
        let NodeAnswer { proxy, result } = answer;
        let (node, pod) = (proxy.node, proxy.container.pod);
        match result {
            Ok((status, drift, doctor)) => Self { node, pod, status: Some(status.into()), drift, doctor, error: None },
            Err(error) => Self { node, pod, status: None, drift: None, doctor: None, error: Some(error) },
        }
    }
}

/// Reports whether all nodes answer, are ready and have no drift.
pub fn is_good(reports: &[NodeReport]) -> bool {
    let is_good = |report: &NodeReport| {
        report.status.as_ref().is_some_and(|status| status.ready)
            && report.drift.is_none_or(|drift| drift == Drift::None)
    };
    reports.iter().all(is_good)
}

/// Writes a table; `wide` with more columns.
///
/// # Errors
/// Only errors of `out`.
pub fn write_statuses_into(out: &mut impl fmt::Write, reports: &[NodeReport], wide: bool) -> fmt::Result {
    let mut header = vec!["NODE", "READY", "MODE", "VERSION", "LAST SYNC", "PENDING", "LAG", "DRIFT", "DOCTOR"];
    if wide {
        header.extend(["ELIGIBLE", "POD"]);
    }
    let mut rows = vec![header.into_iter().map(str::to_owned).collect::<Vec<_>>()];
    rows.extend(reports.iter().map(|report| row(report, wide)));
    write_table_into(out, &rows)
}

fn row(report: &NodeReport, wide: bool) -> Vec<String> {
    let NodeReport { node, pod, status, drift, doctor, error } = report;
    let Some(status) = status else {
        return vec![node.clone(), "unknown".to_owned(), error.clone().unwrap_or_default()];
    };
    let yes_or_no = |value: bool| if value { "yes" } else { "no" }.to_owned();
    let drift = match drift {
        Some(Drift::None) => "no",
        Some(Drift::Found) => "yes",
        Some(Drift::Unknown) => "unknown",
        None => "-",
    };
    let doctor = match doctor {
        None => "-".to_owned(),
        Some(Doctor { findings: None, .. }) => "unknown".to_owned(),
        Some(Doctor { worst: None, .. }) => "ok".to_owned(),
        Some(Doctor { worst: Some(worst), .. }) if wide => {
            format!("{}: {} ({})", worst.severity, worst.problem, worst.check)
        }
        Some(Doctor { worst: Some(worst), .. }) => format!("{}: {}", worst.severity, worst.check),
    };
    let mut row = vec![
        node.clone(),
        yes_or_no(status.ready),
        status.mode.clone(),
        status.version.clone(),
        status.last_sync.clone().unwrap_or("never".to_owned()),
        status.pending.to_string(),
        format!("{:.1}s", status.lag_seconds),
        drift.to_owned(),
        doctor,
    ];
    if wide {
        row.extend([yes_or_no(status.eligible), pod.clone()]);
    }
    row
}
