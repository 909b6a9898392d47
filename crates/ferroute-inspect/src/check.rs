//! Checks manifests before they are applied, and reports all parts that the proxy would skip, ignore, limit or reject.
//!
//! ```text
//!   files ─┬─► documents ─► unknown kinds and fields ──────────┐
//!          └─► source ──► problems of reading, invalid objects ┼─► CheckReport
//!                   `───► Desired ─► explain each Service ─────┘
//! ```
//!
//! The handling of a Service is determined by [`explain`](crate::explain::explain()); this module makes no decisions.

use std::{
    collections::{BTreeMap, BTreeSet, btree_map},
    fmt,
    net::IpAddr,
    path::{Path, PathBuf},
};

use ferroute_api::{
    Kind, MirrorSkipReason, Object, Service, ServiceSpec, labels,
    manifest::{CheckedDocument, DocumentError, Parsed, Place, documents},
};
use ferroute_config::flags::SettingsArgs;
use ferroute_core::{
    Escaped, FrontendKind, IpFamily, NamespacedName, error_chain,
    parse::{MAX_ERRORS, SliceSkipReason, validate},
    tracker::TrackerEvent,
};
use ferroute_source::{Event, Input, Problem as SourceProblem};
use serde::{Deserialize, Serialize};

use crate::{
    about::About,
    desired::Desired,
    explain::{Explanation, Handling, Outcome, Reason, explain_object},
    plural, some_of,
    waiting::Waiting,
};

/// The result of a check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CheckReport {
    /// The number of files.
    pub files: usize,
    /// The number of valid objects that a proxy reads, by kind.
    pub objects: Vec<ObjectCount>,
    /// The problems, by file and line.
    pub problems: Vec<Problem>,
}

/// The number of objects of a kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ObjectCount {
    /// The kind.
    pub kind: String,
    /// The number.
    pub count: usize,
}

/// A problem in a file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Problem {
    /// File; `None` if it is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// The line, from 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line: Option<usize>,
    /// Kind and name of the object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub object: Option<String>,
    /// The path of the field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
    /// Effect of the problem.
    pub effect: Effect,
    /// The problem.
    pub problem: String,
}

/// Effect of a problem on an object, or on a part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Effect {
    /// Rejected: it cannot be read, or is invalid.
    Rejected,
    /// Skipped: it is valid, but not for this proxy.
    Skipped,
    /// Ignored: the rest of the object is used.
    Ignored,
    /// Limited: it is used only up to a limit of the proxy or of its mode.
    Limited,
}

/// Checks the manifests in these files and directories. Also returns the subject of the check.
///
/// # Errors
/// If the configuration or the host cannot be read. Problems of the files are in the report.
pub fn check(paths: &[PathBuf], settings: &SettingsArgs) -> anyhow::Result<(About, CheckReport)> {
    let names: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
    let _waiting = Waiting::for_work(format!("checking {}", some_of(&names)));
    let mut check = Check::default();
    // One source: an object may be defined once in all of them, and EndpointSlices take precedence over Endpoints in other files.
    let mut input = Input::default();
    for path in paths {
        let file = path.display().to_string();
        if let Err(error) = input.add(path) {
            check.add(Problem::new(Some(file), Effect::Rejected, format!("cannot read: {error}")));
        }
    }
    for file in input.files() {
        check.read_file(&input, file);
    }
    let events = input.events();
    let mut seen = BTreeSet::new();
    for event in &events {
        check.check_event(event, &mut seen);
    }
    let desired = Desired::from_given(settings, events, names.join(", "))?;
    for (name, service) in &desired.services {
        check.check_service(name, &explain_object(&desired, service));
    }
    check.check_endpoints_of_services(&desired);
    let Check { files, mut problems, counts, .. } = check;
    problems.sort();
    problems.dedup();
    let objects = counts.into_iter().map(|(kind, count)| ObjectCount { kind: kind.to_owned(), count }).collect();
    Ok((desired.about, CheckReport { files, objects, problems }))
}

/// A check in progress.
#[derive(Default)]
struct Check {
    files: usize,
    problems: Vec<Problem>,
    counts: BTreeMap<&'static str, usize>,
    /// The first valid definition of each object, by kind and name.
    definitions: BTreeMap<String, Definition>,
    /// The lines of later definitions, by object and file.
    redefinitions: BTreeMap<(String, String), usize>,
    /// The lines of annotations, by object and field.
    lines: BTreeMap<(String, String), usize>,
    /// The valid EndpointSlices, and the Endpoints that are mirrored to some.
    endpoints: Vec<EndpointsObject>,
    /// The Services with errors.
    rejected: BTreeSet<String>,
}

