//! `kubectl ferroute flows`: the connections through Services of all nodes.

use std::{
    collections::BTreeMap,
    io::{self, BufWriter, ErrorKind, StdoutLock, Write},
};

use clap::Args;
use ferroute_core::Escaped;
use ferroute_inspect::{
    flows::{Flow, FlowEvent, FlowFilter, FlowSummary, FlowTable, Labels, write_losses_into},
    report::Versioned,
};
use ferroute_kubectl::{flows, pod_labels};
use serde::Serialize;

use super::{Target, write_failures_into};
use crate::commands::{Output, SelectArgs};

/// Arguments of `kubectl ferroute flows`.
#[derive(Args, Debug)]
pub(super) struct FlowsArgs {
    /// Which flows are shown.
    #[command(flatten)]
    select: SelectArgs,
    /// Output format; json prints one object per line
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value_t)]
    output: Output,
}

/// An event of one node.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct NodeEvent<'a> {
    /// The node; `None` for all of them together.
    #[serde(skip_serializing_if = "Option::is_none")]
    node: Option<&'a str>,
    #[serde(flatten)]
    event: &'a FlowEvent,
}

/// The nodes that give no answer.
#[derive(Serialize)]
struct Failures<'a> {
    failures: &'a BTreeMap<String, String>,
}

/// Prints flows until all nodes have ended. Reports whether all of them have answered.
pub(super) async fn run(target: &Target, args: &FlowsArgs) -> anyhow::Result<bool> {
    let arguments = arguments(&args.select, &target.namespace)?;
    let (labels, error) = pod_labels(&target.fleet).await;
    if let Some(error) = error {
        tracing::warn!("pods that are not endpoints have no names: {error:#}");
    }
    let proxies = target.proxies().await?;
    let is_endless = args.select.is_endless();
    let mut printer = Printer {
        out: BufWriter::new(io::stdout().lock()),
        output: args.output,
        filter: args.select.filter(),
        labels,
        table: FlowTable::new(true),
        last: args.select.last.filter(|_| !args.select.follow).map(|_| Vec::new()),
        summaries: Vec::new(),
    };
    printer.start(args.select.summary)?;
    let failures = flows(&target.fleet, &proxies, &arguments, is_endless, |node, event| printer.add(node, event)).await;
    let result = match failures {
        Ok(failures) => printer.finish(&args.select, &failures).map(|()| failures.is_empty()),
        Err(error) => Err(error),
    };
    match result {
        // The output was closed, as by `head`.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(true),
        result => Ok(result?),
    }
}

/// Returns the arguments of `ferroute` on the nodes. Clients and endpoints are selected here, where pods have names.
fn arguments(select: &SelectArgs, namespace: &str) -> anyhow::Result<Vec<String>> {
    let request = select.request(namespace)?;
    let mut arguments: Vec<String> = ["flows", "-o", "json"].map(str::to_owned).into();
    let mut add = |flag: &str, value: String| arguments.extend([flag.to_owned(), value]);
    if let Some(last) = select.last {
        let is_selected_here = !select.clients.is_empty() || !select.endpoints.is_empty();
        add("--last", if is_selected_here { usize::MAX } else { last }.to_string());
    }
    if let Some(time) = select.duration {
        add("--for", humantime::format_duration(time).to_string());
    }
    request.services.into_iter().for_each(|service| add("--service", service));
    request.states.into_iter().for_each(|state| add("--state", state.to_string()));
    arguments.extend(select.summary.then(|| "--summary".to_owned()));
    arguments.extend(select.follow.then(|| "--follow".to_owned()));
    Ok(arguments)
}

struct Printer<'a> {
    out: BufWriter<StdoutLock<'a>>,
    output: Output,
    filter: FlowFilter,
    labels: Labels,
    table: FlowTable,
    /// The flows that are known already, while they are collected.
    last: Option<Vec<(String, Flow)>>,
    summaries: Vec<FlowSummary>,
}

impl Printer<'_> {
    fn start(&mut self, is_summary: bool) -> io::Result<()> {
        if !is_summary && self.last.is_none() {
            self.write_titles()?;
        }
        self.out.flush()
    }

    fn write_titles(&mut self) -> io::Result<()> {
        let mut titles = String::new();
        if self.output == Output::Text {
            self.table.write_titles_into(&mut titles).map_err(io::Error::other)?;
        }
        self.out.write_all(titles.as_bytes())
    }

    fn add(&mut self, node: &str, mut event: FlowEvent) -> io::Result<()> {
        self.labels.apply(&mut event);
        if let FlowEvent::Start(start) = &event {
            self.table.start(node, start);
        }
        match event {
            FlowEvent::Flow(flow) if !self.filter.matches(&flow) => return Ok(()),
            FlowEvent::Flow(flow) if self.last.is_some() => {
                self.last.iter_mut().for_each(|last| last.push((node.to_owned(), (*flow).clone())));
                return Ok(());
            }
            FlowEvent::Summary(mut summary) => {
                summary.edges.retain(|edge| self.filter.matches_edge(edge));
                self.summaries.push(summary);
                return Ok(());
            }
            FlowEvent::Start(_) | FlowEvent::RecentEnd(_) if self.output == Output::Text => return Ok(()),
            event => self.write(Some(node), &event)?,
        }
        self.out.flush()
    }

    fn write(&mut self, node: Option<&str>, event: &FlowEvent) -> io::Result<()> {
        if self.output == Output::Json {
            serde_json::to_writer(&mut self.out, &Versioned::from(NodeEvent { node, event }))?;
            return writeln!(self.out);
        }
        let mut text = String::new();
        let written = match event {
            FlowEvent::Flow(flow) => self.table.write_into(&mut text, node.unwrap_or_default(), flow),
            FlowEvent::Lost(losses) => {
                text += &node.map(|node| format!("{}: ", Escaped(node))).unwrap_or_default();
                write_losses_into(&mut text, losses)
            }
            FlowEvent::Summary(summary) => self.table.write_summary_into(&mut text, summary),
            FlowEvent::Start(_) | FlowEvent::RecentEnd(_) => Ok(()),
        };
        written.map_err(io::Error::other)?;
        self.out.write_all(text.as_bytes())
    }

    /// Prints the collected flows of all nodes.
    fn finish(&mut self, select: &SelectArgs, failures: &BTreeMap<String, String>) -> io::Result<()> {
        if let Some(mut last) = self.last.take() {
            last.sort_by_key(|(_, flow)| flow.time);
            let last = &last[last.len().saturating_sub(select.last.unwrap_or_default())..];
            last.iter().for_each(|(node, flow)| self.table.fit(node, flow));
            self.write_titles()?;
            for (node, flow) in last {
                self.write(Some(node), &FlowEvent::Flow(flow.clone().into()))?;
            }
        }
        if select.summary {
            let summary = FlowSummary::merged(std::mem::take(&mut self.summaries));
            self.write(None, &FlowEvent::Summary(summary))?;
        }
        if self.output == Output::Json {
            serde_json::to_writer(&mut self.out, &Versioned::from(Failures { failures }))?;
            writeln!(self.out)?;
        } else {
            let mut text = String::new();
            write_failures_into(&mut text, failures).map_err(io::Error::other)?;
            self.out.write_all(text.as_bytes())?;
        }
        self.out.flush()
    }
}
