//! Traffic continues while the proxy, its mode and its objects change.

use std::collections::BTreeSet;

use crate::{
    Case, Mode, in_every_mode, rules,
    traffic::{Connection, Flow, Traffic, connect},
    web, web_tcp, web_udp,
};

in_every_mode!(
    no_request_fails_while_the_proxy_restarts,
    no_request_fails_while_endpoints_roll,
    no_request_fails_while_the_mode_is_switched,
    no_connection_reaches_a_removed_endpoint,
    services_with_names_of_any_length_are_served,
);

/// Names have up to 63 bytes each, and comments of nftables up to 128.
fn services_with_names_of_any_length_are_served(mode: Mode) {
    let [namespace, name, port] = ["n", "s", "p"].map(|letter| letter.repeat(63));
    let yaml = |pods: &[u8]| {
        web(pods)
            .replace("{name: web}", &format!("{{name: {name}, namespace: {namespace}}}"))
            .replace("{name: web-", &format!("{{namespace: {namespace}, name: web-"))
            .replace("service-name: web}", &format!("service-name: {name}}}"))
            .replace("{name: tcp,", &format!("{{name: {port},"))
    };
    let case = Case::new(mode, &yaml(&[0]));
    for (old, new) in [(0, 1), (1, 2)] {
        for to in web_tcp() {
            assert_eq!(case.connect(to).unwrap(), old);
        }
        case.files.apply(&yaml(&[new]));
        case.wait_gone(old);
    }
}

fn no_request_fails_while_the_proxy_restarts(mode: Mode) {
    let mut case = Case::new(mode, &web(&[0, 1, 2]));
    let rules = case.rules();
    let traffic = web_tcp().map(|to| Traffic::start(&case.cluster.client, to));
    let mut connections = web_tcp().map(|to| Connection::open(&case.cluster.client, to).unwrap());
    for _ in 0..2 {
        assert!(case.proxy.stop("TERM").success());
        traffic.iter().for_each(Traffic::wait_for_more);
        case.start_again(mode);
        traffic.iter().for_each(Traffic::wait_for_more);
        // In userspace mode, the process of before may still accept for a moment.
        crate::wait("the rules of before", || (case.rules() == rules).then_some(()));
    }
    for connection in &mut connections {
        connection.echo("still here").unwrap();
    }
    for traffic in traffic {
        assert_eq!(traffic.assert_no_failure(), BTreeSet::from([0, 1, 2]));
    }
}

fn no_request_fails_while_endpoints_roll(mode: Mode) {
    let case = Case::new(mode, &web(&[0]));
    let traffic = web_tcp().map(|to| Traffic::start(&case.cluster.client, to));
    let mut connections = web_tcp().map(|to| Connection::open(&case.cluster.client, to).unwrap());
    for (old, new) in [(0, 1), (1, 2), (2, 0)] {
        case.files.apply(&web(&[old, new]));
        for to in web_tcp() {
            crate::wait("the new endpoint's first connection", || (case.connect(to).unwrap() == new).then_some(()));
        }
        case.files.apply(&web(&[new]));
        case.wait_gone(old);
        traffic.iter().for_each(Traffic::wait_for_more);
        for to in web_tcp() {
            assert_eq!(case.connect(to).unwrap(), new);
        }
    }
    for connection in &mut connections {
        connection.echo("to a pod that was not an endpoint for a while").unwrap();
    }
    for traffic in traffic {
        assert_eq!(traffic.assert_no_failure(), BTreeSet::from([0, 1, 2]));
    }
}

fn no_request_fails_while_the_mode_is_switched(mode: Mode) {
    let mut case = Case::new(mode, &web(&[0, 1, 2]));
    // On a busy machine, a reply may take longer than the 250 ms after which userspace mode removes a flow.
    let traffic = match mode {
        Mode::Userspace => web_tcp().map(|to| Traffic::start(&case.cluster.client, to)).into(),
        _ => Traffic::start_all(&case.cluster.client),
    };
    let flows = web_udp().map(|to| Flow::open(&case.cluster.client, to));
    let pods = flows.each_ref().map(Flow::pod);
    let mut connections = web_tcp().map(|to| Connection::open(&case.cluster.client, to).unwrap());
    for to in [mode.other(), mode] {
        assert!(case.proxy.stop("TERM").success());
        assert_ne!(case.rules(), Vec::<String>::new());
        case.start_again(to);
        crate::wait("removal of the other mode's rules", || {
            rules::of_proxy(&case.cluster.node, to.other()).is_empty().then_some(())
        });
        traffic.iter().for_each(Traffic::wait_for_more);
        assert_ne!(case.rules(), Vec::<String>::new());
        for connection in &mut connections {
            connection.echo("still here").unwrap();
        }
        // In userspace mode, a flow that is idle for a moment may get another pod.
        if mode != Mode::Userspace {
            assert_eq!(flows.each_ref().map(Flow::pod), pods);
        }
    }
    for traffic in traffic {
        assert_eq!(traffic.assert_no_failure(), BTreeSet::from([0, 1, 2]));
    }
}

fn no_connection_reaches_a_removed_endpoint(mode: Mode) {
    let case = Case::new(mode, &web(&[0, 1, 2]));
    for removed in 0..3 {
        let remaining: Vec<u8> = (0..3).filter(|pod| *pod != removed).collect();
        case.files.apply(&web(&remaining));
        case.wait_gone(removed);
        for from in [&case.cluster.client, &case.cluster.node] {
            for to in web_tcp() {
                let pods: BTreeSet<u8> = (0..TRIES).map(|_| connect(from, to).unwrap()).collect();
                assert_eq!(pods, BTreeSet::from_iter(remaining.clone()), "without {removed}");
            }
        }
    }
}

/// Enough connections that random choice practically always includes each of two or three endpoints.
const TRIES: usize = 40;
