//! Helpers of this crate's integration tests.

#![expect(clippy::unwrap_used, reason = "helpers of tests only")]
#![allow(dead_code, unreachable_pub, reason = "each test uses a part of it")]

pub mod cluster;
pub mod decision;
pub mod lab;
pub mod specification;
pub mod world;