/// The definition of an object.
struct Definition {
    file: String,
    place: Place,
}

/// An object with the endpoints of a Service.
struct EndpointsObject {
    kind: Kind,
    name: NamespacedName,
    service: NamespacedName,
}

impl Check {
    fn add(&mut self, problem: Problem) {
        self.problems.push(problem);
    }

    /// Adds a problem of an object, and looks up the file of the object.
    fn add_for(&mut self, object: &str, field: Option<&str>, effect: Effect, text: impl Into<String>) {
        let definition = self.definitions.get(object);
        let line = field.and_then(|field| self.lines.get(&(object.to_owned(), field.to_owned())).copied());
        let line = line.or(definition.and_then(|definition| definition.place.line));
        let field = field.map(|field| definition.map_or(field.to_owned(), |definition| definition.place.field(field)));
        let problem = Problem::new(definition.map(|definition| definition.file.clone()), effect, text);
        self.add(Problem { line, object: Some(object.to_owned()), field, ..problem });
    }

    /// Reads a file for problems that its objects do not show. The source reports whether it can be read.
    fn read_file(&mut self, input: &Input, path: &Path) {
        self.files += 1;
        let file = path.display().to_string();
        let Ok(text) = input.text(path) else { return };
        for document in documents(&text) {
            let CheckedDocument { objects, unknown } = document.check();
            let is_single = objects.len() == 1;
            for error in unknown {
                self.add(Problem::of_document(&file, &error, Effect::Ignored));
            }
            for (place, object) in objects {
                match object {
                    Ok(Parsed::Object(object)) => {
                        let kind = object.kind();
                        let name = NamespacedName::from_metadata(object.metadata());
                        if validate(&object).is_err() {
                            // The source reports errors.
                            continue;
                        }
                        *self.counts.entry(kind.as_str()).or_default() += 1;
                        let definition = Definition { file: file.clone(), place: place.clone() };
                        let is_first = self.define(format!("{kind} {name}"), definition);
                        // In a list, another object may have the same key.
                        let annotations = object.metadata().annotations.keys().filter(|_| is_single && is_first);
                        // Each search reads the whole document, and there may be any number of unknown ones.
                        let (known, unknown): (Vec<_>, Vec<_>) = annotations
                            .filter(|key| labels::reads_annotation(key) || key.starts_with(labels::OWN_PREFIX))
                            .partition(|key| labels::reads_annotation(key));
                        for key in known.into_iter().chain(unknown.into_iter().take(MAX_ERRORS)) {
                            let field = (format!("{kind} {name}"), format!("metadata.annotations[{key}]"));
                            self.lines.extend(document.line_of_key(key).map(|line| (field, line)));
                        }
                        match *object {
                            Object::EndpointSlice(slice) => self.check_slice(&slice),
                            Object::Endpoints(endpoints) => self.check_endpoints(&endpoints),
                            Object::Service(service) if is_first => self.check_fields(&service, &place),
                            _ => {}
                        }
                    }
                    // The source reports errors.
                    Ok(Parsed::Ignored(_)) | Err(_) => {}
                }
            }
        }
    }

    /// Records a valid definition of an object, and reports whether it is the first one.
    fn define(&mut self, object: String, definition: Definition) -> bool {
        match self.definitions.entry(object) {
            btree_map::Entry::Vacant(entry) => {
                entry.insert(definition);
                true
            }
            btree_map::Entry::Occupied(entry) => {
                let Definition { file, place } = definition;
                if let Some(line) = place.line {
                    self.redefinitions.entry((entry.key().clone(), file)).or_insert(line);
                }
                false
            }
        }
    }

    /// Adds the fields of a Service that have no effect with its other fields.
    fn check_fields(&mut self, service: &Service, place: &Place) {
        let object = format!("Service {}", NamespacedName::from_metadata(&service.metadata));
        for (field, line) in &place.spec {
            let line = line.map(|line| ((object.clone(), format!("spec.{field}")), line));
            self.lines.extend(line);
            if let Some(reason) = why_without_effect(&service.spec, field) {
                self.add_for(&object, Some(&format!("spec.{field}")), Effect::Ignored, reason);
            }
        }
    }

