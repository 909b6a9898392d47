//! The explanation of a Service on this host.

use std::{fmt::Write as _, net::IpAddr};

use anyhow::bail;
use ferroute_admin::health::HealthCheck as ServedHealthCheck;
use ferroute_core::{IpFamily, NamespacedName};
use ferroute_host::{HostAddresses, KernelAddresses};

use super::{Explanation, Facts, HealthCheck, explain, kernel};
use crate::{
    desired::{Desired, Named},
    near_names,
};

/// Explains how the proxy handles a Service, with what the kernel holds of it where that can be read.
///
/// # Errors
/// If there is no Service of this name.
pub fn explain_on_host(desired: &Desired, service: &str) -> anyhow::Result<Explanation> {
    let Some(object) = desired.services.get(service) else { bail!(unknown(service, desired)) };
    let name = NamespacedName::new(&object.metadata.namespace, &object.metadata.name);
    let addresses = addresses(desired);
    let pod = |address| match desired.names.at(address) {
        Some(Named::Pod { name, .. }) => Some(name.clone()),
        _ => None,
    };
    let facts = Facts {
        tracker: &desired.tracker,
        settings: &desired.resolved.settings,
        addresses: &addresses,
        health_check: health_check(desired, &name),
        pod: &pod,
    };
    let mut explanation = explain(object, &facts);
    kernel::add(&mut explanation, desired, &name, &addresses);
    Ok(explanation)
}

fn unknown(wanted: &str, desired: &Desired) -> String {
    let mut text = format!("there is no Service {wanted}");
    let near = near_names(wanted, desired.services.keys().map(String::as_str));
    if !near.is_empty() {
        write!(text, " (did you mean {}?)", near.join(" or ")).expect("writing to a string cannot fail");
    }
    text
}

/// Returns the addresses that node ports can be on: those of the Node, or if it has none, those of this host.
fn addresses(desired: &Desired) -> Vec<IpAddr> {
    if !desired.host.addresses.is_empty() {
        return desired.host.addresses.clone();
    }
    KernelAddresses::open().and_then(|mut addresses| addresses.list()).unwrap_or_default()
}

fn health_check(desired: &Desired, name: &NamespacedName) -> Option<HealthCheck> {
    let families = IpFamily::BOTH.map(|family| ServedHealthCheck::from_table(desired.table(family)));
    let check = ServedHealthCheck::merge(&families).remove(name)?;
    Some(HealthCheck { port: check.port.get(), local_endpoints: check.local_endpoints })
}
