//! A second service proxy on the node.

use std::{os::unix::process::CommandExt, process::Command};

use crate::{
    Case, Mode,
    cluster::Cluster,
    proxy::{FERROUTE, Files, Proxy},
    wait, web, web_tcp,
};
use ferroute_testing::Running;

/// Returns the output of `ferroute status` on a node.
fn status(cluster: &Cluster) -> String {
    String::from_utf8(cluster.node.try_command(FERROUTE, &["status"]).stdout).unwrap()
}

#[test]
fn both_of_two_proxies_report_the_other_until_it_ends() {
    let case = Case::new(Mode::Nftables, &web(&[0]));
    let files = Files::new();
    files.apply(&web(&[1]));
    let mut second = Proxy::start(&case.cluster.node, &files, Mode::Nftables);
    let [first_pid, second_pid] = [&case.proxy, &second].map(|proxy| format!("ferroute (pid {})", proxy.pid()));
    let text = wait("both to report the other", || {
        let text = status(&case.cluster);
        let problems: Vec<&str> = text.lines().filter(|line| line.starts_with("problem:")).collect();
        let all = problems.join("\n");
        (all.contains(&first_pid) && all.contains(&second_pid)).then_some(text)
    });
    assert_eq!(text.matches("mode:       nftables").count(), 2, "{text}");
    for proxy in [&case.proxy, &second] {
        assert!(proxy.log().contains("another service proxy runs on this node"), "{}", proxy.log());
    }
    assert!(second.stop("TERM").success());
    wait("the end of the problem", || (!status(&case.cluster).contains("another service proxy")).then_some(()));
    for to in web_tcp() {
        wait("the rules of the first", || (case.connect(to).ok()? == 0).then_some(()));
    }
}

#[test]
fn running_kube_proxy_is_reported() {
    let case = Case::new(Mode::Iptables, &web(&[0]));
    // A proxy is identified by the name under which the program runs, unless its user cannot change rules.
    let mut command = Command::new("bash");
    command.args(["-c", "exec -a kube-proxy sleep 600"]);
    let _of_another_user = Running(case.cluster.node.run(|| command.uid(65_534).spawn()).unwrap());
    let kube_proxy = Running(case.cluster.node.run(|| command.uid(0).spawn()).unwrap());
    let pid = format!("(pid {})", kube_proxy.0.id());
    let problem =
        wait("the problem", || status(&case.cluster).lines().find(|line| line.contains(&pid)).map(str::to_owned));
    assert!(problem.starts_with("problem:    another service proxy runs on this node: "), "{problem}");
    assert_eq!(problem.matches("(pid ").count(), 1, "{problem}");
}
