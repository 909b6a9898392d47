//! Replays the bundle of a flight recorder: repeats the recorded syncs without a kernel, and compares the outcomes.

use std::{
    collections::BTreeSet,
    io::{self, Write},
    net::SocketAddr,
    time::Duration,
};

use anyhow::Context;
use ferroute_api::{Kind, Object, ServiceCidr};
use ferroute_config::{KubeProxyConfiguration, settings::Settings};
use ferroute_core::{
    Escaped, IpFamily, NamespacedName, Tracker,
    parse::{InvalidObject, parse_node, parse_service_cidr},
    rfc3339,
    tracker::TrackerEvent,
};
use ferroute_modes::{Registry, SimulatedSync, Simulation};
use ferroute_proxy::recording::{
    Bundle, Outcome, RecordedChange, RecordedShares, SyncRecord, ejections, objects, shares,
};
use ipnet::IpNet;

/// The options of a replay.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The number of the last sync to replay; 0 is the state before the first sync.
    pub until: Option<usize>,
    /// Whether to print what each sync writes to the kernel.
    pub rules: bool,
    /// Print only the final desired state, as manifests.
    pub manifests: bool,
}

/// The result of a replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// All outcomes equal the recorded ones.
    Same,
    /// Some outcomes differ.
    Different,
}

/// Replays a bundle with the modes of `registry` and prints each sync to `out`.
///
/// # Errors
/// If the bundle is invalid, or `out` cannot be written.
pub fn replay(
    registry: &Registry,
    bundle: &Bundle,
    options: &Options,
    out: &mut impl Write,
) -> anyhow::Result<Verdict> {
    let syncs = bundle.syncs.get(..options.until.unwrap_or(bundle.syncs.len())).with_context(|| {
        format!("the bundle has no sync {} (only {})", options.until.unwrap_or(0), bundle.syncs.len())
    })?;
    if options.manifests {
        return write_manifests(bundle, syncs, out).map(|()| Verdict::Same);
    }
    let resolved = settings(registry, bundle)?.resolved;
    let mode = registry.active(resolved.mode);
    let mut replay = Replay::new(bundle)?;
    replay.tracker = replay.tracker.with_traits(mode.traits());
    let mut simulations: Vec<(IpFamily, Box<dyn Simulation>)> = families(bundle)
        .into_iter()
        .map(|family| (family, mode.simulate(family, &resolved, bundle.host_addresses.clone())))
        .collect();
    writeln!(
        out,
        "node {}, mode {}, version {}, created {}",
        Escaped(&bundle.base.node.metadata.name),
        Escaped(&bundle.mode),
        Escaped(&bundle.version),
        rfc3339::format(bundle.made, 3).unwrap_or_default()
    )?;
    writeln!(out, "0: {} Services, {} EndpointSlices", bundle.base.services.len(), bundle.base.endpoint_slices.len())?;
    replay.tracker.apply(TrackerEvent::OtherHostsApplied(bundle.other_hosts.clone()));
    for (family, simulation) in &mut simulations {
        replay.tracker.set_host_addresses(*family, &resolved.settings, &bundle.host_addresses);
        replay.tracker.update_for_resync(*family);
        let replayed = simulation.resync(replay.tracker.table(*family))?;
        writeln!(out, "   {family}: {} rules or elements", replayed.total)?;
        write_rules(options, &replayed, out)?;
    }
    let mut verdict = Verdict::Same;
    for (number, sync) in (1..).zip(syncs) {
        replay.apply(sync)?;
        write_changes(number, sync, out)?;
        for (family, simulation) in &mut simulations {
            let Some(record) = sync.families.iter().find(|record| record.family == *family) else { continue };
            let mut replayed = repeat(simulation.as_mut(), *family, &record.outcome, &mut replay.tracker)?;
            if let Some(replayed) = &mut replayed {
                select_writing(replayed, &record.outcome);
            }
            if !write_outcome(*family, &record.outcome, replayed.as_ref(), out)? {
                verdict = Verdict::Different;
            }
            if let Some(replayed) = &replayed {
                write_rules(options, replayed, out)?;
            }
        }
    }
    match verdict {
        Verdict::Same => writeln!(out, "all outcomes are equal to the recorded ones")?,
        Verdict::Different => writeln!(out, "some outcomes differ from the recorded ones")?,
    }
    Ok(verdict)
}

/// The desired state at one point of a bundle.
///
/// ```no_run
/// # fn replay(bundle: &ferroute_proxy::recording::Bundle) -> Result<(), ferroute_inspect::replay::InvalidBundle> {
/// let mut replay = ferroute_inspect::replay::Replay::new(bundle)?;
/// for sync in &bundle.syncs {
///     replay.apply(sync)?;
///     // `replay.tracker` has the desired state of this sync.
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Replay {
    /// The desired state.
    pub tracker: Tracker,
}