    fn check_endpoints(&mut self, endpoints: &ferroute_api::Endpoints) {
        let name = NamespacedName::from_metadata(&endpoints.metadata);
        match MirrorSkipReason::for_endpoints(endpoints) {
            Some(reason) => self.add_for(&format!("Endpoints {name}"), None, Effect::Skipped, reason.to_string()),
            None => self.endpoints.push(EndpointsObject { kind: Kind::Endpoints, service: name.clone(), name }),
        }
    }

    fn check_slice(&mut self, slice: &ferroute_api::EndpointSlice) {
        let name = NamespacedName::from_metadata(&slice.metadata);
        let object = format!("EndpointSlice {name}");
        match TrackerEvent::from_slice(slice, "") {
            Ok(TrackerEvent::SliceApplied(view)) => {
                let service = view.service.clone();
                self.endpoints.push(EndpointsObject { kind: Kind::EndpointSlice, name, service });
                // Those of slices with a Service are added with the Service, too.
                for field in &view.ignored {
                    self.add_for(&object, Some(&field.field), Effect::Ignored, field.problem.clone());
                }
                for i in (0..slice.endpoints.len()).filter(|i| slice.endpoints[*i].addresses.len() > 1) {
                    let text = "proxies use only the first address of an endpoint";
                    self.add_for(&object, Some(&format!("endpoints[{i}].addresses[1]")), Effect::Ignored, text);
                }
            }
            Ok(_) => {
                if let Some(reason) = SliceSkipReason::for_slice(slice) {
                    self.add_for(&object, None, Effect::Skipped, reason.to_string());
                }
            }
            // The source has reported it.
            Err(_) => {}
        }
    }

    /// Adds the objects that have no effect because their Service does not exist, or has other endpoints.
    fn check_endpoints_of_services(&mut self, desired: &Desired) {
        let all = std::mem::take(&mut self.endpoints);
        let slices = all.iter().filter(|object| object.kind == Kind::EndpointSlice);
        let slices: BTreeMap<&NamespacedName, &NamespacedName> =
            slices.map(|slice| (&slice.service, &slice.name)).collect();
        for EndpointsObject { kind, name, service } in &all {
            let slice = slices.get(service).filter(|_| *kind == Kind::Endpoints);
            let service = service.to_string();
            let problem = match slice {
                Some(slice) => format!("its Service has EndpointSlices, such as {slice}"),
                None if desired.services.contains_key(&service) || self.rejected.contains(&service) => continue,
                None => format!("there is no Service {service}"),
            };
            self.add_for(&format!("{kind} {name}"), None, Effect::Ignored, problem);
        }
    }

    fn check_event(&mut self, event: &Event, seen: &mut BTreeSet<String>) {
        match event {
            Event::ServiceApplied(service) => {
                let name = NamespacedName::from_metadata(&service.metadata).to_string();
                if !seen.insert(name.clone()) {
                    let object = format!("Service {name}");
                    self.add_for(&object, None, Effect::Ignored, "defined more than once");
                }
            }
            Event::Problem(problem) => match &**problem {
                // Possible mistakes have been reported with their lines.
                SourceProblem::Ignored { .. } => {}
                SourceProblem::Document { file, error, .. } => {
                    if error.kind.as_deref() == Some(Kind::Service.as_str()) {
                        self.rejected.extend(error.name.as_deref().map(str::to_owned));
                    }
                    self.add(Problem::of_document(&file.display().to_string(), error, Effect::Rejected));
                }
                SourceProblem::Duplicate { kind, name, applied, ignored } => {
                    let (object, file) = (format!("{kind} {name}"), ignored.display().to_string());
                    let line = self.redefinitions.get(&(object.clone(), file.clone())).copied();
                    let first = self.definitions.get(&object).and_then(|definition| definition.place.line);
                    let first = first.map(|line| format!(":{line}")).unwrap_or_default();
                    let text = format!("already defined in {}{first}", applied.display());
                    self.add(Problem { line, object: Some(object), ..Problem::new(Some(file), Effect::Ignored, text) });
                }
                SourceProblem::Unreadable { path, source } => {
                    let text = format!("cannot read: {source}");
                    self.add(Problem::new(Some(path.display().to_string()), Effect::Rejected, text));
                }
                SourceProblem::InvalidUtf8 { path, offset } => {
                    let text = format!("cannot read: invalid UTF-8 at byte {offset}");
                    self.add(Problem::new(Some(path.display().to_string()), Effect::Rejected, text));
                }
                SourceProblem::NotText { path, format } => {
                    let text = format!("cannot read: {format}");
                    self.add(Problem::new(Some(path.display().to_string()), Effect::Rejected, text));
                }
                SourceProblem::IgnoredFields { kind, name, fields, .. } => {
                    for error in fields {
                        let object = format!("{kind} {name}");
                        self.add_for(&object, Some(&error.field), Effect::Ignored, &error.problem);
                    }
                }
                SourceProblem::NoFiles { path } => {
                    self.add(Problem::new(Some(path.display().to_string()), Effect::Skipped, error_chain(&**problem)));
                }
                SourceProblem::NotRead { path, reason } => {
                    self.add(Problem::new(Some(path.display().to_string()), Effect::Skipped, reason.to_string()));
                }
                SourceProblem::TooLong { path, .. } => {
                    self.add(Problem::new(Some(path.display().to_string()), Effect::Rejected, error_chain(&**problem)));
                }
                other => self.add(Problem::new(None, Effect::Rejected, error_chain(other))),
            },
            _ => {}
        }
    }

