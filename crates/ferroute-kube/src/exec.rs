//! Execution of programs in pods, by the protocol of `kubectl exec`: WebSocket messages whose first byte is the number
//! of a stream.
//!
//! | stream | contents |
//! | --- | --- |
//! | 0 | standard input |
//! | 1 | standard output |
//! | 2 | standard error |
//! | 3 | at the end, a `Status` with the exit status |
//! | 255 | the number of a stream that has ended (v5) |

use std::{
    fmt::Write as _,
    time::{Duration, Instant},
};

use ferroute_core::TokenBucket;
use futures_util::{Sink, SinkExt, Stream, StreamExt};
use http::{Request, header};
use serde::Deserialize;
use tokio::{sync::mpsc, time::timeout};
use tokio_tungstenite::tungstenite::{self, Message};

use crate::{Cluster, ClusterError, api_client::USER_AGENT};

/// The messages of all streams, in both directions.
trait Messages:
    Stream<Item = Result<Message, tungstenite::Error>> + Sink<Message, Error = tungstenite::Error> + Unpin
{
}

impl<T> Messages for T where
    T: Stream<Item = Result<Message, tungstenite::Error>> + Sink<Message, Error = tungstenite::Error> + Unpin
{
}

/// A container of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodContainer {
    /// The namespace of the pod.
    pub namespace: String,
    /// The name of the pod.
    pub pod: String,
    /// The name of the container.
    pub container: String,
}

/// Output of a program in a pod, and its result.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExecOutput {
    /// The exit status.
    pub status: i32,
    /// Standard output.
    pub stdout: Vec<u8>,
    /// Standard error.
    pub stderr: Vec<u8>,
}

/// Limits for a program until it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExecLimits {
    /// The time.
    pub time: Duration,
    /// The length of its output in bytes.
    pub output: usize,
}