/// Reason why a bundle cannot be replayed.
#[derive(Debug, thiserror::Error)]
pub enum InvalidBundle {
    /// An object is invalid.
    #[error("invalid object in the bundle")]
    Object(#[from] InvalidObject),
    /// The name of a deleted object is invalid.
    #[error("invalid name of a deleted object (got {name:?}, want NAMESPACE/NAME)")]
    Name {
        /// The name.
        name: String,
    },
}

impl Replay {
    /// Creates the desired state before the first sync. No changes have been taken from the tracker with
    /// [`Tracker::update`] yet.
    ///
    /// # Errors
    /// If the bundle was modified and has an invalid object.
    pub fn new(bundle: &Bundle) -> Result<Self, InvalidBundle> {
        let node = parse_node(&bundle.base.node)?;
        let mut tracker = Tracker::new(node.clone());
        for service in &bundle.base.services {
            tracker.apply(TrackerEvent::from_service(service)?);
        }
        for slice in &bundle.base.endpoint_slices {
            tracker.apply(TrackerEvent::from_slice(slice, &node.name)?);
        }
        tracker.apply(TrackerEvent::ServiceCidrsApplied(parse_networks(&bundle.base.service_cidrs)?));
        tracker.apply(TrackerEvent::EndpointsEjected(ejections(&bundle.base.ejected)));
        tracker.apply(TrackerEvent::SharesApplied(shares(&bundle.base.shares)));
        Ok(Self { tracker })
    }

