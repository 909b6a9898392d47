//! Services and slices as they are told to the tracker.

use std::{net::IpAddr, sync::Arc};

use crate::{Endpoint, Hints, IpFamily, Protocol, NamespacedName, ServicePort, ServicePortName};

/// A Service as the proxy sees it: its ports for each family that it has a cluster IP of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceView {
    /// Namespace and name.
    pub name: NamespacedName,
    /// Ports by [`IpFamily::index`].
    pub ports: [Vec<NamedPort>; 2],
}

/// A port of a [`ServiceView`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedPort {
    /// Its name, by which slices' ports are matched.
    pub name: Arc<str>,
    /// Its protocol, by which they are matched too.
    pub protocol: Protocol,
    /// Everything else. Shared with the table, which has the same.
    pub port: Arc<ServicePort>,
}

/// An endpoint slice as the proxy sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SliceView {
    /// The Service that it belongs to.
    pub service: NamespacedName,
    /// The slice's own namespace and name.
    pub name: NamespacedName,
    /// Family of all its addresses.
    pub family: IpFamily,
    /// Ports that every endpoint has.
    pub ports: Vec<SlicePort>,
    /// Its endpoints.
    pub endpoints: Vec<Candidate>,
}

/// A port of a [`SliceView`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlicePort {
    /// Name of the service port.
    pub name: Box<str>,
    /// Its protocol.
    pub protocol: Protocol,
    /// The port on the endpoints.
    pub port: u16,
}

/// An endpoint of a [`SliceView`]; the fields mean the same as in [`Endpoint`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Address of the pod or host.
    pub address: IpAddr,
    /// Takes new connections.
    pub ready: bool,
    /// Answers, even while it terminates.
    pub serving: bool,
    /// Is on its way out.
    pub terminating: bool,
    /// Runs on this node.
    pub local: bool,
    /// Topology hints.
    pub hints: Option<Arc<Hints>>,
}

impl SliceView {
    /// The ports that are meant by a service port: those of its name and protocol.
    pub fn ports_for<'a>(&'a self, name: &'a ServicePortName) -> impl Iterator<Item = &'a SlicePort> {
        self.ports.iter().filter(|port| port.is_for(name))
    }
}

impl SlicePort {
    /// Whether a service port means it: one of its name and protocol.
    pub(super) fn is_for(&self, name: &ServicePortName) -> bool {
        *self.name == *name.port && self.protocol == name.protocol
    }
}

impl Candidate {
    /// The endpoint at a port of its slice.
    pub fn at(&self, port: u16) -> Endpoint {
        let Self { address, ready, serving, terminating, local, ref hints } = *self;
        Endpoint { address, port, ready, serving, terminating, local, hints: hints.clone() }
    }
}
