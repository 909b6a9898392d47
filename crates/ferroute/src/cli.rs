//! The command line, exactly as it was typed. Nothing here looks at the host.
//!
//! Each subcommand's arguments have a file of their own.

mod desired;
mod diff;
mod doctor;
mod documents;
mod explain;
mod output;
mod preflight;
mod proxy;
mod record;
mod render;
mod run;
mod settings;
mod source;
mod top;
mod trace;
mod typed;
mod values;

use clap::{Parser, Subcommand};

use crate::version;

pub(crate) use self::{
    desired::DesiredArgs,
    diff::DiffArgs,
    doctor::DoctorArgs,
    documents::{CompletionsArgs, ManArgs},
    explain::{ExplainArgs, ExplainServiceArgs, Explained},
    output::Output,
    preflight::PreflightArgs,
    proxy::{COUNT_BESIDE_CONFIG, is_kube_proxys},
    record::{BundleArgs, ReplayArgs},
    render::RenderArgs,
    run::{KubeProxy, RunArgs},
    settings::SettingsArgs,
    source::SourceArgs,
    top::TopArgs,
    trace::{ColorChoice, TraceArgs, TraceOutput},
    typed::Typed,
    values::VersionRequest,
};

/// The Kubernetes service proxy: turns a Service's stable address into one of its endpoints.
#[derive(Debug, Parser)]
#[command(name = "ferroute", version = version::OWN, arg_required_else_help = true)]
pub(crate) struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
    /// How much to log, in place of the configuration's: 2 adds every sync, 4 every event
    #[arg(short = 'v', long = "v", visible_alias = "verbosity", global = true, value_name = "LEVEL")]
    pub(crate) verbosity: Option<u32>,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run the proxy: program this host's kernel and follow every change
    #[command(disable_version_flag = true)]
    Run(Box<Typed<RunArgs>>),
    /// Print the rules that the proxy would write; needs no root and no kernel
    Render(RenderArgs),
    /// Tell what the proxy makes of an object, and why
    Explain(ExplainArgs),
    /// Look for what breaks Services on this host, and say how to mend it
    Doctor(DoctorArgs),
    /// Tell what will behave differently when this node goes from one mode to another
    Preflight(PreflightArgs),
    /// Compare what is in the kernel, whoever wrote it, with what should be; status 0: equal, 1: different, 2: could not
    /// tell
    Diff(DiffArgs),
    /// Show which Services are busy: new connections per second and the shares of their endpoints
    Top(TopArgs),
    /// Save what a running proxy did last and why, to look into it elsewhere
    Bundle(BundleArgs),
    /// Make the decisions of a saved bundle again; needs no root, no kernel and no cluster
    Replay(ReplayArgs),
    /// Tell what happens to a packet, rule by rule, and why; needs no root but for --kernel
    Trace(Box<TraceArgs>),
    /// Build a small cluster of network namespaces on this machine and watch Services work
    Demo(ferroute_demo::DemoArgs),
    /// Print what a shell needs to complete this command line
    Completions(CompletionsArgs),
    /// Print the manual, or write all its pages to a directory
    Man(ManArgs),
}
