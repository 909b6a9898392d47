//! Changes of the configuration file.

use std::{fs, path::Path};

use crate::{
    Cluster, Files, Mode, Proxy, http,
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
fn changed_configuration_is_applied_in_the_same_process_without_failed_requests() {
    let (cluster, files) = (Cluster::new(), Files::new());
    files.apply(&web(&[0]));
    let proxy = Proxy::start(&cluster.node, &files, Mode::Iptables);
    let config = files.path("config.yaml");
    let traffic = web_tcp().map(|to| Traffic::start(&cluster.client, to));
    let text = fs::read_to_string(&config).unwrap();
    let new_address = "127.0.0.1:10999";
    put(&files, &config, &text.replace("mode: iptables", "mode: nftables").replace("127.0.0.1:10256", new_address));

    wait("the first sync of the new configuration", || {
        let response = http::get(&cluster.node, new_address.parse().unwrap(), "/healthz").ok()?;
        (response.body.contains("\"IPv4\"") && response.body.contains("\"IPv6\"")).then_some(())
    });
    wait("removal of the old mode's rules", || rules::of_proxy(&cluster.node, Mode::Iptables).is_empty().then_some(()));
    assert!(!rules::of_proxy(&cluster.node, Mode::Nftables).is_empty());
    traffic.iter().for_each(Traffic::wait_for_more);
    for traffic in traffic {
        assert_eq!(traffic.assert_no_failure().into_iter().collect::<Vec<_>>(), [0]);
    }
    // The process is still the test's child.
    let mut proxy = proxy;
    assert!(proxy.stop("TERM").success());
}

#[test]
fn invalid_configuration_is_reported_and_the_old_one_stays_active() {
    let (cluster, files) = (Cluster::new(), Files::new());
    files.apply(&web(&[0]));
    let config = files.config(Mode::Nftables);
    let mut proxy = Proxy::spawn(&cluster.node, &mut run_command(FERROUTE, &files.manifests(), &config));
    proxy.wait_synced(&cluster.node);
    let text = fs::read_to_string(&config).unwrap();
    put(&files, &config, &format!("{text}nodePortAddresses: [everywhere]\n"));
    proxy.wait_log("NodePortAddresses[0]: Invalid value: \"everywhere\"");
    files.apply(&web(&[1]));
    for to in web_tcp() {
        wait("a change of the manifests", || (connect(&cluster.client, to).unwrap() == 1).then_some(()));
    }
    put(&files, &config, &format!("{text}logging: {{format: json}}\n"));
    // Signals are handled by then.
    proxy.wait_log("\"msg\":\"initial lists received\"");
    assert!(proxy.stop("TERM").success());
}
