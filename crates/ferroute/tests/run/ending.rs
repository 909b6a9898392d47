//! However the proxy ends, traffic goes on.

use std::os::unix::process::ExitStatusExt;

use crate::{
    Case, Files, Lab, Mode, Proxy, in_each_mode,
    traffic::{Connection, Traffic},
    web, web_tcp,
};

in_each_mode!(
    signals_end_the_proxy_and_leave_the_rules,
    a_proxy_that_is_killed_leaves_the_rules_and_its_successor_goes_on,
    a_proxy_that_is_ended_at_any_moment_of_its_start_says_so,
);

fn signals_end_the_proxy_and_leave_the_rules(mode: Mode) {
    let mut case = Case::new(mode, &web(&[0, 1]));
    let rules = case.rules();
    let traffic = Traffic::start(&case.lab.client, web_tcp()[0]);
    for (signal, restart) in [("TERM", true), ("INT", false)] {
        let status = case.proxy.end_by(signal);
        assert_eq!(status.code(), Some(0), "SIG{signal}");
        let last = case.proxy.log().lines().last().unwrap().to_owned();
        assert!(last.contains(&format!("received SIG{signal}; exiting, rules stay active")), "{last}");
        assert_eq!(case.rules(), rules);
        traffic.go_on();
        if restart {
            case.start_again(mode);
        }
    }
    traffic.assert_no_failure();
}

fn a_proxy_that_is_killed_leaves_the_rules_and_its_successor_goes_on(mode: Mode) {
    let mut case = Case::new(mode, &web(&[0, 1]));
    let rules = case.rules();
    let traffic = Traffic::start(&case.lab.client, web_tcp()[0]);
    let mut connection = Connection::open(&case.lab.client, web_tcp()[1]).unwrap();
    assert_eq!(case.proxy.end_by("KILL").signal(), Some(9));
    assert_eq!(case.rules(), rules);
    traffic.go_on();
    // What has changed while no proxy ran is caught up with.
    case.files.apply(&web(&[2]));
    case.start_again(mode);
    case.wait_gone(0);
    case.wait_gone(1);
    traffic.go_on();
    connection.echo("still here").unwrap();
    assert_eq!(web_tcp().map(|to| case.connect(to).unwrap()), [2, 2]);
    traffic.assert_no_failure();
}

fn a_proxy_that_is_ended_at_any_moment_of_its_start_says_so(mode: Mode) {
    let (lab, files) = (Lab::new(), Files::new());
    files.apply(&web(&[0]));
    for moment in ["using ", "synced family=IPv4", "synced family=IPv6"] {
        let mut proxy = Proxy::launch(&lab.node, &files, mode);
        proxy.wait_log(moment);
        assert_eq!(proxy.end_by("TERM").code(), Some(0), "after {moment:?}");
        lab.node.command("nft", &["flush", "ruleset"]);
    }
}
