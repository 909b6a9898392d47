//! Endpoints that do not answer: connections go to other endpoints until they do.

use std::{collections::BTreeSet, io};

use crate::{Case, Mode, cluster::pod_addresses, in_each_mode, proxy::FERROUTE, traffic::connect, wait, web, web_tcp};

in_each_mode!(connections_to_a_dead_endpoint_reach_another_one_until_it_answers_again);

/// Returns the Service of [`web`] with passive ejection.
fn ejecting(pods: &[u8]) -> String {
    web(pods).replace(
        "metadata: {name: web}",
        "metadata: {name: web, annotations: {ferroute.io/passive-ejection: \"true\"}}",
    )
}

/// Makes a pod lose all packets, as if its node had died.
fn kill(case: &Case, pod: u8) {
    let rules = "add table inet dead; add chain inet dead input { type filter hook input priority -300; }";
    let [v4, v6] = pod_addresses(pod);
    let drop = format!("add rule inet dead input ip daddr {v4} drop; add rule inet dead input ip6 daddr {v6} drop");
    case.cluster.pods.command("nft", &[&format!("{rules}; {drop}")]);
}

fn revive(case: &Case) {
    case.cluster.pods.command("nft", &["delete table inet dead"]);
}

fn explain(case: &Case) -> String {
    let output = case.cluster.node.try_command(FERROUTE, &["explain", "service", "default/web"]);
    String::from_utf8(output.stdout).unwrap()
}

fn connections_to_a_dead_endpoint_reach_another_one_until_it_answers_again(mode: Mode) {
    let case = Case::new(mode, &ejecting(&[0, 1, 2]));
    kill(&case, 1);
    let client = &case.cluster.client;
    // Connections that were sent to the dead pod go to another one with the next packet of the client, so none fails.
    wait("the ejection in both IP families", || {
        let pods = std::thread::scope(|scope| {
            let connect = |i: usize| scope.spawn(move || connect(client, web_tcp()[i % 2]));
            let connections: Vec<_> = (0..60).map(connect).collect();
            connections.into_iter().map(|connection| connection.join().unwrap()).collect::<io::Result<BTreeSet<u8>>>()
        });
        assert_eq!(pods.unwrap(), BTreeSet::from([0, 2]));
        (explain(&case).matches("not used: it did not answer").count() == 2).then_some(())
    });
    revive(&case);
    for to in web_tcp() {
        wait("a connection to the pod that answers again", || (case.connect(to).ok() == Some(1)).then_some(()));
    }
    wait("its use", || (!explain(&case).contains("did not answer")).then_some(()));
}
