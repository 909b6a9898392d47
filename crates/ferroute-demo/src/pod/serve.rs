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

use super::{Listen, PodError, Sighting};

/// Opens one port and answers there from now on.
pub(super) async fn listen(pod: &str, addresses: &[IpAddr], listen: Listen) -> Result<(), PodError> {
    let Listen { port, protocol } = listen;
    let pod: Arc<str> = pod.into();
    let error = |address: IpAddr| move |source: io::Error| PodError::Listen { address, port, protocol, source };
    if protocol == Protocol::Tcp {
        // All addresses of both families, localhost too, like most servers.
        let has_ipv6 = addresses.iter().any(IpAddr::is_ipv6);
        let any = if has_ipv6 { Ipv6Addr::UNSPECIFIED.into() } else { IpAddr::from(Ipv4Addr::UNSPECIFIED) };
        let listener = TcpListener::bind((any, port)).await.map_err(error(any))?;
        tokio::spawn(accept(pod, listener));
    } else {
        // One socket per address: a socket for all of them would answer from another one than was asked, on machines
        // that have several.
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
            // Out of file descriptors, mostly: some connection has to end first.
            Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    }
}

async fn answer(pod: Arc<str>, stream: TcpStream, client: SocketAddr) {
    // Without an own address the connection has ended already.
    let Ok(address) = stream.local_addr() else { return };
    let sighting = Sighting { pod: pod.to_string(), client: canonical(client), address: canonical(address) };
    let respond = |request: Request<Incoming>| {
        let response = respond(&sighting, request.uri().path());
        async move { Ok::<_, Infallible>(response) }
    };
    // How a connection ends is the client's affair.
    let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service_fn(respond)).await;
}

fn respond(sighting: &Sighting, path: &str) -> Response<Full<Bytes>> {
    let (content_type, body) = match path {
        "/json" => ("application/json", json(sighting)),
        _ => ("text/plain; charset=utf-8", format!("{sighting}\n").into_bytes()),
    };
    let mut response = Response::new(Full::new(body.into()));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

async fn echo(pod: Arc<str>, socket: UdpSocket, address: SocketAddr) {
    let mut buffer = vec![0; 1 << 16];
    loop {
        // An error here is about an earlier answer that its client did not want.
        let Ok((length, client)) = socket.recv_from(&mut buffer).await else { continue };
        let sighting = Sighting { pod: pod.to_string(), client, address };
        let answer = match &buffer[..length] {
            b"/json" => json(&sighting),
            datagram => [format!("{sighting}\n").as_bytes(), datagram].concat(),
        };
        let _ = socket.send_to(&answer, client).await;
    }
}

fn json(sighting: &Sighting) -> Vec<u8> {
    serde_json::to_vec(sighting).expect("text and addresses can always be written as JSON")
}

/// An IPv4 client of a socket for both families, as an IPv4 client.
fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}
