//! `ferroute bundle` and `ferroute replay`.

use std::process::{Command, Output};

use crate::{Case, Cluster, Files, Mode, Proxy, cluster::pod_addresses, in_every_mode, wait, web};

in_every_mode!(
    replayed_syncs_equal_recorded_syncs,
    changes_of_shared_chains_are_replayed,
    repairs_are_recorded_and_replayed,
    full_syncs_are_compared_with_the_replay,
    service_cidrs_are_recorded,
);

const FERROUTE: &str = env!("CARGO_BIN_EXE_ferroute");

/// Saves the bundle of the proxy on the node.
fn bundle(case: &Case) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    case.cluster.node.command(FERROUTE, &["bundle", file.path().to_str().unwrap()]);
    file
}

/// Replays a bundle outside of the node.
fn replay(bundle: &tempfile::NamedTempFile, arguments: &[&str]) -> Output {
    Command::new(FERROUTE).arg("replay").arg(bundle.path()).args(arguments).output().unwrap()
}

fn replayed_syncs_equal_recorded_syncs(mode: Mode) {
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
    let slice = "EndpointSlice default/web-0";
    assert!(
        text.contains(&format!("{slice}: 3 of 3 ready")) && text.contains(&format!("{slice}: 1 of 1 ready")),
        "{text}"
    );
    // The desired state at the start and after the second sync, as manifests for other commands.
    for (until, expected) in [("0", [true, true, false]), ("2", [false, false, true])] {
        let manifests = replay(&bundle, &["--manifests", "--until", until]).stdout;
        let manifests = String::from_utf8(manifests).unwrap();
        let contained = [0, 1, 2].map(|pod| manifests.contains(&format!("{:?}", pod_addresses(pod)[0].to_string())));
        assert_eq!(contained, expected, "{manifests}");
    }
}

/// By netlink, iptables mode edits the chains that all Services share, and does not write them as a whole.
fn changes_of_shared_chains_are_replayed(mode: Mode) {
    let case = Case::new(mode, &web(&[0, 1]));
    let other = "---\napiVersion: v1\nkind: Service\nmetadata: {name: other}\n\
                 spec: {clusterIP: 10.96.0.99, clusterIPs: [10.96.0.99], ports: [{port: 99}]}\n";
    for (manifests, is_present) in [(format!("{}{other}", web(&[0, 1])), true), (web(&[0, 1]), false)] {
        case.files.apply(&manifests);
        wait("the change", || (case.rules().concat().contains("10.96.0.99") == is_present).then_some(()));
    }
    let text = wait("both changes in the recording", || {
        let output = replay(&bundle(&case), &["--rules"]);
        let text = String::from_utf8(output.stdout).unwrap();
        (text.matches("Service default/other").count() == 2).then_some((output.status.code(), text))
    });
    assert_eq!(text.0, Some(0), "{}", text.1);
}

fn repairs_are_recorded_and_replayed(mode: Mode) {
    let case = Case::new(mode, &web(&[0, 1]));
    case.cluster.node.command("nft", &["flush", "ruleset"]);
    let text = wait("the repair in the recording", || {
        let output = replay(&bundle(&case), &[]);
        let text = String::from_utf8(output.stdout).unwrap();
        text.contains("full sync, same rules").then_some((output.status.code(), text))
    });
    assert_eq!(text.0, Some(0), "{}", text.1);
}

fn full_syncs_are_compared_with_the_replay(mode: Mode) {
    let case = Case::new(mode, &web(&[0, 1]));
    // A new address causes a full sync, because rules may depend on it. In this test, it changes no rules.
    case.cluster.node.command("ip", &["address", "add", "192.0.2.77/32", "dev", "lo"]);
    let (file, lines) = wait("the full sync in the recording", || {
        let file = bundle(&case);
        let output = replay(&file, &[]);
        let text = String::from_utf8(output.stdout).unwrap();
        assert_eq!(output.status.code(), Some(0), "{text}");
        let is_complete = text.matches("full sync, same rules").count() >= 2;
        is_complete.then(|| (file, text.lines().map(str::to_owned).collect::<Vec<_>>()))
    });
    let full = lines.iter().position(|line| line.contains("full sync")).unwrap();
    let [number, change, v4] = &lines[full - 2..=full] else { unreachable!() };
    assert!(number.starts_with("1: ") && change.contains("no change"), "{lines:?}");
    assert!(v4.contains("0 Services, 0 written, 0 removed"), "{v4}");

    let text = std::fs::read_to_string(file.path()).unwrap();
    let rules = |value: &serde_json::Value| value["syncs"][0]["families"][0]["rules"].as_str().unwrap().to_owned();
    let mut changed_rules: serde_json::Value = serde_json::from_str(&text).unwrap();
    changed_rules["syncs"][0]["families"][0]["rules"] = rules(&changed_rules).chars().rev().collect::<String>().into();
    let mut changed_input: serde_json::Value = serde_json::from_str(&text).unwrap();
    changed_input["base"]["endpointSlices"][0]["endpoints"].as_array_mut().unwrap().pop().unwrap();
    for modified in [changed_rules, changed_input] {
        std::fs::write(file.path(), modified.to_string()).unwrap();
        let output = replay(&file, &[]);
        let text = String::from_utf8(output.stdout).unwrap();
        assert_eq!(output.status.code(), Some(1), "{text}");
        let differences: Vec<&str> =
            text.lines().filter(|line| line.contains("full sync; replayed: different rules")).collect();
        assert_eq!(differences.len(), 1, "{text}");
    }
}

