//! Logs to standard error, one line per message except for backtraces. Standard output is for data.

mod crash;
mod json;
mod line;
mod queue;

use std::{
    io::{IsTerminal, Write},
    sync::OnceLock,
    time::Duration,
};

use ferroute_config::{KubeProxyConfiguration, LogFormat};
use ferroute_core::EscapedLines;
use serde_json::Value;
use tracing_subscriber::{
    EnvFilter, Registry,
    fmt::{FormatEvent, SubscriberBuilder, format::DefaultFields, writer::BoxMakeWriter},
};

use self::{line::TextLine, queue::LogQueue};

/// Starts logging for the daemon. Messages are queued and written by a separate thread, so that a blocked standard
/// error does not delay other threads; panics are messages, too. Before the process ends, [`flush`] must be called.
///
/// `verbosity` is kube-proxy's `-v`:
///
/// | `-v` | messages |
/// | --- | --- |
/// | 0 to 3 | for operators: changes of state, each sync that changed something, problems |
/// | 4 and 5 | for developers: debug messages as well |
/// | 6 and higher | everything, including messages of libraries |
///
/// The environment variable `FERROUTE_LOG` overrides it, also for individual modules (`ferroute_kube=debug`).
pub fn start(verbosity: u32, format: LogFormat) {
    // Without the thread, a blocked standard error is the lesser evil.
    let queue = LogQueue::start(std::io::stderr());
    match &queue {
        Ok(queue) => {
            let queue = QUEUE.get_or_init(|| queue.clone());
            start_with(directives(verbosity), format, move || queue.clone());
        }
        Err(_) => start_with(directives(verbosity), format, std::io::stderr),
    }
    match queue {
        Ok(_) => std::panic::set_hook(Box::new(crash::log_panic)),
        Err(error) => tracing::warn!("cannot start the log thread; a blocked standard error delays syncs: {error}"),
    }
}

/// The queue of the daemon.
static QUEUE: OnceLock<LogQueue> = OnceLock::new();

/// Sets the filter of the messages of this process.
static FILTER: OnceLock<Box<dyn Fn(EnvFilter) + Send + Sync>> = OnceLock::new();

/// Changes `verbosity` of the running process. `FERROUTE_LOG` still overrides it.
pub fn set_verbosity(verbosity: u32) {
    if let Some(set) = FILTER.get() {
        set(filter(directives(verbosity)));
    }
}

fn filter(directives: &str) -> EnvFilter {
    let overrides = std::env::var("FERROUTE_LOG").unwrap_or_default();
    EnvFilter::builder().parse_lossy(format!("{directives},{overrides}"))
}

fn directives(verbosity: u32) -> &'static str {
    match verbosity {
        0..=3 => "warn,ferroute=info",
        4..=5 => "warn,ferroute=debug",
        _ => "trace",
    }
}

/// Waits until all messages have been written, but not longer than `at_most`.
pub fn flush(at_most: Duration) {
    QUEUE.get().into_iter().for_each(|queue| queue.flush(at_most));
}

/// Returns the number of messages that were dropped because standard error was blocked.
pub fn dropped_lines() -> u64 {
    QUEUE.get().map_or(0, LogQueue::dropped)
}

/// Prints the error that ends the program, in the daemon behind all messages and with a bounded wait.
pub fn print_error(error: &anyhow::Error) {
    let line = format!("ferroute: {}\n", EscapedLines(format_args!("{error:#}")));
    match QUEUE.get() {
        Some(queue) => {
            queue.push(line.as_bytes());
            queue.flush(EXIT_FLUSH);
        }
        // Standard error may be closed. There is no other place to report this.
        None => _ = std::io::stderr().write_all(line.as_bytes()),
    }
}

/// The wait for a blocked standard error at the end of the process.
pub const EXIT_FLUSH: Duration = Duration::from_secs(1);

/// The same after a signal, when the whole end may take a second.
pub const SIGNAL_FLUSH: Duration = Duration::from_millis(100);

/// Starts logging for a command that prints an answer: only warnings, unless `-v` was given. The configured verbosity
/// applies to the daemon and is ignored.
pub fn start_for_command(verbosity: Option<u32>, format: LogFormat) {
    start_with(verbosity.map_or("warn", directives), format, std::io::stderr);
}

fn start_with<W: Write + 'static>(directives: &str, format: LogFormat, output: impl Fn() -> W + Send + Sync + 'static) {
    let writer = match format {
        LogFormat::Text => BoxMakeWriter::new(move || TextLine(output())),
        // The JSON format has its own escapes.
        LogFormat::Json => BoxMakeWriter::new(output),
    };
    let lines = tracing_subscriber::fmt()
        .with_env_filter(filter(directives))
        .with_writer(writer)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false);
    match format {
        LogFormat::Text => init(lines),
        LogFormat::Json => init(lines.event_format(json::KubernetesJson)),
    }
}

/// Starts logging with a filter that [`set_verbosity`] changes.
fn init<E>(lines: SubscriberBuilder<DefaultFields, E, EnvFilter, BoxMakeWriter>)
where
    E: FormatEvent<Registry, DefaultFields> + Send + Sync + 'static,
{
    let lines = lines.with_filter_reloading();
    let handle = lines.reload_handle();
    lines.init();
    _ = FILTER.set(Box::new(move |filter| _ = handle.reload(filter)));
}

/// Returns the fields of a configuration that differ from the defaults, as `field.subfield=value`.
pub fn non_default_fields(config: &KubeProxyConfiguration) -> Vec<String> {
    let defaults = KubeProxyConfiguration::default().defaulted().to_configz();
    let mut fields = Vec::new();
    for (group, value) in config.to_configz().as_object().into_iter().flatten() {
        push_differences(&mut fields, "", value, defaults.get(group));
    }
    fields
}

fn push_differences(fields: &mut Vec<String>, path: &str, value: &Value, default: Option<&Value>) {
    match (value, default) {
        (value, Some(default)) if value == default => {}
        (Value::Object(values), Some(Value::Object(defaults))) => {
            let removed = defaults.keys().filter(|name| !values.contains_key(*name)).map(|name| (name, &Value::Null));
            for (name, value) in values.iter().chain(removed) {
                let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                push_differences(fields, &path, value, defaults.get(name));
            }
        }
        (Value::String(text), _) => fields.push(format!("{path}={text}")),
        (value, _) => fields.push(format!("{path}={value}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_fields_that_differ_from_defaults_are_listed() {
        let mut config = KubeProxyConfiguration::default().defaulted();
        assert_eq!(non_default_fields(&config), [""; 0]);
        config.mode = "nftables".to_owned();
        config.node_port_addresses = vec!["10.0.0.0/8".to_owned()];
        config.conntrack.tcp_be_liberal = true;
        assert_eq!(
            non_default_fields(&config),
            ["conntrack.tcpBeLiberal=true", "mode=nftables", "nodePortAddresses=[\"10.0.0.0/8\"]"]
        );
    }
}
