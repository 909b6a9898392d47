//! What of each kind is asked for, and how.

use ferroute_api::{EndpointSlice, Node, ObjectMeta, Service, ServiceCidr, labels};
use ferroute_source::{Event, ObjectName, Resource};
use serde::de::DeserializeOwned;

use crate::protobuf;

/// One kind of objects as the API server serves it.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    /// Which kind.
    pub(crate) resource: Resource,
    /// The query parameter that leaves out what the proxy does not need.
    selector: Option<(&'static str, String)>,
}

impl Wanted {
    /// Services that this proxy takes care of, in all namespaces.
    pub(crate) fn services() -> Self {
        Self { resource: Resource::Services, selector: Some(ours()) }
    }

    /// Endpoint slices of such services.
    pub(crate) fn slices() -> Self {
        Self { resource: Resource::EndpointSlices, selector: Some(ours()) }
    }

    /// The Node of this name alone.
    pub(crate) fn node(name: &str) -> Self {
        Self { resource: Resource::Nodes, selector: Some(("fieldSelector", format!("metadata.name={name}"))) }
    }

    /// All ServiceCIDRs. Servers before 1.33 have none, and old roles do not allow to see them.
    pub(crate) fn service_cidrs() -> Self {
        Self { resource: Resource::ServiceCidrs, selector: None }
    }

    /// Whether the proxy can do without: then it is not to wait for what the server does not give.
    pub(crate) fn is_optional(&self) -> bool {
        self.resource == Resource::ServiceCidrs
    }

    /// Path and query of a request with these further parameters.
    pub(crate) fn path_and_query(&self, parameters: &[(&str, &str)]) -> String {
        let path = match self.resource {
            Resource::Services => "/api/v1/services?",
            Resource::EndpointSlices => "/apis/discovery.k8s.io/v1/endpointslices?",
            Resource::Nodes => "/api/v1/nodes?",
            Resource::ServiceCidrs => "/apis/networking.k8s.io/v1/servicecidrs?",
        };
        let mut query = form_urlencoded::Serializer::for_suffix(path.to_owned(), path.len());
        query.extend_pairs(&self.selector);
        query.extend_pairs(parameters);
        query.finish()
    }
}

/// Leaves out what has no cluster IP and what another proxy takes care of, as kube-proxy does.
fn ours() -> (&'static str, String) {
    ("labelSelector", format!("!{},!{}", labels::HEADLESS, labels::SERVICE_PROXY_NAME))
}

/// The plural in paths and in RBAC rules.
pub(crate) fn plural(resource: Resource) -> &'static str {
    match resource {
        Resource::Services => "services",
        Resource::EndpointSlices => "endpointslices",
        Resource::Nodes => "nodes",
        Resource::ServiceCidrs => "servicecidrs",
    }
}

/// The API group in RBAC rules.
pub(crate) fn group(resource: Resource) -> &'static str {
    match resource {
        Resource::Services | Resource::Nodes => "",
        Resource::EndpointSlices => "discovery.k8s.io",
        Resource::ServiceCidrs => "networking.k8s.io",
    }
}

/// The name of the kind.
pub(crate) fn kind(resource: Resource) -> &'static str {
    match resource {
        Resource::Services => "Service",
        Resource::EndpointSlices => "EndpointSlice",
        Resource::Nodes => "Node",
        Resource::ServiceCidrs => "ServiceCIDR",
    }
}

/// The event that tells of an object that is gone.
pub(crate) fn deleted(resource: Resource, name: ObjectName) -> Event {
    match resource {
        Resource::Services => Event::ServiceDeleted(name),
        Resource::EndpointSlices => Event::SliceDeleted(name),
        Resource::Nodes => Event::NodeDeleted(name),
        Resource::ServiceCidrs => Event::ServiceCidrDeleted(name),
    }
}

/// An object that can be followed.
pub(crate) trait Followed: DeserializeOwned + From<Self::Wire> {
    /// Its message in protobuf.
    type Wire: prost::Message + Default;

    /// Its name, labels and version.
    fn metadata(&mut self) -> &mut ObjectMeta;

    /// The event that tells of it.
    fn applied(self) -> Event;
}

impl Followed for Service {
    type Wire = protobuf::Service;

    fn metadata(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }

    fn applied(self) -> Event {
        Event::ServiceApplied(Box::new(self))
    }
}

impl Followed for EndpointSlice {
    type Wire = protobuf::EndpointSlice;

    fn metadata(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }

    fn applied(self) -> Event {
        Event::SliceApplied(Box::new(self))
    }
}

impl Followed for Node {
    type Wire = protobuf::Node;

    fn metadata(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }

    fn applied(self) -> Event {
        Event::NodeApplied(Box::new(self))
    }
}

impl Followed for ServiceCidr {
    type Wire = protobuf::ServiceCidr;

    fn metadata(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }

    fn applied(self) -> Event {
        Event::ServiceCidrApplied(Box::new(self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_leave_out_what_kube_proxy_leaves_out() {
        let selector = "labelSelector=%21service.kubernetes.io%2Fheadless%2C%21service.kubernetes.io%2F\
                        service-proxy-name";
        assert_eq!(Wanted::services().path_and_query(&[]), format!("/api/v1/services?{selector}"));
        assert_eq!(
            Wanted::slices().path_and_query(&[("limit", "500"), ("continue", "a+b=/&c")]),
            format!("/apis/discovery.k8s.io/v1/endpointslices?{selector}&limit=500&continue=a%2Bb%3D%2F%26c")
        );
        assert_eq!(
            Wanted::node("node-1").path_and_query(&[("watch", "true")]),
            "/api/v1/nodes?fieldSelector=metadata.name%3Dnode-1&watch=true"
        );
        assert_eq!(
            Wanted::service_cidrs().path_and_query(&[("limit", "500")]),
            "/apis/networking.k8s.io/v1/servicecidrs?limit=500"
        );
    }
}
