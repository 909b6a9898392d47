use std::{
    convert::Infallible,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use ferroute_core::Protocol;
use http_body_util::Full;
use hyper::{
    Request, Response,
    body::{Bytes, Incoming},
    header::{CONTENT_TYPE, HeaderValue},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream, UdpSocket};

use super::{ConnectionInfo, Listen, PodError};

/// Opens one port and serves it in the background.
pub(super) async fn listen(pod: &str, addresses: &[IpAddr], listen: Listen) -> Result<(), PodError> {
    let Listen { port, protocol } = listen;
    let pod: Arc<str> = pod.into();
    let error = |address: IpAddr| move |source: io::Error| PodError::Listen { address, port, protocol, source };
    if protocol == Protocol::Tcp {
        // All addresses of both IP families, like most servers.
        let has_ipv6 = addresses.iter().any(IpAddr::is_ipv6);
        let any = if has_ipv6 { Ipv6Addr::UNSPECIFIED.into() } else { IpAddr::from(Ipv4Addr::UNSPECIFIED) };
        let listener = TcpListener::bind((any, port)).await.map_err(error(any))?;
        tokio::spawn(accept(pod, listener));
    } else {
        // One socket per address: the source of replies from a wildcard socket may be another address of the machine.
        for address in addresses {
            let socket = UdpSocket::bind((*address, port)).await.map_err(error(*address))?;
            tokio::spawn(echo(pod.clone(), socket, SocketAddr::new(*address, port)));
        }
    }
    Ok(())
}

async fn accept(pod: Arc<str>, listener: TcpListener) {
    loop {
        match listener.accept().await {
            Ok((stream, client)) => {
                tokio::spawn(answer(pod.clone(), stream, client));
            }
            // Usually no file descriptor is available until another connection ends.
            Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    }
}

async fn answer(pod: Arc<str>, stream: TcpStream, client: SocketAddr) {
    // The connection has already ended if it has no local address.
    let Ok(address) = stream.local_addr() else { return };
    let connection = ConnectionInfo { pod: pod.to_string(), client: canonical(client), address: canonical(address) };
    let respond = |request: Request<Incoming>| {
        let response = respond(&connection, request.uri().path());
        async move { Ok::<_, Infallible>(response) }
    };
    let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service_fn(respond)).await;
}

fn respond(connection: &ConnectionInfo, path: &str) -> Response<Full<Bytes>> {
    let (content_type, body) = match path {
        "/json" => ("application/json", json(connection)),
        _ => ("text/plain; charset=utf-8", format!("{connection}\n").into_bytes()),
    };
    let mut response = Response::new(Full::new(body.into()));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

async fn echo(pod: Arc<str>, socket: UdpSocket, address: SocketAddr) {
    let mut buffer = vec![0; 1 << 16];
    loop {
        // An error is an ICMP error for an earlier reply.
        let Ok((length, client)) = socket.recv_from(&mut buffer).await else { continue };
        let connection = ConnectionInfo { pod: pod.to_string(), client, address };
        let reply = match &buffer[..length] {
            b"/json" => json(&connection),
            datagram => [format!("{connection}\n").as_bytes(), datagram].concat(),
        };
        let _ = socket.send_to(&reply, client).await;
    }
}

fn json(connection: &ConnectionInfo) -> Vec<u8> {
    serde_json::to_vec(connection).expect("bug: connection information is always serializable")
}

/// Maps IPv4-mapped IPv6 addresses of dual-stack sockets to IPv4 addresses.
fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}
