//! Endpoints that get a part of their weight: new ones of a Service with slow start, and those with many connections of
//! a Service with least connections.

use std::time::Instant;

use ferroute_host::{KernelGeneration, RuleGeneration};

use crate::{
    Case, Mode, WEB,
    proxy::FERROUTE,
    slices,
    traffic::{Connection, connect},
    wait, web_tcp,
};

/// Returns the Service of [`web`](crate::web) with an annotation.
fn annotated(annotation: &str, pods: &[u8]) -> String {
    let service = WEB.replace("{name: web}", &format!("{{name: web, annotations: {{{annotation}}}}}"));
    format!("{service}{}", slices("web", pods))
}

fn explain(case: &Case) -> String {
    let output = case.cluster.node.try_command(FERROUTE, &["explain", "service", "default/web"]);
    String::from_utf8(output.stdout).unwrap()
}

/// Returns how many of 170 new connections reach a pod.
fn connections_to(case: &Case, pod: u8) -> usize {
    let to = (0..170).map(|_| connect(&case.cluster.client, web_tcp()[0]).unwrap());
    to.filter(|reached| *reached == pod).count()
}

#[test]
fn new_endpoints_get_few_connections_until_they_have_started() {
    let case = Case::new(Mode::Nftables, &annotated("ferroute.io/slow-start: 1h", &[0, 1]));
    assert!(!explain(&case).contains(", weight"), "those of the start are not new");
    case.files.apply(&annotated("ferroute.io/slow-start: 1h", &[0, 1, 2]));
    // Both other endpoints, in both IP families and on both ports.
    wait("the first share", || (explain(&case).matches(", weight 8").count() == 8).then_some(()));
    let few = connections_to(&case, 2);
    assert!((1..40).contains(&few), "{few} of 170 (want 10, a seventeenth)");
    case.files.apply(&annotated("ferroute.io/slow-start: 1s", &[0, 1, 2]));
    wait("the full share", || (!explain(&case).contains(", weight")).then_some(()));
    let many = connections_to(&case, 2);
    assert!((25..100).contains(&many), "{many} of 170 (want 57, a third)");
}

#[test]
fn endpoints_with_many_connections_get_fewer_new_ones() {
    let annotation = "ferroute.io/load-balancing: least-connections";
    let case = Case::new(Mode::Nftables, &annotated(annotation, &[0]));
    let open: Vec<Connection> =
        (0..60).map(|_| Connection::open(&case.cluster.client, web_tcp()[0]).unwrap()).collect();
    case.files.apply(&annotated(annotation, &[0, 1]));
    wait("the weights", || (explain(&case).matches(", weight 4").count() == 1).then_some(()));
    let idle = connections_to(&case, 1);
    assert!((110..165).contains(&idle), "{idle} of 170 (want 136, four fifths)");
    drop(open);
    wait("equal weights", || (!explain(&case).contains(", weight")).then_some(()));
}

#[test]
fn least_connections_cost_one_transaction_a_second_at_most() {
    let case = Case::new(Mode::Nftables, &annotated("ferroute.io/load-balancing: least-connections", &[0, 1, 2]));
    let mut kernel = case.cluster.node.run(KernelGeneration::open).unwrap().unwrap();
    let mut generation = move || kernel.current().unwrap();
    let (start, before) = (Instant::now(), generation());
    for round in 0..4 {
        let last = generation();
        // Connections come and go much faster than they are counted, until those of one pod remain.
        let mut open = Vec::new();
        wait("other weights", || {
            open.extend((0..30).map(|_| Connection::open(&case.cluster.client, web_tcp()[0]).unwrap()));
            open.retain(|connection| connection.pod == round % 3);
            (generation() != last).then_some(())
        });
    }
    let (commits, seconds) = (generation() - before, start.elapsed().as_secs());
    assert!((4..=u32::try_from(seconds).unwrap() + 1).contains(&commits), "{commits} transactions in {seconds} s");
}
