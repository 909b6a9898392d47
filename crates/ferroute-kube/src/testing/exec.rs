//! Programs in pods, and the objects that a user reads.

use std::{
    fmt,
    io::{Read, Write},
    process::{Command, Stdio},
    sync::Arc,
};

use ferroute_config::MediaType;
use ferroute_source::Resource;
use futures_util::{SinkExt, StreamExt};
use http_body_util::channel::Channel;
use hyper::{Request, Response, StatusCode, body::Incoming, header, upgrade::Upgraded};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{Message, handshake::derive_accept_key, protocol::Role},
};

use super::{
    ServedCluster,
    serve::{FakeResponse, status, whole},
};

/// A request to run a program in a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExecRequest {
    /// The namespace of the pod.
    pub namespace: String,
    /// The name of the pod.
    pub pod: String,
    /// The name of the container.
    pub container: String,
    /// The program and its arguments.
    pub command: Vec<String>,
}

/// The response to an [`ExecRequest`].
#[derive(Debug)]
pub enum ExecResponse {
    /// This program is run on the host of the fake API server.
    Run(Command),
    /// This is printed to standard output, successfully.
    Print(Vec<u8>),
    /// This is printed, then the connection breaks.
    Cut(Vec<u8>),
    /// The stream is opened, and no data follows.
    Hang,
    /// Pings follow, whose answers are not received.
    Pings,
    /// An error status.
    Status(u16),
}

type Respond = dyn Fn(&ExecRequest) -> ExecResponse + Send + Sync;

/// Responds to requests to run a program.
#[derive(Clone)]
pub(super) struct ExecHandler(pub(super) Arc<Respond>);

impl fmt::Debug for ExecHandler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ExecHandler")
    }
}

/// Responds to a request for the pods of a namespace or all of them, or for one of them, for a Service, for the slices of a Service, or for nodes
/// with some labels, or for an object that was set for its path. `None` for any other path.
pub(super) fn read(shared: &ServedCluster, path: &str, query: &str) -> Option<FakeResponse> {
    if let Some(object) = shared.state().user_objects.get(path) {
        return Some(whole(StatusCode::OK, MediaType::Json.as_str(), object.to_string().into()));
    }
    let parts: Vec<&str> = path.trim_start_matches('/').split('/').collect();
    let (namespace, rest) = match parts.as_slice() {
        ["api", "v1", "namespaces", namespace, rest @ ..] => (*namespace, rest),
        ["apis", "discovery.k8s.io", "v1", "namespaces", namespace, rest @ ..] => (*namespace, rest),
        ["api", "v1", "pods"] => ("", &["pods"][..]),
        ["api", "v1", "nodes"] if query.contains("labelSelector=") => ("", &["nodes"][..]),
        _ => return None,
    };
    let state = shared.state();
    let now = state.store.version();
    let is_here = |object: &Value| namespace.is_empty() || object["metadata"]["namespace"] == namespace;
    let has_labels = |object: &Value| {
        form_urlencoded::parse(query.as_bytes()).filter(|(key, _)| key == "labelSelector").all(|(_, selector)| {
            selector
                .split(',')
                .all(|term| term.split_once('=').is_some_and(|(key, value)| object["metadata"]["labels"][key] == value))
        })
    };
    let list = |objects: Vec<Value>| {
        let items: Vec<Value> = objects.into_iter().filter(|object| is_here(object) && has_labels(object)).collect();
        Ok(json!({"metadata": {"resourceVersion": now.to_string()}, "items": items}))
    };
    let of_kind = |resource| state.store.at(now, resource).into_values().map(|object| Value::clone(&object)).collect();
    let named = |objects: Vec<Value>, name: &str| {
        objects.into_iter().find(|object| is_here(object) && object["metadata"]["name"] == name).ok_or(404)
    };
    let outcome = match rest {
        ["pods"] => list(state.pods.clone()),
        ["pods", name] => named(state.pods.clone(), name),
        ["services", name] => named(of_kind(Resource::Services), name),
        ["nodes"] => list(of_kind(Resource::Nodes)),
        ["endpointslices"] => list(of_kind(Resource::EndpointSlices)),
        _ => return None,
    };
    Some(match outcome {
        Ok(object) => whole(StatusCode::OK, MediaType::Json.as_str(), object.to_string().into()),
        Err(code) => status(code, MediaType::Json, None),
    })
}

