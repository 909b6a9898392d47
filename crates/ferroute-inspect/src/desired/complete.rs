//! What the running proxy does not keep: names of pods and nodes, the Services that it skips, and the fields that it ignores.

use std::{sync::mpsc, thread, time::Duration};

use ferroute_api::Service;
use ferroute_core::{
    NamespacedName,
    parse::{SkipReason, parse_service},
};
use ferroute_source::{Event, read_once};

use super::{Desired, demo, list::list_quickly};
use crate::about::Origin;

impl Desired {
    /// Adds names of pods and nodes, skipped Services, and ignored fields of others, from the source of the running proxy, if the objects are those of the
    /// proxy. They only serve to explain its state, so it is no error if the source cannot be read in time.
    pub fn complete(&mut self) {
        if !self.about.objects.as_ref().is_some_and(|objects| objects.from == Origin::Proxy) {
            return;
        }
        let events = match self.source.manifests.clone() {
            Some(path) => {
                let workloads = demo::read(&path).unwrap_or_default();
                workloads.pods.iter().for_each(|pod| self.names.add_pod(pod));
                read_once(&path).map_err(anyhow::Error::from)
            }
            None => self.list_quickly(),
        };
        match events {
            Ok(events) => events.into_iter().for_each(|event| self.add(event)),
            Err(error) => tracing::info!("names of pods and skipped Services are unknown: {error:#}"),
        }
    }

    fn list_quickly(&self) -> anyhow::Result<Vec<Event>> {
        let (source, connection) = (self.source.clone(), self.config.client_connection.clone());
        let resolved = self.resolved.clone();
        let (sender, result) = mpsc::channel();
        // Reading certificates and tokens may block.
        thread::Builder::new().name("names".to_owned()).spawn(move || {
            // The receiver may have given up.
            let _ = sender.send(list_quickly(&source, connection, &resolved, PATIENCE));
        })?;
        result.recv_timeout(2 * PATIENCE)?
    }

    fn add(&mut self, event: Event) {
        self.names.add_event(&event);
        let Event::ServiceApplied(service) = event else { return };
        let name = NamespacedName::from_metadata(&service.metadata).to_string();
        match self.services.get_mut(&name) {
            // The proxy keeps what it uses of a Service. Another version would not explain the state of the proxy.
            Some(kept) if is_same(kept, &service) => *kept = *service,
            None if SkipReason::for_service(&service).is_some() => _ = self.services.insert(name, *service),
            _ => {}
        }
    }
}

/// Reports whether both Services lead to the same service ports.
fn is_same(one: &Service, other: &Service) -> bool {
    let ports = |service| parse_service(service).ok().flatten().map(|view| view.ports);
    ports(one) == ports(other)
}

/// The time that the API server may take.
const PATIENCE: Duration = Duration::from_secs(3);
