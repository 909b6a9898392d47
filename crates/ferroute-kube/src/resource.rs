//! The API resources that are listed and watched: paths, selectors, kinds and permissions.

use ferroute_api::{EndpointSlice, Node, ObjectMeta, Service, ServiceCidr, labels};
use ferroute_source::{Event, Resource};
use serde::de::DeserializeOwned;

use crate::protobuf;

/// Collection of objects of one kind that the proxy reads.
#[derive(Clone, Debug)]
pub(crate) struct Collection {
    pub(crate) resource: Resource,
    /// The query parameter that selects the objects.
    selector: Option<(&'static str, String)>,
}

impl Collection {
    /// Services of this proxy, in all namespaces.
    pub(crate) fn services() -> Self {
        Self { resource: Resource::Services, selector: Some(without_label(labels::SERVICE_PROXY_NAME)) }
    }

    /// Endpoint slices of all Services that are not headless.
    pub(crate) fn endpoint_slices() -> Self {
        Self { resource: Resource::EndpointSlices, selector: Some(without_label(labels::HEADLESS)) }
    }

    /// The Node with this name, or all Nodes.
    pub(crate) fn nodes(name: Option<&str>) -> Self {
        let selector = name.map(|name| ("fieldSelector", format!("metadata.name={name}")));
        Self { resource: Resource::Nodes, selector }
    }

    /// Returns all ServiceCIDRs. Servers before 1.33 have none, and older roles do not permit them.
    pub(crate) fn service_cidrs() -> Self {
        Self { resource: Resource::ServiceCidrs, selector: None }
    }

    /// Reports whether the proxy works without it, so that it must not wait if the server does not return it.
    pub(crate) fn is_optional(&self) -> bool {
        self.resource == Resource::ServiceCidrs
    }

    /// Returns the path and query of a request with these further parameters.
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

/// Excludes objects with a label, as kube-proxy does.
fn without_label(label: &str) -> (&'static str, String) {
    ("labelSelector", format!("!{label}"))
}

/// Returns the plural, as in paths and RBAC rules.
pub(crate) fn plural(resource: Resource) -> &'static str {
    match resource {
        Resource::Services => "services",
        Resource::EndpointSlices => "endpointslices",
        Resource::Nodes => "nodes",
        Resource::ServiceCidrs => "servicecidrs",
    }
}

/// Returns the API group, as in RBAC rules; empty for the core group.
pub(crate) fn group(resource: Resource) -> &'static str {
    resource.kind().api_version().split_once('/').map_or("", |(group, _)| group)
}

/// An object of a [`Collection`].
pub(crate) trait ApiObject: DeserializeOwned + From<Self::Message> {
    /// Protobuf message.
    type Message: prost::Message + Default;

    fn metadata(&mut self) -> &mut ObjectMeta;

    /// Returns the event that adds or changes it.
    fn into_event(self) -> Event;
}

impl ApiObject for Service {
    type Message = protobuf::Service;

    fn metadata(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }

    fn into_event(self) -> Event {
        Event::ServiceApplied(Box::new(self))
    }
}

impl ApiObject for EndpointSlice {
    type Message = protobuf::EndpointSlice;

    fn metadata(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }

    fn into_event(self) -> Event {
        Event::SliceApplied(Box::new(self))
    }
}

impl ApiObject for Node {
    type Message = protobuf::Node;

    fn metadata(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }

    fn into_event(self) -> Event {
        Event::NodeApplied(Box::new(self))
    }
}

impl ApiObject for ServiceCidr {
    type Message = protobuf::ServiceCidr;

    fn metadata(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }

    fn into_event(self) -> Event {
        Event::ServiceCidrApplied(Box::new(self))
    }
}

/// A permission that a role must grant; see `deploy/kubernetes/rbac.yaml`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Permission {
    /// API group; empty for the core group.
    pub group: &'static str,
    /// Plural of the kind.
    pub resource: &'static str,
    /// The verb, such as `list`.
    pub verb: &'static str,
}

impl Permission {
    /// Returns the permissions for all requests of this crate except [`Permission::startup_taint`].
    pub fn required() -> impl Iterator<Item = Self> {
        let verbs = |resource| ["list", "watch"].map(|verb| (resource, verb));
        let read = Resource::ALL.into_iter().flat_map(verbs);
        let read = read.map(|(resource, verb)| Self { group: group(resource), resource: plural(resource), verb });
        read.chain(["create", "patch"].map(Self::events))
    }

    /// Returns the further permissions for removing a taint from the Node.
    pub fn startup_taint() -> [Self; 2] {
        ["get", "patch"].map(Self::nodes)
    }

    /// Returns a permission on Events.
    pub(crate) fn events(verb: &'static str) -> Self {
        Self { group: "events.k8s.io", resource: "events", verb }
    }

    /// Returns a permission on Nodes.
    pub(crate) fn nodes(verb: &'static str) -> Self {
        Self { group: group(Resource::Nodes), resource: plural(Resource::Nodes), verb }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_have_the_selectors_of_kube_proxy() {
        let selector = "labelSelector=%21service.kubernetes.io%2Fservice-proxy-name";
        assert_eq!(Collection::services().path_and_query(&[]), format!("/api/v1/services?{selector}"));
        let selector = "labelSelector=%21service.kubernetes.io%2Fheadless";
        assert_eq!(
            Collection::endpoint_slices().path_and_query(&[("limit", "500"), ("continue", "a+b=/&c")]),
            format!("/apis/discovery.k8s.io/v1/endpointslices?{selector}&limit=500&continue=a%2Bb%3D%2F%26c")
        );
        assert_eq!(
            Collection::nodes(Some("node-1")).path_and_query(&[("watch", "true")]),
            "/api/v1/nodes?fieldSelector=metadata.name%3Dnode-1&watch=true"
        );
        assert_eq!(Collection::nodes(None).path_and_query(&[("watch", "true")]), "/api/v1/nodes?watch=true");
        assert_eq!(
            Collection::service_cidrs().path_and_query(&[("limit", "500")]),
            "/apis/networking.k8s.io/v1/servicecidrs?limit=500"
        );
    }

    #[test]
    fn groups_are_those_of_rbac_rules() {
        assert_eq!(Resource::ALL.map(group), ["", "discovery.k8s.io", "", "networking.k8s.io"]);
    }
}
