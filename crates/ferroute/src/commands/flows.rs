//! `ferroute flows`: shows connections through Services.

use std::{
    fmt,
    io::Write,
    time::{Duration, Instant},
};

use clap::{Args, builder::PossibleValuesParser, builder::TypedValueParser};
use ferroute_config::flags::DesiredArgs;
use ferroute_inspect::{
    about::About,
    desired::{Desired, service_name},
    explain::not_found,
    flows::{
        Flow, FlowEvent, FlowFilter, FlowRequest, FlowState, FlowStream, FlowTable, Labels, PeerFilter,
        write_losses_into, write_start_into,
    },
    report::Versioned,
};
use ferroute_proxy::host_setup::require_net_admin;

use super::{Output, parse_interval};

/// Arguments of `ferroute flows`.
#[derive(Args, Debug)]
pub(crate) struct FlowsArgs {
    /// Which flows are shown.
    #[command(flatten)]
    pub(crate) select: SelectArgs,
    /// Output format; json prints one object per line
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value_t)]
    output: Output,
    /// Read names of pods from the running proxy; the default for text
    ///
    /// They are those of endpoints, as the proxy's own rights allow. It takes three seconds at most.
    #[arg(long)]
    names: bool,
    /// What is inspected.
    #[command(flatten)]
    desired: DesiredArgs,
}

/// Arguments that select flows.
#[derive(Args, Debug)]
pub(crate) struct SelectArgs {
    /// Show the last flows and exit, unless --follow is given
    ///
    /// They are the open connections, those that ended while flows were read in the last five minutes, and those that
    /// the kernel still knows.
    #[arg(long, value_name = "COUNT", conflicts_with = "summary")]
    pub(crate) last: Option<usize>,
    /// Show new flows after the last ones; the default without --last
    #[arg(short, long, conflicts_with = "summary")]
    pub(crate) follow: bool,
    /// Show numbers of connections and failures, and times to answer
    ///
    /// By service port, client and endpoint, of the last five minutes, as far as flows were read.
    #[arg(long)]
    pub(crate) summary: bool,
    /// Exit after this time; with --summary, 10 s by default
    #[arg(long = "for", value_name = "TIME", value_parser = parse_interval)]
    pub(crate) duration: Option<Duration>,
    /// Show this Service or service port only; can be repeated
    ///
    /// NAME, NAMESPACE/NAME, or either after svc/, optionally with :PORT.
    #[arg(long = "service", value_name = "SERVICE")]
    pub(crate) services: Vec<String>,
    /// Show these clients only; can be repeated
    ///
    /// pod, node, outside, an address, ADDRESS:PORT, a network, or the name of a pod or node.
    #[arg(long = "client", value_name = "CLIENT")]
    pub(crate) clients: Vec<PeerFilter>,
    /// Show these endpoints only; can be repeated
    #[arg(long = "endpoint", value_name = "ENDPOINT")]
    pub(crate) endpoints: Vec<PeerFilter>,
    /// Show these states only; can be repeated
    #[arg(long = "state", value_name = "STATE", value_parser = state_parser(), conflicts_with = "summary")]
    pub(crate) states: Vec<FlowState>,
    /// Show failures only: all states but opening, open and closed
    #[arg(long, conflicts_with_all = ["states", "summary"])]
    pub(crate) failed: bool,
}

impl SelectArgs {
    /// Returns the request to the source of flows. `namespace` is that of Services that are named without one.
    pub(crate) fn request(&self, namespace: &str) -> anyhow::Result<FlowRequest> {
        let states = match self.failed {
            true => FlowState::ALL.into_iter().filter(|state| state.is_failure()).collect(),
            false => self.states.clone(),
        };
        let services = self.services.iter().map(|text| service_port(text, namespace));
        let summary = if self.summary { u32::try_from(self.summary_time().as_secs().max(1))? } else { 0 };
        Ok(FlowRequest {
            recent: self.last.is_some(),
            follow: !self.summary && (self.follow || self.last.is_none()),
            summary_seconds: summary,
            services: services.collect::<Result<_, _>>().map_err(anyhow::Error::msg)?,
            states,
        })
    }

    /// Returns the filter by names that the source does not have.
    pub(crate) fn filter(&self) -> FlowFilter {
        FlowFilter { clients: self.clients.clone(), endpoints: self.endpoints.clone() }
    }

    /// Reports whether only the user ends it.
    pub(crate) fn is_endless(&self) -> bool {
        !self.summary && self.duration.is_none() && (self.follow || self.last.is_none())
    }

    fn summary_time(&self) -> Duration {
        self.duration.unwrap_or(SUMMARY_TIME)
    }
}

/// Returns a Service with its namespace, and the port if there is one.
fn service_port(text: &str, namespace: &str) -> Result<String, String> {
    let (service, port) = text.split_once(':').map_or((text, None), |(service, port)| (service, Some(port)));
    let name = service_name(service, namespace)?;
    Ok(port.map_or(name.to_string(), |port| format!("{name}:{port}")))
}

/// Warns of Services that do not exist, whose flows may be waited for in vain.
fn warn_of_unknown(services: &[String], desired: &Desired) {
    if !desired.has_objects {
        return;
    }
    for service in services {
        let name = service.split_once(':').map_or(service.as_str(), |(name, _)| name);
        if !desired.services.contains_key(name) {
            tracing::warn!("{}; flows are shown once it exists", not_found(name, desired));
        }
    }
}

