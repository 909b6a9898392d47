//! Helpers shared by the tests of this crate.

#![expect(clippy::unwrap_used, reason = "helpers of tests only")]
#![allow(dead_code, unused_imports, unused_macros, reason = "every test file uses a part of it")]

pub(crate) mod arbitrary;
pub(crate) mod damage;
pub(crate) mod fake_kernel;
pub(crate) mod fake_programs;
pub(crate) mod fixtures;
pub(crate) mod netlink_differences;
pub(crate) mod netlink_dump;
pub(crate) mod netns_host;
pub(crate) mod records;
