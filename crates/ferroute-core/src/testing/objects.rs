use ferroute_api::{
    ClientIpConfig, EndpointPort, EndpointSlice, HintRef, LoadBalancerIngress, ObjectMeta, Service, ServicePort,
    SessionAffinityConfig, SliceEndpoint, labels,
};

use super::values::split;
use crate::Protocol;

/// Starts a Service called `namespace/name`. Its type is ClusterIP unless a port or address needs another.
pub fn service(name: &str) -> ServiceBuilder {
    ServiceBuilder(Service { metadata: metadata(name), ..Service::default() })
}

/// Starts a slice called `namespace/name` that belongs to the Service `service` of the same namespace.
pub fn slice(name: &str, service: &str) -> SliceBuilder {
    let mut slice =
        EndpointSlice { metadata: metadata(name), address_type: "IPv4".to_owned(), ..EndpointSlice::default() };
    slice.metadata.labels.insert(labels::SERVICE_NAME.to_owned(), service.to_owned());
    SliceBuilder(slice)
}

/// Starts an endpoint of a slice on a node `other`, without conditions, which means ready.
pub fn pod(address: &str) -> PodBuilder {
    let node_name = Some("other".to_owned());
    PodBuilder(SliceEndpoint { addresses: vec![address.to_owned()], node_name, ..SliceEndpoint::default() })
}

/// A builder of a Service.
#[derive(Clone, Debug)]
pub struct ServiceBuilder(Service);

impl ServiceBuilder {
    /// Adds a cluster IP. A second one must be of the other family.
    pub fn cluster_ip(mut self, address: &str) -> Self {
        self.0.spec.cluster_ip.get_or_insert_with(|| address.to_owned());
        self.0.spec.cluster_ips.push(address.to_owned());
        self
    }

    /// Adds a TCP port.
    pub fn port(self, name: &str, port: u16) -> Self {
        self.port_over(Protocol::Tcp, name, port)
    }

    /// Adds a UDP port.
    pub fn udp(self, name: &str, port: u16) -> Self {
        self.port_over(Protocol::Udp, name, port)
    }

    /// Adds a port of any protocol.
    pub fn port_over(mut self, protocol: Protocol, name: &str, port: u16) -> Self {
        self.0.spec.ports.push(ServicePort {
            name: name.to_owned(),
            protocol: Some(protocol.as_str().to_uppercase()),
            port: port.into(),
            ..ServicePort::default()
        });
        self
    }

    /// Sets the node port of the last port, and type NodePort if there is no type.
    pub fn node_port(mut self, number: u16) -> Self {
        let port = self.0.spec.ports.last_mut().expect("add a port before its node port");
        port.node_port = Some(number.into());
        self.0.spec.type_.get_or_insert_with(|| "NodePort".to_owned());
        self
    }

    /// Adds an external IP.
    pub fn external_ip(mut self, address: &str) -> Self {
        self.0.spec.external_ips.push(address.to_owned());
        self
    }

    /// Adds a load balancer address with `ipMode` VIP and sets type LoadBalancer.
    pub fn load_balancer(self, address: &str) -> Self {
        self.ingress(address, None)
    }

    /// Adds a load balancer address with `ipMode` Proxy, which proxies must ignore, and sets type LoadBalancer.
    pub fn proxying_load_balancer(self, address: &str) -> Self {
        self.ingress(address, Some("Proxy"))
    }

    /// Adds a load balancer source range.
    pub fn source_range(mut self, network: &str) -> Self {
        self.0.spec.load_balancer_source_ranges.push(network.to_owned());
        self
    }

    /// Enables client IP affinity with this timeout.
    pub fn affinity(mut self, seconds: u32) -> Self {
        self.0.spec.session_affinity = Some("ClientIP".to_owned());
        let timeout_seconds = i32::try_from(seconds).ok();
        self.0.spec.session_affinity_config =
            Some(SessionAffinityConfig { client_ip: Some(ClientIpConfig { timeout_seconds }) });
        self
    }

    /// Sets the internal traffic policy to Local.
    pub fn internal_local(mut self) -> Self {
        self.0.spec.internal_traffic_policy = Some("Local".to_owned());
        self
    }

    /// Sets the external traffic policy to Local.
    pub fn external_local(mut self) -> Self {
        self.0.spec.external_traffic_policy = Some("Local".to_owned());
        self
    }

    /// Sets the health check node port.
    pub fn health_check_node_port(mut self, number: u16) -> Self {
        self.0.spec.health_check_node_port = Some(number.into());
        self
    }

    /// Sets a label.
    pub fn label(mut self, key: &str, value: &str) -> Self {
        self.0.metadata.labels.insert(key.to_owned(), value.to_owned());
        self
    }

    /// Sets an annotation.
    pub fn annotation(mut self, key: &str, value: &str) -> Self {
        self.0.metadata.annotations.insert(key.to_owned(), value.to_owned());
        self
    }

