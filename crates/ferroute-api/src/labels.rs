//! Names of labels, annotations and taints that change what a proxy does.

/// On an `EndpointSlice`: the name of the Service (in the slice's namespace) that it belongs to.
pub const SERVICE_NAME: &str = "kubernetes.io/service-name";

/// On a Service or `EndpointSlice`, with any value: another proxy takes care of it, so this one leaves it alone.
pub const SERVICE_PROXY_NAME: &str = "service.kubernetes.io/service-proxy-name";

/// On a Service or `EndpointSlice`, with any value: the Service is headless, there is nothing to proxy.
pub const HEADLESS: &str = "service.kubernetes.io/headless";

/// On `Endpoints`, with the value `true`: no slices are to be made of it.
pub const SKIP_MIRROR: &str = "endpointslice.kubernetes.io/skip-mirror";

/// Annotation on `Endpoints`, with any value: the object is a lock that programs elect a leader with, and holds no
/// endpoints.
pub const LEADER: &str = "control-plane.alpha.kubernetes.io/leader";

/// Annotation on an `EndpointSlice`: when that happened which made it change, in RFC 3339.
pub const LAST_CHANGE_TRIGGER_TIME: &str = "endpoints.kubernetes.io/last-change-trigger-time";

/// On a Node: the zone that topology hints by zone are compared with.
pub const ZONE: &str = "topology.kubernetes.io/zone";

/// Key of the taint that says that the node is about to be removed; `/healthz` answers 503 while it is there, so that
/// load balancers stop sending new connections.
pub const TO_BE_DELETED_TAINT: &str = "ToBeDeletedByClusterAutoscaler";
