use std::time::Duration;

use clap::Args;

/// Arguments of `ferroute top`.
#[derive(Args, Debug)]
pub(crate) struct TopArgs {
    /// Time between two looks
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse_interval)]
    pub(crate) interval: Duration,
    /// Print one table after one interval and end, as when the output is no terminal
    #[arg(long)]
    pub(crate) once: bool,
}

fn parse_interval(text: &str) -> Result<Duration, String> {
    match humantime::parse_duration(text) {
        Ok(time) if time.is_zero() => Err("want more than no time".to_owned()),
        Ok(time) => Ok(time),
        Err(error) => Err(error.to_string()),
    }
}
