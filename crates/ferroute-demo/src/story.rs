//! The demo that plays itself: brings the cluster up, uses every Service from a pod, from the node and from outside, and
//! shows what happened.

mod flows;
mod measure;
mod report;

use std::{
    io::{self, Write},
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    process::ExitCode,
    time::Instant,
};

use anyhow::Context;
use ferroute_core::Protocol;
use flows::{Client, Flow};

use crate::{
    keeper::Task,
    layout::{BRIDGE, NodeId},
    net::Namespace,
    overview,
    session::Session,
    state::{Run, StateDirectory, Status},
    text::Style,
};

/// One connection, as the node that a client's packets reach first sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowSpec {
    /// That node.
    pub node: NodeId,
    /// The device that packets come in by; `None` for those that the node itself sends.
    pub input: Option<&'static str>,
    /// TCP or UDP.
    pub protocol: Protocol,
    /// The client's address.
    pub source: IpAddr,
    /// What it calls.
    pub destination: SocketAddr,
    /// The manifests that the node's proxy reads: a directory.
    pub manifests: PathBuf,
    /// The configuration of the node's proxy.
    pub config: PathBuf,
}

/// Knows the rules, and so which way a connection takes through them.
pub trait PathTeller {
    /// The way, line by line, each for people to read.
    ///
    /// # Errors
    ///
    /// When the rules cannot be found out, or lead nowhere.
    fn tell(&self, flow: &FlowSpec) -> anyhow::Result<Vec<String>>;
}

/// Plays the story; fails when a connection did not end where it may.
pub(crate) fn play(
    task: &Task,
    connections: usize,
    teller: &dyn PathTeller,
    style: Style,
    out: &mut impl Write,
) -> anyhow::Result<ExitCode> {
    let started = Instant::now();
    writeln!(out, "{}", style.bold("Ferroute demo: a small cluster on this machine"))?;
    let session = Session::start(task, |step| _ = writeln!(io::stderr(), "{}", style.dim(&format!("… {step}"))))?;
    let status = StateDirectory::of(&task.instance).read_status()?;
    write!(out, "\n{}", report::cluster(&status, style))?;
    writeln!(out, "{}\n", style.dim(&format!("up after {:.1} s", started.elapsed().as_secs_f64())))?;

    let mut problems = down(&status);
    let mut total = 0;
    for service in &status.plan.services {
        let flows = flows::flows_of(&status.plan, service);
        if flows.is_empty() {
            continue;
        }
        write!(out, "{}", report::service(service, style))?;
        for flow in flows {
            let machine = Namespace::named(task.instance.namespace(flow.client.name()));
            let tally = measure::measure(&machine, &flow, connections.max(flows::enough_for(flow.pods.len())))?;
            let told = teller.tell(&spec(task, &flow)).context("cannot tell the way through the rules");
            session.wait_if_interrupted();
            let found = report::problems(&flow, &tally);
            total += tally.tried;
            write!(out, "{}", report::flow(&flow, &tally, &status.plan, &found, style))?;
            match told {
                Ok(lines) => write!(out, "{}", report::way(&lines, style))?,
                Err(error) => problems.push(format!("{error:#}")),
            }
            writeln!(out)?;
            out.flush()?;
            problems.extend(found.into_iter().map(|problem| format!("{}: {problem}", report::title(&flow))));
        }
    }
    let stopping = Instant::now();
    drop(session);
    write!(out, "{}", report::end(total, &problems, stopping.elapsed(), style))?;
    writeln!(
        out,
        "\nTo keep such a cluster and play with it:\n  ferroute demo up [FILE.yaml]\n{}",
        overview::hints(&status.plan)
    )?;
    Ok(if problems.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn spec(task: &Task, flow: &Flow) -> FlowSpec {
    let directory = StateDirectory::of(&task.instance);
    FlowSpec {
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

/// Pods that did not start.
fn down(status: &Status) -> Vec<String> {
    let problem = |(name, run): (&String, &Run)| match run {
        Run::Running { .. } => None,
        Run::Down { reason } => Some(format!("pod {name}: {reason}")),
    };
    status.pods.iter().filter_map(problem).collect()
}

#[cfg(test)]
mod tests;