fn service_cidrs_are_recorded(mode: Mode) {
    let case = Case::new(mode, &web(&[0]));
    let networks = "{cidrs: [10.96.0.0/16, \"fd00:96::/112\"]}";
    case.files.apply(&format!(
        "{}---\napiVersion: networking.k8s.io/v1\nkind: ServiceCIDR\nmetadata: {{name: kubernetes}}\nspec: {networks}\n",
        web(&[0])
    ));
    let (file, text) = wait("the ServiceCIDR in the recording", || {
        let file = bundle(&case);
        let output = replay(&file, &[]);
        let text = String::from_utf8(output.stdout).unwrap();
        assert_eq!(output.status.code(), Some(0), "{text}");
        let is_synced = !text.contains("not applied yet");
        (is_synced && text.contains("   ServiceCIDRs 10.96.0.0/16 fd00:96::/112\n")).then_some((file, text))
    });
    assert_eq!(text.matches("0 Services").count(), 2, "{text}");
    let manifests = String::from_utf8(replay(&file, &["--manifests"]).stdout).unwrap();
    assert_eq!(manifests.matches("\"kind\":\"ServiceCIDR\"").count(), 2, "{manifests}");
}

#[test]
fn modified_and_invalid_bundles_are_detected() {
    let case = Case::new(Mode::Nftables, &web(&[0, 1]));
    case.files.apply(&web(&[0]));
    let bundle = wait("the change in the recording", || {
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
fn bundle_fails_without_a_running_proxy() {
    let mut case = Case::new(Mode::Nftables, &web(&[0]));
    assert!(case.proxy.stop("TERM").success());
    let output = case.cluster.node.try_command(FERROUTE, &["bundle"]);
    assert!(!output.status.success());
    assert!(output.stdout.is_empty() && output.stderr.starts_with(b"ferroute: "), "{output:?}");
}

/// Every process in the network namespace can bind the name of the socket.
#[test]
fn a_process_of_another_user_that_holds_the_socket_is_reported_and_bypassed() {
    let (cluster, files) = (Cluster::new(), Files::new());
    files.apply(&web(&[0]));
    // Ferroute as another user, which waits for an API server that does not exist.
    let capability = ["--inh-caps=+net_admin", "--ambient-caps=+net_admin"];
    let squatter = ["--reuid=65534", "--regid=65534", "--clear-groups"];
    let program = [FERROUTE, "run", "--master=http://127.0.0.1:1"];
    let other = [
        &squatter[..],
        &capability,
        &program,
        &["--hostname-override=node-1", "--metrics-bind-address=", "--healthz-bind-address="],
    ];
    let _squatter = Proxy::spawn(&cluster.node, Command::new("setpriv").args(other.concat()));
    let output = wait("the socket", || {
        let output = cluster.node.try_command(FERROUTE, &["bundle"]);
        let error = String::from_utf8(output.stderr.clone()).unwrap();
        (!error.contains("no Ferroute runs")).then_some(output)
    });
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && output.stdout.is_empty() && error.contains("user 65534"), "{error}");
    let proxy = Proxy::start(&cluster.node, &files, Mode::Nftables);
    proxy.wait_log_line(&["WARN", "@ferroute", "65534"]);
    // It listens on a name that the other process could not predict.
    let output = wait("the other socket", || {
        let output = cluster.node.try_command(FERROUTE, &["bundle"]);
        output.status.success().then_some(output)
    });
    assert!(!output.stdout.is_empty());
}
