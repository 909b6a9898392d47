//! The recorded cases, for all tests of this crate.

#![expect(clippy::unwrap_used, reason = "helpers of tests only")]

use std::{fs, path::PathBuf};

use ferroute_core::IpFamily;

/// Where the cases are.
const SCENARIOS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../conformance/scenarios");

/// The rules that kube-proxy made in one step of one case, in one family.
pub(crate) struct Record {
    pub(crate) path: PathBuf,
    pub(crate) family: IpFamily,
    pub(crate) text: String,
}

/// All recorded rules. There must be some: a test that reads none proves nothing.
pub(crate) fn recorded_rules() -> Vec<Record> {
    let mut records = Vec::new();
    for case in fs::read_dir(SCENARIOS).expect("the recorded cases are part of the repository") {
        for file in fs::read_dir(case.unwrap().path().join("expected")).unwrap() {
            let path = file.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            let family = match () {
                () if name.starts_with("iptables-save") => IpFamily::V4,
                () if name.starts_with("ip6tables-save") => IpFamily::V6,
                () => continue,
            };
            records.push(Record { family, text: fs::read_to_string(&path).unwrap(), path });
        }
    }
    assert!(records.len() >= 100, "only {} recorded rule sets found in {SCENARIOS}", records.len());
    records
}
