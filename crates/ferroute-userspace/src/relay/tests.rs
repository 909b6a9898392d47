use std::time::Duration;

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};

use super::*;

/// No connection of a test is idle for that long.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Two ends of a connection on loopback.
async fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let connect = TcpStream::connect(listener.local_addr().unwrap());
    let (near, far) = tokio::join!(connect, listener.accept());
    (near.unwrap(), far.unwrap().0)
}

/// A relayed connection: the client's end, the endpoint's end, and the relay.
async fn relayed() -> (TcpStream, TcpStream, tokio::task::JoinHandle<io::Result<[u64; 2]>>, PipePool) {
    let (client, client_side) = pair().await;
    let (endpoint_side, endpoint) = pair().await;
    let pipes = PipePool::default();
    let pool = pipes.clone();
    let task = tokio::spawn(async move {
        let bytes = RelayedBytes::default();
        relay(&client_side, &endpoint_side, &pool, &bytes, TIMEOUT).await?;
        Ok([bytes.to_endpoint, bytes.to_client].map(AtomicU64::into_inner))
    });
    (client, endpoint, task, pipes)
}

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|index| (index * 7 + index / 251) as u8).collect()
}

#[tokio::test]
async fn bytes_arrive_unchanged_in_both_directions() {
    let (client, endpoint, task, _) = relayed().await;
    let (request, response) = (pattern(3_000_000), pattern(5_000_001));
    let exchange = |mut stream: TcpStream, out: Vec<u8>, expected: Vec<u8>| async move {
        let (mut reader, mut writer) = stream.split();
        let write = async {
            writer.write_all(&out).await.unwrap();
            writer.shutdown().await.unwrap();
        };
        let mut received = Vec::new();
        let (_, read) = tokio::join!(write, reader.read_to_end(&mut received));
        read.unwrap();
        assert!(received == expected, "{} of {} bytes arrived", received.len(), expected.len());
    };
    tokio::join!(
        exchange(client, request.clone(), response.clone()),
        exchange(endpoint, response.clone(), request.clone())
    );
    assert_eq!(task.await.unwrap().unwrap(), [request.len() as u64, response.len() as u64]);
}

#[tokio::test]
async fn the_end_of_one_direction_leaves_the_other_open() {
    let (mut client, mut endpoint, task, _) = relayed().await;
    client.write_all(b"request").await.unwrap();
    client.shutdown().await.unwrap();
    let mut request = Vec::new();
    endpoint.read_to_end(&mut request).await.unwrap();
    assert_eq!(request, b"request");
    endpoint.write_all(b"late response").await.unwrap();
    drop(endpoint);
    let mut response = Vec::new();
    client.read_to_end(&mut response).await.unwrap();
    assert_eq!(response, b"late response");
    task.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_reset_is_passed_on() {
    let (mut client, endpoint, task, _) = relayed().await;
    endpoint.set_zero_linger().unwrap();
    drop(endpoint);
    let error = client.read(&mut [0; 16]).await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    task.await.unwrap().unwrap_err();
}

#[tokio::test]
async fn a_slow_receiver_stops_the_sender() {
    let (client, mut endpoint, _task, _) = relayed().await;
    let mut sent = 0;
    let block = vec![1; 1 << 20];
    // Without backpressure, this would continue until memory is exhausted.
    let stopped = loop {
        match tokio::time::timeout(Duration::from_secs(2), client.writable()).await {
            Err(_) => break true,
            Ok(ready) => ready.unwrap(),
        }
        if let Ok(length) = client.try_write(&block) {
            sent += length;
        }
        if sent > 256 << 20 {
            break false;
        }
    };
    assert!(stopped, "{sent} bytes were accepted");
    // The connection continues when the receiver does.
    drop(client);
    let mut received = Vec::new();
    endpoint.read_to_end(&mut received).await.unwrap();
    assert_eq!(received.len(), sent);
}

#[tokio::test]
async fn idle_connections_use_no_pipe() {
    let (mut client, mut endpoint, _task, pipes) = relayed().await;
    let mut buffer = [0; 4];
    for _ in 0..3 {
        client.write_all(b"ping").await.unwrap();
        endpoint.read_exact(&mut buffer).await.unwrap();
    }
    // The pipe is put back right after the bytes were passed on.
    while pipes.lock().is_empty() {
        tokio::task::yield_now().await;
    }
    assert_eq!(pipes.lock().len(), 1);
}
