//! The servers of all pods. Each of their sockets answers with its own address, which identifies the endpoint that
//! accepted a connection, and with the source address that it sees. Servers never stop: a connection to a removed
//! endpoint is also answered, and detected.

use std::{net::SocketAddr, thread::JoinHandle};

use ferroute_testing::NetNs;
use tokio::{io::AsyncWriteExt, sync::oneshot};

use crate::network::{Network, PODS, pod_sockets};

/// The servers of all pods, which stop on drop.
pub(crate) struct Servers {
    _servers: Vec<Server>,
}

/// The server of pods in one namespace.
struct Server {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Servers {
    /// Starts the servers of all pods.
    pub(crate) fn start(network: &Network) -> Self {
        let is_local = |pod: &usize| *pod == 0 || network.pods.iter().any(|(local, _)| local == pod);
        let remote: Vec<usize> = (0..PODS).filter(|pod| !is_local(pod)).collect();
        let mut servers = vec![serve(&network.node, &[0]), serve(&network.remote, &remote)];
        servers.extend(network.pods.iter().map(|(pod, namespace)| serve(namespace, &[*pod])));
        Self { _servers: servers }
    }
}

fn serve(machine: &NetNs, pods: &[usize]) -> Server {
    let sockets: Vec<_> = pods
        .iter()
        .flat_map(|pod| pod_sockets(*pod))
        .map(|address| {
            let bind = || (std::net::TcpListener::bind(address).unwrap(), std::net::UdpSocket::bind(address).unwrap());
            let (listener, socket) = machine.run(bind);
            listener.set_nonblocking(true).unwrap();
            socket.set_nonblocking(true).unwrap();
            (address, listener, socket)
        })
        .collect();
    let (stop, stopped) = oneshot::channel::<()>();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
    let thread = std::thread::spawn(move || {
        runtime.block_on(async {
            for (address, listener, socket) in sockets {
                tokio::spawn(serve_tcp(address, tokio::net::TcpListener::from_std(listener).unwrap()));
                tokio::spawn(serve_udp(address, tokio::net::UdpSocket::from_std(socket).unwrap()));
            }
            // The sender is dropped when the test ends.
            _ = stopped.await;
        });
    });
    Server { stop: Some(stop), thread: Some(thread) }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.stop.take());
        // A panic of the thread has been printed, and missing replies have failed the test.
        _ = self.thread.take().map(JoinHandle::join);
    }
}

/// Sends a line with both addresses, then all received data.
async fn serve_tcp(address: SocketAddr, listener: tokio::net::TcpListener) {
    loop {
        let Ok((mut stream, client)) = listener.accept().await else { continue };
        tokio::spawn(async move {
            let (mut from, mut to) = stream.split();
            to.write_all(format!("{address} {}\n", client.ip()).as_bytes()).await?;
            tokio::io::copy(&mut from, &mut to).await
        });
    }
}

/// Replies with both addresses and the received datagram.
async fn serve_udp(address: SocketAddr, socket: tokio::net::UdpSocket) {
    let mut buffer = [0; 32];
    loop {
        // An error reports that an earlier reply was rejected.
        if let Ok((length, from)) = socket.recv_from(&mut buffer).await {
            let request = String::from_utf8_lossy(&buffer[..length]);
            _ = socket.send_to(format!("{address} {} {request}", from.ip()).as_bytes(), from).await;
        }
    }
}
