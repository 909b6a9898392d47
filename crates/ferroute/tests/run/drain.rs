//! Connections to a terminating endpoint end after the deadline of their Service.

use std::io::ErrorKind;

use crate::{
    Case, Mode, WEB,
    cluster::pod_addresses,
    in_each_mode, slices,
    traffic::{Connection, Flow, Reply, connect},
    wait, web_tcp, web_udp,
};

in_each_mode!(
    connections_to_a_terminating_endpoint_are_reset_after_the_deadline,
    connections_to_an_endpoint_that_leaves_before_the_deadline_are_reset_after_it,
    flows_to_a_terminating_endpoint_reach_another_one_after_the_deadline,
);

/// Returns the Service of [`web`](crate::web) with a deadline, and one without at another address. The first pod may terminate.
fn services(pods: &[u8], is_terminating: bool) -> String {
    let timeout = WEB.replace("{name: web}", "{name: web, annotations: {ferroute.io/drain-timeout: 1s}}");
    let kept = WEB.replace("name: web", "name: kept").replace("10.96.0.1", "10.96.0.2").replace("96::1", "96::2");
    let mut all = [timeout, slices("web", pods), format!("---\n{kept}"), slices("kept", pods)].concat();
    if is_terminating {
        for address in pod_addresses(pods[0]) {
            let endpoint = format!("[\"{address}\"], ");
            let conditions = "conditions: {ready: false, serving: true, terminating: true}, ";
            all = all.replace(&endpoint, &format!("{endpoint}{conditions}"));
        }
    }
    all
}

fn connections_to_a_terminating_endpoint_are_reset_after_the_deadline(mode: Mode) {
    let case = Case::new(mode, &services(&[0], false));
    let client = &case.cluster.client;
    let open = |to| Connection::open(client, to).unwrap();
    let mut ending = web_tcp().map(open);
    let mut kept = ["10.96.0.2:80", "[fd00:96::2]:80"].map(|to| open(to.parse().unwrap()));
    let mut direct = pod_addresses(0).map(|address| open((address, crate::PORT).into()));
    case.files.apply(&services(&[0, 1], true));
    for (connection, to) in ending.iter_mut().zip(web_tcp()) {
        wait("another endpoint", || (connect(client, to).ok() == Some(1)).then_some(()));
        let error = wait("the end of the connection", || connection.echo("still there").err());
        assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
    }
    for connection in kept.iter_mut().chain(&mut direct) {
        connection.echo("still there").unwrap();
    }
    // An endpoint that is still used, because there are no others, keeps its connections.
    case.files.apply(&services(&[1], true));
    let mut last = web_tcp().map(open);
    wait("the removal of the first endpoint", || (connect(client, web_tcp()[0]).ok() == Some(1)).then_some(()));
    std::thread::sleep(std::time::Duration::from_secs(5));
    last.iter_mut().for_each(|connection| connection.echo("still there").unwrap());
}

fn connections_to_an_endpoint_that_leaves_before_the_deadline_are_reset_after_it(mode: Mode) {
    let with_deadline = |pods: &[u8], is_terminating| services(pods, is_terminating).replace("1s}", "20s}");
    let case = Case::new(mode, &with_deadline(&[0], false));
    let client = &case.cluster.client;
    let mut ending = web_tcp().map(|to| Connection::open(client, to).unwrap());
    case.files.apply(&with_deadline(&[0, 1], true));
    for to in web_tcp() {
        wait("another endpoint", || (connect(client, to).ok() == Some(1)).then_some(()));
    }
    case.files.apply(&with_deadline(&[1], false));
    // Both of them first: they end at the same time.
    ending.iter_mut().for_each(|connection| connection.echo("still there").unwrap());
    for connection in &mut ending {
        let error = wait("the end of the connection", || connection.echo("still there").err());
        assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
    }
}

fn flows_to_a_terminating_endpoint_reach_another_one_after_the_deadline(mode: Mode) {
    let case = Case::new(mode, &services(&[0], false));
    let client = &case.cluster.client;
    let flows = web_udp().map(|to| Flow::open(client, to));
    let others = ["10.96.0.2:53", "[fd00:96::2]:53"].map(|to| Flow::open(client, to.parse().unwrap()));
    let direct = pod_addresses(0).map(|address| Flow::open(client, (address, crate::PORT).into()));
    flows.iter().chain(&others).chain(&direct).for_each(|flow| assert_eq!(flow.pod(), 0));
    case.files.apply(&services(&[0, 1], true));
    for flow in &flows {
        wait("a reply of the other endpoint", || (flow.request() == Reply::Pod(1)).then_some(()));
    }
    others.iter().chain(&direct).for_each(|flow| assert_eq!(flow.pod(), 0));
}
