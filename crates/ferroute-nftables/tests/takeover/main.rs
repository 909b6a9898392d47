//! Replacing the table of a version with another layout, while there is traffic. The table is what a development version
//! before 0.1.0 rendered for [`cluster`].

#![expect(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

#[path = "../common/mod.rs"]
mod common;

use std::{
    collections::BTreeSet,
    net::UdpSocket,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    thread,
    time::Duration,
};

use common::{
    Host,
    lab::{Lab, Outcome, PORT, pod_ip, tcp},
    settings,
};
use ferroute_core::{
    Dataplane, IpFamily,
    testing::{Cluster, PodBuilder, pod, service, slice},
};
use ferroute_nftables::NftablesDataplane;

fn cluster() -> Cluster {
    let local = |number: usize| -> PodBuilder { pod(&pod_ip(number).to_string()).on("node-1") };
    let web = service("shop/web").cluster_ip("10.96.0.1").port("http", 80).node_port(30080);
    let cart = service("shop/cart").cluster_ip("10.96.0.2").port("http", 80).affinity(300);
    let of_web = slice("shop/web-a", "web").port("http", PORT).udp("dns", PORT).pod(local(0)).pod(local(1));
    let of_cart = (0..3).map(local).fold(slice("shop/cart-a", "cart").port("http", PORT), |slice, pod| slice.pod(pod));
    Cluster::new("node-1").service(web.udp("dns", 53).node_port(30053)).slice(of_web).service(cart).slice(of_cart)
}

/// Ends the clients, also when the test fails: a scope waits for its threads.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn endpoints_of(lab: &Lab, to: &str) -> BTreeSet<usize> {
    let pod = |outcome| match outcome {
        Outcome::Pod(pod, _) => pod,
        other => panic!("{to}: {other:?}"),
    };
    (0..40).map(|_| pod(tcp(&lab.client, to))).collect()
}

/// Sends a datagram and returns the reply.
fn exchange(flow: &UdpSocket) -> String {
    let mut buffer = [0; 128];
    flow.send(b"?").unwrap();
    let length = ferroute_testing::restart(|| flow.recv(&mut buffer)).unwrap();
    String::from_utf8_lossy(&buffer[..length]).into_owned()
}

#[test]
fn table_of_an_earlier_layout_is_replaced_without_losing_connections() {
    let lab = Lab::new(3);
    lab.node.feed("nft", &["-f", "-"], include_str!("table_of_earlier_layout.nft"));
    assert_eq!(endpoints_of(&lab, "10.96.0.2:80").len(), 1, "affinity of the earlier layout");
    let flow = lab.client.run(|| UdpSocket::bind("0.0.0.0:0").unwrap());
    flow.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
    flow.connect("10.96.0.1:53").unwrap();
    let before = exchange(&flow);
    let (is_over, served) = (AtomicBool::new(false), [(); 3].map(|()| AtomicUsize::new(0)));
    thread::scope(|scope| {
        let clients = ["10.96.0.1:80", "192.168.0.1:30080", "10.96.0.2:80"];
        let clients = [0, 1, 2].map(|i| {
            let (lab, is_over, to, served) = (&lab, &is_over, clients[i], &served[i]);
            scope.spawn(move || {
                let mut failed = Vec::new();
                while !is_over.load(Ordering::Relaxed) {
                    let outcome = tcp(&lab.client, to);
                    served.fetch_add(1, Ordering::Relaxed);
                    failed.extend((!matches!(outcome, Outcome::Pod(..))).then_some(outcome));
                }
                failed
            })
        });
        let end = End(&is_over);
        let wait_for_connections = || {
            let before = served.each_ref().map(|count| count.load(Ordering::Relaxed));
            let is_served = |(count, before): (&AtomicUsize, &usize)| count.load(Ordering::Relaxed) > *before;
            while !served.iter().zip(&before).all(is_served) {
                assert!(!clients.iter().any(thread::ScopedJoinHandle::is_finished), "a client has panicked");
                thread::sleep(Duration::from_millis(1));
            }
        };
        wait_for_connections();
        let table = cluster().table(IpFamily::V4);
        let open = || NftablesDataplane::open(IpFamily::V4, settings(), Box::new(Host::default())).unwrap();
        let report = lab.node.run(open).resync(&table).unwrap();
        assert!(report.written >= report.total && report.rejected.is_empty(), "{report:?}");
        let before: Vec<String> = report.udp_frontends_before.iter().map(ToString::to_string).collect();
        assert_eq!(before, ["node port 30053/udp", "10.96.0.1:53/udp"]);
        let again = lab.node.run(open).resync(&table).unwrap();
        assert_eq!((again.written, again.removed), (0, 0));
        wait_for_connections();
        drop(end);
        assert_eq!(clients.map(|client| client.join().unwrap()), [(); 3].map(|()| Vec::new()));
    });
    assert_eq!(exchange(&flow), before, "an established flow keeps its endpoint");
    assert_eq!(endpoints_of(&lab, "10.96.0.1:80"), [0, 1].into());
    // Clients choose once more, and stay there.
    assert_eq!(endpoints_of(&lab, "10.96.0.2:80").len(), 1);
}
