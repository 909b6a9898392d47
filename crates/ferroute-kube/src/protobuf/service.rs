//! Services of `k8s.io.api.core.v1`, and ServiceCIDRs of `k8s.io.api.networking.v1`.

use std::collections::BTreeMap;

use ferroute_api as api;

use super::{convert_all, meta::ObjectMeta, non_empty, non_zero};

/// A Service.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Service {
    #[prost(message, optional, tag = "1")]
    metadata: Option<ObjectMeta>,
    #[prost(message, optional, tag = "2")]
    spec: Option<ServiceSpec>,
    #[prost(message, optional, tag = "3")]
    status: Option<ServiceStatus>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ServiceSpec {
    #[prost(message, repeated, tag = "1")]
    ports: Vec<ServicePort>,
    #[prost(btree_map = "string, string", tag = "2")]
    selector: BTreeMap<String, String>,
    #[prost(string, tag = "3")]
    cluster_ip: String,
    #[prost(string, tag = "4")]
    r#type: String,
    #[prost(string, repeated, tag = "5")]
    external_ips: Vec<String>,
    #[prost(string, tag = "7")]
    session_affinity: String,
    #[prost(string, repeated, tag = "9")]
    load_balancer_source_ranges: Vec<String>,
    #[prost(string, tag = "11")]
    external_traffic_policy: String,
    #[prost(int32, tag = "12")]
    health_check_node_port: i32,
    #[prost(message, optional, tag = "14")]
    session_affinity_config: Option<SessionAffinityConfig>,
    #[prost(string, optional, tag = "17")]
    ip_family_policy: Option<String>,
    #[prost(string, repeated, tag = "18")]
    cluster_ips: Vec<String>,
    #[prost(string, repeated, tag = "19")]
    ip_families: Vec<String>,
    #[prost(string, optional, tag = "22")]
    internal_traffic_policy: Option<String>,
    #[prost(string, optional, tag = "23")]
    traffic_distribution: Option<String>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ServicePort {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    protocol: String,
    #[prost(int32, tag = "3")]
    port: i32,
    #[prost(message, optional, tag = "4")]
    target_port: Option<IntOrString>,
    #[prost(int32, tag = "5")]
    node_port: i32,
}

/// `k8s.io.apimachinery.pkg.util.intstr.IntOrString`.
#[derive(Clone, PartialEq, prost::Message)]
struct IntOrString {
    /// 0: number, 1: text.
    #[prost(int64, tag = "1")]
    r#type: i64,
    #[prost(int32, tag = "2")]
    int_val: i32,
    #[prost(string, tag = "3")]
    str_val: String,
}

#[derive(Clone, Copy, PartialEq, prost::Message)]
struct SessionAffinityConfig {
    #[prost(message, optional, tag = "1")]
    client_ip: Option<ClientIpConfig>,
}

#[derive(Clone, Copy, PartialEq, prost::Message)]
struct ClientIpConfig {
    #[prost(int32, optional, tag = "1")]
    timeout_seconds: Option<i32>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ServiceStatus {
    #[prost(message, optional, tag = "1")]
    load_balancer: Option<LoadBalancerStatus>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct LoadBalancerStatus {
    #[prost(message, repeated, tag = "1")]
    ingress: Vec<LoadBalancerIngress>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct LoadBalancerIngress {
    #[prost(string, tag = "1")]
    ip: String,
    #[prost(string, optional, tag = "3")]
    ip_mode: Option<String>,
}

/// A ServiceCIDR.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ServiceCidr {
    #[prost(message, optional, tag = "1")]
    metadata: Option<ObjectMeta>,
    #[prost(message, optional, tag = "2")]
    spec: Option<ServiceCidrSpec>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ServiceCidrSpec {
    #[prost(string, repeated, tag = "1")]
    cidrs: Vec<String>,
}

impl From<Service> for api::Service {
    fn from(service: Service) -> Self {
        let balancer = service.status.unwrap_or_default().load_balancer.unwrap_or_default();
        Self {
            metadata: service.metadata.unwrap_or_default().into(),
            spec: service.spec.unwrap_or_default().into(),
            status: api::ServiceStatus {
                load_balancer: api::LoadBalancerStatus { ingress: convert_all(balancer.ingress) },
            },
        }
    }
}

impl From<ServiceSpec> for api::ServiceSpec {
    fn from(spec: ServiceSpec) -> Self {
        Self {
            type_: non_empty(spec.r#type),
            cluster_ip: non_empty(spec.cluster_ip),
            cluster_ips: spec.cluster_ips,
            ip_families: spec.ip_families,
            ip_family_policy: spec.ip_family_policy,
            external_ips: spec.external_ips,
            ports: convert_all(spec.ports),
            selector: spec.selector,
            session_affinity: non_empty(spec.session_affinity),
            session_affinity_config: spec.session_affinity_config.map(Into::into),
            internal_traffic_policy: spec.internal_traffic_policy,
            external_traffic_policy: non_empty(spec.external_traffic_policy),
            traffic_distribution: spec.traffic_distribution,
            health_check_node_port: non_zero(spec.health_check_node_port),
            load_balancer_source_ranges: spec.load_balancer_source_ranges,
        }
    }
}

impl From<ServicePort> for api::ServicePort {
    fn from(port: ServicePort) -> Self {
        Self {
            name: port.name,
            protocol: non_empty(port.protocol),
            port: port.port,
            node_port: non_zero(port.node_port),
            target_port: port.target_port.map(Into::into),
        }
    }
}

impl From<IntOrString> for serde_json::Value {
    fn from(value: IntOrString) -> Self {
        if value.r#type == 0 { value.int_val.into() } else { value.str_val.into() }
    }
}

impl From<SessionAffinityConfig> for api::SessionAffinityConfig {
    fn from(config: SessionAffinityConfig) -> Self {
        let client_ip = |config: ClientIpConfig| api::ClientIpConfig { timeout_seconds: config.timeout_seconds };
        Self { client_ip: config.client_ip.map(client_ip) }
    }
}

impl From<LoadBalancerIngress> for api::LoadBalancerIngress {
    fn from(ingress: LoadBalancerIngress) -> Self {
        Self { ip: ingress.ip, ip_mode: ingress.ip_mode }
    }
}

impl From<ServiceCidr> for api::ServiceCidr {
    fn from(cidr: ServiceCidr) -> Self {
        Self {
            metadata: cidr.metadata.unwrap_or_default().into(),
            spec: api::ServiceCidrSpec { cidrs: cidr.spec.unwrap_or_default().cidrs },
        }
    }
}
