//! Lists whose readers get only the changes since their last request. Pure.

use std::{
    collections::{BTreeMap, VecDeque},
    fmt::Write,
    sync::Arc,
};

/// A list of named items as JSON, and the revision in which each item last changed.
#[derive(Clone, Debug, Default)]
pub(crate) struct VersionedList {
    items: BTreeMap<Arc<str>, Item>,
    /// The names of removed items with the revision of their removal, oldest first.
    removed: VecDeque<(u64, Arc<str>)>,
    /// First revision since which all changes are known.
    known_since: u64,
}

#[derive(Clone, Debug)]
struct Item {
    revision: u64,
    json: Arc<str>,
}

impl VersionedList {
    /// Creates the first version of a list.
    pub(crate) fn new(revision: u64, items: impl IntoIterator<Item = (String, String)>) -> Self {
        Self { known_since: revision, ..Self::default() }.next(revision, items)
    }

    /// Returns the next version of the list, with these items.
    pub(crate) fn next(&self, revision: u64, items: impl IntoIterator<Item = (String, String)>) -> Self {
        let items = items.into_iter().map(|(name, json)| match self.items.get_key_value(name.as_str()) {
            Some((name, item)) if *item.json == *json => (Arc::clone(name), item.clone()),
            _ => (name.into(), Item { revision, json: json.into() }),
        });
        let items: BTreeMap<Arc<str>, Item> = items.collect();
        // Items that were added again are reported as changed.
        let is_removed = |name: &Arc<str>| !items.contains_key(name);
        let mut removed: VecDeque<_> = self.removed.iter().filter(|(_, name)| is_removed(name)).cloned().collect();
        removed.extend(self.items.keys().filter(|name| is_removed(name)).map(|name| (revision, Arc::clone(name))));
        let mut known_since = self.known_since;
        while removed.len() > MAX_REMOVED {
            known_since = removed.pop_front().map_or(known_since, |(revision, _)| revision);
        }
        Self { items, removed, known_since }
    }

    /// Returns the JSON array of all items.
    pub(crate) fn all(&self) -> String {
        array(self.items.values().map(|item| &*item.json))
    }

    /// Reports whether the changes since this revision are known.
    pub(crate) fn knows(&self, since: u64) -> bool {
        since >= self.known_since
    }

    /// Returns the items that changed after a revision, and the names of those that were removed, as a JSON object.
    pub(crate) fn since(&self, since: u64) -> String {
        let changed = array(self.items.values().filter(|item| item.revision > since).map(|item| &*item.json));
        let names: Vec<&str> =
            self.removed.iter().filter(|(revision, _)| *revision > since).map(|(_, name)| &**name).collect();
        let removed = serde_json::to_string(&names).expect("names are always JSON");
        format!("{{\"changed\":{changed},\"removed\":{removed}}}")
    }
}

fn array<'a>(items: impl Iterator<Item = &'a str>) -> String {
    let mut text = String::from("[");
    for (index, item) in items.enumerate() {
        let _ = write!(text, "{}{item}", if index == 0 { "" } else { "," });
    }
    text.push(']');
    text
}

/// The maximum number of removed items that are remembered. Readers that are further behind get the whole list.
const MAX_REMOVED: usize = 10_000;

#[cfg(test)]
mod tests {
    use super::*;

    fn items(items: &[(&str, u32)]) -> Vec<(String, String)> {
        items.iter().map(|(name, value)| ((*name).to_owned(), value.to_string())).collect()
    }

    #[test]
    fn readers_get_what_changed_since_their_revision() {
        let first = VersionedList::new(1, items(&[("a", 1), ("b", 2), ("c", 3)]));
        let second = first.next(2, items(&[("a", 1), ("b", 20)]));
        let third = second.next(3, items(&[("a", 1), ("b", 20), ("c", 30), ("d", 4)]));
        assert_eq!(third.all(), "[1,20,30,4]");
        assert_eq!(second.since(1), r#"{"changed":[20],"removed":["c"]}"#);
        assert_eq!(third.since(1), r#"{"changed":[20,30,4],"removed":[]}"#);
        assert_eq!(third.since(2), r#"{"changed":[30,4],"removed":[]}"#);
        assert_eq!(third.since(3), r#"{"changed":[],"removed":[]}"#);
    }

    #[test]
    fn readers_behind_forgotten_removals_get_everything() {
        let many: Vec<_> = (0..MAX_REMOVED).map(|number| (format!("{number:06}"), "0".to_owned())).collect();
        let first = VersionedList::new(1, many);
        let second = first.next(2, items(&[("a", 1)]));
        let third = second.next(3, []);
        assert!(second.knows(1) && !second.knows(0));
        // The removals of revision 2 are not all remembered.
        assert!(!third.knows(1) && third.knows(2));
        assert_eq!(third.since(2), r#"{"changed":[],"removed":["a"]}"#);
    }
}
