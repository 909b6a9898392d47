//! `ferroute status`: shows the state of the running proxy.

use std::{
    fmt::{self, Write as _},
    io::Write,
    process::ExitCode,
};

use clap::Args;
use ferroute_admin::history::ChangeDelays;
use ferroute_config::flags::DesiredArgs;
use ferroute_core::{Escaped, NamespacedName};
use ferroute_inspect::{
    desired::{Desired, service_name},
    explain::not_served,
};
use ferroute_proxy::{
    ServiceVersions,
    control::{NodeStatus, ObservedEndpoint, Pacing, SourceInfo, request_info, request_statuses, request_versions},
};

use super::Output;

/// Arguments of `ferroute status`.
#[derive(Args, Debug)]
pub(crate) struct StatusArgs {
    /// Show which versions of this Service and its slices are applied
    ///
    /// NAME, NAMESPACE/NAME, or either after svc/.
    #[arg(long, value_name = "SERVICE")]
    service: Option<String>,
    /// Namespace of a Service that is named without one
    #[arg(short, long, value_name = "NAMESPACE", default_value = "default")]
    namespace: String,
    /// Output format
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value_t)]
    output: Output,
}

/// Prints the state. The exit status is 1 if the proxy is not ready, does not serve the Service, or has not applied the
/// versions.
pub(crate) fn run(args: &StatusArgs, out: &mut impl Write) -> anyhow::Result<ExitCode> {
    let is_good = match &args.service {
        Some(service) => {
            let service = service_name(service, &args.namespace).map_err(anyhow::Error::msg)?;
            let mut versions = request_versions(&service)?;
            if !versions.served
                && let Some(reason) = reason_in_manifests(&service)
            {
                versions.reason = Some(reason);
            }
            args.output.write(out, &versions, |text| write_versions_into(text, &versions))?;
            versions.is_served_as_received()
        }
        None => {
            let statuses = request_statuses()?;
            // There is one proxy, or the first names the problem.
            args.output.write(out, &statuses.first(), |text| write_statuses_into(text, &statuses))?;
            statuses.iter().all(|status| status.ready)
        }
    };
    Ok(if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Returns the reason why the proxy does not serve a Service in its manifests. The proxy itself does not keep invalid ones.
fn reason_in_manifests(service: &NamespacedName) -> Option<String> {
    let SourceInfo::Manifests(_) = request_info().ok()?.source else { return None };
    let mut desired = Desired::load_again(&DesiredArgs::default()).ok()?;
    desired.complete_for(service);
    not_served(&service.to_string(), &desired)
}

fn write_statuses_into(out: &mut String, statuses: &[NodeStatus]) -> fmt::Result {
    for (number, status) in statuses.iter().enumerate() {
        if number > 0 {
            writeln!(out)?;
        }
        write_status_into(out, status)?;
    }
    Ok(())
}

fn write_status_into(out: &mut String, status: &NodeStatus) -> fmt::Result {
    let NodeStatus { node, version, mode, ready, eligible, last_sync, pending, lag_seconds, .. } = status;
    let yes_or_no = |value: bool| if value { "yes" } else { "no" };
    writeln!(out, "node:       {node}")?;
    writeln!(out, "version:    {version}")?;
    writeln!(out, "mode:       {mode}")?;
    writeln!(out, "ready:      {}", yes_or_no(*ready))?;
    writeln!(out, "eligible:   {}", yes_or_no(*eligible))?;
    writeln!(out, "last sync:  {}", last_sync.as_deref().unwrap_or("never"))?;
    writeln!(out, "pending:    {pending}")?;
    writeln!(out, "lag:        {lag_seconds:.1}s")?;
    writeln!(out, "pacing:     {}", pacing_text(status.pacing))?;
    if let Some(ChangeDelays { changes, waited_seconds, longest_wait_seconds, sync_seconds }) = status.delays {
        let time = |seconds: f64| format!("{:.1}ms", seconds * 1000.0);
        writeln!(
            out,
            "changes:    waited {} (at most {}) for syncs of {}: the last {changes}",
            time(waited_seconds),
            time(longest_wait_seconds),
            time(sync_seconds)
        )?;
    }
    for ObservedEndpoint { service_port, endpoint, .. } in status.endpoints.iter().filter(|observed| observed.ejected) {
        writeln!(out, "ejected:    {} {endpoint}", Escaped(service_port))?;
    }
    status.problems.iter().try_for_each(|problem| writeln!(out, "problem:    {}", Escaped(problem)))
}

/// Describes when a sync may follow another, and why.
fn pacing_text(Pacing { min_sync_period_seconds: period, by_cost }: Pacing) -> String {
    if by_cost {
        format!(
            "syncs start at once while they take less than a tenth of a processor's time, or else every {period}s (no \
             minSyncPeriod is configured)"
        )
    } else {
        format!("one sync every {period}s (minSyncPeriod of the configuration)")
    }
}

fn write_versions_into(out: &mut String, versions: &ServiceVersions) -> fmt::Result {
    let ServiceVersions { served, applied: _, refused, limited, reason, service, slices } = versions;
    let text = |version: &Option<u64>| version.map_or("unknown".to_owned(), |version| version.to_string());
    let applied = match (versions.is_served_as_received(), served, refused) {
        (true, ..) if *limited => "yes, but not with all endpoints: a limit is exceeded",
        (true, ..) => "yes",
        (false, false, _) => "no: not served",
        (false, true, true) => "no: the kernel refuses rules of the Service",
        (false, true, false) if *limited => "no: a limit is exceeded",
        (false, true, false) => "no",
    };
    writeln!(out, "applied:    {applied}")?;
    reason.iter().try_for_each(|reason| writeln!(out, "reason:     {}", Escaped(reason)))?;
    writeln!(out, "Service:    {}", text(service))?;
    for (name, version) in slices {
        writeln!(out, "slice:      {name} {}", text(version))?;
    }
    Ok(())
}