fn state_parser() -> impl TypedValueParser<Value = FlowState> {
    PossibleValuesParser::new(FlowState::ALL.map(FlowState::as_str)).map(|text| {
        FlowState::ALL.into_iter().find(|state| state.as_str() == text).expect("the parser permits these values only")
    })
}

/// Prints flows until the time is over or the reader of the output leaves.
pub(crate) fn run(args: &FlowsArgs, verbosity: Option<u32>, out: &mut impl Write) -> anyhow::Result<()> {
    let mut desired = Desired::load_for_host(&args.desired, verbosity)?;
    let request = args.select.request(DEFAULT_NAMESPACE)?;
    require_net_admin()?;
    let until = args.select.duration.filter(|_| !args.select.summary).map(|time| Instant::now() + time);
    let mut stream = FlowStream::open(&desired, &request)?;
    // Flows wait in the stream in the meantime.
    if args.names || args.output == Output::Text {
        desired.complete();
        desired.add_pods_of_node();
        warn_of_unknown(&request.services, &desired);
    }
    let (labels, about) = (Labels::new(&desired), desired.about.clone());
    // Only the names are needed from here on.
    drop(desired);
    let mut printer = Printer::new(args.output, about, &args.select);
    // Only flows that are known already have an end.
    let mut is_complete = !request.follow && request.summary_seconds == 0;
    while let Some(mut event) = stream.next(until)? {
        labels.apply(&mut event);
        let is_summary = matches!(event, FlowEvent::Summary(_));
        printer.print(out, event)?;
        if stream.may_wait() {
            out.flush()?;
        }
        if is_summary {
            is_complete = true;
            break;
        }
    }
    printer.finish(out)?;
    out.flush()?;
    if !is_complete && until.is_none_or(|until| Instant::now() < until) {
        anyhow::bail!("the flows have ended, because the proxy did: run the command again once it runs");
    }
    Ok(())
}

/// Prints events as text or JSON.
struct Printer {
    output: Output,
    about: Option<About>,
    filter: FlowFilter,
    /// Whether titles are printed before the first flow.
    has_titles: bool,
    table: FlowTable,
    /// The number of flows to print of those that are known already, and these flows.
    last: Option<(usize, Vec<Flow>)>,
}

impl Printer {
    fn new(output: Output, about: About, select: &SelectArgs) -> Self {
        let last = select.last.map(|count| (count, Vec::new()));
        // The columns of already known flows are as wide as these.
        let has_titles = !select.summary && last.is_none();
        let table = FlowTable::new(false);
        Self { output, about: Some(about), filter: select.filter(), has_titles, table, last }
    }

    fn print(&mut self, out: &mut impl Write, event: FlowEvent) -> anyhow::Result<()> {
        match event {
            FlowEvent::Flow(flow) if !self.filter.matches(&flow) => return Ok(()),
            FlowEvent::Flow(flow) => match &mut self.last {
                Some((_, flows)) => flows.push(*flow),
                None => self.write(out, &FlowEvent::Flow(flow))?,
            },
            event @ FlowEvent::RecentEnd(_) => {
                self.finish(out)?;
                self.write(out, &event)?;
            }
            FlowEvent::Summary(mut summary) => {
                summary.edges.retain(|edge| self.filter.matches_edge(edge));
                self.write(out, &FlowEvent::Summary(summary))?;
            }
            event => self.write(out, &event)?,
        }
        Ok(())
    }

    /// Prints the flows that were known already.
    fn finish(&mut self, out: &mut impl Write) -> anyhow::Result<()> {
        let Some((count, flows)) = self.last.take() else { return Ok(()) };
        let flows = &flows[flows.len().saturating_sub(count)..];
        flows.iter().for_each(|flow| self.table.fit(NO_NODE, flow));
        if self.output == Output::Text {
            let mut titles = String::new();
            self.table.write_titles_into(&mut titles)?;
            out.write_all(titles.as_bytes())?;
        }
        flows.iter().try_for_each(|flow| self.write(out, &FlowEvent::Flow(flow.clone().into())))
    }

    fn write(&mut self, out: &mut impl Write, event: &FlowEvent) -> anyhow::Result<()> {
        match self.output {
            Output::Json => {
                let report = Versioned { about: self.about.take(), ..Versioned::from(event) };
                serde_json::to_writer(&mut *out, &report)?;
                writeln!(out)?;
            }
            Output::Text => {
                let mut text = String::new();
                self.write_text_into(&mut text, event)?;
                out.write_all(text.as_bytes())?;
            }
        }
        Ok(())
    }

    fn write_text_into(&mut self, text: &mut String, event: &FlowEvent) -> fmt::Result {
        use fmt::Write as _;
        match event {
            FlowEvent::Start(start) => {
                self.table.start(NO_NODE, start);
                if let Some(about) = self.about.take() {
                    writeln!(text, "{about}")?;
                }
                write_start_into(text, start)?;
                if self.has_titles { self.table.write_titles_into(text) } else { Ok(()) }
            }
            FlowEvent::Flow(flow) => self.table.write_into(text, NO_NODE, flow),
            FlowEvent::Lost(losses) => write_losses_into(text, losses),
            FlowEvent::Summary(summary) => self.table.write_summary_into(text, summary),
            FlowEvent::RecentEnd(_) => Ok(()),
        }
    }
}

/// The table has no column for names of nodes.
const NO_NODE: &str = "";
/// The namespace of Services that are named without one.
const DEFAULT_NAMESPACE: &str = "default";
/// The time for which `--summary` receives flows.
const SUMMARY_TIME: Duration = Duration::from_secs(10);
