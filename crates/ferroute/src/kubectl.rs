//! `kubectl ferroute`: the arguments of the plugin, and their execution.

mod complete;
mod flows;

use std::{
    collections::BTreeMap,
    fmt::{self, Write as _},
    fs::File,
    io::Write as _,
    net::SocketAddr,
    path::PathBuf,
    process::ExitCode,
    time::{Duration, Instant},
};

use anyhow::Context;
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
use ferroute_admin::version;
use ferroute_config::LogFormat;
use ferroute_core::{Escaped, NamespacedName};
use ferroute_demo::DEFAULT_LISTEN;
use ferroute_inspect::{
    desired::service_name,
    doctor::Finding,
    top::{FILE_WIDTH, write_rows_into},
};
use ferroute_kube::{Cluster, UserAccess};
use ferroute_kubectl::{
    Fleet, NodePages, NodeProxy, Selection, TraceQuery, is_good, kube_proxy_beside, parse_source, same_everywhere,
    statuses, top, trace, wait_applied, write_bundles_into, write_findings_into, write_same_into, write_statuses_into,
    write_trace_into,
};
use ferroute_ui::ClusterPage;
use serde::Serialize;

use crate::commands::{
    Output, UNCLEAR, announce, manual::with_examples, packet_ends::PacketEnds, parse_interval, to_stdout,
};

/// Inspect the proxies on all nodes of a cluster, with the rights of kubectl exec.
#[derive(Debug, Parser)]
#[command(name = "kubectl-ferroute", bin_name = "kubectl ferroute", version = version::LONG, arg_required_else_help = true)]
struct Plugin {
    /// The arguments.
    #[command(flatten)]
    args: KubectlArgs,
}

/// Arguments of the plugin.
#[derive(Args, Debug)]
pub(crate) struct KubectlArgs {
    /// The subcommand.
    #[command(subcommand)]
    command: Subcommands,
    /// How the cluster is reached.
    #[command(flatten)]
    access: AccessArgs,
    /// Which nodes are asked.
    #[command(flatten)]
    nodes: NodeArgs,
}

/// The flags of kubectl.
#[derive(Args, Debug)]
struct AccessArgs {
    /// Path to the kubeconfig file
    #[arg(long, global = true, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Name of the kubeconfig context to use
    #[arg(long, global = true, value_name = "NAME")]
    context: Option<String>,
    /// Name of the kubeconfig cluster to use
    #[arg(long, global = true, value_name = "NAME")]
    cluster: Option<String>,
    /// Name of the kubeconfig user to use
    #[arg(long, global = true, value_name = "NAME")]
    user: Option<String>,
    /// User to impersonate
    #[arg(long = "as", global = true, value_name = "NAME")]
    impersonate: Option<String>,
    /// Group to impersonate; can be repeated
    #[arg(long = "as-group", global = true, value_name = "NAME")]
    impersonate_groups: Vec<String>,
    /// Namespace of Services and pods that are named without one
    #[arg(short, long, global = true, value_name = "NAMESPACE")]
    namespace: Option<String>,
    /// Time after which a request, or a command on a node, is abandoned
    #[arg(long, global = true, value_name = "TIME", default_value = "60s", value_parser = parse_interval)]
    request_timeout: Duration,
}

/// The flags that select nodes.
#[derive(Args, Debug)]
struct NodeArgs {
    /// Node to query; repeat for several (default: all)
    #[arg(long = "node", global = true, value_name = "NAME")]
    nodes: Vec<String>,
    /// Labels of the nodes to query (default: all)
    #[arg(short = 'l', long, global = true, value_name = "LABELS")]
    selector: Option<String>,
    /// Namespace of the proxies
    #[arg(long, global = true, value_name = "NAMESPACE", default_value = "kube-system")]
    proxy_namespace: String,
    /// Labels of the proxies' pods
    ///
    /// By default app=ferroute or, if there are none, k8s-app=kube-proxy.
    #[arg(long, global = true, value_name = "LABELS")]
    pods: Option<String>,
    /// Maximum number of nodes to query at a time
    #[arg(long, global = true, value_name = "COUNT", default_value = "16")]
    parallel: std::num::NonZeroUsize,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
enum Subcommands {
    /// Show the state of the proxy on each node
    ///
    /// The exit status is 1 if a node does not answer, is not ready, or has other rules than the desired ones, or if
    /// kube-proxy runs beside Ferroute or would be installed again by kubeadm.
    Status(StatusArgs),
    /// Wait until all nodes have applied a Service and its endpoints
    ///
    /// The exit status is 1 if some have not when the time is over.
    Wait(WaitArgs),
    /// Trace a packet of a pod on its node, and on those of endpoints
    ///
    /// The exit status is 1 if some endpoint may not receive the packet, or a node does not answer.
    Trace(TraceArgs),
    /// Explain how the nodes handle a Service
    Explain(ExplainArgs),
    /// Diagnose Service problems on all nodes
    ///
    /// The exit status is 1 if there are findings worse than notes, or a node does not answer.
    Doctor(DoctorArgs),
    /// Show the busiest Services of all nodes together
    Top(TopArgs),
    /// Show connections through Services on all nodes as they happen
    Flows(Box<flows::FlowsArgs>),
    /// Show all nodes in a browser
    ///
    /// The page has the problems of all nodes first, the connections of all nodes together, and each node to choose.
    Ui(PageArgs),
    /// Save the recordings of all nodes to one tar archive
    Bundle(BundleArgs),
}

#[derive(Args, Debug)]
struct StatusArgs {
    /// Do not compare rules or run the doctor, which read all Services
    #[arg(long)]
    quick: bool,
    /// Output format
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value = "text")]
    output: WideOutput,
}

