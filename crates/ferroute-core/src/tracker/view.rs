//! Services and endpoint slices after validation.

use std::{net::IpAddr, sync::Arc};

use crate::{
    BalancingDefaults, Endpoint, Hints, IpFamily, ModeTraits, NamespacedName, Protocol, ServicePort, ServicePortName,
    UnsupportedSetting, parse::FieldError,
};

/// A validated Service: its ports in each IP family in which it has a cluster IP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceView {
    /// Namespace and name.
    pub name: NamespacedName,
    /// Ports by [`IpFamily::index`].
    pub ports: [Vec<NamedPort>; 2],
    /// Addresses that are ignored, and the reasons. The tracker does not keep them.
    pub ignored: Box<[FieldError]>,
}

impl ServiceView {
    /// Applies the defaults of the cluster.
    pub fn set_defaults(&mut self, defaults: &BalancingDefaults) {
        if *defaults != BalancingDefaults::default() {
            let ports = self.ports.iter_mut().flatten();
            ports.for_each(|port| Arc::make_mut(&mut port.port).balancing.set_defaults(defaults));
        }
    }

    /// Adds settings that a mode with these traits does not support to [`ServiceView::ignored`].
    pub fn ignore_unsupported(&mut self, traits: &ModeTraits) {
        let Some(port) = self.ports.iter().flatten().next() else { return };
        let unsupported = traits.unsupported(&port.port).map(UnsupportedSetting::error);
        self.ignored = std::mem::take(&mut self.ignored).into_iter().chain(unsupported).collect();
    }
}

/// A port of a [`ServiceView`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedPort {
    /// Name; ports of slices are matched by name and protocol.
    pub name: Arc<str>,
    /// Protocol.
    pub protocol: Protocol,
    /// All other fields, shared with the entry of the service table.
    pub port: Arc<ServicePort>,
}

/// A validated endpoint slice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SliceView {
    /// The Service that the slice belongs to.
    pub service: NamespacedName,
    /// Namespace and name of the slice itself.
    pub name: NamespacedName,
    /// Family of all addresses.
    pub family: IpFamily,
    /// Ports, which are the same for all endpoints.
    pub ports: Vec<SlicePort>,
    /// Endpoints.
    pub endpoints: Vec<EndpointView>,
    /// Ignored endpoints and settings, with the reasons. The tracker does not keep them.
    pub ignored: Box<[FieldError]>,
}

/// A port of a [`SliceView`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SlicePort {
    /// Name of the service port.
    pub name: Box<str>,
    /// Protocol.
    pub protocol: Protocol,
    /// Port number on the endpoints.
    pub port: u16,
}

/// An endpoint of a [`SliceView`], on all ports of the slice. The fields are those of [`Endpoint`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointView {
    /// Address of the pod or host.
    pub address: IpAddr,
    /// Accepts new connections.
    pub ready: bool,
    /// Responds, possibly while terminating.
    pub serving: bool,
    /// Is being terminated.
    pub terminating: bool,
    /// Runs on this node.
    pub local: bool,
    /// Whether the node of the endpoint is unknown, so that it may be this one.
    pub node_unknown: bool,
    /// Topology hints.
    pub hints: Option<Arc<Hints>>,
    /// Weight.
    pub weight: u16,
    /// The zone of its node.
    pub zone: Option<Arc<str>>,
}

impl SliceView {
    /// Adds settings that a mode with these traits does not support to [`SliceView::ignored`].
    pub fn ignore_unsupported(&mut self, traits: &ModeTraits) {
        if self.endpoints.iter().any(|endpoint| traits.ignores_weight(endpoint.weight)) {
            let error = UnsupportedSetting::Weights.error();
            self.ignored = std::mem::take(&mut self.ignored).into_iter().chain([error]).collect();
        }
    }

    /// Returns the ports that match a service port by name and protocol.
    pub fn ports_for<'a>(&'a self, name: &'a ServicePortName) -> impl Iterator<Item = &'a SlicePort> {
        self.ports.iter().filter(|port| port.matches(name))
    }
}

impl SlicePort {
    /// Reports whether the name and protocol are those of a service port.
    pub(super) fn matches(&self, name: &ServicePortName) -> bool {
        *self.name == *name.port && self.protocol == name.protocol
    }
}

impl EndpointView {
    /// Returns the endpoint at a port of the slice.
    pub fn at(&self, port: u16) -> Endpoint {
        let Self { address, ready, serving, terminating, local, node_unknown, ref hints, weight, zone: _ } = *self;
        Endpoint {
            address,
            port,
            ready,
            serving,
            terminating,
            local,
            node_unknown,
            hints: hints.clone(),
            weight,
            ejected: false,
        }
    }
}
