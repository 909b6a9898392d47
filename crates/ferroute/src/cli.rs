//! The command line, exactly as it was typed. Nothing here looks at the host.
//!
//! Each subcommand's arguments have a file of their own.

mod render;
mod run;
mod settings;
mod source;

use clap::{Parser, Subcommand};

pub(crate) use self::{render::RenderArgs, run::RunArgs, settings::SettingsArgs, source::SourceArgs};

/// The Kubernetes service proxy: turns a Service's stable address into one of its endpoints.
#[derive(Debug, Parser)]
#[command(name = "ferroute", version, arg_required_else_help = true)]
pub(crate) struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
    /// How much to log, in place of the configuration's: 2 adds every sync, 4 every event
    #[arg(short, long, global = true, value_name = "LEVEL")]
    pub(crate) verbosity: Option<u32>,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run the proxy: program this host's kernel and follow every change
    Run(RunArgs),
    /// Print the rules that the proxy would write; needs no root and no kernel
    Render(RenderArgs),
    /// Build a small cluster of network namespaces on this machine and watch Services work
    Demo(ferroute_demo::DemoArgs),
}