/// Part of the `Status` object in the last message.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ExecStatus {
    status: String,
    message: String,
    reason: String,
    details: Option<Details>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Details {
    causes: Vec<DetailCause>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct DetailCause {
    reason: String,
    message: String,
}

impl Cluster {
    /// Runs a program in a container, without standard input.
    ///
    /// # Errors
    ///
    /// The program cannot be started, its output is too long, or it does not end in time.
    pub async fn exec(
        &self,
        container: &PodContainer,
        command: &[String],
        limits: ExecLimits,
    ) -> Result<ExecOutput, ClusterError> {
        let pod = format!("{}/{}", container.namespace, container.pod);
        match timeout(limits.time, self.exec_untimed(container, &pod, command, limits.output)).await {
            Ok(result) => result,
            Err(_) => Err(ClusterError::Late { pod, waited: limits.time }),
        }
    }

    /// Runs a program in a container, without standard input, until it ends or the receiver of `lines` is dropped. Each
    /// line of its standard output is sent to `lines` as it arrives; the result has the other output. The limits apply
    /// to the time until it has started, to each line and to the other output.
    ///
    /// # Errors
    ///
    /// The program cannot be started, or its lines or its other output are too long.
    pub async fn exec_lines(
        &self,
        container: &PodContainer,
        command: &[String],
        limits: ExecLimits,
        lines: mpsc::Sender<Vec<u8>>,
    ) -> Result<ExecOutput, ClusterError> {
        let pod = format!("{}/{}", container.namespace, container.pod);
        let messages = match timeout(limits.time, self.start(container, &pod, command)).await {
            Ok(messages) => messages?,
            Err(_) => return Err(ClusterError::Late { pod, waited: limits.time }),
        };
        Self::receive(messages, &pod, limits.output, Some(lines)).await
    }

    /// Like [`exec_lines`](Self::exec_lines), with `input` as the program's standard input, at whose end the connection is closed.
    ///
    /// # Errors
    ///
    /// The program cannot be started, or its lines or its other output are too long.
    pub async fn exec_session(
        &self,
        container: &PodContainer,
        command: &[String],
        limits: ExecLimits,
        mut input: mpsc::Receiver<Vec<u8>>,
        lines: mpsc::Sender<Vec<u8>>,
    ) -> Result<ExecOutput, ClusterError> {
        let pod = format!("{}/{}", container.namespace, container.pod);
        let path = format!("{}&stdin=true", path(container, command));
        let messages = match timeout(limits.time, self.start_at(&path, &pod)).await {
            Ok(messages) => messages?,
            Err(_) => return Err(ClusterError::Late { pod, waited: limits.time }),
        };
        let (mut sink, messages) = messages.split();
        let send = async {
            while let Some(bytes) = input.recv().await {
                // The other direction reports why the connection is closed.
                if sink.send(Message::binary([&[STDIN], &bytes[..]].concat())).await.is_err() {
                    return std::future::pending().await;
                }
            }
        };
        tokio::select! {
            output = Self::receive(messages, &pod, limits.output, Some(lines)) => output,
            () = send => Ok(ExecOutput::default()),
        }
    }

    async fn exec_untimed(
        &self,
        container: &PodContainer,
        pod: &str,
        command: &[String],
        max_output: usize,
    ) -> Result<ExecOutput, ClusterError> {
        let messages = self.start(container, pod, command).await?;
        Self::receive(messages, pod, max_output, None).await
    }

    /// Starts a program, and returns the messages of its streams.
    async fn start(
        &self,
        container: &PodContainer,
        pod: &str,
        command: &[String],
    ) -> Result<impl Messages + use<>, ClusterError> {
        self.start_at(&path(container, command), pod).await
    }

    async fn start_at(&self, path: &str, pod: &str) -> Result<impl Messages + use<>, ClusterError> {
        let fail = |cause: String| ClusterError::Exec { pod: pod.to_owned(), cause };
        let connection = self.client.connection().await?.0;
        let mut request = Request::get(path).header(header::USER_AGENT, USER_AGENT);
        if let Some(authorization) = connection.authorization()? {
            request = request.header(header::AUTHORIZATION, authorization);
        }
        let request = request.body(Vec::new()).map_err(|error| fail(error.to_string()))?;
        let stream = connection.client.connect(request).await.map_err(|error| match error {
            kube_client::Error::Api(status) => fail(status.message.clone()),
            error => fail(error.to_string()),
        })?;
        Ok(stream.into_stream())
    }

    /// Receives the streams of a program until it ends. The lines of standard output are sent to `lines` if there is such a channel.
    async fn receive(
        mut messages: impl Stream<Item = Result<Message, tungstenite::Error>> + Unpin,
        pod: &str,
        max_output: usize,
        lines: Option<mpsc::Sender<Vec<u8>>>,
    ) -> Result<ExecOutput, ClusterError> {
        let fail = |cause: String| ClusterError::Exec { pod: pod.to_owned(), cause };
        let mut output = ExecOutput::default();
        let mut pings = TokenBucket::new(PING_INTERVAL, PING_BURST, Instant::now());
        while let Some(message) = messages.next().await {
            let bytes = match message.map_err(|error| fail(error.to_string()))? {
                Message::Binary(bytes) => bytes,
                // Each ping is answered, and the answers stay in memory until the peer receives them.
                Message::Ping(_) => {
                    let now = Instant::now();
                    if pings.take(now) > now {
                        return Err(fail("the peer sends too many pings".to_owned()));
                    }
                    continue;
                }
                _ => continue,
            };
            let Some((stream, bytes)) = bytes.split_first() else { continue };
            match *stream {
                STDOUT => {
                    output.stdout.extend_from_slice(bytes);
                    if let Some(lines) = &lines {
                        for line in take_lines(&mut output.stdout) {
                            if lines.send(line).await.is_err() {
                                return Ok(output);
                            }
                        }
                    }
                }
                STDERR => output.stderr.extend_from_slice(bytes),
                // Servers may open a stream by an empty message.
                STATUS if !bytes.is_empty() => {
                    output.status = exit_status(bytes).map_err(fail)?;
                    // The server closes the connection itself; there is no need to wait for it.
                    return Ok(output);
                }
                _ => {}
            }
            if output.stdout.len() + output.stderr.len() > max_output {
                return Err(fail(format!("the output is longer than {max_output} bytes")));
            }
        }
        Err(fail("the connection was closed before the program ended".to_owned()))
    }
}

/// Removes all complete lines from `bytes`, and returns them without their ends.
fn take_lines(bytes: &mut Vec<u8>) -> Vec<Vec<u8>> {
    let complete = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
    let rest = bytes.split_off(complete);
    let text = std::mem::replace(bytes, rest);
    let lines = text.split_inclusive(|byte| *byte == b'\n');
    lines.map(|line| line.strip_suffix(b"\n").unwrap_or(line).to_vec()).collect()
}

fn path(container: &PodContainer, command: &[String]) -> String {
    let PodContainer { namespace, pod, container } = container;
    let encode = |text: &str| form_urlencoded::byte_serialize(text.as_bytes()).collect::<String>();
    let mut path =
        format!("/api/v1/namespaces/{}/pods/{}/exec?stdout=true&stderr=true", encode(namespace), encode(pod));
    for (key, value) in [("container", container)].into_iter().chain(command.iter().map(|word| ("command", word))) {
        write!(path, "&{key}={}", encode(value)).expect("strings accept everything");
    }
    path
}

/// Returns the exit status in the last message, or the reason why there is none.
fn exit_status(bytes: &[u8]) -> Result<i32, String> {
    let status: ExecStatus = serde_json::from_slice(bytes).map_err(|error| format!("invalid status: {error}"))?;
    if status.status == "Success" {
        return Ok(0);
    }
    let causes = status.details.unwrap_or_default().causes;
    let code = causes.iter().find(|cause| cause.reason == "ExitCode").and_then(|cause| cause.message.parse().ok());
    match code {
        Some(code) if status.reason == "NonZeroExitCode" => Ok(code),
        _ => Err(status.message),
    }
}

const STDIN: u8 = 0;
const STDOUT: u8 = 1;
const STDERR: u8 = 2;
const STATUS: u8 = 3;

/// Peers send a ping every few seconds, to keep the connection open.
const PING_INTERVAL: Duration = Duration::from_millis(100);
const PING_BURST: u32 = 100;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_the_command_are_encoded_in_the_path() {
        let container =
            PodContainer { namespace: "kube-system".into(), pod: "ferroute-x".into(), container: "ferroute".into() };
        let command = ["ferroute", "trace", "--to=a/b:80 & c"].map(str::to_owned);
        assert_eq!(
            path(&container, &command),
            "/api/v1/namespaces/kube-system/pods/ferroute-x/exec?stdout=true&stderr=true&container=ferroute\
             &command=ferroute&command=trace&command=--to%3Da%2Fb%3A80+%26+c"
        );
    }

    #[test]
    fn lines_are_complete_whatever_the_messages() {
        let mut bytes = b"a\nb".to_vec();
        assert_eq!(take_lines(&mut bytes), [b"a"]);
        bytes.extend_from_slice(b"c");
        assert_eq!(take_lines(&mut bytes), [b""; 0]);
        bytes.extend_from_slice(b"\n\nd\n");
        assert_eq!(take_lines(&mut bytes), [&b"bc"[..], b"", b"d"]);
        assert_eq!(bytes, b"");
    }

    #[test]
    fn last_message_has_the_exit_status() {
        assert_eq!(exit_status(br#"{"status": "Success"}"#), Ok(0));
        let failed = r#"{"status": "Failure", "reason": "NonZeroExitCode", "message": "exit code 2",
            "details": {"causes": [{"reason": "ExitCode", "message": "2"}]}}"#;
        assert_eq!(exit_status(failed.as_bytes()), Ok(2));
        let not_started = r#"{"status": "Failure", "reason": "InternalError", "message": "executable not found"}"#;
        assert_eq!(exit_status(not_started.as_bytes()), Err("executable not found".to_owned()));
        assert!(exit_status(b"<html>").is_err());
    }
}