    fn check_service(&mut self, name: &str, explanation: &Explanation) {
        let object = format!("Service {name}");
        let (ignored, ports, unused) = match &explanation.handling {
            Handling::Served { ignored, ports, unused_slices, .. } => (ignored, ports, unused_slices),
            Handling::Skipped { reason, .. } => return self.add_for(&object, None, Effect::Skipped, reason),
            // The source has reported it.
            Handling::Invalid { .. } => return,
        };
        for text in ignored {
            let of_slice = text.split_once(": ").filter(|(start, _)| start.starts_with(Kind::EndpointSlice.as_str()));
            let (object, text) = of_slice.unwrap_or((&object, text));
            let (field, text) = text.split_once(": ").unwrap_or(("", text));
            self.add_for(object, Some(field).filter(|field| !field.is_empty()), Effect::Ignored, text);
        }
        for slice in unused.iter().chain(ports.iter().flat_map(|port| &port.unused_slices)) {
            let object = format!("EndpointSlice {}", slice.slice);
            // A slice that no file defines is mirrored from the Endpoints of the Service.
            let is_defined = self.definitions.contains_key(&object);
            let object = if is_defined { object } else { format!("Endpoints {name}") };
            self.add_for(&object, None, Effect::Ignored, &slice.reason);
        }
        for port in ports {
            let label = format!("port {} ({}, {})", port.name, port.family, port.protocol);
            let label = label.replace("port  (", "port (");
            if port.excess_endpoints > 0 {
                let text = format!("{label}: {} beyond the limit", plural(port.excess_endpoints, "endpoint"));
                self.add_for(&object, None, Effect::Limited, text);
            }
            for frontend in &port.frontends {
                let addresses: Vec<String> = frontend.addresses.iter().map(ToString::to_string).collect();
                let place = match frontend.kind {
                    FrontendKind::NodePort => format!("node port {}", frontend.port),
                    kind => format!("{kind} {}, port {}", addresses.join(", "), frontend.port),
                };
                if let Some(owner) = &frontend.owner {
                    let text = format!("{label}: {place} {owner}");
                    self.add_for(&object, None, Effect::Ignored, text);
                }
                let unsupported = Outcome::Rejected { reason: Reason::UnsupportedProtocol };
                if frontend.answers.iter().any(|answer| answer.outcome == unsupported) {
                    let text = format!("{label}: {place} is rejected, because the mode does not support the protocol");
                    self.add_for(&object, None, Effect::Limited, text);
                }
            }
        }
    }
}

impl Problem {
    fn new(file: Option<String>, effect: Effect, problem: impl Into<String>) -> Self {
        Self { file, line: None, object: None, field: None, effect, problem: problem.into() }
    }

    fn of_document(file: &str, error: &DocumentError, effect: Effect) -> Self {
        let parts = [&error.kind, &error.name];
        let object: Vec<&str> = parts.into_iter().flatten().map(AsRef::as_ref).collect();
        Self {
            file: Some(file.to_owned()),
            line: error.line,
            object: (!object.is_empty()).then(|| object.join(" ")),
            field: error.field.as_deref().map(str::to_owned),
            effect,
            problem: error.cause.to_string(),
        }
    }
}

