//! `ferroute userspace-worker`: the process that relays connections in userspace mode. The proxy starts it.

use std::{ops::RangeInclusive, time::Duration};

use clap::Args;
use ferroute_config::LogFormat;
use ferroute_modes::WorkerOptions;

/// The arguments.
#[derive(Args, Clone, Debug)]
pub(crate) struct UserspaceWorkerArgs {
    /// Range of ports to accept connections on
    #[arg(long, value_name = "FIRST-LAST", value_parser = parse_range)]
    ports: Option<RangeInclusive<u16>>,
    /// Timeout of idle UDP flows in milliseconds
    #[arg(long, value_name = "MILLISECONDS")]
    udp_timeout: u64,
    /// Timeout of idle TCP connections in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 86_400)]
    tcp_timeout: u64,
    /// Write log lines in JSON
    #[arg(long)]
    json: bool,
}

/// Runs the process until its connections have ended after a request to drain.
pub(crate) fn run(args: &UserspaceWorkerArgs, verbosity: Option<u32>) -> anyhow::Result<()> {
    let options = WorkerOptions {
        ports: args.ports.clone(),
        udp_timeout: Duration::from_millis(args.udp_timeout),
        tcp_timeout: Duration::from_secs(args.tcp_timeout),
        verbosity: verbosity.unwrap_or_default(),
        log_format: if args.json { LogFormat::Json } else { LogFormat::Text },
    };
    options.run()
}

fn parse_range(text: &str) -> Result<RangeInclusive<u16>, String> {
    let range = text.split_once('-').and_then(|(first, last)| Some(first.parse().ok()?..=last.parse().ok()?));
    range.ok_or_else(|| "not a range such as 40000-42000".to_owned())
}
