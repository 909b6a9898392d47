//! Programs in pods, by the protocol of `kubectl exec`: WebSocket messages whose first byte is the number of a stream.
//!
//! | stream | contents |
//! | --- | --- |
//! | 1 | standard output |
//! | 2 | standard error |
//! | 3 | at the end, a `Status` with the exit status |
//! | 255 | the number of a stream that has ended (v5) |

use std::{fmt::Write as _, time::Duration};

use futures_util::StreamExt;
use http::{Request, header};
use serde::Deserialize;
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::Message;

use crate::{Cluster, ClusterError, api_client::USER_AGENT};

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

/// What a program in a pod has printed, and how it has ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExecOutput {
    /// The exit status.
    pub status: i32,
    /// Standard output.
    pub stdout: Vec<u8>,
    /// Standard error.
    pub stderr: Vec<u8>,
}

/// The part of a `Status` object that the last message has.
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
    /// Runs a program in a container, without standard input, for at most `limit`.
    ///
    /// # Errors
    ///
    /// The program cannot be started, its output is too long, or it does not end in time.
    pub async fn exec(
        &self,
        container: &PodContainer,
        command: &[String],
        limit: Duration,
    ) -> Result<ExecOutput, ClusterError> {
        let pod = format!("{}/{}", container.namespace, container.pod);
        match timeout(limit, self.exec_unlimited(container, &pod, command)).await {
            Ok(result) => result,
            Err(_) => Err(ClusterError::Late { pod, waited: limit }),
        }
    }

    async fn exec_unlimited(
        &self,
        container: &PodContainer,
        pod: &str,
        command: &[String],
    ) -> Result<ExecOutput, ClusterError> {
        let fail = |cause: String| ClusterError::Exec { pod: pod.to_owned(), cause };
        let connection = self.client.connection().await?.0;
        let mut request = Request::get(path(container, command)).header(header::USER_AGENT, USER_AGENT);
        if let Some(token) = connection.authorization()? {
            request = request.header(header::AUTHORIZATION, token);
        }
        let request = request.body(Vec::new()).map_err(|error| fail(error.to_string()))?;
        let stream = connection.client.connect(request).await.map_err(|error| match error {
            kube_client::Error::Api(status) => fail(status.message.clone()),
            error => fail(error.to_string()),
        })?;
        let mut messages = stream.into_stream();
        let mut output = ExecOutput::default();
        while let Some(message) = messages.next().await {
            let Message::Binary(bytes) = message.map_err(|error| fail(error.to_string()))? else { continue };
            let Some((stream, bytes)) = bytes.split_first() else { continue };
            match *stream {
                STDOUT => output.stdout.extend_from_slice(bytes),
                STDERR => output.stderr.extend_from_slice(bytes),
                // Servers may open a stream by an empty message.
                STATUS if !bytes.is_empty() => {
                    output.status = exit_status(bytes).map_err(fail)?;
                    // The server closes the connection itself, but there is nothing to wait for.
                    return Ok(output);
                }
                _ => {}
            }
            if output.stdout.len() + output.stderr.len() > MAX_OUTPUT {
                return Err(fail(format!("the output is longer than {MAX_OUTPUT} bytes")));
            }
        }
        Err(fail("the connection was closed before the program ended".to_owned()))
    }
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

/// Returns the exit status in the last message, or why there is none.
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

const STDOUT: u8 = 1;
const STDERR: u8 = 2;
const STATUS: u8 = 3;

/// The maximum length of a program's output in bytes: several times the bundle of a large cluster.
const MAX_OUTPUT: usize = 256 << 20;

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
