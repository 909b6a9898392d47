//! Commands on all nodes, and their answers.

use std::{fmt, sync::Arc, time::Duration};

use ferroute_core::{Escaped, EscapedLines};
use ferroute_inspect::report::Versioned;
use ferroute_kube::{Cluster, ExecLimits, ExecOutput};
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::{sync::Semaphore, task::JoinSet};

use crate::NodeProxy;

/// Settings for queries of the nodes of a cluster.
#[derive(Clone, Debug)]
pub struct Fleet {
    /// The API server.
    pub cluster: Cluster,
    /// The number of nodes to query at a time.
    pub parallel: usize,
    /// Maximum duration of a command on a node.
    pub limit: Duration,
}

/// The answer of one node.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeAnswer<T> {
    /// The node and its proxy.
    pub proxy: NodeProxy,
    /// The answer, or the reason why there is none.
    pub result: Result<T, String>,
}

impl Fleet {
    /// Queries all nodes, a limited number at a time. Returns the answers in the order of `proxies`.
    pub async fn ask<T, F>(&self, proxies: &[NodeProxy], ask: impl Fn(Self, NodeProxy) -> F) -> Vec<NodeAnswer<T>>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, String>> + Send + 'static,
    {
        let permits = Arc::new(Semaphore::new(self.parallel.max(1)));
        let mut tasks = JoinSet::new();
        for (index, proxy) in proxies.iter().enumerate() {
            let (permits, proxy) = (permits.clone(), proxy.clone());
            let answer = ask(self.clone(), proxy.clone());
            tasks.spawn(async move {
                // Closed never.
                let _permit = permits.acquire().await;
                let result = match proxy.problem.clone() {
                    Some(problem) => Err(problem),
                    None => answer.await.map_err(|error| proxy.failure(error)),
                };
                (index, NodeAnswer { proxy, result })
            });
        }
        let mut answers = tasks.join_all().await;
        answers.sort_by_key(|(index, _)| *index);
        answers.into_iter().map(|(_, answer)| answer).collect()
    }

    /// Runs `ferroute` on a node, where commands without flags refer to the proxy that runs there.
    ///
    /// # Errors
    /// If the command cannot be run, or does not end in time.
    pub async fn run(&self, proxy: &NodeProxy, arguments: &[&str]) -> Result<ExecOutput, String> {
        self.run_limited(proxy, arguments, MAX_ANSWER).await
    }

    /// Like [`run`](Self::run), with an answer of this many bytes at most.
    pub(crate) async fn run_limited(
        &self,
        proxy: &NodeProxy,
        arguments: &[&str],
        max_output: usize,
    ) -> Result<ExecOutput, String> {
        let command: Vec<String> = ["ferroute"].iter().chain(arguments).map(|word| (*word).to_owned()).collect();
        let limits = ExecLimits { time: self.limit, output: max_output };
        let output = self.cluster.exec(&proxy.container, &command, limits).await;
        output.map_err(|error| ferroute_core::error_chain(&error))
    }
}

/// Returns standard output if the command has an answer. Its exit status shows this, including for answers like "no".
pub(crate) fn answered(output: ExecOutput, statuses: &[i32]) -> Result<Vec<u8>, String> {
    if statuses.contains(&output.status) {
        return Ok(output.stdout);
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    let last = stderr.lines().rev().find(|line| !line.trim().is_empty());
    Err(match last {
        Some(line) => format!("ferroute exited with status {}: {}", output.status, line.trim()),
        None => format!("ferroute exited with status {}", output.status),
    })
}

/// Runs a command whose exit status is an answer: 0, or 1 or 2 for "no" and "maybe". Returns its output, as JSON or
/// text, and the exit status.
///
/// # Errors
/// If there is no answer.
pub(crate) async fn ask_command(
    fleet: &Fleet,
    proxy: &NodeProxy,
    arguments: &[&str],
    json: bool,
) -> Result<(Value, i32), String> {
    let format: &[&str] = if json { &["-o", "json"] } else { &[] };
    let output = fleet.run(proxy, &[arguments, format].concat()).await?;
    // Without any output, the exit status is that of an error.
    let statuses: &[i32] = if output.stdout.is_empty() { &[0] } else { &[0, 1, 2] };
    let status = output.status;
    let text = answered(output, statuses)?;
    let value = if json {
        serde_json::from_slice(&text).map_err(|error| format!("invalid answer of the node: {error}"))?
    } else {
        Value::String(String::from_utf8_lossy(&text).into_owned())
    };
    Ok((value, status))
}

/// Writes the output of a command on a node, or the reason why there is no answer.
pub(crate) fn write_printed_into(
    out: &mut impl fmt::Write,
    printed: Option<&Value>,
    error: Option<&str>,
) -> fmt::Result {
    match printed {
        Some(Value::String(text)) => write!(out, "{}", EscapedLines(text)),
        Some(value) => writeln!(out, "{value}"),
        None => writeln!(out, "no answer: {}", Escaped(error.unwrap_or_default())),
    }
}

/// Decodes a report. A version that this program does not read is an error.
pub(crate) fn decode<T: DeserializeOwned>(text: &[u8]) -> Result<T, String> {
    let versioned = serde_json::from_slice::<Versioned<T>>(text);
    versioned.map(|versioned| versioned.report).map_err(|error| format!("invalid answer of the node: {error}"))
}

/// Maximum length of an answer in bytes. As a value, JSON takes about 14 times as much memory.
pub(crate) const MAX_ANSWER: usize = 16 << 20;
