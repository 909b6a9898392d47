//! The Kubernetes service proxy.

fn main() {}
