//! The format of Kubernetes components for `--logging-format json`: `ts` (milliseconds since 1970), `caller`, `msg`, `v`
//! (except for errors), `err`, then other fields. The field `level` is an addition.

use std::{fmt, time::SystemTime};

use serde_json::{Map, Value, json};
use tracing::{
    Event, Level, Metadata, Subscriber,
    field::{Field, Visit},
};
use tracing_subscriber::{
    fmt::{FmtContext, FormatEvent, FormatFields, format::Writer},
    registry::LookupSpan,
};

/// Writes an event as a JSON object on one line.
pub(super) struct KubernetesJson;

impl<S, N> FormatEvent<S, N> for KubernetesJson
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, _: &FmtContext<'_, S, N>, mut out: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let mut fields = Fields::default();
        event.record(&mut fields);
        writeln!(out, "{}", line(SystemTime::now(), event.metadata(), fields))
    }
}

/// The message and fields of an event.
#[derive(Default)]
struct Fields {
    message: String,
    others: Vec<(&'static str, Value)>,
}

impl Fields {
    fn put(&mut self, field: &Field, value: Value) {
        match (field.name(), value) {
            ("message", Value::String(message)) => self.message = message,
            ("message", value) => self.message = value.to_string(),
            // The name in Kubernetes.
            ("error", value) => self.others.push(("err", value)),
            (name, value) => self.others.push((name, value)),
        }
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.put(field, format!("{value:?}").into());
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.put(field, value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.put(field, value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field, value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.put(field, value.into());
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.put(field, value.into());
    }
}

fn line(at: SystemTime, metadata: &Metadata<'_>, fields: Fields) -> String {
    let since = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let mut first = vec![("ts", json!(since.as_secs_f64() * 1000.0)), ("level", level(*metadata.level()).into())];
    if let (Some(file), Some(number)) = (metadata.file(), metadata.line()) {
        first.push(("caller", format!("{}:{number}", short(file)).into()));
    }
    first.push(("msg", fields.message.into()));
    if *metadata.level() != Level::ERROR {
        first.push(("v", verbosity(*metadata.level()).into()));
    }
    let mut text = String::from("{");
    let mut seen = Map::new();
    for (name, value) in first.into_iter().chain(fields.others) {
        // Names in an object must be unique; the first value wins.
        if seen.contains_key(name) {
            continue;
        }
        if text.len() > 1 {
            text.push(',');
        }
        text.push_str(&format!("{}:{value}", Value::from(name)));
        seen.insert(name.to_owned(), Value::Null);
    }
    text.push('}');
    text
}

/// Returns the last directory and the file name of a path, as Go programs log it.
fn short(file: &str) -> &str {
    let mut slashes = file.rmatch_indices('/').map(|(at, _)| at + 1);
    slashes.nth(1).map_or(file, |start| &file[start..])
}

fn level(level: Level) -> &'static str {
    match level {
        Level::ERROR => "error",
        Level::WARN => "warn",
        Level::INFO => "info",
        Level::DEBUG => "debug",
        Level::TRACE => "trace",
    }
}

/// Returns the lowest `-v` at which a message of this level is logged; see [`super::start`].
fn verbosity(level: Level) -> u32 {
    match level {
        Level::ERROR | Level::WARN | Level::INFO => 0,
        Level::DEBUG => 4,
        Level::TRACE => 6,
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io,
        sync::{Arc, Mutex},
    };

    use super::*;

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Lines {
        fn write(&mut self, text: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(text)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Returns the messages that `log` logs, by line, without time and caller.
    fn logged(log: impl FnOnce()) -> Vec<Value> {
        let lines = Lines::default();
        let writer = lines.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(Level::TRACE)
            .event_format(KubernetesJson)
            .with_writer(move || writer.clone())
            .finish();
        tracing::subscriber::with_default(subscriber, log);
        let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
        text.lines()
            .map(|line| {
                let mut value: Value = serde_json::from_str(line).unwrap();
                let fields = value.as_object_mut().unwrap();
                let time = fields.remove("ts").unwrap().as_f64().unwrap();
                assert!(time > 1.7e12, "milliseconds since 1970: {time}");
                let caller = fields.remove("caller").unwrap();
                assert!(caller.as_str().unwrap().starts_with("src/json.rs:"), "{caller}");
                value
            })
            .collect()
    }

    #[test]
    fn lines_have_fields_of_kubernetes_components() {
        let lines = logged(|| {
            tracing::info!(family = %"IPv4", written = 3_usize, full = true, took = ?std::time::Duration::from_millis(5), "synced");
            tracing::warn!("cannot read: {}", "no such file");
            tracing::error!(error = "no memory", "cannot write \"rules\"");
            tracing::debug!(share = 0.5, at = -1, "details");
            tracing::trace!("more details");
        });
        let expected = [
            json!({"level": "info", "msg": "synced", "v": 0, "family": "IPv4", "written": 3, "full": true, "took": "5ms"}),
            json!({"level": "warn", "msg": "cannot read: no such file", "v": 0}),
            json!({"level": "error", "msg": "cannot write \"rules\"", "err": "no memory"}),
            json!({"level": "debug", "msg": "details", "v": 4, "share": 0.5, "at": -1}),
            json!({"level": "trace", "msg": "more details", "v": 6}),
        ];
        assert_eq!(lines, expected);
    }

    #[test]
    fn lines_start_with_time() {
        let lines = Lines::default();
        let writer = lines.clone();
        let subscriber =
            tracing_subscriber::fmt().event_format(KubernetesJson).with_writer(move || writer.clone()).finish();
        tracing::subscriber::with_default(subscriber, || tracing::info!(msg = "again", "first\nsecond"));
        let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
        assert!(text.starts_with("{\"ts\":") && text.matches('\n').count() == 1, "{text}");
        assert!(text.contains("\"msg\":\"first\\nsecond\"") && !text.contains("again"), "{text}");
    }

    #[test]
    fn callers_are_shortened_to_directory_and_file() {
        assert_eq!(short("crates/ferroute/src/sync.rs"), "src/sync.rs");
        assert_eq!(short("src/sync.rs"), "src/sync.rs");
        assert_eq!(short("sync.rs"), "sync.rs");
    }
}
