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

    #[test]
    fn files_with_any_rules_are_read_or_refused(words in prop::collection::vec(word(), 0..60)) {
        targets::rule_files(format!("\0{}", words.concat()).as_bytes());
    }
}

/// Words of scripts and listings, and what separates them.
fn word() -> impl Strategy<Value = String> {
    let words = [
        "iptables",
        "ip6tables -w",
        "-t",
        "nat",
        "filter",
        "-A",
        "-I",
        "-D",
        "-R",
        "-N",
        "-P",
        "-F",
        "-X",
        "-E",
        "-S",
        "INPUT",
        "PREROUTING",
        "KUBE-SERVICES",
        "C",
        "1",
        "0",
        "-1",
        "4294967296",
        "-s",
        "!",
        "10.0.0.1/8",
        "::/0",
        "-p",
        "tcp",
        "--dport",
        "80:1",
        "-j",
        "DROP",
        "DNAT --to-destination 10.0.0.2:80",
        "-m set --match-set s dst",
        "*nat",
        "*filter",
        "COMMIT",
        ":C - [0:0]",
        "nft",
        "add",
        "insert",
        "rule",
        "chain",
        "table",
        "ip",
        "inet",
        "t",
        "{",
        "}",
        ";",
        "define",
        "a",
        "=",
        "$a",
        "${a}",
        "set s",
        "map m",
        "elements =",
        "type ipv4_addr",
        "flags interval,timeout",
        "type nat hook prerouting priority",
        "ip daddr",
        "@s",
        "vmap",
        ":",
        "jump C",
        "dnat to",
        "accept",
        "-",
        "..",
        ",",
        "\"",
        "'",
        "`",
        "$(",
        "(",
        ")",
        "#",
        "&&",
        "|",
        "create s hash:ip,port",
        "add s 10.0.0.1,tcp:80",
        "bitmap:ip range 0.0.0.0/0",
        "-A -t 10.0.0.1:80 -s rr",
        "-a -t",
        "-r",
        "include \"x\"",
        "for i in 1 2",
        "do",
        "done",
        "if",
        "fi",
        "\\",
        "flush ruleset",
        "*raw",
        "\u{feff}",
        "> ",
        "é",
    ];
    let text = prop::sample::select(words.to_vec()).prop_map(str::to_owned);
    (
        prop_oneof![8 => text, 1 => any::<char>().prop_map(String::from)],
        prop::sample::select(vec![" ", " ", " ", "\n", ""]),
    )
        .prop_map(|(word, separator)| word + separator)
}
