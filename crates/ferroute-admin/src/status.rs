//! Status pages: `/configz`, `/statusz` and `/flagz`.
//!
//! As in Kubernetes 1.36, the `Accept` header selects the form of the last two:
//!
//! ```text
//!   no header, */*, text/*, text/plain                     plain text
//!   application/json;g=config.k8s.io;v=v1beta1;as=Statusz  object; also v1alpha1, also YAML
//!   anything else, such as application/json alone          406
//! ```
//!
//! The first media type that is available wins; quality values are ignored.

use std::{collections::BTreeMap, time::SystemTime};

use ferroute_config::KubeProxyConfiguration;
use ferroute_core::rfc3339;
use ferroute_host::Moment;
use hyper::{
    HeaderMap, StatusCode,
    header::{ACCEPT, CONTENT_TYPE, HeaderValue},
};
use serde_json::{Value, json};

use crate::{
    http::{Request, Response, json, text},
    version,
};

/// The contents of the status pages.
#[derive(Debug)]
pub struct Pages {
    configz: String,
    flags: BTreeMap<String, String>,
    /// Host settings, one line each.
    host: Vec<String>,
    paths: Vec<&'static str>,
    started: Moment,
}

impl Pages {
    /// Creates the pages of a proxy that starts now with this configuration and these flags and their values.
    pub fn new<'a>(config: &KubeProxyConfiguration, flags: impl Iterator<Item = (&'a str, &'a str)>) -> Self {
        let flags = flags.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        let (configz, started) = (config.to_configz().to_string(), Moment::now());
        Self { configz, flags, host: Vec::new(), paths: PATHS.to_vec(), started }
    }

    /// Adds the pages of Services to the paths on `/statusz`.
    pub fn with_service_status(mut self) -> Self {
        self.paths.extend(SERVICE_PATHS);
        self.paths.sort_unstable();
        self
    }

    /// Adds lines for host settings to the text of `/statusz`.
    pub fn with_host(self, lines: Vec<String>) -> Self {
        Self { host: lines, ..self }
    }

    pub(crate) fn configz(&self) -> Response {
        json(StatusCode::OK, self.configz.clone())
    }

    pub(crate) fn statusz(&self, request: &Request) -> Response {
        let started = whole_seconds(self.started.wall);
        let uptime = self.started.instant.elapsed().as_secs();
        let mut lines = format!(
            "Started: {started}\nUp: {} hr {:02} min {:02} sec\nBinary version: {}\nEmulation version: {}\nPaths: {}\n",
            uptime / 3600,
            uptime / 60 % 60,
            uptime % 60,
            version::GIT_VERSION,
            version::EMULATED,
            self.paths.join(" ")
        );
        self.host.iter().for_each(|line| lines.push_str(&format!("Host: {line}\n")));
        let fields = json!({
            "startTime": started,
            "uptimeSeconds": uptime,
            "goVersion": "",
            "binaryVersion": version::GIT_VERSION.trim_start_matches('v'),
            "emulationVersion": version::EMULATED,
            "paths": self.paths,
        });
        page(request, "Statusz", &lines, fields)
    }

    pub(crate) fn flagz(&self, request: &Request) -> Response {
        let lines: String = self.flags.iter().map(|(name, value)| format!("{name}={value}\n")).collect();
        let note = "These are flags as given, or their defaults. /configz has the configuration in effect, also that of a file.";
        page(request, "Flagz", &format!("{note}\n\n{lines}"), json!({ "flags": self.flags }))
    }
}

/// Paths listed on `/statusz`.
const PATHS: [&str; 6] = ["/configz", "/flagz", "/healthz", "/metrics", "/proxyMode", "/statusz"];

/// Paths that are served on request only.
const SERVICE_PATHS: [&str; 2] = ["/changes", "/services"];

const GROUP: &str = "config.k8s.io";

/// Versions of `Statusz` and `Flagz`, which have the same fields.
const VERSIONS: [&str; 2] = ["v1beta1", "v1alpha1"];

/// Kubernetes formats times in whole seconds.
fn whole_seconds(time: SystemTime) -> String {
    rfc3339::format(time, 0).unwrap_or_default()
}

/// The form of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Text,
    Object { yaml: bool, version: &'static str },
}

impl Form {
    /// Returns the first available form that an `Accept` header lists for an object of this kind.
    fn negotiate(headers: &HeaderMap, kind: &str) -> Option<Self> {
        let values: Vec<&str> = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok()).collect();
        let accepted = values.join(",");
        if accepted.trim().is_empty() {
            return Some(Self::Text);
        }
        accepted.split(',').find_map(|media_type| Self::from_media_type(media_type, kind))
    }

    fn from_media_type(media_type: &str, kind: &str) -> Option<Self> {
        let (name, parameters) = media_type.split_once(';').unwrap_or((media_type, ""));
        let parameter = |name: &str| {
            let mut pairs = parameters.split(';').filter_map(|part| part.split_once('='));
            pairs.find(|(key, _)| key.trim() == name).map(|(_, value)| value.trim().trim_matches('"'))
        };
        match (name.trim(), ["as", "g", "v"].map(parameter)) {
            ("*/*" | "text/*" | "text/plain", [None, None, None]) => Some(Self::Text),
            (name @ ("application/json" | "application/yaml"), [Some(r#as), Some(GROUP), Some(version)])
                if r#as == kind =>
            {
                let version = VERSIONS.into_iter().find(|supported| *supported == version)?;
                Some(Self::Object { yaml: name.ends_with("yaml"), version })
            }
            _ => None,
        }
    }
}

fn media_type(kind: &str, yaml: bool, version: &str) -> String {
    format!("application/{};g={GROUP};v={version};as={kind}", if yaml { "yaml" } else { "json" })
}

/// Returns a page in the requested form.
fn page(request: &Request, kind: &str, lines: &str, mut fields: Value) -> Response {
    let (yaml, version) = match Form::negotiate(&request.headers, kind) {
        Some(Form::Object { yaml, version }) => (yaml, version),
        Some(Form::Text) => {
            let title = kind.to_lowercase();
            let notice = "This page is for people: its format may change. Programs should request the object.";
            return text(StatusCode::OK, format!("\nkube-proxy {title}\n{notice}\n\n{lines}"));
        }
        None => return not_acceptable(kind),
    };
    fields["kind"] = kind.into();
    fields["apiVersion"] = format!("{GROUP}/{version}").into();
    fields["metadata"] = json!({ "name": "kube-proxy" });
    let body =
        if yaml { serde_saphyr::to_string(&fields).expect("a JSON value is always YAML") } else { fields.to_string() };
    let mut response = json(StatusCode::OK, body);
    let media_type = HeaderValue::from_str(&media_type(kind, yaml, version)).expect("kinds are ASCII letters");
    response.headers_mut().insert(CONTENT_TYPE, media_type);
    response
}

/// Returns the error as a Kubernetes `Status`.
fn not_acceptable(kind: &str) -> Response {
    let [json_type, yaml_type] = [false, true].map(|yaml| media_type(kind, yaml, VERSIONS[0]));
    let status = json!({
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": format!("available media types: text/plain, {json_type}, {yaml_type}"),
        "reason": "NotAcceptable",
        "code": StatusCode::NOT_ACCEPTABLE.as_u16(),
    });
    json(StatusCode::NOT_ACCEPTABLE, status.to_string())
}

#[cfg(test)]
mod tests;
