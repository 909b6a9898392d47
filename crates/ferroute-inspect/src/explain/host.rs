//! The explanation of a Service on this host.

use anyhow::bail;
use ferroute_admin::health::HealthCheck;
use ferroute_api::Service;
use ferroute_core::{IpFamily, NamespacedName, ServicePortName, parse::EXTERNAL_IPS};
use ferroute_modes::REGISTRY;
use ferroute_proxy::feed::EXTERNAL_IPS_DISABLED;

use super::{Explanation, Handling, Inputs, explain, kernel};
use crate::{
    desired::{AddressOwner, Desired},
    waiting::Waiting,
};

/// Explains how the proxy handles a Service, including its state in the kernel if that can be read.
///
/// # Errors
/// If there is no Service with this name.
pub fn explain_on_host(desired: &Desired, service: &str) -> anyhow::Result<Explanation> {
    let Some(object) = desired.services.get(service) else { bail!(not_found(service, desired)) };
    let _waiting = Waiting::for_work("reading rules and connections in the kernel".to_owned());
    let mut explanation = explain_object(desired, object);
    let name = NamespacedName::from_metadata(&object.metadata);
    kernel::add_state(&mut explanation, desired, &name, &desired.host.addresses);
    Ok(explanation)
}

/// Explains how the proxy handles a Service, without its state in the kernel.
pub fn explain_object(desired: &Desired, object: &Service) -> Explanation {
    let name = NamespacedName::from_metadata(&object.metadata);
    let addresses = &desired.host.addresses;
    let pod = |address| match desired.names.owner(address) {
        Some(AddressOwner::Pod { name, .. }) => Some(name.clone()),
        _ => None,
    };
    let inputs = Inputs {
        tracker: &desired.tracker,
        settings: &desired.resolved.settings,
        traits: REGISTRY.active(desired.resolved.mode).traits(),
        addresses,
        health_check: health_check(desired, &name),
        pod: &pod,
        node: &|address| desired.names.node(address).map(str::to_owned),
    };
    let mut explanation = explain(object, &inputs);
    match &mut explanation.handling {
        Handling::Served { ignored, invalid_update, ports, .. } => {
            invalid_update.extend(desired.outdated.get(&explanation.service).into_iter().flatten().cloned());
            for port in ports {
                let name =
                    ServicePortName { service: name.clone(), port: port.name.as_str().into(), protocol: port.protocol };
                port.not_applied = desired.unapplied(&name, port.family).cloned();
            }
            if !desired.resolved.allow_external_ips && !object.spec.external_ips.is_empty() {
                ignored.push(format!("{EXTERNAL_IPS}: {EXTERNAL_IPS_DISABLED}"));
            }
        }
        Handling::Invalid { file, line, .. } => {
            if let Some(place) = desired.invalid.get(&explanation.service) {
                *file = Some(place.file.display().to_string());
                *line = place.line;
            }
        }
        Handling::Skipped { .. } => {}
    }
    explanation
}

/// Returns the reason why the proxy serves no port of a Service; `None` if it serves the Service, or there is none.
pub fn not_served(name: &str, desired: &Desired) -> Option<String> {
    let object = desired.services.get(name)?;
    match explain_object(desired, object).handling {
        Handling::Served { .. } => None,
        Handling::Skipped { reason, .. } => Some(format!("the proxy skips Service {name}: {reason}")),
        Handling::Invalid { file, line, errors } => {
            let line = line.map(|line| format!(":{line}")).unwrap_or_default();
            let place = file.map(|file| format!(" in {file}{line}")).unwrap_or_default();
            Some(format!("Service {name}{place} is invalid: {}", errors.join("; ")))
        }
    }
}

/// Returns an error that there is no Service with this name, with suggestions.
pub fn not_found(name: &str, desired: &Desired) -> String {
    if !desired.has_objects {
        let reason = match &desired.about.reason {
            Some(reason) => format!("the proxy gives no answer ({reason})"),
            None => "no Ferroute proxy runs here".to_owned(),
        };
        return format!("Service {name} not found, because {reason} and neither --manifests nor --kubeconfig is given");
    }
    let similar = similar_names(name, desired.services.keys().map(String::as_str));
    let hint = if similar.is_empty() { String::new() } else { format!(" (did you mean {}?)", similar.join(" or ")) };
    format!("Service {name} not found{hint}")
}

fn health_check(desired: &Desired, name: &NamespacedName) -> Option<HealthCheck> {
    // Not of the whole table: `check` explains each Service.
    let of_family = |family| HealthCheck::of_service(desired.table(family), name).map(|check| (name.clone(), check));
    let families = IpFamily::BOTH.map(|family| of_family(family).into_iter().collect());
    HealthCheck::merge(&families).remove(name)
}

/// Returns at most [`MAX_SIMILAR`] suggestions for `name`, the most likely first: the same name in another namespace,
/// names with few different letters, and names of which one is a prefix of the other.
fn similar_names<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    let without_namespace = |full: &str| full.rsplit('/').next().unwrap_or_default().to_owned();
    let own_name = without_namespace(name);
    let distance = |candidate: &str| {
        if without_namespace(candidate) == own_name {
            return Some(1);
        }
        let distance = strsim::osa_distance(name, candidate);
        // In a short name, a few letters are all of it.
        let is_near = distance <= MAX_DISTANCE && distance * 3 <= own_name.len();
        let is_prefix = candidate.starts_with(name) || name.starts_with(candidate);
        (is_near || is_prefix).then_some(distance)
    };
    let mut similar: Vec<(usize, &str)> = candidates.into_iter().filter_map(|it| Some((distance(it)?, it))).collect();
    similar.sort_unstable();
    similar.into_iter().map(|(_, name)| name).take(MAX_SIMILAR).collect()
}

/// The maximum edit distance of similar names.
const MAX_DISTANCE: usize = 4;
/// The maximum number of names in a hint.
const MAX_SIMILAR: usize = 3;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn similar_names_are_sorted_by_distance() {
        let names = ["shop/cart", "shop/carts", "shop/catalogue", "default/cart", "kube-system/kube-dns"];
        assert_eq!(similar_names("shop/crat", names), ["shop/cart"]);
        assert_eq!(similar_names("shop/cat", names), ["shop/cart", "shop/catalogue"]);
        assert_eq!(similar_names("web/cart", names), ["default/cart", "shop/cart"]);
        assert_eq!(similar_names("kube-system/dns", names), ["kube-system/kube-dns"; 0]);
        assert_eq!(similar_names("kube-system/kubedns", names), ["kube-system/kube-dns"]);
    }

    #[test]
    fn dissimilar_names_are_omitted() {
        assert!(similar_names("a/b", ["a/c", "x/y"]).is_empty());
    }
}
