//! Endpoints that do not answer: connections go to other endpoints until they do.

use std::{collections::BTreeSet, io};

use crate::{
    Case, Cluster, Mode, cluster::pod_addresses, in_each_mode, proxy::FERROUTE, traffic::connect, wait, web, web_tcp,
};

in_each_mode!(connections_to_a_dead_endpoint_reach_another_one_until_it_answers_again);
in_each_mode!(endpoint_that_refuses_connections_is_ejected_if_the_service_asks_for_it);

/// Returns the Service of [`web`] with this value of the annotation.
pub(crate) fn ejecting(value: &str, pods: &[u8]) -> String {
    web(pods).replace(
        "metadata: {name: web}",
        &format!("metadata: {{name: web, annotations: {{ferroute.io/passive-ejection: {value:?}}}}}"),
    )
}

/// Makes a pod lose all packets, as if its node had died.
fn kill(case: &Case, pod: u8) {
    fail(&case.cluster, pod, "drop");
}

/// Makes a pod handle all connections by this statement of nft.
pub(crate) fn fail(cluster: &Cluster, pod: u8, statement: &str) {
    let rules = "add table inet dead; add chain inet dead input { type filter hook input priority -300; }";
    let [v4, v6] = pod_addresses(pod);
    let rule = |daddr: &str| format!("add rule inet dead input {daddr} meta l4proto tcp {statement}");
    let fail = [rule(&format!("ip daddr {v4}")), rule(&format!("ip6 daddr {v6}"))].join("; ");
    cluster.pods.command("nft", &[&format!("{rules}; {fail}")]);
}

pub(crate) fn revive(cluster: &Cluster) {
    cluster.pods.command("nft", &["delete table inet dead"]);
}

fn explain(case: &Case) -> String {
    let output = case.cluster.node.try_command(FERROUTE, &["explain", "service", "default/web"]);
    String::from_utf8(output.stdout).unwrap()
}

fn connections_to_a_dead_endpoint_reach_another_one_until_it_answers_again(mode: Mode) {
    let case = Case::new(mode, &ejecting("true", &[0, 1, 2]));
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
        (explain(&case).matches("not used: its connections failed").count() == 2).then_some(())
    });
    revive(&case.cluster);
    for to in web_tcp() {
        wait("a connection to the pod that answers again", || (case.connect(to).ok() == Some(1)).then_some(()));
    }
    wait("its use", || (!explain(&case).contains("connections failed")).then_some(()));
}

fn endpoint_that_refuses_connections_is_ejected_if_the_service_asks_for_it(mode: Mode) {
    let case = Case::new(mode, &ejecting("refused", &[0, 1, 2]));
    fail(&case.cluster, 1, "reject with tcp reset");
    wait("the ejection in both IP families", || {
        // About every third connection fails until then.
        let pods: BTreeSet<u8> = (0..30).filter_map(|i| case.connect(web_tcp()[i % 2]).ok()).collect();
        assert!(!pods.contains(&1), "{pods:?}");
        (explain(&case).matches("not used: its connections failed").count() == 2).then_some(())
    });
    // Meanwhile it may have been tried again.
    wait("connections of which none fails", || {
        let pods: io::Result<BTreeSet<u8>> = (0..60).map(|i| case.connect(web_tcp()[i % 2])).collect();
        pods.ok().filter(|pods| *pods == BTreeSet::from([0, 2]))
    });
    revive(&case.cluster);
    for to in web_tcp() {
        wait("a connection to the pod that accepts them again", || (case.connect(to).ok() == Some(1)).then_some(()));
    }
}