/// A Service, as kubectl and the commands of a node accept it: one word, or its type and name.
#[derive(Args, Debug)]
struct ServiceArg {
    /// Service: NAME, NAMESPACE/NAME, or either after svc/
    #[arg(value_name = "SERVICE", required = true, num_args = 1..=2)]
    words: Vec<String>,
}

impl ServiceArg {
    fn name(&self, namespace: &str) -> anyhow::Result<NamespacedName> {
        let word = match self.words.as_slice() {
            [kind, name] if ["service", "services", "svc"].contains(&kind.as_str()) => name,
            [name] => name,
            words => {
                anyhow::bail!("invalid Service {:?}: use NAME, NAMESPACE/NAME, or either after svc/", words.join(" "))
            }
        };
        service_name(word, namespace).map_err(anyhow::Error::msg)
    }
}

#[derive(Args, Debug)]
struct WaitArgs {
    /// The Service.
    #[command(flatten)]
    service: ServiceArg,
    /// Condition to wait for
    #[arg(long = "for", value_enum, value_name = "CONDITION", default_value = "applied")]
    condition: Condition,
    /// Time to wait
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_interval)]
    timeout: Duration,
    /// Output format
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value_t)]
    output: Output,
}

#[derive(Args, Debug)]
struct TraceArgs {
    /// Source, which is a pod, and destination.
    #[command(flatten)]
    ends: PacketEnds,
    /// Transport protocol; by default, that of the Service's port
    #[arg(long, value_name = "PROTOCOL", value_parser = ["tcp", "udp", "sctp"])]
    proto: Option<String>,
    /// Use the rules that the proxies would write, not the kernel's
    #[arg(long)]
    planned: bool,
    /// Output format
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value_t)]
    output: Output,
}

#[derive(Args, Debug)]
struct ExplainArgs {
    /// The Service.
    #[command(flatten)]
    service: ServiceArg,
    /// Output format
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value_t)]
    output: Output,
}

#[derive(Args, Debug)]
struct DoctorArgs {
    /// Do not connect to endpoints from every node
    #[arg(long)]
    no_connect: bool,
    /// Output format
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value_t)]
    output: Output,
}

#[derive(Args, Debug)]
struct TopArgs {
    /// Time for which new connections are counted
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse_interval)]
    interval: Duration,
    /// Output format
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value_t)]
    output: Output,
}

#[derive(Args, Debug)]
struct PageArgs {
    /// Address and port of the page
    #[arg(long, value_name = "ADDRESS:PORT", default_value = DEFAULT_LISTEN)]
    listen: SocketAddr,
}

#[derive(Args, Debug)]
struct BundleArgs {
    /// Archive to write
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

/// An output format of `status`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum WideOutput {
    /// For people.
    Text,
    /// With more columns.
    Wide,
    /// For programs.
    Json,
}

/// A condition of `wait`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Condition {
    /// All nodes have applied the Service and its endpoint slices.
    Applied,
}

/// The selected proxies, and how to ask them.
struct Target {
    fleet: Fleet,
    selection: Selection,
    namespace: String,
}

/// Returns the definition of the plugin's command line.
pub(crate) fn plugin() -> clap::Command {
    with_examples(Plugin::command(), "kubectl")
}