/// Responds to a request to run a program.
pub(super) fn respond(shared: &ServedCluster, mut request: Request<Incoming>) -> FakeResponse {
    let error = |code| status(code, MediaType::Json, None);
    let Some(handler) = shared.state().exec.clone() else { return error(404) };
    let Some(exec) = parse(&request) else { return error(404) };
    let has_input = request.uri().query().is_some_and(|query| query.contains("stdin=true"));
    let Some(key) = request.headers().get(header::SEC_WEBSOCKET_KEY) else { return error(400) };
    let accept = derive_accept_key(key.as_bytes());
    let response = (handler.0)(&exec);
    if let ExecResponse::Status(code) = response {
        return error(code);
    }
    let upgrade = hyper::upgrade::on(&mut request);
    tokio::spawn(async move {
        let Ok(upgraded) = upgrade.await else { return };
        let stream = WebSocketStream::from_raw_socket(TokioIo::new(upgraded), Role::Server, None).await;
        // A client may give up.
        let _ = match response {
            ExecResponse::Run(command) if has_input => run_with_input(stream, command).await,
            response => run(stream, response).await,
        };
    });
    Response::builder()
        .status(StatusCode::SWITCHING_PROTOCOLS)
        .header(header::UPGRADE, "websocket")
        .header(header::CONNECTION, "Upgrade")
        .header(header::SEC_WEBSOCKET_ACCEPT, accept)
        .header(header::SEC_WEBSOCKET_PROTOCOL, "v5.channel.k8s.io")
        .body(Channel::new(1).1)
        .expect("the headers are valid")
}

fn parse(request: &Request<Incoming>) -> Option<ExecRequest> {
    let path = request.uri().path().strip_prefix("/api/v1/namespaces/")?.strip_suffix("/exec")?;
    let (namespace, pod) = path.split_once("/pods/")?;
    let (mut container, mut command) = (String::new(), Vec::new());
    for (key, value) in form_urlencoded::parse(request.uri().query()?.as_bytes()) {
        match &*key {
            "container" => container = value.into_owned(),
            "command" => command.push(value.into_owned()),
            _ => {}
        }
    }
    Some(ExecRequest { namespace: namespace.to_owned(), pod: pod.to_owned(), container, command })
}

async fn run(
    mut stream: WebSocketStream<TokioIo<Upgraded>>,
    response: ExecResponse,
) -> Result<(), tokio_tungstenite::tungstenite::Error> {
    let message = |stream: u8, bytes: &[u8]| Message::binary([&[stream], bytes].concat());
    // As servers do, to show that the streams are open.
    for channel in [1, 2, 3] {
        stream.send(message(channel, &[])).await?;
    }
    let success = json!({"status": "Success"}).to_string();
    let last = match response {
        ExecResponse::Hang => std::future::pending().await,
        ExecResponse::Pings => loop {
            stream.send(Message::Ping(Vec::new().into())).await?;
        },
        ExecResponse::Status(_) => return Ok(()),
        ExecResponse::Cut(bytes) => {
            stream.send(message(1, &bytes)).await?;
            return Ok(());
        }
        ExecResponse::Print(bytes) => {
            stream.send(message(1, &bytes)).await?;
            success
        }
        ExecResponse::Run(mut command) => {
            let output = ferroute_host::run_blocking("exec", move || command.output()).await;
            let output = output.and_then(|output| output).expect("the program can be started");
            // Real servers send parts of any length.
            for part in output.stdout.chunks(8 << 10) {
                stream.send(message(1, part)).await?;
            }
            stream.send(message(2, &output.stderr)).await?;
            match output.status.code() {
                Some(0) => success,
                code => {
                    let code = code.unwrap_or(137).to_string();
                    let causes = json!([{"reason": "ExitCode", "message": code}]);
                    let message = format!("command terminated with non-zero exit code: exit code {code}");
                    let details = json!({"causes": causes});
                    json!({"status": "Failure", "reason": "NonZeroExitCode", "message": message, "details": details})
                        .to_string()
                }
            }
        }
    };
    stream.send(message(3, last.as_bytes())).await?;
    stream.close(None).await
}

/// Runs a program with the client's input. The program ends the connection, once the client has closed its side.
#[expect(clippy::zombie_processes, reason = "only a connection that breaks leaves one, and the test fails then")]
async fn run_with_input(
    mut stream: WebSocketStream<TokioIo<Upgraded>>,
    mut command: Command,
) -> Result<(), tokio_tungstenite::tungstenite::Error> {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("the program can be started");
    let (mut input, mut output) = (child.stdin.take().expect("a pipe"), child.stdout.take().expect("a pipe"));
    let (sender, mut received) = tokio::sync::mpsc::channel::<Vec<u8>>(16);
    std::thread::spawn(move || {
        let mut buffer = [0; 8 << 10];
        while let Ok(length @ 1..) = output.read(&mut buffer) {
            if sender.blocking_send(buffer[..length].to_vec()).is_err() {
                break;
            }
        }
    });
    let status = loop {
        tokio::select! {
            part = received.recv() => match part {
                Some(part) => stream.send(Message::binary([&[1], &part[..]].concat())).await?,
                None => break json!({"status": "Success"}).to_string(),
            },
            message = stream.next() => match message {
                Some(Ok(Message::Binary(bytes))) => {
                    if let Some((0, text)) = bytes.split_first() {
                        // A program that has ended does not read.
                        let _ = input.write_all(text);
                    }
                }
                Some(Ok(Message::Close(_)) | Err(_)) | None => {
                    drop(input);
                    std::thread::spawn(move || child.wait());
                    return Ok(());
                }
                Some(Ok(_)) => {}
            },
        }
    };
    std::thread::spawn(move || child.wait());
    stream.send(Message::binary([&[3], status.as_bytes()].concat())).await?;
    stream.close(None).await
}
