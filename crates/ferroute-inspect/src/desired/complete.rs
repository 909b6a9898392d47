//! Data that the running proxy does not keep: names of pods and nodes, Services that it skips or that are invalid, and fields
//! that it ignores.

use std::{collections::BTreeSet, path::Path, sync::mpsc, thread, time::Duration};

use ferroute_api::{Object, Pod, Service};
use ferroute_config::{ClientConnectionConfiguration, Resolved, flags::SourceArgs};
use ferroute_core::{
    IpFamily, NamespacedName,
    parse::{SkipReason, parse_service},
};
use ferroute_source::{Event, Input, manifest_files};

use super::{
    Desired,
    list::{list_pods, list_quickly},
    objects::{FilePlace, event, objects},
};
use crate::{about::Origin, waiting::Waiting};

impl Desired {
    /// Adds names of pods and nodes, skipped and invalid Services, and ignored fields of other Services, from the source of the
    /// running proxy, if the objects are those of the proxy. They only help to explain its state, so it is not an error
    /// if the source cannot be read in time.
    pub fn complete(&mut self) {
        self.complete_where(&|_| true);
    }

    /// Like [`complete`](Self::complete), if the source is manifests: to read them often costs other machines nothing.
    pub fn complete_from_manifests(&mut self) {
        if self.source.manifests.is_some() {
            self.complete();
        }
    }

    /// Like [`complete`](Self::complete), limited to data of one Service.
    pub fn complete_for(&mut self, service: &NamespacedName) {
        let addresses: BTreeSet<String> = IpFamily::BOTH
            .into_iter()
            .flat_map(|family| self.table(family).ports_of(service))
            .flat_map(|(_, entry)| entry.endpoints.iter().map(|endpoint| endpoint.address.to_string()))
            .collect();
        let name = service.name().to_owned();
        self.complete_where(&|text| text.contains(&name) || addresses.iter().any(|address| text.contains(address)));
    }

    /// Reads the documents of manifests whose text is relevant.
    fn complete_where(&mut self, is_relevant: &dyn Fn(&str) -> bool) {
        if !self.about.objects.as_ref().is_some_and(|objects| objects.from == Origin::Proxy) {
            return;
        }
        let _waiting = Waiting::for_work(format!("reading names in {}", self.origin));
        let result = match self.source.manifests.clone() {
            Some(path) => self.add_documents(&path, is_relevant),
            None => self.ask_quickly(list_quickly).map(|events| events.into_iter().for_each(|event| self.add(event))),
        };
        if let Err(error) = result {
            tracing::info!("names of pods and skipped Services are unknown: {error:#}");
        }
    }

    /// Adds data from manifests. Documents that cannot be read are ignored, because the proxy reports them.
    fn add_documents(&mut self, path: &Path, is_relevant: &dyn Fn(&str) -> bool) -> anyhow::Result<()> {
        for file in manifest_files(path)? {
            let mut add = |(line, object)| match object {
                Object::Pod(pod) => self.names.add_pod(&pod),
                Object::Service(service) if parse_service(&service).is_err() => {
                    self.add_invalid(service, FilePlace { file: file.clone(), line });
                }
                object => event(object).into_iter().for_each(|event| self.add(event)),
            };
            let _ = Input::default().for_each_document(&file, &mut |document| {
                if is_relevant(document.text) {
                    objects(document).into_iter().for_each(&mut add);
                }
            });
        }
        Ok(())
    }

    /// Adds the names of all pods on the node, which may be clients, if the objects come from an API server that
    /// permits it.
    pub fn add_pods_of_node(&mut self) {
        if self.about.objects.is_none() || self.source.manifests.is_some() {
            return;
        }
        let _waiting = Waiting::for_work("reading names of pods in the API server".to_owned());
        match self.ask_quickly(list_pods) {
            Ok(pods) => pods.iter().for_each(|pod: &Pod| self.names.add_pod(pod)),
            Err(error) => tracing::info!("names of pods that are no endpoints are unknown: {error:#}"),
        }
    }

    fn ask_quickly<T: Send + 'static>(&self, ask: Ask<T>) -> anyhow::Result<T> {
        let (source, connection) = (self.source.clone(), self.config.client_connection.clone());
        let resolved = self.resolved.clone();
        let (sender, result) = mpsc::channel();
        // Reading certificates and tokens may block.
        thread::Builder::new().name("names".to_owned()).spawn(move || {
            // The receiver may have timed out.
            let _ = sender.send(ask(&source, connection, &resolved, PATIENCE));
        })?;
        result.recv_timeout(2 * PATIENCE)?
    }

    fn add(&mut self, event: Event) {
        self.names.add_event(&event);
        let Event::ServiceApplied(service) = event else { return };
        let name = NamespacedName::from_metadata(&service.metadata).to_string();
        match self.services.get_mut(&name) {
            // The proxy keeps the parts of a Service that it uses. Another version would not explain the state of the
            // proxy.
            Some(kept) if is_same(kept, &service) => *kept = *service,
            None if SkipReason::for_service(&service).is_some() || parse_service(&service).is_err() => {
                self.services.insert(name, *service);
            }
            _ => {}
        }
    }
}

/// Reports whether both Services lead to the same service ports.
fn is_same(one: &Service, other: &Service) -> bool {
    let ports = |service| parse_service(service).ok().flatten().map(|view| view.ports);
    ports(one) == ports(other)
}

/// A request to the API server, with the time that it may take.
type Ask<T> = fn(&SourceArgs, ClientConnectionConfiguration, &Resolved, Duration) -> anyhow::Result<T>;

/// The time that the API server may take.
const PATIENCE: Duration = Duration::from_secs(3);
