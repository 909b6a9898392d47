//! The bodies of the fuzz targets: each takes arbitrary bytes and panics if a property does not hold.
//!
//! `fuzz_targets` calls them under libFuzzer, and the test `fuzz_cases` of the crate `ferroute`, which includes this file,
//! with every file below `regressions`. Bodies that need private items are in the features `testing` of their crates.

mod bundle;
mod configuration;
mod iptables_save;
mod manifests;
mod rule_files;

pub use self::{
    bundle::bundle,
    configuration::{configuration, flags},
    iptables_save::iptables_save,
    manifests::manifests,
    rule_files::rule_files,
};
pub use ferroute_host::testing::parse_messages as host_messages;
pub use ferroute_iptables::native::testing::decode_messages as iptables_messages;
pub use ferroute_ipvs::testing::parse_messages as ipvs_messages;
pub use ferroute_kube::testing::fuzz::{decode_both_encodings as object_encodings, split_and_decode as watch_stream};
pub use ferroute_netlink::testing::read_datagram as netlink;
pub use ferroute_nftables::testing::decode_listing as nftables_listing;

/// Reads messages of the kernel about objects of other programs, which must not cost a sync, whatever bytes they have.
pub fn foreign_objects(input: &[u8]) {
    let mut bytes = ferroute_netlink::testing::Bytes::new(input);
    ferroute_nftables::testing::read_foreign_objects(&mut bytes);
    ferroute_iptables::native::testing::read_foreign_objects(&mut bytes);
    ferroute_ipvs::testing::read_foreign_objects(&mut bytes);
    ferroute_host::testing::read_foreign_objects(&mut bytes);
}

/// A target.
pub type Target = fn(&[u8]);

/// All targets by name.
pub const TARGETS: [(&str, Target); 14] = [
    ("bundle", bundle),
    ("configuration", configuration),
    ("flags", flags),
    ("foreign_objects", foreign_objects),
    ("host_messages", host_messages),
    ("iptables_messages", iptables_messages),
    ("iptables_save", iptables_save),
    ("ipvs_messages", ipvs_messages),
    ("manifests", manifests),
    ("netlink", netlink),
    ("nftables_listing", nftables_listing),
    ("object_encodings", object_encodings),
    ("rule_files", rule_files),
    ("watch_stream", watch_stream),
];
