//! Errors that keep the proxy from starting or syncing.

use std::{fs, process::Command};

use crate::{
    Cluster, Files, Mode, Proxy, in_each_mode,
    programs::Programs,
    proxy::{FERROUTE, run_command},
    rules,
    status::Metrics,
    traffic::connect,
    wait, web, web_tcp,
};

in_each_mode!(proxy_without_privileges_reports_an_error_and_exits, net_admin_and_net_raw_suffice);

/// Runs a command, which must exit with status 1, and returns its log.
#[track_caller]
fn failure(cluster: &Cluster, command: &mut Command) -> String {
    let mut proxy = Proxy::spawn(&cluster.node, command);
    let status = proxy.wait_exit();
    assert_eq!(status.code(), Some(1), "{}", proxy.log());
    proxy.log()
}

/// Returns a command that runs another command through a wrapper.
pub(crate) fn wrapped(wrapper: &[&str], command: &Command) -> Command {
    let mut outer = Command::new(wrapper[0]);
    outer.args(&wrapper[1..]).arg(command.get_program()).args(command.get_args());
    outer
}

fn proxy_without_privileges_reports_an_error_and_exits(mode: Mode) {
    let (cluster, files) = (Cluster::new(), Files::new());
    files.apply(&web(&[0]));
    let run = run_command(FERROUTE, &files.manifests(), &files.config(mode));
    let nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
    let no_capability = ["setpriv", "--bounding-set=-net_admin"];
    for wrapper in [&nobody[..], &no_capability] {
        let log = failure(&cluster, &mut wrapped(wrapper, &run));
        let last = log.lines().last().unwrap();
        assert!(last.starts_with("ferroute: "), "{log}");
        assert!(log.contains("CAP_NET_ADMIN") || log.contains("ermission denied"), "{log}");
        assert_eq!(rules::of_proxy(&cluster.node, mode), Vec::<String>::new());
        for action in ["--init-only", "--cleanup"] {
            let log = failure(&cluster, wrapped(wrapper, &run).arg(action));
            assert!(log.contains("CAP_NET_ADMIN"), "{action}: {log}");
        }
    }
}

/// The capabilities in `deploy/`.
fn net_admin_and_net_raw_suffice(mode: Mode) {
    let (cluster, files) = (Cluster::new(), Files::new());
    files.apply(&web(&[0]));
    let run = run_command(FERROUTE, &files.manifests(), &files.config(mode));
    let capabilities = ["setpriv", "--bounding-set=-all,+net_admin,+net_raw", "--no-new-privs"];
    let mut proxy = Proxy::spawn(&cluster.node, &mut wrapped(&capabilities, &run));
    proxy.wait_synced(&cluster.node);
    for to in web_tcp() {
        connect(&cluster.client, to).unwrap();
    }
    assert!(proxy.stop("TERM").success());
}

/// Returns a command that runs in a mount namespace where the directories of system programs are empty.
pub(crate) fn without_programs(command: &Command) -> Command {
    let hide = "for d in /sbin /usr/sbin /usr/local/sbin; do mount -t tmpfs none \"$d\" || exit 99; done; \
                PATH=/nowhere exec \"$@\"";
    wrapped(&["unshare", "--mount", "sh", "-c", hide, "sh"], command)
}

#[test]
fn missing_programs_are_reported_if_they_are_required_and_no_mode_with_netlink_needs_them() {
    let (cluster, files) = (Cluster::new(), Files::new());
    files.apply(&web(&[0]));
    let run = |mode| without_programs(&run_command(FERROUTE, &files.manifests(), &files.config(mode)));
    let log = failure(&cluster, run(Mode::Iptables).arg("--iptables-programs"));
    for program in ["iptables", "ip6tables"] {
        let error = format!("{program} not found in /nowhere:/usr/local/sbin:/usr/sbin:/sbin");
        assert!(log.contains(&error) && log.contains("package"), "{log}");
    }
    for mode in [Mode::Userspace, Mode::Iptables, Mode::Nftables] {
        let mut proxy = Proxy::spawn(&cluster.node, &mut run(mode));
        proxy.wait_synced(&cluster.node);
        for to in web_tcp() {
            connect(&cluster.client, to).unwrap();
        }
        assert!(proxy.stop("TERM").success());
    }
    // Netlink removed the rules of the mode before.
    assert_eq!(rules::of_proxy(&cluster.node, Mode::Iptables), Vec::<String>::new());
}

#[test]
fn invalid_configuration_is_rejected_with_field_and_value() {
    let (cluster, files) = (Cluster::new(), Files::new());
    files.apply(&web(&[0]));
    let config = files.path("bad.yaml");
    let header = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n";
    for (text, parts) in [
        (None, &["No such file or directory"][..]),
        (Some("mode: [".to_owned()), &["line "]),
        (Some(format!("{header}mode: ebpf\n")), &["Mode", "ebpf"]),
        (Some(format!("{header}iptables: {{minSyncPeriod: soon}}\n")), &["minSyncPeriod", "soon"]),
        (Some(format!("{header}clusterCIDR: 10.0.0.0/99\n")), &["clusterCIDR", "10.0.0.0/99"]),
        (Some(format!("{header}healthzBindAddress: nowhere\n")), &["healthzBindAddress", "nowhere"]),
    ] {
        match &text {
            None => _ = fs::remove_file(&config),
            Some(text) => fs::write(&config, text).unwrap(),
        }
        let log = failure(&cluster, &mut run_command(FERROUTE, &files.manifests(), &config));
        assert!(log.starts_with("ferroute: "), "{log}");
        for part in parts {
            // kube-proxy reports some fields by their Go names, which differ in case.
            assert!(log.to_lowercase().contains(&part.to_lowercase()), "{text:?}: {log}");
        }
    }
    assert_eq!(rules::of_proxy(&cluster.node, Mode::Iptables), Vec::<String>::new());
}

/// While `iptables-restore` fails, the old rules stay active and metrics count failures. The change is applied once the
/// program works again.
#[test]
fn failed_syncs_keep_the_old_rules_and_are_retried() {
    let (cluster, files) = (Cluster::new(), Files::new());
    files.apply(&web(&[0]));
    let fault = "echo 'broken by a test' >&2; exit 4";
    let programs = Programs::new(&files, &["iptables-restore", "ip6tables-restore"], fault);
    let mut run = run_command(FERROUTE, &files.manifests(), &files.config(Mode::Iptables));
    run.arg("--iptables-programs").env("PATH", programs.path());
    let mut proxy = Proxy::spawn(&cluster.node, &mut run);
    proxy.wait_synced(&cluster.node);
    programs.set_faulty(true);
    files.apply(&web(&[1]));
    proxy.wait_log("broken by a test");
    assert_eq!(web_tcp().map(|to| connect(&cluster.client, to).unwrap()), [0, 0]);
    let metrics = wait("both kinds of failures in metrics", || {
        let metrics = Metrics::read(&cluster.node);
        let failures = ["restore_failures", "partial_restore_failures"].map(|kind| {
            metrics.get(&format!("kubeproxy_sync_proxy_rules_iptables_{kind}_total{{ip_family=\"IPv4\"}}"))
        });
        failures.iter().all(|count| *count >= 1.0).then_some(metrics)
    });
    assert_eq!(metrics.get("kubeproxy_sync_proxy_rules_endpoint_changes_pending"), 2.0);
    programs.set_faulty(false);
    for to in web_tcp() {
        wait("the change", || (connect(&cluster.client, to).unwrap() == 1).then_some(()));
    }
    assert!(proxy.stop("TERM").success());
}
