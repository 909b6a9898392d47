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

/// Label of a Node: its zone, which is compared with the zones in topology hints.
pub const ZONE: &str = "topology.kubernetes.io/zone";

/// Key of the taint of a node that is about to be removed. While it is present, `/healthz` returns 503, so that load
/// balancers stop sending new connections.
pub const TO_BE_DELETED_TAINT: &str = "ToBeDeletedByClusterAutoscaler";
