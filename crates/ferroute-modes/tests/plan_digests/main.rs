//! The planned rules of all modes equal those in `digests.txt`, for the recorded conformance cases, and for generated
//! clusters under all settings that rules depend on. A change of the planners that should not change rules does not
//! change the file.
//!
//! The file has a line for each mode, IP family, settings and group of clusters, with a digest for each cluster of the
//! group. To accept changed rules, run the test with `ACCEPT_DIGESTS=1` and say in the commit message what changed. To see
//! what changed, run it with `PLANS=DIRECTORY` before and after, which writes all planned rules there, and compare the
//! directories.
//!
//! Generated clusters depend on the generator (`ferroute_core::testing::arbitrary`) too. It should be changed in a
//! separate commit.

#![expect(clippy::unwrap_used, reason = "tests may panic")]

mod clusters;
#[expect(dead_code, reason = "what kube-proxy wrote is compared elsewhere")]
#[path = "../../../ferroute-iptables/tests/common/records.rs"]
mod records;
mod setups;
mod snapshot;

use std::{collections::BTreeMap, env, fs, path::Path};

use clusters::{Group, groups};
use ferroute_config::ModeName;
use ferroute_core::ServiceTable;
use ferroute_modes::REGISTRY;
use setups::{Setup, setups};
use snapshot::{Digest, Key, Snapshot};

/// Returns the rules that a mode plans, in the syntax of its tool.
fn plan(mode: ModeName, setup: &Setup, table: &ServiceTable) -> String {
    REGISTRY.active(mode).plan(&setup.resolved(mode), table, &setup.addresses).unwrap().to_string()
}

/// The planned rules of all modes, and where to write them as text.
struct Plans {
    snapshot: Snapshot,
    differences: Vec<String>,
    frozen: Snapshot,
    directory: Option<String>,
}

impl Plans {
    fn add(&mut self, setup: &Setup, group: &str, case: &str, table: &ServiceTable) {
        for mode in REGISTRY.names() {
            let text = plan(mode, setup, table);
            let key = Key::new(mode, table.family, &setup.name, group);
            let file = format!("{}-{}-{}-{group}-{case}.txt", mode.as_str(), table.family, setup.name);
            if let Some(directory) = &self.directory {
                write(Path::new(directory), &file, &text);
            }
            let digest = Digest::new(&text);
            let number = self.snapshot.push(&key, digest);
            if self.frozen.get(&key, number) != Some(digest) {
                let path = write(Path::new(env!("CARGO_TARGET_TMPDIR")), &file, &text);
                self.differences.push(format!("{key}, {group} {case}: the planned rules are now {path}"));
            }
        }
    }
}

fn write(directory: &Path, file: &str, text: &str) -> String {
    fs::create_dir_all(directory).unwrap();
    let path = directory.join(file);
    fs::write(&path, text).unwrap();
    path.display().to_string()
}

#[test]
fn planned_rules_are_unchanged_in_all_modes() {
    let mut plans = Plans {
        snapshot: Snapshot::default(),
        differences: Vec::new(),
        frozen: Snapshot::read(),
        directory: env::var("PLANS").ok(),
    };
    for record in records::records() {
        let setup = Setup::recorded(record.settings(), record.host().addresses);
        let case = record.case.file_name().unwrap().to_str().unwrap().to_owned();
        plans.add(&setup, &case, &format!("step-{}", record.step), &record.table());
    }
    for setup in setups() {
        for Group { name, clusters } in groups(&setup.name) {
            for (seed, cluster) in clusters.iter().enumerate() {
                for table in setup.tables(cluster) {
                    plans.add(&setup, name, &format!("seed-{seed}"), &table);
                }
            }
        }
    }
    if env::var_os("ACCEPT_DIGESTS").is_some() {
        plans.snapshot.write();
        return;
    }
    let missing = plans.frozen.keys().filter(|key| !plans.snapshot.contains(key));
    plans.differences.extend(missing.map(|key| format!("{key}: nothing was planned")));
    let (all, shown) = (plans.differences.len(), plans.differences.iter().take(SHOWN).map(String::as_str));
    assert!(
        plans.differences.is_empty() && plans.snapshot == plans.frozen,
        "{all} planned rules are not those of {path}:\n{shown}\nSee {file} on how to compare and to accept them.",
        path = snapshot::PATH,
        shown = shown.collect::<Vec<_>>().join("\n"),
        file = file!(),
    );
}

/// The same objects have the same rules, in any order of arrival.
#[test]
fn plans_do_not_depend_on_order_of_objects() {
    for setup in setups() {
        for Group { name, clusters } in groups(&setup.name) {
            let mut reversed = clusters[0].clone();
            reversed.services.reverse();
            reversed.slices.reverse();
            for (table, reversed) in setup.tables(&clusters[0]).iter().zip(setup.tables(&reversed)) {
                for mode in REGISTRY.names() {
                    let context = format!("{} {} {} {name}", mode.as_str(), table.family, setup.name);
                    let first = plan(mode, &setup, table);
                    assert!(first == plan(mode, &setup, table), "{context}: two plans of the same table differ");
                    assert!(first == plan(mode, &setup, &reversed), "{context}: the order of the objects matters");
                }
            }
        }
    }
}

/// Digests do not cover features that no cluster has.
#[test]
fn generated_clusters_have_all_features() {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for setup in setups() {
        for cluster in groups(&setup.name).iter().flat_map(|group| &group.clusters) {
            for (feature, count) in setup.tables(cluster).iter().flat_map(clusters::features) {
                *counts.entry(feature).or_default() += count;
            }
        }
    }
    let rare: Vec<_> = counts.iter().filter(|(_, count)| **count < ENOUGH).collect();
    assert!(!counts.is_empty() && rare.is_empty(), "too few generated service ports have {rare:?}");
}

/// Minimum number of service ports with each feature.
const ENOUGH: usize = 4;

/// The number of differences that a failure shows.
const SHOWN: usize = 20;
