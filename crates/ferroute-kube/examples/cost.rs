//! Measures the cost of following a large cluster: 10,000 Services with 10 endpoints each, or the numbers in the
//! arguments.
//!
//! ```text
//! cargo run --release -p ferroute-kube --example cost -- [SERVICES [ENDPOINTS [stream|pages|whole [protobuf|json]]]]
//! ```
//!
//! The fake API server runs in a separate process, so that the memory is that of the source alone. Events are counted
//! and dropped.

#![expect(clippy::print_stdout, reason = "the program prints its results")]

use std::{
    env, fs, io,
    io::BufRead,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use ferroute_config::{ClientConnectionConfiguration, MediaType};
use ferroute_kube::{
    ApiServer,
    testing::{FakeApiServer, Streaming},
};
use ferroute_source::{Event, Resource};
use serde_json::{Value, json};
use tokio::sync::mpsc;

type Error = Box<dyn std::error::Error>;

fn main() -> Result<(), Error> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let number = |index: usize, default| arguments.get(index).map_or(Ok(default), |text| text.parse());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    if arguments.first().is_some_and(|first| first == "serve") {
        return runtime.block_on(serve(number(1, 0)?, number(2, 0)?, arguments.get(3).map_or("", String::as_str)));
    }
    let (services, endpoints) = (number(0, 10_000)?, number(1, 10)?);
    let mut fake = Fake::start(services, endpoints, arguments.get(2).map_or("stream", String::as_str))?;
    let media_type = match arguments.get(3).map(String::as_str) {
        Some("json") => MediaType::Json,
        _ => MediaType::Protobuf,
    };
    runtime.block_on(measure(&fake.url()?, media_type))
}

/// The fake API server in another process.
struct Fake(Child);

impl Fake {
    fn start(services: usize, endpoints: usize, strategy: &str) -> io::Result<Self> {
        let mut command = Command::new(env::current_exe()?);
        command.args(["serve", &services.to_string(), &endpoints.to_string(), strategy]);
        Ok(Self(command.stdout(Stdio::piped()).spawn()?))
    }

    fn url(&mut self) -> io::Result<String> {
        let mut line = String::new();
        let output = self.0.stdout.as_mut().ok_or(io::ErrorKind::BrokenPipe)?;
        io::BufReader::new(output).read_line(&mut line)?;
        Ok(line.trim().to_owned())
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        // It may have exited already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

async fn serve(services: usize, endpoints: usize, strategy: &str) -> Result<(), Error> {
    let fake = FakeApiServer::start().await;
    for number in 0..services {
        fake.apply(Resource::Services, service(number));
        fake.apply(Resource::EndpointSlices, slice(number, endpoints));
    }
    fake.apply(Resource::Nodes, json!({"metadata": {"name": "node"}}));
    fake.compact();
    fake.behave(|behaviour| {
        behaviour.chunk = 16 << 10;
        behaviour.streaming = if strategy == "stream" { Streaming::Yes } else { Streaming::Rejected };
        behaviour.pages = strategy != "whole";
    });
    println!("{}", fake.url());
    std::future::pending().await
}

/// A Service as an API server returns it, including fields that a proxy does not read.
fn service(number: usize) -> Value {
    let name = format!("service-{number}");
    json!({
        "metadata": {
            "name": name, "namespace": format!("namespace-{}", number / 20), "uid": format!("{number:032x}"),
            "creationTimestamp": "2026-01-01T00:00:00Z", "generation": 1, "labels": {"app": name, "tier": "backend"},
            "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "x".repeat(400)},
            "managedFields": [{"manager": "kubectl", "fieldsV1": {"f:spec": {"f:ports": {"k:{\"port\":80}": {}}}}}],
        },
        "spec": {
            "type": "ClusterIP", "clusterIP": address(10, number), "clusterIPs": [address(10, number)],
            "ipFamilies": ["IPv4"], "selector": {"app": name}, "sessionAffinity": "None",
            "ports": [{"name": "http", "protocol": "TCP", "port": 80, "targetPort": 8080}],
        },
        "status": {"loadBalancer": {}},
    })
}

fn slice(number: usize, endpoints: usize) -> Value {
    let name = format!("service-{number}");
    let endpoint = |index: usize| {
        let index = number * endpoints + index;
        json!({
            "addresses": [address(172, index)], "conditions": {"ready": true, "serving": true, "terminating": false},
            "nodeName": format!("node-{}", index % 500), "zone": "zone-a",
            "targetRef": {"kind": "Pod", "namespace": "default", "name": format!("{name}-{index:010x}"),
                          "uid": format!("{index:032x}")},
        })
    };
    json!({
        "metadata": {
            "name": format!("{name}-abcde"), "namespace": format!("namespace-{}", number / 20),
            "uid": format!("{number:032x}"), "generation": 1,
            "labels": {"app": name, "kubernetes.io/service-name": name,
                       "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io"},
            "ownerReferences": [{"apiVersion": "v1", "kind": "Service", "name": name, "uid": format!("{number:032x}")}],
        },
        "addressType": "IPv4", "ports": [{"name": "http", "protocol": "TCP", "port": 8080}],
        "endpoints": (0..endpoints).map(endpoint).collect::<Vec<_>>(),
    })
}

fn address(first: u8, number: usize) -> String {
    format!("{first}.{}.{}.{}", number >> 16 & 0xff, number >> 8 & 0xff, number & 0xff)
}

async fn measure(url: &str, media_type: MediaType) -> Result<(), Error> {
    println!("before:   {}", memory()?);
    let start = Instant::now();
    let content_type = media_type.as_str().to_owned();
    let connection =
        ClientConnectionConfiguration { qps: 5.0, burst: 10, content_type, ..ClientConnectionConfiguration::default() };
    let source = ApiServer::new(&connection, Some(url), "node").await?;
    let (sender, mut batches) = mpsc::channel(64);
    tokio::spawn(source.follow(sender));
    let (mut objects, mut endpoints, mut synced) = (0, 0, 0);
    while synced < Resource::ALL.len() {
        for event in batches.recv().await.ok_or("the source has ended")? {
            match event {
                Event::SliceApplied(slice) => (objects, endpoints) = (objects + 1, endpoints + slice.endpoints.len()),
                Event::Synced(_) => synced += 1,
                Event::Problem(problem) => println!("problem: {}", problem.text()),
                _ => objects += 1,
            }
        }
    }
    println!("listed:   {}; {objects} objects, {endpoints} endpoints in {:?}", memory()?, start.elapsed());
    println!("CPU time: {:?}", cpu_time()?);
    tokio::time::sleep(Duration::from_millis(500)).await;
    println!("watching: {}", memory()?);
    Ok(())
}

/// Anonymous memory, and the peak of all resident memory.
fn memory() -> io::Result<String> {
    let status = fs::read_to_string("/proc/self/status")?;
    let field = |name| status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default().trim();
    Ok(format!("{} anonymous, {} peak with files", field("RssAnon:"), field("VmHWM:")))
}

fn cpu_time() -> io::Result<Duration> {
    let stat = fs::read_to_string("/proc/self/stat")?;
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace().skip(11).take(2);
    // The unit is 10 ms on all current Linux systems.
    Ok(Duration::from_millis(10 * fields.filter_map(|ticks| ticks.parse::<u64>().ok()).sum::<u64>()))
}
