use std::{collections::BTreeMap, mem, sync::Arc};

use ferroute_api::labels;
use ferroute_source::Resource;
use serde_json::Value;

/// Namespace and name.
pub(super) type Key = (String, String);

/// Objects, and all that has happened to them.
#[derive(Debug, Default)]
pub(super) struct Store {
    objects: BTreeMap<(u8, Key), Arc<Value>>,
    history: Vec<Arc<Change>>,
    version: u64,
    /// What happened up to here is forgotten.
    forgotten: u64,
}

/// One thing that happened to an object.
#[derive(Debug)]
pub(super) struct Change {
    pub(super) version: u64,
    pub(super) resource: Resource,
    pub(super) key: Key,
    pub(super) before: Option<Arc<Value>>,
    pub(super) after: Option<Arc<Value>>,
}

impl Store {
    /// The present version.
    pub(super) fn version(&self) -> u64 {
        self.version
    }

    /// What came up to this version is forgotten.
    pub(super) fn forgotten(&self) -> u64 {
        self.forgotten
    }

    pub(super) fn apply(&mut self, resource: Resource, mut object: Value) -> u64 {
        self.version += 1;
        object["metadata"]["resourceVersion"] = self.version.to_string().into();
        let key = key(&object);
        let after = Some(Arc::new(object));
        self.record(resource, key, after);
        self.version
    }

    pub(super) fn delete(&mut self, resource: Resource, namespace: &str, name: &str) -> bool {
        let key = (namespace.to_owned(), name.to_owned());
        let is_there = self.objects.contains_key(&(resource as u8, key.clone()));
        if is_there {
            self.version += 1;
            self.record(resource, key, None);
        }
        is_there
    }

    fn record(&mut self, resource: Resource, key: Key, after: Option<Arc<Value>>) {
        let slot = (resource as u8, key.clone());
        let before = match &after {
            Some(object) => self.objects.insert(slot, Arc::clone(object)),
            None => self.objects.remove(&slot),
        };
        self.history.push(Arc::new(Change { version: self.version, resource, key, before, after }));
    }

    /// An object as it is now.
    pub(super) fn get(&self, resource: Resource, namespace: &str, name: &str) -> Option<&Value> {
        let key = (namespace.to_owned(), name.to_owned());
        self.objects.get(&(resource as u8, key)).map(|object| &**object)
    }

    /// The objects as they were at a version that is not forgotten.
    pub(super) fn at(&self, version: u64, resource: Resource) -> BTreeMap<Key, Value> {
        let now = self.objects.iter().filter(|((kind, _), _)| *kind == resource as u8);
        let mut objects: BTreeMap<Key, Arc<Value>> =
            now.map(|((_, key), object)| (key.clone(), Arc::clone(object))).collect();
        let later = self.history.iter().rev().take_while(|change| change.version > version);
        for change in later.filter(|change| change.resource == resource) {
            match &change.before {
                Some(before) => objects.insert(change.key.clone(), Arc::clone(before)),
                None => objects.remove(&change.key),
            };
        }
        objects.into_iter().map(|(key, object)| (key, Arc::unwrap_or_clone(object))).collect()
    }

    /// What happened to objects of a kind after a version, the oldest first.
    pub(super) fn after(&self, version: u64, resource: Resource) -> Vec<Arc<Change>> {
        let start = self.history.partition_point(|change| change.version <= version);
        self.history[start..].iter().filter(|change| change.resource == resource).cloned().collect()
    }

    /// What happened to objects of a kind up to a version, as far as that is not forgotten.
    pub(super) fn until(&self, version: u64, resource: Resource) -> Vec<Arc<Change>> {
        let end = self.history.partition_point(|change| change.version <= version);
        self.history[..end].iter().filter(|change| change.resource == resource).cloned().collect()
    }

    pub(super) fn forget(&mut self) {
        self.forgotten = self.version;
        self.history.clear();
    }

    pub(super) fn restore(&mut self, version: u64) {
        let kept = self.history.partition_point(|change| change.version <= version);
        for change in mem::take(&mut self.history.split_off(kept)).into_iter().rev() {
            let slot = (change.resource as u8, change.key.clone());
            match &change.before {
                Some(before) => self.objects.insert(slot, Arc::clone(before)),
                None => self.objects.remove(&slot),
            };
        }
        self.version = version;
    }
}

/// Namespace and name of an object.
fn key(object: &Value) -> Key {
    let field = |name: &str| object["metadata"][name].as_str().unwrap_or_default().to_owned();
    (field("namespace"), field("name"))
}

/// Whether the label selector of a proxy lets an object through.
pub(super) fn is_ours(object: &Value) -> bool {
    let labels = &object["metadata"]["labels"];
    [labels::HEADLESS, labels::SERVICE_PROXY_NAME].iter().all(|label| labels.get(label).is_none())
}