    /// Changes other fields.
    pub fn with(mut self, change: impl FnOnce(&mut Service)) -> Self {
        change(&mut self.0);
        self
    }

    /// Returns the Service.
    pub fn build(self) -> Service {
        self.0
    }

    fn ingress(mut self, ip: &str, mode: Option<&str>) -> Self {
        self.0.spec.type_ = Some("LoadBalancer".to_owned());
        self.0
            .status
            .load_balancer
            .ingress
            .push(LoadBalancerIngress { ip: ip.to_owned(), ip_mode: mode.map(str::to_owned) });
        self
    }
}

impl From<ServiceBuilder> for Service {
    fn from(builder: ServiceBuilder) -> Self {
        builder.build()
    }
}

/// A builder of an endpoint slice.
#[derive(Clone, Debug)]
pub struct SliceBuilder(EndpointSlice);

impl SliceBuilder {
    /// Adds a TCP port.
    pub fn port(self, name: &str, port: u16) -> Self {
        self.port_over(Protocol::Tcp, name, port)
    }

    /// Adds a UDP port.
    pub fn udp(self, name: &str, port: u16) -> Self {
        self.port_over(Protocol::Udp, name, port)
    }

    /// Adds a port of any protocol.
    pub fn port_over(mut self, protocol: Protocol, name: &str, port: u16) -> Self {
        self.0.ports.push(EndpointPort {
            name: name.to_owned(),
            protocol: Some(protocol.as_str().to_uppercase()),
            port: Some(port.into()),
        });
        self
    }

    /// Adds an endpoint, given as [`pod`] or as an address. An IPv6 address sets the address type IPv6.
    pub fn pod(mut self, pod: impl Into<PodBuilder>) -> Self {
        let endpoint = pod.into().build();
        if endpoint.addresses.iter().any(|address| address.contains(':')) {
            self.0.address_type = "IPv6".to_owned();
        }
        self.0.endpoints.push(endpoint);
        self
    }

    /// Sets a label.
    pub fn label(mut self, key: &str, value: &str) -> Self {
        self.0.metadata.labels.insert(key.to_owned(), value.to_owned());
        self
    }

    /// Changes other fields.
    pub fn with(mut self, change: impl FnOnce(&mut EndpointSlice)) -> Self {
        change(&mut self.0);
        self
    }

    /// Returns the slice.
    pub fn build(self) -> EndpointSlice {
        self.0
    }
}

impl From<SliceBuilder> for EndpointSlice {
    fn from(builder: SliceBuilder) -> Self {
        builder.build()
    }
}

/// A builder of an endpoint of a slice.
#[derive(Clone, Debug)]
pub struct PodBuilder(SliceEndpoint);

impl PodBuilder {
    /// Removes the node.
    pub fn without_node(mut self) -> Self {
        self.0.node_name = None;
        self
    }

    /// Sets the node.
    pub fn on(mut self, node: &str) -> Self {
        self.0.node_name = Some(node.to_owned());
        self
    }

    /// Makes the endpoint neither ready nor serving.
    pub fn unready(self) -> Self {
        self.conditions(false, false, false)
    }

    /// Makes it terminating and serving.
    pub fn terminating(self) -> Self {
        self.conditions(false, true, true)
    }

    /// Makes it terminating and not serving.
    pub fn terminated(self) -> Self {
        self.conditions(false, false, true)
    }

    /// Sets all three conditions.
    pub fn conditions(mut self, ready: bool, serving: bool, terminating: bool) -> Self {
        self.0.conditions.ready = Some(ready);
        self.0.conditions.serving = Some(serving);
        self.0.conditions.terminating = Some(terminating);
        self
    }

    /// Sets the zone of the endpoint's node.
    #[must_use]
    pub fn in_zone(mut self, zone: &str) -> Self {
        self.0.zone = Some(zone.to_owned());
        self
    }

    /// Adds a zone hint.
    pub fn for_zone(mut self, zone: &str) -> Self {
        self.0.hints.get_or_insert_default().for_zones.push(HintRef { name: zone.to_owned() });
        self
    }

    /// Adds a node hint.
    pub fn for_node(mut self, node: &str) -> Self {
        self.0.hints.get_or_insert_default().for_nodes.push(HintRef { name: node.to_owned() });
        self
    }

    /// Returns the endpoint.
    pub fn build(self) -> SliceEndpoint {
        self.0
    }
}

impl From<&str> for PodBuilder {
    fn from(address: &str) -> Self {
        pod(address)
    }
}

pub(super) fn metadata(full: &str) -> ObjectMeta {
    let (namespace, name) = split(full);
    ObjectMeta { namespace: namespace.to_owned(), name: name.to_owned(), ..ObjectMeta::default() }
}