/// Returns the reason why a field of a Service that is set has no effect; `None` if it has one. The conditions are those of
/// the API server's validation.
fn why_without_effect(spec: &ServiceSpec, field: &str) -> Option<String> {
    let kind = spec.type_.as_deref().filter(|kind| !kind.is_empty()).unwrap_or("ClusterIP");
    let is_load_balancer = kind == "LoadBalancer";
    let is_external = match kind {
        "ClusterIP" => !spec.external_ips.is_empty(),
        kind => kind == "NodePort" || is_load_balancer,
    };
    let has_health_check = is_load_balancer && spec.external_traffic_policy.as_deref() == Some("Local");
    let unsupported = |value: &str, supported: &[&str]| {
        (!supported.contains(&value)).then(|| format!("unsupported value {value:?} (want {})", supported.join(", ")))
    };
    let reason = match field {
        // The API server permits it.
        "loadBalancerIP" => return (!is_load_balancer).then(|| "only the type LoadBalancer has it".to_owned()),
        "loadBalancerClass" | "allocateLoadBalancerNodePorts" if !is_load_balancer => {
            "only the type LoadBalancer has it".to_owned()
        }
        "externalTrafficPolicy" if !is_external => {
            "only Services with node ports, a load balancer or external IPs have it".to_owned()
        }
        "healthCheckNodePort" if !has_health_check && spec.health_check_node_port != Some(0) => {
            "only the type LoadBalancer with externalTrafficPolicy Local has health checks".to_owned()
        }
        "sessionAffinityConfig" if spec.session_affinity.as_deref() != Some("ClientIP") => {
            "sessionAffinity is not ClientIP".to_owned()
        }
        "trafficDistribution" => {
            unsupported(spec.traffic_distribution.as_deref()?, &["PreferClose", "PreferSameZone", "PreferSameNode"])?
        }
        "ipFamilyPolicy" => {
            unsupported(spec.ip_family_policy.as_deref()?, &["SingleStack", "PreferDualStack", "RequireDualStack"])?
        }
        "ipFamilies" => {
            let known = spec.ip_families.iter().find_map(|family| unsupported(family, &["IPv4", "IPv6"]));
            let first = spec.cluster_ip.as_slice().iter().filter(|_| spec.cluster_ips.is_empty());
            let addresses = first.chain(&spec.cluster_ips).filter_map(|address| address.parse::<IpAddr>().ok());
            let contradiction = || {
                let mut pairs = addresses.zip(&spec.ip_families);
                let (address, _) = pairs.find(|(address, family)| IpFamily::of(*address).to_string() != **family)?;
                Some(format!("the cluster IP {address} is of the other family"))
            };
            known.or_else(contradiction)?
        }
        _ => return None,
    };
    Some(format!("{reason}; the API server rejects the Service"))
}

fn count_of_kind(ObjectCount { kind, count }: &ObjectCount) -> String {
    // Endpoints is a plural.
    if kind.ends_with('s') { format!("{count} {kind}") } else { plural(*count, kind) }
}

/// Writes a report as text.
///
/// # Errors
/// Only errors of `out`.
pub fn write_report_into(out: &mut impl fmt::Write, report: &CheckReport) -> fmt::Result {
    for Problem { file, line, object, field, effect, problem } in &report.problems {
        let line = line.map(|line| format!(":{line}")).unwrap_or_default();
        let place = file.as_ref().map(|file| format!("{}{line}", Escaped(file)));
        let parts = [place, object.as_ref().map(|text| Escaped(text).to_string()), field.clone()];
        for part in parts.into_iter().flatten() {
            write!(out, "{}: ", Escaped(part))?;
        }
        let effect = match effect {
            Effect::Rejected => "rejected",
            Effect::Skipped => "skipped",
            Effect::Ignored => "ignored",
            Effect::Limited => "limited",
        };
        writeln!(out, "{effect}: {}", Escaped(problem))?;
    }
    let objects = report.objects.iter().map(count_of_kind).collect::<Vec<_>>();
    let objects = if objects.is_empty() { "no objects".to_owned() } else { objects.join(", ") };
    let problems = match report.problems.len() {
        0 => "no problems".to_owned(),
        count => plural(count, "problem"),
    };
    writeln!(out, "{problems}: {objects} in {}", plural(report.files, "file"))
}
