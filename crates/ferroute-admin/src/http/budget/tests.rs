use std::{future::pending, time::Duration};

use tokio::task::JoinHandle;

use super::*;

/// A connection whose task runs until it is closed.
struct Connection {
    task: JoinHandle<()>,
    permit: Arc<ConnectionPermit>,
}

impl Connection {
    fn open(sockets: &Arc<OpenSockets>, peer: &str) -> Self {
        let permit = Arc::new(sockets.open_connection(peer.parse().expect("an address")));
        let kept = Arc::clone(&permit);
        let task = tokio::spawn(async move {
            let _permit = kept;
            pending::<()>().await;
        });
        sockets.started(permit.number(), task.abort_handle());
        Self { task, permit }
    }

    async fn is_open(&self) -> bool {
        tokio::time::sleep(Duration::from_millis(1)).await;
        !self.task.is_finished()
    }
}

fn sockets(descriptors: usize, least_connections: usize) -> Arc<OpenSockets> {
    OpenSockets::new(Budget { descriptors, connections: descriptors, least_connections })
}

async fn open_connections<const N: usize>(connections: [&Connection; N]) -> [bool; N] {
    let mut open = [false; N];
    for (open, connection) in open.iter_mut().zip(connections) {
        *open = connection.is_open().await;
    }
    open
}

#[test]
fn descriptors_are_reserved_for_the_rest_of_the_process() {
    let budget = Budget::for_descriptor_limit(1024);
    assert_eq!(budget, Budget { descriptors: 768, connections: 768, least_connections: 64 });
    let budget = Budget::for_descriptor_limit(1 << 20);
    assert_eq!((budget.connections, budget.least_connections), (1024, 64));
    for limit in [0, 1, 2, 16, 64, u64::MAX] {
        let Budget { descriptors, connections, least_connections } = Budget::for_descriptor_limit(limit);
        assert!(connections <= descriptors && least_connections <= descriptors, "{limit}");
    }
}

#[tokio::test]
async fn connection_that_has_been_idle_the_longest_is_closed_and_a_busy_one_is_not() {
    let sockets = sockets(3, 1);
    let [busy, used, idle] = ["192.0.2.1", "192.0.2.2", "192.0.2.3"].map(|peer| Connection::open(&sockets, peer));
    busy.permit.begin_request();
    used.permit.begin_request();
    used.permit.end_request();
    let next = Connection::open(&sockets, "192.0.2.4");
    assert_eq!(open_connections([&busy, &used, &idle, &next]).await, [true, true, false, true]);
    sockets.evict_one();
    assert_eq!(open_connections([&busy, &used, &next]).await, [true, false, true]);
}

#[tokio::test]
async fn client_with_the_most_connections_loses_one() {
    let sockets = sockets(8, 1);
    let first = Connection::open(&sockets, "192.0.2.1");
    let flood: Vec<_> = (0..12).map(|_| Connection::open(&sockets, "192.0.2.2")).collect();
    let other: Vec<_> = (0..4).map(|_| Connection::open(&sockets, "192.0.2.3")).collect();
    assert!(first.is_open().await);
    let count = async |connections: &[Connection]| {
        let mut open = 0;
        for connection in connections {
            open += usize::from(connection.is_open().await);
        }
        open
    };
    assert_eq!((count(&flood).await, count(&other).await), (3, 4));
}

#[tokio::test]
async fn addresses_of_one_ipv6_network_are_one_client() {
    let sockets = sockets(4, 1);
    let other = Connection::open(&sockets, "2001:db8:0:1::1");
    let flood: Vec<_> = (0..8).map(|host| Connection::open(&sockets, &format!("2001:db8:0:2::{host}"))).collect();
    assert!(other.is_open().await);
    assert!(!flood[5].is_open().await && flood[6].is_open().await && flood[7].is_open().await);
    // IPv4 clients of a dual-stack socket.
    let mapped = Connection::open(&sockets, "::ffff:192.0.2.1");
    let another = Connection::open(&sockets, "::ffff:192.0.2.2");
    assert!(mapped.is_open().await && another.is_open().await);
}

#[tokio::test]
async fn ports_displace_connections_except_the_last_ones() {
    let sockets = sockets(4, 2);
    let connections: Vec<_> = (0..4).map(|host| Connection::open(&sockets, &format!("192.0.2.{host}"))).collect();
    let ports: Vec<_> = (0..2).map(|_| sockets.open_port().expect("a place")).collect();
    assert!(!connections[1].is_open().await && connections[2].is_open().await);
    assert_eq!(sockets.open_port().map(drop), Err(TooManyPorts { open: 2 }));
    drop(ports);
    assert!(sockets.open_port().is_ok());
}

#[test]
fn held_ports_leave_places_to_served_ones() {
    let sockets = sockets(8, 2);
    let held: Vec<_> = (0..4).map(|_| sockets.hold_port().expect("a place")).collect();
    assert_eq!(sockets.hold_port().map(drop), Err(TooManyPorts { open: 4 }));
    let served: Vec<_> = (0..2).map(|_| sockets.open_port().expect("a place")).collect();
    assert_eq!(sockets.open_port().map(drop), Err(TooManyPorts { open: 6 }));
    drop(held);
    assert!(sockets.hold_port().is_ok());
    drop(served);
    assert_eq!(sockets.state().ports, 0);
}
