use std::{collections::BTreeMap, mem, sync::Arc};

use ferroute_source::Resource;
use serde_json::Value;

/// Namespace and name.
pub(super) type Key = (String, String);

/// The objects and their history.
#[derive(Debug, Default)]
pub(super) struct Store {
    objects: BTreeMap<(u8, Key), Arc<Value>>,
    history: Vec<Arc<Change>>,
    version: u64,
    /// Changes up to this version are discarded.
    compacted: u64,
}

/// A change of an object.
#[derive(Debug)]
pub(super) struct Change {
    pub(super) version: u64,
    pub(super) resource: Resource,
    pub(super) key: Key,
    pub(super) before: Option<Arc<Value>>,
    pub(super) after: Option<Arc<Value>>,
}

impl Store {
    /// Returns the current version.
    pub(super) fn version(&self) -> u64 {
        self.version
    }

    /// Returns the version up to which changes are discarded.
    pub(super) fn compacted(&self) -> u64 {
        self.compacted
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
        let exists = self.objects.contains_key(&(resource as u8, key.clone()));
        if exists {
            self.version += 1;
            self.record(resource, key, None);
        }
        exists
    }

    fn record(&mut self, resource: Resource, key: Key, after: Option<Arc<Value>>) {
        let slot = (resource as u8, key.clone());
        let before = match &after {
            Some(object) => self.objects.insert(slot, Arc::clone(object)),
            None => self.objects.remove(&slot),
        };
        self.history.push(Arc::new(Change { version: self.version, resource, key, before, after }));
    }

    /// Returns the current state of an object.
    pub(super) fn get(&self, resource: Resource, namespace: &str, name: &str) -> Option<&Value> {
        let key = (namespace.to_owned(), name.to_owned());
        self.objects.get(&(resource as u8, key)).map(|object| &**object)
    }

    /// Returns the objects at a version that is not discarded.
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

    /// Returns the changes of a kind after a version, oldest first.
    pub(super) fn after(&self, version: u64, resource: Resource) -> Vec<Arc<Change>> {
        let start = self.history.partition_point(|change| change.version <= version);
        self.history[start..].iter().filter(|change| change.resource == resource).cloned().collect()
    }

    /// Returns the changes of a kind up to a version, as far as they are not discarded.
    pub(super) fn until(&self, version: u64, resource: Resource) -> Vec<Arc<Change>> {
        let end = self.history.partition_point(|change| change.version <= version);
        self.history[..end].iter().filter(|change| change.resource == resource).cloned().collect()
    }

    pub(super) fn compact(&mut self) {
        self.compacted = self.version;
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

/// Returns the key of an object.
fn key(object: &Value) -> Key {
    let field = |name: &str| object["metadata"][name].as_str().unwrap_or_default().to_owned();
    (field("namespace"), field("name"))
}

/// Reports whether an object matches a label selector that requires the absence of labels.
pub(super) fn matches_label_selector(object: &Value, selector: &str) -> bool {
    let labels = &object["metadata"]["labels"];
    selector.split(',').filter_map(|part| part.strip_prefix('!')).all(|label| labels.get(label).is_none())
}