/// Executes the command line of `kubectl ferroute`.
pub(crate) fn run_plugin() -> anyhow::Result<ExitCode> {
    let mut command = plugin();
    let parsed = Plugin::from_arg_matches_mut(&mut command.get_matches_mut());
    let Plugin { args } = parsed.unwrap_or_else(|error| error.format(&mut command).exit());
    Ok(run(&args, None))
}

/// Prints the completions of a command line of `kubectl ferroute`, for kubectl.
pub(crate) fn complete_plugin() -> anyhow::Result<ExitCode> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    to_stdout(|out| Ok(write!(out, "{}", complete::completions(Plugin::command(), &words))?))
}

/// Executes `args`. An error has the exit status 2, because 1 is an answer.
pub(crate) fn run(args: &KubectlArgs, verbosity: Option<u32>) -> ExitCode {
    ferroute_logging::start_for_command(verbosity, LogFormat::Text);
    execute(args).unwrap_or_else(|error| crate::commands::report(&error, ExitCode::from(UNCLEAR)))
}

fn execute(args: &KubectlArgs) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (text, is_good) = runtime.block_on(async {
        let target = Target::new(&args.access, &args.nodes).await?;
        match &args.command {
            // It prints while it runs.
            Subcommands::Flows(args) => Ok((Vec::new(), flows::run(&target, args).await?)),
            Subcommands::Status(args) => target.status(args).await,
            Subcommands::Wait(args) => target.wait(args).await,
            Subcommands::Trace(args) => target.trace(args).await,
            Subcommands::Explain(args) => target.explain(args).await,
            Subcommands::Doctor(args) => target.doctor(args).await,
            Subcommands::Top(args) => target.top(args).await,
            Subcommands::Ui(args) => {
                let proxies = target.proxies().await?;
                let Target { fleet, selection, .. } = target;
                let page = ClusterPage::new(NodePages::new(fleet, proxies), selection);
                page.serve(args.listen, announce).await.map(|()| (Vec::new(), true))
            }
            Subcommands::Bundle(args) => target.bundle(args).await,
        }
    })?;
    // Connections to nodes that do not answer are not waited for.
    runtime.shutdown_background();
    to_stdout(|out| Ok(out.write_all(&text)?))?;
    Ok(if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The text to print, and whether everything is as it should be.
type Answer = anyhow::Result<(Vec<u8>, bool)>;

/// Returns a value as JSON, or as the text from `print`.
fn show(
    output: Output,
    value: &impl Serialize,
    print: impl FnOnce(&mut String) -> fmt::Result,
) -> anyhow::Result<Vec<u8>> {
    let mut text = Vec::new();
    output.write(&mut text, value, print)?;
    Ok(text)
}

impl Target {
    async fn new(access: &AccessArgs, nodes: &NodeArgs) -> anyhow::Result<Self> {
        let user = UserAccess {
            kubeconfig: access.kubeconfig.clone(),
            context: access.context.clone(),
            cluster: access.cluster.clone(),
            user: access.user.clone(),
            impersonate: access.impersonate.clone(),
            impersonate_groups: access.impersonate_groups.clone(),
        };
        let cluster = Cluster::new(user, access.request_timeout).await?;
        let namespace = match &access.namespace {
            Some(namespace) => namespace.clone(),
            None => cluster.namespace().await?,
        };
        let selection = Selection {
            namespace: nodes.proxy_namespace.clone(),
            pods: nodes.pods.clone(),
            nodes: nodes.nodes.clone(),
            selector: nodes.selector.clone(),
        };
        let fleet = Fleet { cluster, parallel: nodes.parallel.get(), limit: access.request_timeout };
        Ok(Self { fleet, selection, namespace })
    }

    async fn proxies(&self) -> anyhow::Result<Vec<NodeProxy>> {
        self.selection.proxies(&self.fleet.cluster).await
    }

    async fn status(&self, args: &StatusArgs) -> Answer {
        let proxies = self.proxies().await?;
        let reports = statuses(&self.fleet, &proxies, !args.quick).await;
        let findings = kube_proxy_beside(&self.fleet.cluster, &self.selection, &proxies).await;
        let (output, is_wide) = match args.output {
            WideOutput::Text => (Output::Text, false),
            WideOutput::Wide => (Output::Text, true),
            WideOutput::Json => (Output::Json, false),
        };
        let value = serde_json::json!({ "nodes": reports, "findings": findings });
        let text = show(output, &value, |text| {
            write_statuses_into(text, &reports, is_wide)?;
            write_findings_into(text, &findings)
        })?;
        Ok((text, is_good(&reports) && findings.is_empty()))
    }

    async fn wait(&self, args: &WaitArgs) -> Answer {
        let Condition::Applied = args.condition;
        let service = args.service.name(&self.namespace)?;
        let deadline = Instant::now() + args.timeout;
        let waited = wait_applied(&self.fleet, &self.selection, &service, deadline).await?;
        let text = show(args.output, &waited, |text| {
            for (node, reason) in &waited.missing {
                writeln!(text, "{node}: {reason}")?;
            }
            let (missing, applied) = (waited.missing.len(), waited.applied.len());
            match missing {
                0 => writeln!(text, "Service {service} is applied on {applied} nodes"),
                _ => writeln!(text, "Service {service} is not applied on {missing} of {} nodes", missing + applied),
            }
        })?;
        Ok((text, waited.missing.is_empty()))
    }

    async fn trace(&self, args: &TraceArgs) -> Answer {
        let (from, to) = args.ends.resolve()?;
        let query = TraceQuery {
            from: parse_source(&from, &self.namespace).map_err(anyhow::Error::msg)?,
            to,
            namespace: self.namespace.clone(),
            protocol: args.proto.clone(),
            kernel: !args.planned,
        };
        // The packet leads to other nodes than those that were selected.
        let everywhere = Selection { nodes: Vec::new(), selector: None, ..self.selection.clone() };
        let proxies = everywhere.proxies(&self.fleet.cluster).await?;
        let trace = trace(&self.fleet, &proxies, &query, args.output == Output::Json).await?;
        Ok((show(args.output, &trace, |text| write_trace_into(text, &trace))?, trace.delivered))
    }

    async fn explain(&self, args: &ExplainArgs) -> Answer {
        let service = args.service.name(&self.namespace)?;
        self.same(&["explain", "service", service.as_str()], args.output, &self.proxies().await?, &[]).await
    }

    async fn doctor(&self, args: &DoctorArgs) -> Answer {
        let no_connect = args.no_connect.then_some("--no-connect");
        let proxies = self.proxies().await?;
        let findings = kube_proxy_beside(&self.fleet.cluster, &self.selection, &proxies).await;
        let arguments: Vec<&str> = ["doctor"].into_iter().chain(no_connect).collect();
        self.same(&arguments, args.output, &proxies, &findings).await
    }

    /// Runs a command on all nodes, and shows nodes with the same text together, after findings about the cluster.
    async fn same(&self, arguments: &[&str], output: Output, proxies: &[NodeProxy], findings: &[Finding]) -> Answer {
        let arguments: Vec<String> = arguments.iter().map(|word| (*word).to_owned()).collect();
        let groups = same_everywhere(&self.fleet, proxies, &arguments, output == Output::Json).await;
        let value = serde_json::json!({ "groups": groups, "findings": findings });
        let text = show(output, &value, |text| {
            if !findings.is_empty() {
                writeln!(text, "== cluster")?;
                write_findings_into(text, findings)?;
                writeln!(text)?;
            }
            write_same_into(text, &groups)
        })?;
        Ok((text, findings.is_empty() && groups.iter().all(|group| !group.problem)))
    }

    async fn top(&self, args: &TopArgs) -> Answer {
        let interval = humantime::format_duration(args.interval).to_string();
        let top = top(&self.fleet, &self.proxies().await?, &interval).await;
        let text = show(args.output, &top, |text| {
            write_rows_into(text, &top.rates.service_ports, FILE_WIDTH, usize::MAX)?;
            write_failures_into(text, &top.failures)
        })?;
        Ok((text, top.failures.is_empty()))
    }

    async fn bundle(&self, args: &BundleArgs) -> Answer {
        let proxies = self.proxies().await?;
        let cannot_write = || format!("cannot write {}", args.file.display());
        let file = File::create(&args.file).with_context(cannot_write)?;
        let failures = write_bundles_into(file, &self.fleet, &proxies).await.with_context(cannot_write)?;
        let mut text = format!(
            "{}: bundles of {} nodes; see `ferroute replay` for each\n",
            Escaped(args.file.display()),
            proxies.len() - failures.len()
        );
        write_failures_into(&mut text, &failures)?;
        Ok((text.into_bytes(), failures.is_empty()))
    }
}

/// Writes the nodes that do not answer, with the reasons.
fn write_failures_into(out: &mut impl fmt::Write, failures: &BTreeMap<String, String>) -> fmt::Result {
    failures.iter().try_for_each(|(node, error)| writeln!(out, "{}: no answer: {}", Escaped(node), Escaped(error)))
}
