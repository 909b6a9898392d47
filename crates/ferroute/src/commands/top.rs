//! `ferroute top`: shows the busiest Services, from the kernel's counters.

use std::{
    io::{IsTerminal, Write},
    time::Duration,
};

use clap::Args;
use ferroute_inspect::{
    about::About,
    top::{self, FILE_WIDTH},
};
use ferroute_proxy::host_setup::require_net_admin;

use super::Output;

/// Arguments of `ferroute top`.
#[derive(Args, Debug)]
pub(crate) struct TopArgs {
    /// Interval between two readings of the counters
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse_interval)]
    interval: Duration,
    /// Print one table after one interval and exit
    ///
    /// This is the default if standard input or output is not a terminal, or a dumb one (TERM=dumb).
    #[arg(long)]
    once: bool,
    /// Output format; json prints one table
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value_t)]
    output: Output,
}

/// Shows the busiest Services until the user quits, or prints them once.
pub(crate) fn run(args: &TopArgs) -> anyhow::Result<()> {
    require_net_admin()?;
    let about = About::of_kernel()?;
    let is_dumb = std::env::var_os("TERM").is_some_and(|terminal| terminal == "dumb");
    let is_interactive = std::io::stdout().is_terminal() && std::io::stdin().is_terminal() && !is_dumb;
    if is_interactive && !args.once && args.output == Output::Text {
        return top::show(&about, args.interval);
    }
    let rates = top::read_once(&about, args.interval)?;
    let mut out = std::io::stdout().lock();
    args.output.write_about(&mut out, &about, &rates, |text| {
        top::write_rows_into(text, &rates.service_ports, FILE_WIDTH, usize::MAX)
    })?;
    Ok(out.flush()?)
}

/// Parses a time that is more than zero.
pub(crate) fn parse_interval(text: &str) -> Result<Duration, String> {
    match humantime::parse_duration(text) {
        Ok(time) if time.is_zero() => Err("must be more than zero".to_owned()),
        Ok(time) => Ok(time),
        Err(error) => Err(error.to_string()),
    }
}
