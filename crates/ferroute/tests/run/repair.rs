//! What other programs do to the rules, and what is theirs.

use crate::{
    Case, Mode, in_each_mode,
    rules::{self, Others},
    traffic::{Connection, Traffic},
    wait, web, web_tcp,
};

in_each_mode!(
    rules_that_another_program_flushes_come_back,
    a_single_rule_that_another_program_deletes_comes_back,
    what_other_programs_have_stays_as_it_is,
);

/// Waits until our rules are again what they were, and connections are answered.
#[track_caller]
fn wait_repaired(case: &Case, before: &[String]) {
    case.proxy.wait_log("rules were modified by another program; repairing them");
    wait("the old rules", || (case.rules() == before).then_some(()));
    for to in web_tcp() {
        case.connect(to).unwrap();
    }
}

fn rules_that_another_program_flushes_come_back(mode: Mode) {
    let flushes: &[&[&str]] = match mode {
        Mode::Iptables => &[
            &["iptables", "-w", "-t", "nat", "-F"],
            &["ip6tables", "-w", "-t", "filter", "-F"],
            &["nft", "flush", "ruleset"],
        ],
        Mode::Nftables => &[&["nft", "flush", "ruleset"], &["nft", "delete", "table", "ip6", "ferroute"]],
    };
    for flush in flushes {
        let case = Case::new(mode, &web(&[0, 1]));
        let others = Others::add(&case.lab.node);
        let before = case.rules();
        let mut connections = web_tcp().map(|to| Connection::open(&case.lab.client, to).unwrap());
        case.lab.node.command(flush[0], &flush[1..]);
        let left = others.list(&case.lab.node);
        wait_repaired(&case, &before);
        assert_eq!(others.list(&case.lab.node), left, "{flush:?}");
        for connection in &mut connections {
            connection.echo("still here").unwrap();
        }
        // It goes on following.
        case.files.apply(&web(&[2]));
        case.wait_gone(0);
        assert_eq!(web_tcp().map(|to| case.connect(to).unwrap()), [2, 2], "{flush:?}");
    }
}

fn a_single_rule_that_another_program_deletes_comes_back(mode: Mode) {
    let case = Case::new(mode, &web(&[0, 1]));
    let others = Others::add(&case.lab.node);
    let (before, theirs) = (case.rules(), others.list(&case.lab.node));
    match mode {
        Mode::Iptables => {
            let is_dispatch = |rule: &&String| rule.starts_with("-A KUBE-SERVICES -d 10.96.0.1/32 -p tcp");
            let rule = before.iter().find(is_dispatch).unwrap();
            case.lab.node.feed(
                "iptables-restore",
                &["--noflush"],
                &format!("*nat\n{}\nCOMMIT\n", rule.replacen("-A", "-D", 1)),
            );
        }
        Mode::Nftables => {
            let script = "delete element ip ferroute services { 10.96.0.1 . tcp . 80 }";
            case.lab.node.feed("nft", &["-f", "-"], script);
        }
    }
    wait_repaired(&case, &before);
    assert_eq!(others.list(&case.lab.node), theirs);
}

fn what_other_programs_have_stays_as_it_is(mode: Mode) {
    let mut case = Case::new(mode, &web(&[0]));
    assert!(case.proxy.end_by("TERM").success());
    // Beside rules that were left, and then beside those of a proxy that starts, syncs, changes its mode and ends.
    let others = Others::add(&case.lab.node);
    let theirs = others.list(&case.lab.node);
    for mode in [mode, mode.other()] {
        case.start_again(mode);
        let traffic = Traffic::start(&case.lab.client, web_tcp()[0]);
        for pods in [&[0, 1, 2][..], &[2], &[0]] {
            case.files.apply(&web(pods));
            (0..3).filter(|pod| !pods.contains(pod)).for_each(|pod| case.wait_gone(pod));
            traffic.go_on();
        }
        wait("the end of the other mode's rules", || {
            rules::ours(&case.lab.node, mode.other()).is_empty().then_some(())
        });
        assert_eq!(others.list(&case.lab.node), theirs, "{mode:?}");
        assert!(case.proxy.end_by("TERM").success());
        assert_eq!(others.list(&case.lab.node), theirs, "{mode:?}");
        traffic.assert_no_failure();
    }
}
