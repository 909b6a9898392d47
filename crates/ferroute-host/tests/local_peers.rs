//! Peers are found among sockets of hostile local processes. Needs root, for network namespaces.

#![expect(clippy::unwrap_used, reason = "helpers of tests only")]

use std::{
    io::{BufRead, BufReader, Read, Write},
    process::{Command, Stdio},
    sync::{Arc, mpsc},
    thread,
    time::Duration,
};

use ferroute_host::{LocalPeer, LocalPeers, connect_now, listen_locally, listen_locally_beside, local_peers};
use ferroute_testing::{NetNs, Running};
use nix::sys::socket::UnixAddr;

/// Opens sockets as another user, with the peer's name and with names that begin with it: one that never responds, one
/// whose queue of connections is full, and some with arbitrary bytes.
const HOSTILE: &str = r#"
use Socket;
$> = 65534;
my @open;
sub listener {
    socket(my $socket, PF_UNIX, SOCK_STREAM, 0) or die;
    bind($socket, pack_sockaddr_un("\0" . $_[0])) or die "bind $_[0]: $!";
    listen($socket, 0) or die;
    push @open, $socket;
}
listener("peer");
listener("peer/00000000-0000-0000-0000-000000000000");
listener("peer/\xfc\n\xff");
listener("\xfc\xff\n@ \n");
for (1 .. 3) {
    socket(my $client, PF_UNIX, SOCK_STREAM | 2048, 0) or die;
    connect($client, pack_sockaddr_un("\0peer/00000000-0000-0000-0000-000000000000"));
    push @open, $client;
}
$| = 1;
print "ready\n";
sleep 3600;
"#;

/// Starts the hostile process and waits until its sockets are open.
fn hostile_process(node: &NetNs) -> Running {
    let mut command = Command::new("perl");
    command.args(["-e", HOSTILE]).stdout(Stdio::piped());
    let mut process = Running(node.run(|| command.spawn()).unwrap());
    let mut line = String::new();
    BufReader::new(process.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    process
}

/// Searches on another thread, because a search that waits for a hostile process never ends.
fn search(node: &Arc<NetNs>, search: Duration) -> LocalPeers {
    let (sender, receiver) = mpsc::channel();
    let node = Arc::clone(node);
    thread::spawn(move || sender.send(node.run(|| local_peers("peer", search, Duration::from_secs(5)))));
    receiver.recv_timeout(Duration::from_secs(60)).expect("the search ends").unwrap()
}

#[test]
fn peers_are_found_among_sockets_of_hostile_processes() {
    let node = Arc::new(NetNs::new());
    let hostile = hostile_process(&node);
    let found = search(&node, Duration::from_millis(100));
    assert!(found.trusted.is_empty());
    assert_eq!(found.others, [(hostile.0.id().cast_signed(), 65534)]);
    assert!(node.run(|| listen_locally("peer")).is_err(), "the name is taken");
    let (listener, _) = node.run(|| listen_locally_beside("peer")).unwrap();
    let found = search(&node, Duration::from_millis(100));
    let [mut peer] = <[LocalPeer; 1]>::try_from(found.trusted).unwrap();
    assert_eq!(peer.pid, std::process::id().cast_signed());
    listener.accept().unwrap().0.write_all(b"hello").unwrap();
    let mut received = [0; 5];
    peer.stream.read_exact(&mut received).unwrap();
    assert_eq!(&received, b"hello");
}

#[test]
fn peer_without_a_processor_for_a_while_is_found_within_the_search() {
    let node = Arc::new(NetNs::new());
    let listener = node.run(|| listen_locally("peer")).unwrap();
    let (name, mut waiting) = (UnixAddr::new_abstract(b"peer").unwrap(), Vec::new());
    node.run(|| {
        while let Ok(stream) = connect_now(&name) {
            waiting.push(stream);
        }
    });
    let found = search(&node, Duration::from_millis(100));
    assert!(found.trusted.is_empty(), "its queue is full");
    let (searching, started) = mpsc::channel();
    let late = thread::spawn(move || {
        started.recv().unwrap();
        thread::sleep(Duration::from_millis(300));
        // Leaves space for one connection of the search, after which the queue is full again.
        listener.accept().unwrap();
        listener
    });
    searching.send(()).unwrap();
    let found = search(&node, Duration::from_secs(60));
    assert_eq!(found.trusted.len(), 1);
    late.join().unwrap();
}
