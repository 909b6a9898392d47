//! `ferroute bundle` and `ferroute replay`: the record of a running proxy, taken and gone through again elsewhere.

use std::process::{Command, Output};

use crate::{Case, Mode, in_each_mode, lab::pod_addresses, wait, web};

in_each_mode!(
    the_decisions_of_a_running_proxy_are_made_again,
    a_repair_is_in_the_record_and_no_difference,
    what_a_full_sync_decided_is_held_against_what_is_decided_now,
    networks_of_cluster_ips_are_part_of_what_was_decided_from,
);

const FERROUTE: &str = env!("CARGO_BIN_EXE_ferroute");

/// The bundle of the proxy in the node's namespace, in a file of its own.
fn bundle(case: &Case) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    case.lab.node.command(FERROUTE, &["bundle", file.path().to_str().unwrap()]);
    file
}

/// Replays it where there is no proxy and no rule, as somebody who is not root could.
fn replay(bundle: &tempfile::NamedTempFile, arguments: &[&str]) -> Output {
    Command::new(FERROUTE).arg("replay").arg(bundle.path()).args(arguments).output().unwrap()
}

fn the_decisions_of_a_running_proxy_are_made_again(mode: Mode) {
    let case = Case::new(mode, &web(&[0, 1]));
    for pods in [&[0, 1, 2][..], &[2]] {
        case.files.apply(&web(pods));
        wait("the change", || {
            let rules = case.rules().concat();
            (0..3).all(|pod| rules.contains(&pod_addresses(pod)[0].to_string()) == pods.contains(&pod)).then_some(())
        });
    }
    let bundle = bundle(&case);
    let output = replay(&bundle, &["--rules"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("the decisions are those of the record"), "{text}");
    let slice = "EndpointSlice default/web-0";
    assert!(
        text.contains(&format!("{slice}: 3 of 3 ready")) && text.contains(&format!("{slice}: 1 of 1 ready")),
        "{text}"
    );
    // What was in force in the end and on the way, for the other commands.
    for (until, there) in [("0", [true, true, false]), ("2", [false, false, true])] {
        let manifests = replay(&bundle, &["--manifests", "--until", until]).stdout;
        let manifests = String::from_utf8(manifests).unwrap();
        let found = [0, 1, 2].map(|pod| manifests.contains(&format!("{:?}", pod_addresses(pod)[0].to_string())));
        assert_eq!(found, there, "{manifests}");
    }
}

fn a_repair_is_in_the_record_and_no_difference(mode: Mode) {
    let case = Case::new(mode, &web(&[0, 1]));
    case.lab.node.command("nft", &["flush", "ruleset"]);
    case.proxy.wait_log("rules were modified by another program; repairing them");
    let text = wait("the repair in the record", || {
        let output = replay(&bundle(&case), &[]);
        let text = String::from_utf8(output.stdout).unwrap();
        text.contains("in full: the same rules").then_some((output.status.code(), text))
    });
    assert_eq!(text.0, Some(0), "{}", text.1);
}

fn what_a_full_sync_decided_is_held_against_what_is_decided_now(mode: Mode) {
    let case = Case::new(mode, &web(&[0, 1]));
    // Nothing is to be mended: it is compared because rules may depend on the address.
    case.lab.node.command("ip", &["address", "add", "192.0.2.77/32", "dev", "lo"]);
    let (file, lines) = wait("the comparison in the record", || {
        let file = bundle(&case);
        let output = replay(&file, &[]);
        let text = String::from_utf8(output.stdout).unwrap();
        assert_eq!(output.status.code(), Some(0), "{text}");
        let of_both = text.matches("in full: the same rules").count() >= 2;
        of_both.then(|| (file, text.lines().map(str::to_owned).collect::<Vec<_>>()))
    });
    let full = lines.iter().position(|line| line.contains("in full")).unwrap();
    let [number, change, v4] = &lines[full - 2..=full] else { unreachable!() };
    assert!(number.starts_with("1: ") && change.contains("no change"), "{lines:?}");
    assert!(v4.contains("0 services, 0 written, 0 removed"), "{v4}");

    let text = std::fs::read_to_string(file.path()).unwrap();
    let rules = |value: &serde_json::Value| value["syncs"][0]["families"][0]["rules"].as_str().unwrap().to_owned();
    let mut other_decision: serde_json::Value = serde_json::from_str(&text).unwrap();
    other_decision["syncs"][0]["families"][0]["rules"] =
        rules(&other_decision).chars().rev().collect::<String>().into();
    let mut other_input: serde_json::Value = serde_json::from_str(&text).unwrap();
    other_input["base"]["endpointSlices"][0]["endpoints"].as_array_mut().unwrap().pop().unwrap();
    for tampered in [other_decision, other_input] {
        std::fs::write(file.path(), tampered.to_string()).unwrap();
        let output = replay(&file, &[]);
        let text = String::from_utf8(output.stdout).unwrap();
        assert_eq!(output.status.code(), Some(1), "{text}");
        let told: Vec<&str> = text.lines().filter(|line| line.contains("in full; now there are other rules")).collect();
        assert_eq!(told.len(), 1, "{text}");
    }
}

fn networks_of_cluster_ips_are_part_of_what_was_decided_from(mode: Mode) {
    let case = Case::new(mode, &web(&[0]));
    let networks = "{cidrs: [10.96.0.0/16, \"fd00:96::/112\"]}";
    case.files.apply(&format!(
        "{}---\napiVersion: networking.k8s.io/v1\nkind: ServiceCIDR\nmetadata: {{name: kubernetes}}\nspec: {networks}\n",
        web(&[0])
    ));
    let (file, text) = wait("the networks in the record", || {
        let file = bundle(&case);
        let output = replay(&file, &[]);
        let text = String::from_utf8(output.stdout).unwrap();
        assert_eq!(output.status.code(), Some(0), "{text}");
        let is_in_force = !text.contains("not in force yet");
        (is_in_force && text.contains("   ServiceCIDRs 10.96.0.0/16 fd00:96::/112\n")).then_some((file, text))
    });
    assert_eq!(text.matches("0 services").count(), 2, "{text}");
    let manifests = String::from_utf8(replay(&file, &["--manifests"]).stdout).unwrap();
    assert_eq!(manifests.matches("\"kind\":\"ServiceCIDR\"").count(), 2, "{manifests}");
}

#[test]
fn a_bundle_that_was_tampered_with_is_told_apart() {
    let case = Case::new(Mode::Nftables, &web(&[0, 1]));
    case.files.apply(&web(&[0]));
    let bundle = wait("the change in the record", || {
        let bundle = bundle(&case);
        let text = std::fs::read_to_string(bundle.path()).unwrap();
        (!text.contains("\"syncs\":[]")).then_some(bundle)
    });
    let text = std::fs::read_to_string(bundle.path()).unwrap();
    let mut value: serde_json::Value = serde_json::from_str(&text).unwrap();
    let written = &mut value["syncs"][0]["families"][0]["written"];
    *written = (written.as_u64().unwrap() + 1).into();
    std::fs::write(bundle.path(), value.to_string()).unwrap();
    let output = replay(&bundle, &[]);
    assert_eq!(output.status.code(), Some(1), "{}", String::from_utf8_lossy(&output.stdout));
    std::fs::write(bundle.path(), "kind: Service\n").unwrap();
    let output = replay(&bundle, &[]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("not a bundle"));
}

#[test]
fn where_no_proxy_runs_nobody_answers() {
    let mut case = Case::new(Mode::Nftables, &web(&[0]));
    assert!(case.proxy.end_by("TERM").success());
    let output = case.lab.node.try_command(FERROUTE, &["bundle"]);
    assert!(!output.status.success());
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("no Ferroute runs in this network namespace"), "{said}");
}
