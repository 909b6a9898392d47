//! Well-known labels, annotations and taints that affect a proxy.

/// Label of an EndpointSlice: the name of its Service, in the slice's namespace.
pub const SERVICE_NAME: &str = "kubernetes.io/service-name";

/// Label of a Service or EndpointSlice, with any value: another proxy implements the Service, and this one ignores it.
pub const SERVICE_PROXY_NAME: &str = "service.kubernetes.io/service-proxy-name";

/// Label of a Service or EndpointSlice, with any value: the Service is headless and needs no proxy.
pub const HEADLESS: &str = "service.kubernetes.io/headless";

/// Label of Endpoints, with the value `true`: the object is not mirrored to EndpointSlices.
pub const SKIP_MIRROR: &str = "endpointslice.kubernetes.io/skip-mirror";

/// Annotation of Endpoints, with any value: the object is a leader election lock and contains no endpoints.
pub const LEADER: &str = "control-plane.alpha.kubernetes.io/leader";

/// Annotation of an EndpointSlice: the time of the Pod or Service change that caused its last update, in RFC 3339.
pub const LAST_CHANGE_TRIGGER_TIME: &str = "endpoints.kubernetes.io/last-change-trigger-time";

/// Annotation of a Service: the method that chooses the endpoint of a new connection.
pub const LOAD_BALANCING: &str = "ferroute.io/load-balancing";

/// Annotation of a Service: the size of the table of methods that hash.
pub const HASH_TABLE_SIZE: &str = "ferroute.io/hash-table-size";

/// Cilium's annotation for [`LOAD_BALANCING`]: `random` or `maglev`.
pub const CILIUM_ALGORITHM: &str = "service.cilium.io/lb-algorithm";

/// kube-router's annotation for [`LOAD_BALANCING`]: a scheduler of the kernel's ipvs.
pub const KUBE_ROUTER_SCHEDULER: &str = "kube-router.io/service.scheduler";

/// Annotation of a Service, `true`, `refused` or `false`: whether endpoints that do not answer, or also those that refuse
/// connections, get none for a while.
pub const PASSIVE_EJECTION: &str = "ferroute.io/passive-ejection";

/// Annotation of a Service: source ranges in addition to `spec.loadBalancerSourceRanges`, which only type
/// `LoadBalancer` may have.
pub const SOURCE_RANGES: &str = "ferroute.io/source-ranges";

/// Annotation of a Service: the addresses, in addition to those of load balancers, to which source ranges apply:
/// `cluster-ip`, `external-ips` and `node-ports`.
pub const SOURCE_RANGES_SCOPE: &str = "ferroute.io/source-ranges-scope";

/// Annotation of a Service: `allow` or `deny` the clients in the source ranges.
pub const SOURCE_RANGES_POLICY: &str = "ferroute.io/source-ranges-policy";

/// Cilium's annotation for [`SOURCE_RANGES_POLICY`].
pub const CILIUM_SOURCE_RANGES_POLICY: &str = "service.cilium.io/src-ranges-policy";

/// Annotation of a Service: the time in which new endpoints reach their full share of the connections.
pub const SLOW_START: &str = "ferroute.io/slow-start";

/// Annotation of a Service: number of connections of an endpoint in the node's zone for each connection of an endpoint
/// elsewhere.
pub const ZONE_WEIGHT: &str = "ferroute.io/zone-weight";

/// Annotation of a Service: the time after which open connections to a terminating endpoint end.
pub const DRAIN_TIMEOUT: &str = "ferroute.io/drain-timeout";

/// Annotation of a Service: how many connections may be open at a time.
pub const MAX_CONNECTIONS: &str = "ferroute.io/max-connections";

/// Annotation of a Service: maximum number of open connections of a client.
pub const MAX_CONNECTIONS_PER_CLIENT: &str = "ferroute.io/max-connections-per-client";

/// Annotation of a Service: the rate of new connections, such as `100/second`, and the size of a burst, `burst 200`.
pub const MAX_NEW_CONNECTIONS: &str = "ferroute.io/max-new-connections";

/// Annotation of a Service: the same for each client.
pub const MAX_NEW_CONNECTIONS_PER_CLIENT: &str = "ferroute.io/max-new-connections-per-client";

/// Annotation of a Service: `reject` or `drop` connections beyond its limits.
pub const OVER_LIMIT: &str = "ferroute.io/over-limit";

/// Annotation of an EndpointSlice: the weight of all its endpoints, or weights of single endpoints, `1 10.0.0.1=7
/// 10.0.0.2=0`.
pub const WEIGHT: &str = "ferroute.io/weight";

/// Cilium's annotation for [`WEIGHT`]: the weight of all endpoints of the slice.
pub const CILIUM_WEIGHT: &str = "service.cilium.io/weight";

/// Start of the keys of Ferroute's own annotations.
pub const OWN_PREFIX: &str = "ferroute.io/";

/// Annotations of Services that are read.
pub const SERVICE_ANNOTATIONS: [&str; 17] = [
    LOAD_BALANCING,
    HASH_TABLE_SIZE,
    CILIUM_ALGORITHM,
    KUBE_ROUTER_SCHEDULER,
    PASSIVE_EJECTION,
    SLOW_START,
    ZONE_WEIGHT,
    DRAIN_TIMEOUT,
    SOURCE_RANGES,
    SOURCE_RANGES_SCOPE,
    SOURCE_RANGES_POLICY,
    CILIUM_SOURCE_RANGES_POLICY,
    MAX_CONNECTIONS,
    MAX_CONNECTIONS_PER_CLIENT,
    MAX_NEW_CONNECTIONS,
    MAX_NEW_CONNECTIONS_PER_CLIENT,
    OVER_LIMIT,
];

/// Annotations of EndpointSlices that are read.
pub const SLICE_ANNOTATIONS: [&str; 3] = [LAST_CHANGE_TRIGGER_TIME, WEIGHT, CILIUM_WEIGHT];

/// Reports whether an annotation is kept when an object is received: those that are read, and others with
/// [`OWN_PREFIX`], which are reported.
pub fn keeps_annotation(key: &str) -> bool {
    key.starts_with(OWN_PREFIX) || reads_annotation(key)
}

/// Reports whether an annotation of Services or EndpointSlices is read.
pub fn reads_annotation(key: &str) -> bool {
    SERVICE_ANNOTATIONS.contains(&key) || SLICE_ANNOTATIONS.contains(&key)
}

/// Label of a Node: its zone, which is compared with the zones in topology hints.
pub const ZONE: &str = "topology.kubernetes.io/zone";

/// Key of the taint of a node that is about to be removed. While it is present, `/healthz` returns 503, so that load
/// balancers stop sending new connections.
pub const TO_BE_DELETED_TAINT: &str = "ToBeDeletedByClusterAutoscaler";
