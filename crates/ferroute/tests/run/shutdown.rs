//! Rules stay active after the proxy exits.

use std::os::unix::process::ExitStatusExt;

use crate::{
    Case, Cluster, Files, Mode, Proxy, in_every_mode,
    traffic::{Connection, Traffic},
    wait, web, web_tcp,
};

in_every_mode!(
    signals_stop_the_proxy_but_keep_the_rules,
    killed_proxy_keeps_its_rules_and_the_next_one_continues,
    proxy_exits_cleanly_at_any_time_during_startup,
);

fn signals_stop_the_proxy_but_keep_the_rules(mode: Mode) {
    let mut case = Case::new(mode, &web(&[0, 1]));
    let rules = case.rules();
    let traffic = Traffic::start(&case.cluster.client, web_tcp()[0]);
    for (signal, restart) in [("TERM", true), ("INT", false)] {
        let status = case.proxy.stop(signal);
        assert_eq!(status.code(), Some(0), "SIG{signal}");
        let log = case.proxy.log();
        // In userspace mode, the worker logs, too.
        let last = log.lines().rfind(|line| !line.contains("worker=")).unwrap();
        assert!(last.contains(&format!("SIG{signal}")), "{last}");
        assert_eq!(case.rules(), rules);
        traffic.wait_for_more();
        if restart {
            case.start_again(mode);
            // In userspace mode, the previous worker stops listening only after the first sync.
            wait("the rules of the first proxy", || (case.rules() == rules).then_some(()));
        }
    }
    traffic.assert_no_failure();
}

fn killed_proxy_keeps_its_rules_and_the_next_one_continues(mode: Mode) {
    let mut case = Case::new(mode, &web(&[0, 1]));
    let rules = case.rules();
    let traffic = Traffic::start(&case.cluster.client, web_tcp()[0]);
    let mut connection = Connection::open(&case.cluster.client, web_tcp()[1]).unwrap();
    assert_eq!(case.proxy.stop("KILL").signal(), Some(9));
    assert_eq!(case.rules(), rules);
    traffic.wait_for_more();
    // The next proxy applies changes that it missed.
    case.files.apply(&web(&[2]));
    case.start_again(mode);
    case.wait_gone(0);
    case.wait_gone(1);
    traffic.wait_for_more();
    connection.echo("still here").unwrap();
    assert_eq!(web_tcp().map(|to| case.connect(to).unwrap()), [2, 2]);
    traffic.assert_no_failure();
}

fn proxy_exits_cleanly_at_any_time_during_startup(mode: Mode) {
    let (cluster, files) = (Cluster::new(), Files::new());
    files.apply(&web(&[0]));
    for moment in ["starting", "using ", "synced family=IPv4", "synced family=IPv6"] {
        let mut proxy = Proxy::launch(&cluster.node, &files, mode);
        proxy.wait_log(moment);
        assert_eq!(proxy.stop("TERM").code(), Some(0), "after {moment:?}");
        cluster.node.command("nft", &["flush", "ruleset"]);
    }
}
