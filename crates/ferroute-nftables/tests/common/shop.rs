//! Service `shop/web` and its Pods.

use ferroute_core::testing::{Cluster, ServiceBuilder, SliceBuilder, pod, service, slice};

/// Returns the Service, with TCP port 80.
pub fn web() -> ServiceBuilder {
    service("shop/web").cluster_ip("10.96.0.1").port("http", 80)
}

/// Returns its Pods 10.244.0.`number`, on another node.
pub fn pods(numbers: &[u8]) -> SliceBuilder {
    numbers.iter().fold(slice("shop/web-a", "web").port("http", 8080), |slice, number| {
        slice.pod(pod(&format!("10.244.0.{number}")).on("node-2"))
    })
}

/// Returns a cluster with one Service.
pub fn cluster(service: ServiceBuilder, pods: SliceBuilder) -> Cluster {
    Cluster::new("node-1").service(service).slice(pods)
}
