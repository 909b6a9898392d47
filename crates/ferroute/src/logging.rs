//! Logs go to standard error, one line each; data goes to standard output.

use std::io::IsTerminal;

use ferroute_config::LogFormat;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::EnvFilter;

/// Starts logging. `verbosity` is kube-proxy's `-v`: 0 tells what an operator should see, 2 adds every sync, 4 every
/// event. The environment variable `FERROUTE_LOG` overrides it, by module where wanted (`ferroute=debug`).
pub(crate) fn start(verbosity: u32, format: LogFormat) {
    let level = match verbosity {
        0 | 1 => LevelFilter::INFO,
        2 | 3 => LevelFilter::DEBUG,
        _ => LevelFilter::TRACE,
    };
    let filter =
        EnvFilter::builder().with_env_var("FERROUTE_LOG").with_default_directive(level.into()).from_env_lossy();
    let lines = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false);
    match format {
        LogFormat::Text => lines.init(),
        LogFormat::Json => lines.json().flatten_event(true).init(),
    }
}

/// An error with all its causes on one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}
