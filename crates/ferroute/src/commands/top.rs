//! `ferroute top`: shows the busiest Services, from the kernel's counters.

use std::{io::IsTerminal, time::Duration};

use clap::Args;
use ferroute_inspect::top;

/// Arguments of `ferroute top`.
#[derive(Args, Debug)]
pub(crate) struct TopArgs {
    /// Interval between two readings of the counters
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse_interval)]
    interval: Duration,
    /// Print one table after one interval and exit
    ///
    /// This is the default if standard input or output is not a terminal.
    #[arg(long)]
    once: bool,
}

/// Shows the busiest Services until the user quits, or prints them once.
pub(crate) fn run(args: &TopArgs) -> anyhow::Result<()> {
    let is_interactive = std::io::stdout().is_terminal() && std::io::stdin().is_terminal();
    if args.once || !is_interactive { top::print_once(args.interval) } else { top::show(args.interval) }
}

fn parse_interval(text: &str) -> Result<Duration, String> {
    match humantime::parse_duration(text) {
        Ok(time) if time.is_zero() => Err("must be more than zero".to_owned()),
        Ok(time) => Ok(time),
        Err(error) => Err(error.to_string()),
    }
}
