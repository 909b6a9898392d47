//! Receipts: which version of each Service is in force, and since when.

use std::{
    collections::{BTreeMap, HashMap},
    time::SystemTime,
};

use ferroute_core::{IpFamily, ServiceName, parse::ObjectVersion};
use ferroute_health::rfc3339;
use serde::Serialize;

use crate::history::{InForce, ObjectChange, Subject};

/// Which receipts are wanted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Only those of this namespace.
    pub namespace: Option<String>,
    /// Only those of this name.
    pub name: Option<String>,
}

/// Receipts to be shown. Taking them out of the way of syncs is quick; making text of them is not.
#[derive(Debug)]
pub struct ReceiptsPage(Vec<(ServiceName, Receipt, [State; 2])>);

#[derive(Debug)]
pub(crate) struct Receipts {
    /// By [`IpFamily::index`].
    families: [FamilyState; 2],
    services: BTreeMap<ServiceName, Receipt>,
}

#[derive(Debug)]
enum FamilyState {
    NotServed,
    /// Nothing is in force yet.
    Starting,
    /// These Services have something that is not in force yet.
    InForce(HashMap<ServiceName, Waiting>),
}

/// Of one Service in one family.
#[derive(Clone, Copy, Debug)]
enum State {
    NotServed,
    Settled,
    Pending(Option<Waiting>),
}

/// Small, because there is one for each Service. While nothing is pending, the version that was told last is the one
/// that is in force, so that one is enough.
#[derive(Clone, Copy, Debug, Default)]
struct Receipt {
    version: ObjectVersion,
    /// Which families it has addresses of.
    has: [bool; 2],
    is_gone: bool,
    times: [Times; 2],
}

#[derive(Clone, Copy, Debug, Default)]
struct Times {
    /// Since when this version of the Service is in force; `None`: none is.
    since: Option<SystemTime>,
    /// When its rules last changed, also by its endpoints.
    changed: Option<SystemTime>,
}

/// 10,000 Services take 2 MB, with their places in the map.
const _: () = assert!(size_of::<Receipt>() <= 104);

#[derive(Clone, Copy, Debug)]
struct Waiting {
    /// The version that is in force.
    in_force: ObjectVersion,
    /// The Service was told anew, not only its endpoints.
    is_told: bool,
}