    /// Applies the changes of a sync.
    ///
    /// # Errors
    /// See [`Replay::new`].
    pub fn apply(&mut self, sync: &SyncRecord) -> Result<(), InvalidBundle> {
        for change in &sync.changes {
            let event = match change {
                RecordedChange::Service(service) => TrackerEvent::from_service(service)?,
                RecordedChange::ServiceDeleted(name) => TrackerEvent::ServiceDeleted(parse_name(name)?),
                RecordedChange::EndpointSlice(slice) => TrackerEvent::from_slice(slice, &self.tracker.node().name)?,
                RecordedChange::EndpointSliceDeleted(name) => TrackerEvent::SliceDeleted(parse_name(name)?),
                RecordedChange::Node(node) => TrackerEvent::NodeApplied(parse_node(node)?),
                RecordedChange::ServiceCidrs(cidrs) => TrackerEvent::ServiceCidrsApplied(parse_networks(cidrs)?),
                RecordedChange::Ejected(ejected) => TrackerEvent::EndpointsEjected(ejections(ejected)),
                RecordedChange::Shares(recorded) => TrackerEvent::SharesApplied(shares(recorded)),
            };
            self.tracker.apply(event);
        }
        Ok(())
    }
}

fn parse_networks(cidrs: &[ServiceCidr]) -> Result<Vec<IpNet>, InvalidBundle> {
    let mut networks = Vec::new();
    for cidr in cidrs {
        networks.append(&mut parse_service_cidr(cidr)?);
    }
    Ok(networks)
}

pub(crate) fn parse_name(name: &str) -> Result<NamespacedName, InvalidBundle> {
    let (namespace, short_name) = name.split_once('/').ok_or_else(|| InvalidBundle::Name { name: name.to_owned() })?;
    Ok(NamespacedName::new(namespace, short_name))
}

/// Returns the configuration of the proxy that recorded a bundle, with the mode that was active.
///
/// # Errors
/// If it is invalid.
pub fn settings(registry: &Registry, bundle: &Bundle) -> anyhow::Result<Settings> {
    let decoded = KubeProxyConfiguration::from_text(&bundle.configuration)
        .context("cannot read the configuration in the bundle")?;
    let mut config = decoded.config.defaulted();
    // The active mode may differ from the configured one.
    config.mode.clone_from(&bundle.mode);
    let mut resolved = registry.resolve(&config).context("the configuration in the bundle is invalid")?;
    resolved.set_flags(bundle.flags.clone());
    Ok(Settings { config, resolved, warnings: Vec::new(), file: None })
}

/// Repeats the sync with this recorded outcome; returns `None` if it changed nothing.
fn repeat(
    simulation: &mut dyn Simulation,
    family: IpFamily,
    recorded: &Outcome,
    tracker: &mut Tracker,
) -> anyhow::Result<Option<SimulatedSync>> {
    let changes = tracker.update(family);
    let table = tracker.table(family);
    match recorded {
        // The next sync writes these changes as well.
        Outcome::Failed { .. } => Ok(None),
        Outcome::Synced { full: true, .. } => simulation.resync(table).map(Some),
        Outcome::Unchanged | Outcome::Synced { .. } if changes.is_empty() => Ok(None),
        Outcome::Unchanged | Outcome::Synced { .. } => simulation.sync(table, &changes).map(Some),
    }
}

/// Selects the way of writing that the proxy used, if the mode has several. A bundle does not contain it, because it
/// depends on the host and on the actions of other programs.
fn select_writing(replayed: &mut SimulatedSync, recorded: &Outcome) {
    let Outcome::Synced { written, .. } = recorded else { return };
    if let Some(other) = replayed.other.take_if(|other| other.written == *written) {
        (replayed.written, replayed.text) = (other.written, other.text);
    }
}

/// Returns the IP families in the recorded syncs, or both if there are no syncs.
fn families(bundle: &Bundle) -> Vec<IpFamily> {
    let served = |family: &IpFamily| {
        let mut records = bundle.syncs.iter().flat_map(|sync| &sync.families);
        bundle.syncs.is_empty() || records.any(|record| record.family == *family)
    };
    IpFamily::BOTH.into_iter().filter(served).collect()
}

fn write_changes(number: usize, sync: &SyncRecord, out: &mut impl Write) -> io::Result<()> {
    let pending = if sync.families.is_empty() { ", not applied yet" } else { "" };
    writeln!(out, "{number}: {}{pending}", rfc3339::format(sync.at, 3).unwrap_or_default())?;
    for change in &sync.changes {
        match change {
            RecordedChange::Service(service) => {
                let (namespace, name) = (Escaped(&service.metadata.namespace), Escaped(&service.metadata.name));
                writeln!(out, "   Service {namespace}/{name}")?;
            }
            RecordedChange::ServiceDeleted(name) => writeln!(out, "   Service {} deleted", Escaped(name))?,
            RecordedChange::EndpointSlice(slice) => {
                let ready = slice.endpoints.iter().filter(|endpoint| endpoint.conditions.ready != Some(false)).count();
                let (namespace, name) = (Escaped(&slice.metadata.namespace), Escaped(&slice.metadata.name));
                writeln!(out, "   EndpointSlice {namespace}/{name}: {ready} of {} ready", slice.endpoints.len())?;
            }
            RecordedChange::EndpointSliceDeleted(name) => writeln!(out, "   EndpointSlice {} deleted", Escaped(name))?,
            RecordedChange::Node(node) => writeln!(out, "   Node {}", Escaped(&node.metadata.name))?,
            RecordedChange::ServiceCidrs(cidrs) => {
                let networks: Vec<&str> = cidrs.iter().flat_map(|cidr| &cidr.spec.cidrs).map(String::as_str).collect();
                writeln!(out, "   ServiceCIDRs {}", Escaped(networks.join(" ")))?;
            }
            RecordedChange::Ejected(ejected) => {
                let of_port = |(name, endpoints): (&String, &BTreeSet<SocketAddr>)| {
                    format!("{name} {}", endpoints.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "))
                };
                let ejected: Vec<String> = ejected.iter().map(of_port).collect();
                let text = if ejected.is_empty() { "none".to_owned() } else { ejected.join(", ") };
                writeln!(out, "   ejected endpoints: {}", Escaped(text))?;
            }
            RecordedChange::Shares(recorded) => {
                let of_port = |RecordedShares { service_port, protocol: _, sixteenths }: &RecordedShares| {
                    let shares = sixteenths.iter().map(|(endpoint, share)| format!(" {endpoint} {}/16", share.get()));
                    format!("{service_port}{}", shares.collect::<String>())
                };
                let text = match &recorded[..] {
                    [] => "all of their weights".to_owned(),
                    recorded => recorded.iter().map(of_port).collect::<Vec<_>>().join(", "),
                };
                writeln!(out, "   shares of endpoints: {}", Escaped(text))?;
            }
        }
    }
    if sync.changes.is_empty() {
        writeln!(out, "   no changes: all rules were compared with the kernel's")?;
    }
    Ok(())
}

/// Writes the recorded outcome and its differences from the replayed one. Reports whether they are equal.
fn write_outcome(
    family: IpFamily,
    recorded: &Outcome,
    replayed: Option<&SimulatedSync>,
    out: &mut impl Write,
) -> io::Result<bool> {
    write!(out, "   {family}: ")?;
    match recorded {
        Outcome::Unchanged => {
            let same = replayed.is_none();
            writeln!(out, "unchanged{}", if same { "" } else { "; replayed: changed" })?;
            Ok(same)
        }
        Outcome::Failed { error } => {
            writeln!(out, "failed: {}", Escaped(error))?;
            Ok(true)
        }
        Outcome::Synced { services, full, written, removed, total, conntrack_deleted, took_us, kernel_us, rules } => {
            let took = |micros: u64| humantime::format_duration(Duration::from_micros(micros));
            write!(out, "{services} Services, {written} written, {removed} removed, {total} active")?;
            if *conntrack_deleted > 0 {
                write!(out, ", {conntrack_deleted} stale conntrack entries deleted")?;
            }
            write!(out, " in {} (kernel {})", took(*took_us), took(*kernel_us))?;
            let Some(replayed) = replayed else {
                writeln!(out, "; replayed: unchanged")?;
                return Ok(false);
            };
            // The number of rules that a full sync writes depends on the state of the kernel; the digest of all rules
            // does not. In nftables mode, the places of endpoints in lists depend on earlier syncs, which the recording may
            // not have; how many there are does not.
            let same = match (full, rules) {
                (true, Some(_)) => replayed.rules == *rules,
                (true, None) => true,
                (false, _) => replayed.written + *removed == *written + replayed.removed,
            };
            match (full, rules) {
                (true, Some(_)) if same => writeln!(out, ", full sync, same rules")?,
                (true, Some(_)) => writeln!(out, ", full sync; replayed: different rules")?,
                (true, None) => writeln!(out, ", full sync")?,
                (false, _) if (replayed.written, replayed.removed) == (*written, *removed) => writeln!(out)?,
                (false, _) if same => writeln!(out, "; replayed: the same in other places")?,
                (false, _) => writeln!(out, "; replayed: {} written, {} removed", replayed.written, replayed.removed)?,
            }
            Ok(same)
        }
    }
}

fn write_rules(options: &Options, replayed: &SimulatedSync, out: &mut impl Write) -> io::Result<()> {
    if options.rules {
        replayed.text.lines().try_for_each(|line| writeln!(out, "      {}", Escaped(line)))?;
    }
    Ok(())
}

/// Writes the desired state after these syncs as YAML documents.
fn write_manifests(bundle: &Bundle, syncs: &[SyncRecord], out: &mut impl Write) -> anyhow::Result<()> {
    let mut replay = Replay::new(bundle)?;
    for sync in syncs {
        replay.apply(sync)?;
    }
    let tracker = &replay.tracker;
    let node = tracker.node();
    let mut services: Vec<_> = tracker.services().collect();
    services.sort();
    let mut slices: Vec<_> = tracker.slices().collect();
    slices.sort();
    let service_cidrs = objects::service_cidrs(tracker.service_cidrs());
    let objects = [Object::Node(objects::node(node))]
        .into_iter()
        .chain(service_cidrs.into_iter().map(Object::ServiceCidr))
        .chain(services.into_iter().filter_map(|name| {
            let ports = tracker.ports_of(name)?;
            Some(Object::Service(objects::service(name, ports.each_ref().map(AsRef::as_ref))))
        }))
        .chain(
            slices
                .into_iter()
                .filter_map(|name| Some(Object::EndpointSlice(objects::slice(&tracker.slice(name)?, &node.name)))),
        );
    for object in objects {
        write_manifest(&object, out)?;
    }
    Ok(())
}

/// Writes an object as a YAML document. It is one line of JSON, which is valid YAML and easy to search with grep.
fn write_manifest(object: &Object, out: &mut impl Write) -> anyhow::Result<()> {
    let mut value = match object {
        Object::Service(service) => serde_json::to_value(service)?,
        Object::EndpointSlice(slice) => serde_json::to_value(slice)?,
        Object::Node(node) => serde_json::to_value(node)?,
        Object::ServiceCidr(cidr) => serde_json::to_value(cidr)?,
        _ => anyhow::bail!("bundles have no objects of kind {}", object.kind()),
    };
    let kind: Kind = object.kind();
    value["apiVersion"] = kind.api_version().into();
    value["kind"] = kind.as_str().into();
    writeln!(out, "---\n{}", escape_json(&value.to_string()))?;
    Ok(())
}

/// Escapes invisible characters in the strings of a JSON text, which has none outside of strings. JSON itself requires
/// escapes only for some control characters.
fn escape_json(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_ascii_graphic() || Escaped(c).to_string().chars().eq([c]) {
            escaped.push(c);
        } else {
            let mut units = [0; 2];
            c.encode_utf16(&mut units).iter().for_each(|unit| escaped.push_str(&format!("\\u{unit:04x}")));
        }
    }
    escaped
}
