//! What the tests of this crate share.

#![expect(clippy::unwrap_used, reason = "helpers of tests only")]
#![allow(dead_code, unused_imports, unused_macros, reason = "every test file uses a part of it")]

pub(crate) mod arbitrary;
pub(crate) mod fake_tools;
pub(crate) mod kernel;
pub(crate) mod lab;
pub(crate) mod records;
pub(crate) mod scene;
pub(crate) mod script;
