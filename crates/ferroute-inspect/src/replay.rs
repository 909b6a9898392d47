//! Replays a bundle: makes the decisions of a running proxy again, without a kernel.

mod bundle;

use std::io::{self, Write};

use anyhow::Context;
use ferroute_api::{Kind, Object};
use ferroute_config::{KubeProxyConfiguration, Resolved};
use ferroute_core::{IpFamily, ServiceTable, Tracker, rfc3339};
use ferroute_proxy::{
    modes::{REGISTRY, SimulatedSync, Simulation},
    recording::{Bundle, Outcome, RecordedChange as Change, SyncRecord, objects},
};

pub use self::bundle::{InvalidBundle, Replay};

/// What to replay and print.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The number of the last sync to replay; 0 is the state before the first.
    pub until: Option<usize>,
    /// Print what each sync writes to the kernel.
    pub rules: bool,
    /// Print the desired state at the end as manifests, and nothing else.
    pub manifests: bool,
}

/// Whether the decisions were the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// All of them.
    Same,
    /// Some was different.
    Different,
}

/// Replays a bundle and tells about each sync on `out`.
pub fn replay(bundle: &Bundle, args: &Options, out: &mut impl Write) -> anyhow::Result<Verdict> {
    let syncs = bundle.syncs.get(..args.until.unwrap_or(bundle.syncs.len())).with_context(|| {
        format!("there is no sync of number {} (the bundle has {})", args.until.unwrap_or(0), bundle.syncs.len())
    })?;
    if args.manifests {
        return manifests(bundle, syncs, out).map(|()| Verdict::Same);
    }
    let resolved = configuration(bundle)?;
    let mut replay = Replay::new(bundle)?;
    let families = families(bundle);
    let mut planes: Vec<(IpFamily, Simulated)> =
        families.into_iter().map(|family| (family, Simulated::new(family, bundle, &resolved))).collect();
    writeln!(
        out,
        "node {}, mode {}, version {}, made {}",
        bundle.base.node.metadata.name,
        bundle.mode,
        bundle.version,
        rfc3339::format(bundle.made, 3).unwrap_or_default()
    )?;
    writeln!(out, "0: {} services, {} endpoint slices", bundle.base.services.len(), bundle.base.endpoint_slices.len())?;
    for (family, plane) in &mut planes {
        replay.tracker.update_for_resync(*family);
        let decision = plane.resync(replay.tracker.table(*family))?;
        writeln!(out, "   {family}: {} rules or elements", decision.total)?;
        write_rules(args, &decision, out)?;
    }
    let mut verdict = Verdict::Same;
    for (number, sync) in syncs.iter().enumerate() {
        replay.apply(sync)?;
        write_changes(number + 1, sync, out)?;
        for (family, plane) in &mut planes {
            let Some(record) = sync.families.iter().find(|record| record.family == *family) else { continue };
            let decision = plane.again(*family, &record.outcome, &mut replay.tracker)?;
            if !write_outcome(*family, &record.outcome, decision.as_ref(), out)? {
                verdict = Verdict::Different;
            }
            if let Some(decision) = &decision {
                write_rules(args, decision, out)?;
            }
        }
    }
    match verdict {
        Verdict::Same => writeln!(out, "the decisions are those of the record")?,
        Verdict::Different => writeln!(out, "some decisions differ from the record")?,
    }
    Ok(verdict)
}

fn configuration(bundle: &Bundle) -> anyhow::Result<Resolved> {
    let decoded = KubeProxyConfiguration::from_text(&bundle.configuration)
        .context("cannot read the configuration in the bundle")?;
    let mut config = decoded.config.defaulted();
    // The one in force, which need not be the one that was asked for.
    config.mode.clone_from(&bundle.mode);
    REGISTRY.resolve(&config).context("the configuration in the bundle is invalid")
}

/// Families that the proxy served, as far as the record tells.
fn families(bundle: &Bundle) -> Vec<IpFamily> {
    let served = |family: &IpFamily| {
        let mut records = bundle.syncs.iter().flat_map(|sync| &sync.families);
        bundle.syncs.is_empty() || records.any(|record| record.family == *family)
    };
    IpFamily::BOTH.into_iter().filter(served).collect()
}

fn write_changes(number: usize, sync: &SyncRecord, out: &mut impl Write) -> io::Result<()> {
    let waiting = if sync.families.is_empty() { ", not in force yet" } else { "" };
    writeln!(out, "{number}: {}{waiting}", rfc3339::format(sync.at, 3).unwrap_or_default())?;
    for change in &sync.changes {
        match change {
            Change::Service(service) => {
                writeln!(out, "   Service {}/{}", service.metadata.namespace, service.metadata.name)?;
            }
            Change::ServiceGone(name) => writeln!(out, "   Service {name} is gone")?,
            Change::EndpointSlice(slice) => {
                let ready = slice.endpoints.iter().filter(|endpoint| endpoint.conditions.ready != Some(false)).count();
                let (namespace, name) = (&slice.metadata.namespace, &slice.metadata.name);
                writeln!(out, "   EndpointSlice {namespace}/{name}: {ready} of {} ready", slice.endpoints.len())?;
            }
            Change::EndpointSliceGone(name) => writeln!(out, "   EndpointSlice {name} is gone")?,
            Change::Node(node) => writeln!(out, "   Node {}", node.metadata.name)?,
            Change::ServiceCidrs(cidrs) => {
                let networks: Vec<&str> = cidrs.iter().flat_map(|cidr| &cidr.spec.cidrs).map(String::as_str).collect();
                writeln!(out, "   ServiceCIDRs {}", networks.join(" "))?;
            }
        }
    }
    if sync.changes.is_empty() {
        writeln!(out, "   no change: the rules were compared with the kernel's")?;
    }
    Ok(())
}

