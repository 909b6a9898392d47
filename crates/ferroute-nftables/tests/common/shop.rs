//! The Service `shop/web` and its pods.

use ferroute_core::testing::{Cluster, ServiceBuilder, SliceBuilder, pod, service, slice};

/// The Service, on TCP port 80.
pub fn web() -> ServiceBuilder {
    service("shop/web").cluster_ip("10.96.0.1").port("http", 80)
}

/// Pods of it on another node, 10.244.0.`number`.
pub fn pods(numbers: &[u8]) -> SliceBuilder {
    numbers.iter().fold(slice("shop/web-a", "web").port("http", 8080), |slice, number| {
        slice.pod(pod(&format!("10.244.0.{number}")).on("node-2"))
    })
}

/// A cluster with nothing else.
pub fn cluster(service: ServiceBuilder, pods: SliceBuilder) -> Cluster {
    Cluster::of_node("node-1").service(service).slice(pods)
}
