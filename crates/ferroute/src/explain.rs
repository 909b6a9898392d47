//! `ferroute explain`: what the proxy makes of an object, with what the kernel holds of it where that can be read.

mod kernel;

use std::{fmt::Write as _, io::Write, net::IpAddr};

use anyhow::bail;
use ferroute_core::{IpFamily, ServiceName};
use ferroute_explain::{
    near_names,
    service::{Explanation, Facts, HealthCheck, explain, write_explanation_into},
};
use ferroute_host::{HostAddresses, KernelAddresses};

use crate::{
    cli::{ExplainArgs, ExplainServiceArgs, Explained, Output},
    desired::{Desired, Named},
};

/// Does what `ferroute explain` was asked for.
pub(crate) fn run(args: &ExplainArgs, verbosity: Option<u32>, out: &mut impl Write) -> anyhow::Result<()> {
    match &args.what {
        Explained::Service(args) => service(args, verbosity, out),
    }
}

fn service(args: &ExplainServiceArgs, verbosity: Option<u32>, out: &mut impl Write) -> anyhow::Result<()> {
    let desired = Desired::load(&args.desired, verbosity)?;
    let Some(object) = desired.services.get(&args.service) else { bail!(unknown(&args.service, &desired)) };
    let name = ServiceName::new(&object.metadata.namespace, &object.metadata.name);
    let addresses = addresses(&desired);
    let pod = |address| match desired.names.at(address) {
        Some(Named::Pod { name, .. }) => Some(name.clone()),
        _ => None,
    };
    let facts = Facts {
        tracker: &desired.tracker,
        settings: &desired.resolved.settings,
        addresses: &addresses,
        health_check: health_check(&desired, &name),
        pod: &pod,
    };
    let mut explanation = explain(object, &facts);
    kernel::add(&mut explanation, &desired, &name, &addresses);
    write(&explanation, args.output, out)
}

fn write(explanation: &Explanation, output: Output, out: &mut impl Write) -> anyhow::Result<()> {
    match output {
        Output::Text => {
            let mut text = String::new();
            write_explanation_into(&mut text, explanation)?;
            out.write_all(text.as_bytes())?;
        }
        Output::Json => {
            serde_json::to_writer_pretty(&mut *out, explanation)?;
            writeln!(out)?;
        }
    }
    Ok(())
}

fn unknown(wanted: &str, desired: &Desired) -> String {
    let mut text = format!("there is no Service {wanted}");
    let near = near_names(wanted, desired.services.keys().map(String::as_str));
    if !near.is_empty() {
        write!(text, " (did you mean {}?)", near.join(" or ")).expect("writing to a string cannot fail");
    }
    text
}

/// Addresses that node ports can be on: those of the node, as its object tells, and where it cannot, those of this host.
fn addresses(desired: &Desired) -> Vec<IpAddr> {
    if !desired.host.addresses.is_empty() {
        return desired.host.addresses.clone();
    }
    KernelAddresses::open().and_then(|mut addresses| addresses.list()).unwrap_or_default()
}

fn health_check(desired: &Desired, name: &ServiceName) -> Option<HealthCheck> {
    let of_families = IpFamily::BOTH.map(|family| ferroute_health::HealthCheck::of_table(desired.table(family)));
    let check = ferroute_health::HealthCheck::merge(&of_families).remove(name)?;
    Some(HealthCheck { port: check.port.get(), local_endpoints: check.local_endpoints })
}
