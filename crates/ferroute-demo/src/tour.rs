//! The guided tour: creates the cluster, connects to every Service from a pod, from a node and from outside, and shows the
//! results.

mod flows;
pub(crate) mod measure;
mod report;

use std::{
    io::Write,
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    process::ExitCode,
    time::Instant,
};

use anyhow::Context;
use ferroute_core::{Protocol, Style};
use flows::{Client, Flow};

use crate::{
    command::print_step,
    layout::{BRIDGE, NodeId},
    net::Namespace,
    overview,
    session::Session,
    state::{ProcessState, StateDirectory, Status},
    supervisor::ClusterSpec,
};

/// A connection, as seen by the first node on its path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connection {
    /// The node.
    pub node: NodeId,
    /// The node's input interface; `None` for connections from the node itself.
    pub input: Option<&'static str>,
    /// TCP or UDP.
    pub protocol: Protocol,
    /// The client's address.
    pub source: IpAddr,
    /// The destination address and port.
    pub destination: SocketAddr,
    /// The directory of the manifests that the node's proxy reads.
    pub manifests: PathBuf,
    /// The configuration file of the node's proxy.
    pub config: PathBuf,
}

/// Describes the path of a connection through the rules, as lines of text.
pub type TracePath<'a> = &'a dyn Fn(&Connection) -> anyhow::Result<Vec<String>>;

/// Runs the tour. The exit code is a failure if a connection did not end as expected.
pub(crate) fn run(
    spec: &ClusterSpec,
    connections: usize,
    trace_path: TracePath<'_>,
    style: Style,
    out: &mut impl Write,
) -> anyhow::Result<ExitCode> {
    let started = Instant::now();
    writeln!(out, "{}", style.bold("Ferroute demo: a small cluster on this machine"))?;
    let session = Session::start(spec, |step| print_step(step, style))?;
    let status = StateDirectory::new(&spec.instance).read_status()?;
    write!(out, "\n{}", report::cluster(&status, style))?;
    writeln!(out, "{}\n", style.dim(&format!("cluster ready after {:.1} s", started.elapsed().as_secs_f64())))?;

    let mut problems = failed_pods(&status);
    let mut total = 0;
    for service in &status.plan.services {
        let flows = flows::service_flows(&status.plan, service);
        if flows.is_empty() {
            continue;
        }
        write!(out, "{}", report::service(service, style))?;
        for flow in flows {
            let machine = Namespace::named(spec.instance.namespace(flow.client.name()));
            let count = connections.max(flows::required_connections(flow.pods.len()));
            let tally = measure::measure(&machine, flow.destination, flow.protocol, count)?;
            let path = trace_path(&connection(spec, &flow)).context("cannot trace the path through the rules");
            session.wait_if_interrupted();
            let flow_problems = report::problems(&flow, &tally);
            total += tally.total;
            write!(out, "{}", report::flow(&flow, &tally, &status.plan, &flow_problems, style))?;
            match path {
                Ok(lines) => write!(out, "{}", report::path(&lines, style))?,
                Err(error) => problems.push(format!("{error:#}")),
            }
            writeln!(out)?;
            out.flush()?;
            problems.extend(flow_problems.into_iter().map(|problem| format!("{}: {problem}", report::title(&flow))));
        }
    }
    let stopping = Instant::now();
    drop(session);
    write!(out, "{}", report::summary(total, &problems, stopping.elapsed(), style))?;
    writeln!(
        out,
        "\nTo create a cluster that keeps running:\n  ferroute demo up [FILE.yaml]\n{}",
        overview::hints(&status.plan)
    )?;
    Ok(if problems.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn connection(spec: &ClusterSpec, flow: &Flow) -> Connection {
    let directory = StateDirectory::new(&spec.instance);
    Connection {
        node: NodeId::Node,
        input: match flow.client {
            Client::Pod(_) => Some(BRIDGE),
            Client::Node => None,
            Client::Outside => Some("eth0"),
        },
        protocol: flow.protocol,
        source: flow.source,
        destination: flow.destination,
        manifests: directory.manifests(),
        config: directory.proxy_config(NodeId::Node),
    }
}

/// Describes the pods that did not start.
fn failed_pods(status: &Status) -> Vec<String> {
    let problem = |(name, run): (&String, &ProcessState)| match run {
        ProcessState::Running { .. } => None,
        ProcessState::Down { reason } => Some(format!("pod {name}: {reason}")),
    };
    status.pods.iter().filter_map(problem).collect()
}

#[cfg(test)]
mod tests;
