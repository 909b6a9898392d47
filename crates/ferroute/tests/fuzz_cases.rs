//! The fuzz targets with the inputs that once failed: `fuzz/regressions/TARGET/*`. See `make fuzz`.

#[expect(unreachable_pub, reason = "in its own workspace it is a library")]
#[path = "../../../fuzz/src/lib.rs"]
mod targets;

use std::{fs, path::Path};

use proptest::prelude::*;

#[test]
fn inputs_that_once_failed_pass() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/regressions");
    let mut cases = 0;
    for entry in fs::read_dir(&directory).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        let target = targets::TARGETS.iter().find(|(target, _)| *target == name);
        let (_, target) = target.unwrap_or_else(|| panic!("{} is not of a target", path.display()));
        for case in fs::read_dir(&path).unwrap() {
            let case = case.unwrap().path();
            println!("{}", case.display());
            target(&fs::read(&case).unwrap());
            cases += 1;
        }
    }
    assert!(cases > 0, "no cases in {}", directory.display());
}

#[test]
fn every_target_is_built_and_listed() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz");
    let manifest = fs::read_to_string(directory.join("Cargo.toml")).unwrap();
    let mut files: Vec<String> = fs::read_dir(directory.join("fuzz_targets"))
        .unwrap()
        .map(|entry| entry.unwrap().path().file_stem().unwrap().to_str().unwrap().to_owned())
        .collect();
    files.sort();
    assert_eq!(files, targets::TARGETS.map(|(name, _)| name));
    assert!(files.iter().all(|name| manifest.contains(&format!("name = \"{name}\""))));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases.max(4096)))]

    #[test]
    fn foreign_objects_never_cost_a_sync(input in prop::collection::vec(any::<u8>(), 0..1024)) {
        targets::foreign_objects(&input);
    }
}
