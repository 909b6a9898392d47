//! The sources of objects.

use std::{
    io::{BufRead, BufReader, Write},
    process::{Child, ChildStdin, Command, Stdio},
};

use ferroute_kube::testing::FakeApiServer;
use ferroute_source::Resource;
use ferroute_testing::NetNs;
use serde::Serialize;
use serde_json::json;
use tempfile::TempDir;

use super::common::{
    cluster::{self, NODE, NODE_IP, Size},
    manifests::{Format, Manifests},
};

/// A source of a cluster, in which single endpoints can be replaced.
pub(crate) enum Source {
    /// Manifests on disk.
    Manifests { directory: TempDir, manifests: Manifests },
    /// A fake API server in a separate process.
    ApiServer { child: Child, input: ChildStdin, url: String },
}

impl Source {
    /// Writes manifests of a cluster of this size.
    pub(crate) fn manifests(format: Format, size: Size) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let manifests = Manifests::write(directory.path().to_owned(), format, size).unwrap();
        Self::Manifests { directory, manifests }
    }

    /// Starts an API server in a namespace, with a cluster of this size.
    pub(crate) fn api_server(namespace: &NetNs, size: Size) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args([SERVE, &size.services.to_string(), &size.endpoints.to_string()]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = namespace.run(|| command.spawn().unwrap());
        let mut url = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut url).unwrap();
        let input = child.stdin.take().unwrap();
        Self::ApiServer { child, input, url: url.trim().to_owned() }
    }

    /// Returns the name of this kind of source.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Manifests { .. } => "manifests",
            Self::ApiServer { .. } => "api",
        }
    }

    /// Returns the arguments that select this source.
    pub(crate) fn arguments(&self) -> [String; 2] {
        match self {
            Self::Manifests { directory, .. } => ["--manifests".into(), directory.path().to_str().unwrap().into()],
            Self::ApiServer { url, .. } => ["--master".into(), url.clone()],
        }
    }

    /// Prepares a change of a Service's endpoints, which the returned function makes.
    pub(crate) fn prepare_change(&mut self, number: u32, round: u32) -> Box<dyn FnOnce() + '_> {
        match self {
            Self::Manifests { manifests, .. } => {
                let prepared = manifests.prepare_change(number, round).unwrap();
                Box::new(|| prepared.commit().unwrap())
            }
            Self::ApiServer { input, .. } => Box::new(move || writeln!(input, "{number} {round}").unwrap()),
        }
    }
}

impl Drop for Source {
    fn drop(&mut self) {
        if let Self::ApiServer { child, .. } = self {
            // It may have exited already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Runs the API server if this process was started for it. In this case it does not return.
pub(crate) fn serve_if_requested() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [command, services, endpoints] = &arguments[..] else { return };
    if command == SERVE {
        let size = Size::new(services.parse().unwrap(), endpoints.parse().unwrap());
        tokio::runtime::Runtime::new().unwrap().block_on(serve(size));
    }
}

async fn serve(size: Size) {
    let server = FakeApiServer::start().await;
    let addresses = json!([{"type": "InternalIP", "address": NODE_IP}]);
    server.apply(Resource::Nodes, json!({"metadata": {"name": NODE}, "status": {"addresses": addresses}}));
    for number in 0..size.services {
        server.apply(Resource::Services, value(&cluster::service(number)));
        server.apply(Resource::EndpointSlices, value(&cluster::slice(size, number)));
    }
    server.compact();
    println!("{}", server.url());
    let changes = tokio::task::spawn_blocking(move || {
        for line in std::io::stdin().lines() {
            let line = line.unwrap();
            let (number, round) = line.split_once(' ').unwrap();
            let slice = cluster::changed_slice(size, number.parse().unwrap(), round.parse().unwrap());
            server.apply(Resource::EndpointSlices, value(&slice));
        }
    });
    changes.await.unwrap();
}

fn value(object: &impl Serialize) -> serde_json::Value {
    serde_json::to_value(object).unwrap()
}

const SERVE: &str = "--serve";
