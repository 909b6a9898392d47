use clap::{Args, Subcommand};

use super::{DesiredArgs, Output};

/// Arguments of `ferroute explain`.
#[derive(Args, Debug)]
pub(crate) struct ExplainArgs {
    /// What to explain.
    #[command(subcommand)]
    pub(crate) what: Explained,
}

/// What can be explained.
#[derive(Debug, Subcommand)]
pub(crate) enum Explained {
    /// Tell what the proxy makes of a Service: frontends, endpoints and why each is used or not, policies, and, where
    /// the kernel may be read, its rules with their counters and its connections
    Service(ExplainServiceArgs),
}

/// Arguments of `ferroute explain service`.
#[derive(Args, Debug)]
pub(crate) struct ExplainServiceArgs {
    /// NAMESPACE/NAME of the Service
    #[arg(value_name = "NAMESPACE/NAME", value_parser = parse_name)]
    pub(crate) service: String,
    /// What should be true.
    #[command(flatten)]
    pub(crate) desired: DesiredArgs,
    /// How to write the answer
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value_t)]
    pub(crate) output: Output,
}

fn parse_name(text: &str) -> Result<String, String> {
    match text.split('/').collect::<Vec<_>>().as_slice() {
        [namespace, name] if !namespace.is_empty() && !name.is_empty() => Ok(text.to_owned()),
        _ => Err("want NAMESPACE/NAME".to_owned()),
    }
}
