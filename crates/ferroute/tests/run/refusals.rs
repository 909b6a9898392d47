//! What the proxy says when it cannot do its work.

use std::{fs, path::Path, process::Command};

use crate::{
    Files, Lab, Mode, Proxy, in_each_mode,
    proxy::{FERROUTE, run_command},
    rules,
    status::Metrics,
    traffic::connect,
    wait, web, web_tcp,
};

in_each_mode!(without_the_right_to_change_rules_the_proxy_says_so_and_ends, two_of_roots_rights_are_enough,);

/// Runs a command in place of the proxy until it ends, which has to be a failure; returns what it said last.
#[track_caller]
fn refusal(lab: &Lab, command: &mut Command) -> String {
    let mut proxy = Proxy::spawn(&lab.node, command);
    let status = proxy.wait_end();
    assert_eq!(status.code(), Some(1), "{}", proxy.log());
    proxy.log()
}

/// The command that runs another one by a wrapper and its arguments.
fn wrapped(wrapper: &[&str], command: &Command) -> Command {
    let mut outer = Command::new(wrapper[0]);
    outer.args(&wrapper[1..]).arg(command.get_program()).args(command.get_args());
    outer
}

fn without_the_right_to_change_rules_the_proxy_says_so_and_ends(mode: Mode) {
    let (lab, files) = (Lab::new(), Files::new());
    files.apply(&web(&[0]));
    let run = run_command(FERROUTE, &files.manifests(), &files.config(mode));
    let nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
    let no_capability = ["setpriv", "--bounding-set=-net_admin"];
    for wrapper in [&nobody[..], &no_capability] {
        let log = refusal(&lab, &mut wrapped(wrapper, &run));
        let last = log.lines().last().unwrap();
        assert!(last.starts_with("ferroute: "), "{log}");
        assert!(log.contains("CAP_NET_ADMIN") || log.contains("ermission denied"), "{log}");
        assert_eq!(rules::ours(&lab.node, mode), Vec::<String>::new());
    }
}

/// The rights that it has in `deploy/`.
fn two_of_roots_rights_are_enough(mode: Mode) {
    let (lab, files) = (Lab::new(), Files::new());
    files.apply(&web(&[0]));
    let run = run_command(FERROUTE, &files.manifests(), &files.config(mode));
    let rights = ["setpriv", "--bounding-set=-all,+net_admin,+net_raw", "--no-new-privs"];
    let mut proxy = Proxy::spawn(&lab.node, &mut wrapped(&rights, &run));
    proxy.wait_in_force(&lab.node);
    for to in web_tcp() {
        connect(&lab.client, to).unwrap();
    }
    assert!(proxy.end_by("TERM").success());
}

/// A mount namespace of its own, where the directories of the system's tools are empty.
pub(crate) fn without_tools(command: &Command) -> Command {
    let hide = "for d in /sbin /usr/sbin /usr/local/sbin; do mount -t tmpfs none \"$d\" || exit 99; done; \
                PATH=/nowhere exec \"$@\"";
    wrapped(&["unshare", "--mount", "sh", "-c", hide, "sh"], command)
}

#[test]
fn without_iptables_that_mode_says_what_to_install_and_the_other_does_without() {
    let (lab, files) = (Lab::new(), Files::new());
    files.apply(&web(&[0]));
    let run = |mode| without_tools(&run_command(FERROUTE, &files.manifests(), &files.config(mode)));
    let log = refusal(&lab, &mut run(Mode::Iptables));
    for program in ["iptables", "ip6tables"] {
        let fault = format!(
            "{program} not found in /nowhere:/usr/local/sbin:/usr/sbin:/sbin; it is part of the package \"iptables\""
        );
        assert!(log.contains(&fault), "{log}");
    }
    let mut proxy = Proxy::spawn(&lab.node, &mut run(Mode::Nftables));
    proxy.wait_in_force(&lab.node);
    for to in web_tcp() {
        connect(&lab.client, to).unwrap();
    }
}

#[test]
fn a_configuration_that_cannot_be_used_is_refused_with_its_fault() {
    let (lab, files) = (Lab::new(), Files::new());
    files.apply(&web(&[0]));
    let config = files.path("bad.yaml");
    let header = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n";
    for (text, faults) in [
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
        let log = refusal(&lab, &mut run_command(FERROUTE, &files.manifests(), &config));
        assert!(log.starts_with("ferroute: "), "{log}");
        for fault in faults {
            // kube-proxy names some fields by their Go names, in other letters.
            assert!(log.to_lowercase().contains(&fault.to_lowercase()), "{text:?}: {log}");
        }
    }
    assert_eq!(rules::ours(&lab.node, Mode::Iptables), Vec::<String>::new());
}

/// While the tools fail, nothing is lost: the old rules serve, health tells of the trouble, and what has changed comes
/// into force as soon as the tools work again.
#[test]
fn while_rules_cannot_be_written_the_old_ones_serve_and_the_change_is_not_forgotten() {
    let (lab, files) = (Lab::new(), Files::new());
    files.apply(&web(&[0]));
    let (tools, broken) = (files.path("tools"), files.path("broken"));
    fs::create_dir(&tools).unwrap();
    for program in ["iptables-restore", "ip6tables-restore"] {
        // The rest of the tools is found further on.
        let script = format!(
            "#!/bin/sh\nif [ -e {} ]; then echo 'broken by a test' >&2; exit 4; fi\nPATH=${{PATH#*:}} exec {program} \"$@\"\n",
            broken.display()
        );
        write_program(&tools.join(program), &script);
    }
    let path = format!("{}:{}:/usr/sbin:/sbin", tools.display(), std::env::var("PATH").unwrap());
    let mut run = run_command(FERROUTE, &files.manifests(), &files.config(Mode::Iptables));
    let mut proxy = Proxy::spawn(&lab.node, run.env("PATH", path));
    proxy.wait_in_force(&lab.node);
    fs::write(&broken, "").unwrap();
    files.apply(&web(&[1]));
    let line = proxy.wait_log("cannot sync rules; the previous rules stay active");
    assert!(line.contains("broken by a test"), "{line}");
    assert_eq!(web_tcp().map(|to| connect(&lab.client, to).unwrap()), [0, 0]);
    let metrics = wait("both kinds of failures in the metrics", || {
        let metrics = Metrics::on(&lab.node);
        let failures = ["restore_failures", "partial_restore_failures"].map(|kind| {
            metrics.get(&format!("kubeproxy_sync_proxy_rules_iptables_{kind}_total{{ip_family=\"IPv4\"}}"))
        });
        failures.iter().all(|count| *count >= 1.0).then_some(metrics)
    });
    assert_eq!(metrics.get("kubeproxy_sync_proxy_rules_endpoint_changes_pending"), 2.0);
    fs::remove_file(&broken).unwrap();
    for to in web_tcp() {
        wait("the change", || (connect(&lab.client, to).unwrap() == 1).then_some(()));
    }
    assert!(proxy.end_by("TERM").success());
}

fn write_program(path: &Path, text: &str) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
}
