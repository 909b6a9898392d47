//! What the benches share: clusters of any size, arguments, figures.

#![allow(dead_code, reason = "each bench uses a part of it")]
#![allow(clippy::unwrap_used, reason = "benches are programs for people at a terminal")]

pub(crate) mod arguments;
pub(crate) mod cluster;
pub(crate) mod figures;
pub(crate) mod manifests;
pub(crate) mod pipeline;
pub(crate) mod rules;
