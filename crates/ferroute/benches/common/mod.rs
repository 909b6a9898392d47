//! Shared code of the benchmarks: clusters of any size, arguments, formatting.

#![allow(dead_code, reason = "each benchmark uses a part")]
#![allow(clippy::unwrap_used, reason = "benchmarks are interactive programs")]

pub(crate) mod arguments;
pub(crate) mod cluster;
pub(crate) mod csv;
pub(crate) mod figures;
pub(crate) mod kube_proxy;
pub(crate) mod manifests;
pub(crate) mod network;
pub(crate) mod pipeline;
pub(crate) mod rules;
