//! What the tests of this crate share.

#![expect(clippy::unwrap_used, reason = "helpers of tests only")]
#![allow(dead_code, unreachable_pub, reason = "every test file uses a part of it")]

pub mod lab;
pub mod scene;
pub mod specification;
pub mod world;