/// Tells what was recorded, and whether the same was decided now.
fn write_outcome(
    family: IpFamily,
    recorded: &Outcome,
    decision: Option<&SimulatedSync>,
    out: &mut impl Write,
) -> io::Result<bool> {
    write!(out, "   {family}: ")?;
    match recorded {
        Outcome::Unchanged => {
            let same = decision.is_none();
            writeln!(out, "nothing to do{}", if same { "" } else { "; now there is something" })?;
            Ok(same)
        }
        Outcome::Failed { error } => {
            writeln!(out, "failed: {error}")?;
            Ok(true)
        }
        Outcome::InForce { services, full, written, removed, total, stale_flows, took_us, kernel_us, rules } => {
            let took = |micros: u64| humantime::format_duration(std::time::Duration::from_micros(micros));
            write!(out, "{services} services, {written} written, {removed} removed, {total} in force")?;
            if *stale_flows > 0 {
                write!(out, ", {stale_flows} stale flows removed")?;
            }
            write!(out, " in {} (kernel {})", took(*took_us), took(*kernel_us))?;
            let Some(now) = decision else {
                writeln!(out, "; now there is nothing to do")?;
                return Ok(false);
            };
            // How much a comparison with the kernel found to be mended is the kernel's doing, and no decision; what the
            // rules were to be is one.
            let same = match (full, rules) {
                (true, Some(_)) => now.rules == *rules,
                (true, None) => true,
                (false, _) => (now.written, now.removed) == (*written, *removed),
            };
            match (full, rules) {
                (true, Some(_)) if same => writeln!(out, ", in full: the same rules")?,
                (true, Some(_)) => writeln!(out, ", in full; now there are other rules")?,
                (true, None) => writeln!(out, ", in full")?,
                (false, _) if same => writeln!(out)?,
                (false, _) => writeln!(out, "; now {} written, {} removed", now.written, now.removed)?,
            }
            Ok(same)
        }
    }
}

fn write_rules(args: &Options, decision: &SimulatedSync, out: &mut impl Write) -> io::Result<()> {
    if args.rules {
        decision.text.lines().try_for_each(|line| writeln!(out, "      {line}"))?;
    }
    Ok(())
}

/// What is wanted after these syncs, as documents of YAML.
fn manifests(bundle: &Bundle, syncs: &[SyncRecord], out: &mut impl Write) -> anyhow::Result<()> {
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

/// One document. JSON is YAML too, and one line for each object can be searched with the simplest of tools.
fn write_manifest(object: &Object, out: &mut impl Write) -> anyhow::Result<()> {
    let mut value = match object {
        Object::Service(service) => serde_json::to_value(service)?,
        Object::EndpointSlice(slice) => serde_json::to_value(slice)?,
        Object::Node(node) => serde_json::to_value(node)?,
        Object::ServiceCidr(cidr) => serde_json::to_value(cidr)?,
        _ => anyhow::bail!("a bundle holds no object of kind {}", object.kind()),
    };
    let kind: Kind = object.kind();
    value["apiVersion"] = kind.api_version().into();
    value["kind"] = kind.as_str().into();
    writeln!(out, "---\n{value}")?;
    Ok(())
}

/// The in-memory dataplane of one IP family.
struct Simulated(Box<dyn Simulation>);

impl Simulated {
    fn new(family: IpFamily, bundle: &Bundle, resolved: &Resolved) -> Self {
        Self(REGISTRY.active(resolved.mode).simulate(family, resolved, bundle.host_addresses.clone()))
    }

    fn resync(&mut self, table: &ServiceTable) -> anyhow::Result<SimulatedSync> {
        self.0.resync(table)
    }

    /// Repeats the decision whose recorded outcome is `recorded`; `None` if there is nothing to do.
    fn again(
        &mut self,
        family: IpFamily,
        recorded: &Outcome,
        tracker: &mut Tracker,
    ) -> anyhow::Result<Option<SimulatedSync>> {
        let changes = tracker.update(family);
        let table = tracker.table(family);
        match recorded {
            // The next sync writes these changes, too.
            Outcome::Failed { .. } => Ok(None),
            Outcome::InForce { full: true, .. } => self.0.resync(table).map(Some),
            Outcome::Unchanged | Outcome::InForce { .. } if changes.is_empty() => Ok(None),
            Outcome::Unchanged | Outcome::InForce { .. } => self.0.sync(table, &changes).map(Some),
        }
    }
}
