//! The demo by itself, for its own tests: its proxies have to be named with `--proxy`.

use std::process::ExitCode;

use clap::Parser;
use ferroute_demo::{DemoArgs, FlowSpec, PathTeller};

/// A small cluster of network namespaces on this machine.
#[derive(Parser)]
enum Cli {
    /// The demo
    Demo(DemoArgs),
}

/// Knows no rules.
struct Silent;

impl PathTeller for Silent {
    fn tell(&self, _: &FlowSpec) -> anyhow::Result<Vec<String>> {
        Ok(Vec::new())
    }
}

fn main() -> anyhow::Result<ExitCode> {
    let Cli::Demo(args) = Cli::parse();
    ferroute_demo::run(args, &Silent)
}