#[derive(Debug, Serialize)]
struct Body {
    services: Vec<ServiceReceipt>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ServiceReceipt {
    namespace: String,
    name: String,
    #[serde(flatten)]
    version: VersionBody,
    families: BTreeMap<&'static str, FamilyReceipt>,
}

/// As in an object's metadata.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct VersionBody {
    #[serde(skip_serializing_if = "Option::is_none")]
    resource_version: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    generation: Option<i64>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct FamilyReceipt {
    /// Something that was told is not in force yet.
    pending: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    in_force: Option<InForceBody>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct InForceBody {
    #[serde(flatten)]
    version: VersionBody,
    since: String,
    last_change: String,
}

impl From<ObjectVersion> for VersionBody {
    fn from(version: ObjectVersion) -> Self {
        Self { resource_version: version.resource.map(|number| number.to_string()), generation: version.generation }
    }
}

impl Default for Receipts {
    fn default() -> Self {
        Self { families: [FamilyState::Starting, FamilyState::Starting], services: BTreeMap::new() }
    }
}

impl Receipts {
    pub(crate) fn serve(&mut self, families: &[IpFamily]) {
        for family in IpFamily::BOTH.into_iter().filter(|family| !families.contains(family)) {
            self.families[family.index()] = FamilyState::NotServed;
        }
    }

    pub(crate) fn changed(&mut self, change: &ObjectChange) {
        let old = self.services.get(&change.name).map(|receipt| receipt.version).unwrap_or_default();
        match change.subject {
            Subject::Service(has) => {
                let receipt = self.services.entry(change.name.clone()).or_default();
                (receipt.version, receipt.has, receipt.is_gone) = (change.version, has, false);
                self.wait(&change.name, old, true, None);
            }
            Subject::ServiceGone => {
                let Some(receipt) = self.services.get_mut(&change.name) else { return };
                receipt.is_gone = true;
                self.wait(&change.name, old, true, None);
            }
            Subject::Slice(family) if self.services.contains_key(&change.name) => {
                self.wait(&change.name, old, false, Some(family));
            }
            Subject::Slice(_) | Subject::SliceGone => {}
        }
    }

    /// Something of a Service is pending, in one family or in all.
    fn wait(&mut self, name: &ServiceName, in_force: ObjectVersion, is_told: bool, only: Option<IpFamily>) {
        for (index, family) in self.families.iter_mut().enumerate() {
            if let FamilyState::InForce(pending) = family
                && only.is_none_or(|only| only.index() == index)
            {
                let waiting = pending.entry(name.clone()).or_insert(Waiting { in_force, is_told });
                waiting.is_told |= is_told;
            }
        }
    }

    pub(crate) fn in_force(&mut self, family: IpFamily, sync: &InForce<'_>) {
        let index = family.index();
        let now = Some(sync.now.wall);
        match std::mem::replace(&mut self.families[index], FamilyState::InForce(HashMap::new())) {
            FamilyState::InForce(pending) => {
                for (name, waiting) in pending {
                    self.settle(&name, waiting, index, sync);
                }
            }
            FamilyState::Starting | FamilyState::NotServed => {
                for receipt in self.services.values_mut().filter(|receipt| receipt.has[index]) {
                    receipt.times[index] = Times { since: now, changed: now };
                }
                self.services.retain(|_, receipt| !receipt.is_gone);
            }
        }
        // Of endpoints that are gone it is not known before whose they were.
        for name in sync.changed {
            if let Some(receipt) = self.services.get_mut(name)
                && receipt.times[index].changed.is_some()
            {
                receipt.times[index].changed = now;
            }
        }
    }

    /// What was pending of a Service is in force.
    fn settle(&mut self, name: &ServiceName, waiting: Waiting, index: usize, sync: &InForce<'_>) {
        let now = Some(sync.now.wall);
        let Some(receipt) = self.services.get_mut(name) else { return };
        if receipt.is_gone {
            let is_pending = |family: &FamilyState| match family {
                FamilyState::InForce(pending) => pending.contains_key(name),
                FamilyState::Starting => true,
                FamilyState::NotServed => false,
            };
            if !self.families.iter().any(is_pending) {
                self.services.remove(name);
            }
            return;
        }
        let times = &mut receipt.times[index];
        if !receipt.has[index] {
            *times = Times::default();
            return;
        }
        // Objects in files have no version to be compared.
        let is_another = receipt.version != waiting.in_force || receipt.version == ObjectVersion::default();
        if times.since.is_none() || waiting.is_told && is_another {
            times.since = now;
        }
        if times.changed.is_none() || sync.full || sync.changed.contains(name) {
            times.changed = now;
        }
    }

    pub(crate) fn page(&self, filter: &Filter) -> ReceiptsPage {
        let is = |wanted: &Option<String>, text: &str| wanted.as_deref().is_none_or(|wanted| wanted == text);
        let row = |(name, receipt): (&ServiceName, &Receipt)| {
            let state = |family: &FamilyState| match family {
                FamilyState::NotServed => State::NotServed,
                FamilyState::Starting => State::Pending(None),
                FamilyState::InForce(pending) => {
                    pending.get(name).map_or(State::Settled, |waiting| State::Pending(Some(*waiting)))
                }
            };
            let [v4, v6] = &self.families;
            (name.clone(), *receipt, [state(v4), state(v6)])
        };
        if let Filter { namespace: Some(namespace), name: Some(name) } = filter {
            let found = self.services.get_key_value(&ServiceName::new(namespace, name));
            return ReceiptsPage(found.map(row).into_iter().collect());
        }
        let wanted = |name: &ServiceName| is(&filter.namespace, name.namespace()) && is(&filter.name, name.name());
        ReceiptsPage(self.services.iter().filter(|(name, _)| wanted(name)).map(row).collect())
    }
}

impl ReceiptsPage {
    /// As JSON.
    pub fn to_json(&self) -> String {
        let services: Vec<ServiceReceipt> =
            self.0.iter().map(|(name, receipt, states)| show(name, receipt, states)).collect();
        serde_json::to_string(&Body { services }).expect("text, numbers and booleans under text keys are always JSON")
    }
}

fn show(name: &ServiceName, receipt: &Receipt, states: &[State; 2]) -> ServiceReceipt {
    let families = IpFamily::BOTH.into_iter().filter_map(|family| {
        let index = family.index();
        let (pending, version) = match states[index] {
            State::NotServed => return None,
            State::Settled => (false, receipt.version),
            State::Pending(waiting) => (true, waiting.map_or(receipt.version, |waiting| waiting.in_force)),
        };
        let Times { since, changed } = receipt.times[index];
        let in_force = since.map(|since| InForceBody {
            version: version.into(),
            since: rfc3339(Some(since)),
            last_change: rfc3339(changed),
        });
        let is_shown = receipt.has[index] || in_force.is_some();
        is_shown.then_some((family.as_str(), FamilyReceipt { pending, in_force }))
    });
    ServiceReceipt {
        namespace: name.namespace().to_owned(),
        name: name.name().to_owned(),
        version: receipt.version.into(),
        families: families.collect(),
    }
}
