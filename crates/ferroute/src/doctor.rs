//! `ferroute doctor`: looks at this host, and at its cluster where there is one, and says what is wrong.
//!
//! Nothing is changed. What it takes to look: sysctls and sockets from `/proc`, rules by their tools and netlink, one
//! request to the API server, and one connection to each endpoint.

mod clock;
mod endpoints;
mod host;
mod rules;

use std::{io::Write, process::ExitCode};

use ferroute_config::{Mode, Resolved};
use ferroute_core::{IpFamily, Protocol};
use ferroute_doctor::{Examination, Facts, NodePort, WantedMode, examine, write_examination_into};

use crate::{
    cli::{DoctorArgs, Output},
    desired::Desired,
    logging,
    settings::{self, Settings},
};

/// Looks and tells. The exit status is 0 when there is nothing worse than a note, 1 when there is, 2 when there is not
/// and some check could not tell.
pub(crate) fn run(args: &DoctorArgs, verbosity: Option<u32>, out: &mut impl Write) -> anyhow::Result<ExitCode> {
    let settings = settings::load(&args.desired.settings)?;
    let desired = desired(args, &settings, verbosity)?;
    let examination = examine(&facts(args, &settings, desired.as_ref()));
    match args.output {
        Output::Text => {
            let mut text = String::new();
            write_examination_into(&mut text, &examination)?;
            out.write_all(text.as_bytes())?;
        }
        Output::Json => {
            serde_json::to_writer_pretty(&mut *out, &examination)?;
            writeln!(out)?;
        }
    }
    Ok(status(&examination))
}

fn status(examination: &Examination) -> ExitCode {
    let bad = examination.findings.iter().any(|finding| finding.severity < ferroute_doctor::Severity::Note);
    match (bad, examination.unknown.is_empty()) {
        (true, _) => ExitCode::FAILURE,
        (false, true) => ExitCode::SUCCESS,
        (false, false) => ExitCode::from(crate::COULD_NOT_TELL),
    }
}

/// The cluster, if one is named; a cluster that cannot be asked is one more thing that is wrong, and no reason not to
/// look at the host.
fn desired(args: &DoctorArgs, settings: &Settings, verbosity: Option<u32>) -> anyhow::Result<Option<Desired>> {
    if args.desired.source.manifests.is_some() {
        return Desired::load(&args.desired, verbosity).map(Some);
    }
    if !clock::has_api_server(args, settings) {
        let Resolved { logging, .. } = &settings.resolved;
        logging::start(verbosity.unwrap_or(logging.verbosity), logging.format);
        tracing::info!("only the host is looked at: give --manifests or --kubeconfig for Services too");
        return Ok(None);
    }
    match Desired::load(&args.desired, verbosity) {
        Ok(desired) => Ok(Some(desired)),
        Err(error) => {
            tracing::warn!("only the host is looked at: {error:#}");
            Ok(None)
        }
    }
}

fn facts(args: &DoctorArgs, settings: &Settings, desired: Option<&Desired>) -> Facts {
    let resolved = desired.map_or(&settings.resolved, |desired| &desired.resolved);
    let wanted = |family| desired.map(|desired| !desired.table(family).entries.is_empty());
    let host = host::look();
    Facts {
        mode: match resolved.mode {
            Mode::Nftables => WantedMode::Nftables,
            Mode::Iptables | Mode::Ipvs(_) => WantedMode::Iptables,
        },
        families: IpFamily::BOTH.map(|family| rules::look(family, resolved, wanted(family))),
        sysctls: host.sysctls,
        bridges: host.bridges,
        conntrack: host.conntrack,
        listeners: host.listeners,
        proxies: host.proxies,
        clock: clock::look(args, settings),
        node_ports: desired.map(node_ports),
        endpoints: desired.filter(|_| !args.no_connect).map(endpoints::try_all),
    }
}

/// Each node port once, although both families have it.
fn node_ports(desired: &Desired) -> Vec<NodePort> {
    let mut found: Vec<(u16, Protocol, String)> = IpFamily::BOTH
        .into_iter()
        .flat_map(|family| &desired.table(family).entries)
        .filter_map(|(name, entry)| Some((entry.service.node_port?.get(), name.protocol, name.to_string())))
        .collect();
    found.sort();
    found.dedup();
    found.into_iter().map(|(port, protocol, service)| NodePort { port, protocol, service }).collect()
}
