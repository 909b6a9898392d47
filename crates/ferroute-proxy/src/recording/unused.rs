//! What the proxy does not use of Services, for those who read its recording.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, PoisonError},
};

use ferroute_api::Service;
use ferroute_core::{
    NamespacedName,
    parse::{InvalidObject, SkipReason, parse_service},
    tracker::TrackerEvent,
};
use serde::{Deserialize, Serialize};

/// Services that the proxy does not serve, and the types of those that it serves like Services of another type. By
/// `namespace/name`, and up to a limit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct UnusedServices {
    /// Services that the proxy skips, and invalid ones without a valid version, without annotations.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub not_served: BTreeMap<String, Service>,
    /// Services of type `LoadBalancer` without an address of a load balancer that the proxy serves.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub load_balancers: BTreeSet<String>,
}

/// [`UnusedServices`] that one task updates and another one reads.
#[derive(Clone, Debug, Default)]
pub(crate) struct SharedUnused(Arc<Mutex<UnusedServices>>);

impl UnusedServices {
    /// Reports whether there are none.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    fn apply(&mut self, service: &Service, parsed: &Result<TrackerEvent, InvalidObject>) {
        let name = NamespacedName::from_metadata(&service.metadata).to_string();
        self.not_served.remove(&name);
        self.load_balancers.remove(&name);
        // Clusters may have thousands of headless Services, which must not displace invalid ones.
        let limit = if SkipReason::for_service(service).is_some() { MAX_SKIPPED } else { MAX_NOT_SERVED };
        match parsed {
            Ok(TrackerEvent::ServiceApplied(view)) => {
                let has_vips = view.ports.iter().flatten().any(|port| !port.port.load_balancer_vips.is_empty());
                let is_load_balancer = service.spec.type_.as_deref() == Some("LoadBalancer");
                if is_load_balancer && !has_vips && self.load_balancers.len() < MAX_LOAD_BALANCERS {
                    self.load_balancers.insert(name);
                }
            }
            Ok(_) | Err(_) if self.not_served.len() < limit => {
                let mut service = service.clone();
                service.metadata.annotations.clear();
                self.not_served.insert(name, service);
            }
            Ok(_) | Err(_) => {}
        }
    }
}

impl SharedUnused {
    /// Updates a Service that was created or changed; `parsed` is the resulting change of the desired state.
    pub(crate) fn apply(&self, service: &Service, parsed: &Result<TrackerEvent, InvalidObject>) {
        self.with(|unused| unused.apply(service, parsed));
    }

    /// Removes a deleted Service.
    pub(crate) fn delete(&self, service: &NamespacedName) {
        self.with(|unused| {
            let name = service.to_string();
            unused.not_served.remove(&name);
            unused.load_balancers.remove(&name);
        });
    }

    /// Returns the reason why the proxy does not use the last version of a Service, if it is known.
    pub(crate) fn reason(&self, service: &NamespacedName) -> Option<String> {
        let object = self.with(|unused| unused.not_served.get(service.as_str()).cloned())?;
        match (parse_service(&object), SkipReason::for_service(&object)) {
            (Err(invalid), _) => {
                let errors: Vec<String> = invalid.errors.iter().map(ToString::to_string).collect();
                Some(format!("its last version is invalid: {}", errors.join("; ")))
            }
            (Ok(_), reason) => reason.map(|reason| format!("the proxy skips it: {reason}")),
        }
    }

    /// Returns a copy.
    pub(crate) fn get(&self) -> UnusedServices {
        self.with(|unused| unused.clone())
    }

    fn with<T>(&self, work: impl FnOnce(&mut UnusedServices) -> T) -> T {
        // The value is valid even if a thread panicked while it held the lock.
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Maximum number of Services that are not served, and of those as long as only skipped ones are added.
const MAX_NOT_SERVED: usize = 2_000;
const MAX_SKIPPED: usize = 1_000;
/// Maximum number of load balancers.
const MAX_LOAD_BALANCERS: usize = 10_000;

#[cfg(test)]
mod tests {
    use ferroute_core::testing::{ServiceBuilder, service};

    use super::*;

    fn apply(shared: &SharedUnused, service: ServiceBuilder) {
        let service = service.build();
        shared.apply(&service, &TrackerEvent::from_service(&service));
    }

    fn names(shared: &SharedUnused) -> [Vec<String>; 2] {
        let UnusedServices { not_served, load_balancers } = shared.get();
        [not_served.into_keys().collect(), load_balancers.into_iter().collect()]
    }

    #[test]
    fn services_are_kept_as_long_as_they_are_not_served() {
        let shared = SharedUnused::default();
        let web = || service("shop/web").cluster_ip("10.96.0.1").port("http", 80);
        let none = [Vec::<String>::new(), Vec::new()];
        apply(&shared, web());
        assert_eq!(names(&shared), none);
        let with_type = |type_: &str| web().with(|service| service.spec.type_ = Some(type_.to_owned()));
        apply(&shared, with_type("LoadBalancer"));
        assert_eq!(names(&shared), [vec![], vec!["shop/web".to_owned()]]);
        apply(&shared, with_type("LoadBalancer").load_balancer("198.51.100.1"));
        assert_eq!(names(&shared), none);
        let name = NamespacedName::new("shop", "web");
        assert_eq!(shared.reason(&name), None);
        for (type_, reason) in
            [("ExternalName", "the proxy skips it: "), ("Other", "its last version is invalid: spec.type")]
        {
            apply(&shared, with_type(type_).annotation("note", "long"));
            assert_eq!(names(&shared), [vec!["shop/web".to_owned()], vec![]], "{type_}");
            assert!(shared.get().not_served["shop/web"].metadata.annotations.is_empty());
            assert!(shared.reason(&name).is_some_and(|text| text.starts_with(reason)), "{:?}", shared.reason(&name));
        }
        shared.delete(&NamespacedName::new("shop", "web"));
        assert_eq!(names(&shared), none);
    }

    #[test]
    fn headless_services_leave_space_for_invalid_ones() {
        let shared = SharedUnused::default();
        for number in 0..2 * MAX_SKIPPED {
            apply(&shared, service(&format!("shop/db-{number}")).cluster_ip("None").port("sql", 3306));
        }
        assert_eq!(shared.get().not_served.len(), MAX_SKIPPED);
        apply(&shared, service("shop/bad").port("http", 80));
        assert!(shared.get().not_served.contains_key("shop/bad"));
    }
}
