//! A configuration file that changes while the proxy runs.

use std::{fs, path::Path};

use crate::{
    Files, Lab, Mode, Proxy, http,
    proxy::{FERROUTE, run_command},
    rules,
    traffic::{Traffic, connect},
    wait, web, web_tcp,
};

/// Replaces a file by a rename, as `ConfigMap`s are updated.
fn put(files: &Files, file: &Path, text: &str) {
    let new = files.path("new-config");
    fs::write(&new, text).unwrap();
    fs::rename(new, file).unwrap();
}

#[test]
fn a_changed_file_takes_effect_in_the_same_process_and_no_request_fails() {
    let (lab, files) = (Lab::new(), Files::new());
    files.apply(&web(&[0]));
    let proxy = Proxy::start(&lab.node, &files, Mode::Iptables);
    let config = files.path("config.yaml");
    let traffic = web_tcp().map(|to| Traffic::start(&lab.client, to));
    let text = fs::read_to_string(&config).unwrap();
    let other = "127.0.0.1:10999";
    put(&files, &config, &text.replace("mode: iptables", "mode: nftables").replace("127.0.0.1:10256", other));

    proxy.wait_log("restarting with the new configuration");
    wait("health at the new address", || {
        let answer = http::get(&lab.node, other.parse().unwrap(), "/healthz").ok()?;
        (answer.body.contains("\"IPv4\"") && answer.body.contains("\"IPv6\"")).then_some(())
    });
    wait("the old mode's rules to go", || rules::ours(&lab.node, Mode::Iptables).is_empty().then_some(()));
    assert!(!rules::ours(&lab.node, Mode::Nftables).is_empty());
    traffic.iter().for_each(Traffic::go_on);
    for traffic in traffic {
        assert_eq!(traffic.assert_no_failure().into_iter().collect::<Vec<_>>(), [0]);
    }
    // It still is our child.
    let mut proxy = proxy;
    assert!(proxy.end_by("TERM").success());
}

#[test]
fn a_file_that_turns_bad_is_told_and_what_it_said_stays_in_force() {
    let (lab, files) = (Lab::new(), Files::new());
    files.apply(&web(&[0]));
    let config = files.config(Mode::Nftables);
    let mut proxy = Proxy::spawn(&lab.node, &mut run_command(FERROUTE, &files.manifests(), &config));
    proxy.wait_in_force(&lab.node);
    let text = fs::read_to_string(&config).unwrap();
    put(&files, &config, &format!("{text}nodePortAddresses: [everywhere]\n"));
    let line = proxy.wait_log("ignoring it because it is invalid");
    assert!(line.contains("NodePortAddresses[0]: Invalid value: \"everywhere\""), "{line}");
    files.apply(&web(&[1]));
    for to in web_tcp() {
        wait("a change of the manifests", || (connect(&lab.client, to).unwrap() == 1).then_some(()));
    }
    put(&files, &config, &format!("{text}logging: {{format: json}}\n"));
    proxy.wait_log("restarting with the new configuration");
    proxy.wait_log("{\"ts\":");
    assert!(proxy.end_by("TERM").success());
}
