use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

fn name(text: &str) -> NamespacedName {
    NamespacedName::new("n", text)
}

fn version(number: u64) -> ResourceVersion {
    ResourceVersion::parse(&number.to_string())
}

/// Returns a cache after a list of these objects as of version 10.
fn listed(objects: &[(&str, u64)]) -> VersionCache {
    let mut cache = VersionCache::default();
    cache.begin_list();
    for (object, number) in objects {
        assert!(cache.listed(&name(object), version(*number), true));
    }
    assert_eq!(cache.end_list(version(10)), []);
    cache
}

#[test]
fn next_list_returns_what_is_new_and_what_was_deleted() {
    let mut cache = listed(&[("same", 1), ("changed", 2), ("deleted", 3)]);
    cache.begin_list();
    assert!(!cache.listed(&name("same"), version(1), true));
    assert!(cache.listed(&name("changed"), version(12), true));
    assert!(cache.listed(&name("new"), version(13), true));
    assert_eq!(cache.end_list(version(14)), [Removed { name: name("deleted"), emitted: true }]);
}

#[test]
fn incomplete_list_is_discarded() {
    let mut cache = listed(&[("a", 1), ("b", 2)]);
    cache.begin_list();
    assert!(cache.listed(&name("c"), version(11), true));
    cache.begin_list();
    assert!(!cache.listed(&name("a"), version(1), true));
    let mut removed = cache.end_list(version(12));
    removed.sort_by(|a, b| a.name.cmp(&b.name));
    assert_eq!(removed, ["b", "c"].map(|object| Removed { name: name(object), emitted: true }));
}

#[test]
fn changes_are_new_if_newer_than_the_cached_version() {
    let mut cache = listed(&[("a", 5)]);
    assert!(!cache.applied(&name("a"), version(5), true));
    assert!(!cache.applied(&name("a"), version(4), true));
    assert!(cache.applied(&name("a"), version(11), true));
    assert!(!cache.applied(&name("a"), version(11), true));
}

#[test]
fn uncached_object_that_is_not_newer_than_the_list_was_deleted_before_it() {
    let mut cache = listed(&[]);
    assert!(!cache.applied(&name("a"), version(10), true));
    assert!(cache.applied(&name("a"), version(11), true));
}

#[test]
fn deleted_objects_are_not_restored_by_repeated_changes() {
    let mut cache = listed(&[("a", 5)]);
    assert!(cache.applied(&name("a"), version(11), true));
    assert_eq!(cache.deleted(name("a"), version(13)), Some(Removed { name: name("a"), emitted: true }));
    assert!(!cache.applied(&name("a"), version(11), true));
    assert!(!cache.applied(&name("a"), version(13), true));
    assert_eq!(cache.deleted(name("a"), version(13)), None);
    cache.settle(version(14));
    assert_eq!(cache.deleted.len(), 0, "names of deleted objects are dropped");
    assert!(!cache.applied(&name("a"), version(11), true));
    assert!(cache.applied(&name("a"), version(15), true));
}

#[test]
fn repeated_deletion_does_not_hide_a_newer_one() {
    let mut cache = listed(&[("a", 5)]);
    assert!(cache.deleted(name("a"), version(14)).is_some());
    assert_eq!(cache.deleted(name("a"), version(11)), None);
    assert!(!cache.applied(&name("a"), version(12), true));
}

#[test]
fn deletion_that_is_older_than_the_object_is_ignored() {
    let mut cache = listed(&[("a", 9)]);
    assert_eq!(cache.deleted(name("a"), version(8)), None);
    // In old clusters, a deletion has the version of the object.
    assert!(cache.deleted(name("a"), version(9)).is_some());
}

#[test]
fn object_that_was_never_valid_was_never_emitted() {
    let mut cache = listed(&[]);
    assert!(cache.applied(&name("bad"), version(11), false));
    assert_eq!(cache.deleted(name("bad"), version(12)), Some(Removed { name: name("bad"), emitted: false }));
    assert!(cache.applied(&name("turned"), version(13), true));
    assert!(cache.applied(&name("turned"), version(14), false));
    assert_eq!(cache.deleted(name("turned"), version(15)), Some(Removed { name: name("turned"), emitted: true }));
}

#[test]
fn versions_that_are_not_numbers_are_always_new() {
    let mut cache = listed(&[]);
    let opaque = ResourceVersion::parse("abc");
    assert!(cache.applied(&name("a"), opaque, true));
    assert!(cache.applied(&name("a"), opaque, true));
    cache.begin_list();
    assert!(cache.listed(&name("a"), opaque, true));
    assert_eq!(cache.end_list(opaque), []);
    assert!(cache.deleted(name("a"), opaque).is_some());
    assert!(cache.applied(&name("a"), opaque, true));
}

proptest! {
    /// The newest change counts, for any order and number of repetitions.
    #[test]
    fn repeated_changes_have_no_effect(
        // The object that each version changes, and whether it is deleted.
        changes in prop::collection::vec((0u8..4, any::<bool>()), 1..40),
        // Each repetition: the change after which an earlier one is repeated, and the earlier change.
        repeats in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>()), 0..40),
        settles in prop::collection::vec(any::<prop::sample::Index>(), 0..5),
    ) {
        let mut cache = listed(&[]);
        let mut state: BTreeMap<u8, usize> = BTreeMap::new();
        let take = |cache: &mut VersionCache, state: &mut BTreeMap<u8, usize>, index: usize| {
            let (object, deletes) = changes[index];
            let (text, version) = (object.to_string(), version(11 + index as u64));
            if deletes {
                if cache.deleted(name(&text), version).is_some() {
                    state.remove(&object);
                }
            } else if cache.applied(&name(&text), version, true) {
                state.insert(object, index);
            }
        };
        let mut truth = BTreeMap::new();
        for index in 0..changes.len() {
            let (object, deletes) = changes[index];
            if deletes { truth.remove(&object); } else { truth.insert(object, index); }
            take(&mut cache, &mut state, index);
            for (at, repeated) in &repeats {
                if at.index(changes.len()) == index {
                    take(&mut cache, &mut state, repeated.index(index + 1));
                }
            }
            if settles.iter().any(|at| at.index(changes.len()) == index) {
                cache.settle(version(11 + index as u64));
            }
            prop_assert_eq!(&state, &truth);
        }
    }
}
