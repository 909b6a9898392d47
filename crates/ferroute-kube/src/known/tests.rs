use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

fn name(text: &str) -> ObjectName {
    ObjectName { namespace: "n".into(), name: text.into() }
}

fn version(number: u64) -> Version {
    Version::of(&number.to_string())
}

/// What is known after a list of these objects as of version 10.
fn listed(objects: &[(&str, u64)]) -> Known {
    let mut known = Known::default();
    known.begin_listing();
    for (object, number) in objects {
        assert!(known.listed(&name(object), version(*number), true));
    }
    assert_eq!(known.end_listing(version(10)), []);
    known
}

#[test]
fn another_list_tells_what_differs_and_what_is_gone() {
    let mut known = listed(&[("same", 1), ("changed", 2), ("gone", 3)]);
    known.begin_listing();
    assert!(!known.listed(&name("same"), version(1), true));
    assert!(known.listed(&name("changed"), version(12), true));
    assert!(known.listed(&name("new"), version(13), true));
    assert_eq!(known.end_listing(version(14)), [Gone { name: name("gone"), told: true }]);
}

#[test]
fn a_list_that_does_not_end_does_not_count() {
    let mut known = listed(&[("a", 1), ("b", 2)]);
    known.begin_listing();
    assert!(known.listed(&name("c"), version(11), true));
    known.begin_listing();
    assert!(!known.listed(&name("a"), version(1), true));
    let mut gone = known.end_listing(version(12));
    gone.sort_by(|a, b| a.name.cmp(&b.name));
    assert_eq!(gone, ["b", "c"].map(|object| Gone { name: name(object), told: true }));
}

#[test]
fn changes_count_when_they_are_newer_than_what_is_known_of_the_object() {
    let mut known = listed(&[("a", 5)]);
    assert!(!known.applied(&name("a"), version(5), true));
    assert!(!known.applied(&name("a"), version(4), true));
    assert!(known.applied(&name("a"), version(11), true));
    assert!(!known.applied(&name("a"), version(11), true));
}

#[test]
fn an_object_that_is_unknown_and_not_newer_than_the_list_was_deleted_before_it() {
    let mut known = listed(&[]);
    assert!(!known.applied(&name("a"), version(10), true));
    assert!(known.applied(&name("a"), version(11), true));
}

#[test]
fn deleted_objects_do_not_come_back_by_old_news() {
    let mut known = listed(&[("a", 5)]);
    assert!(known.applied(&name("a"), version(11), true));
    assert_eq!(known.deleted(name("a"), version(13)), Some(Gone { name: name("a"), told: true }));
    assert!(!known.applied(&name("a"), version(11), true));
    assert!(!known.applied(&name("a"), version(13), true));
    assert_eq!(known.deleted(name("a"), version(13)), None);
    known.settle(version(14));
    assert_eq!(known.gone.len(), 0, "names are not kept for ever");
    assert!(!known.applied(&name("a"), version(11), true));
    assert!(known.applied(&name("a"), version(15), true));
}

#[test]
fn an_old_deletion_does_not_hide_a_newer_one() {
    let mut known = listed(&[("a", 5)]);
    assert!(known.deleted(name("a"), version(14)).is_some());
    assert_eq!(known.deleted(name("a"), version(11)), None);
    assert!(!known.applied(&name("a"), version(12), true));
}

#[test]
fn a_deletion_that_is_older_than_the_object_is_old_news() {
    let mut known = listed(&[("a", 9)]);
    assert_eq!(known.deleted(name("a"), version(8)), None);
    // In old clusters it has the version that the object had.
    assert!(known.deleted(name("a"), version(9)).is_some());
}

#[test]
fn an_object_that_was_never_good_was_never_told() {
    let mut known = listed(&[]);
    assert!(known.applied(&name("bad"), version(11), false));
    assert_eq!(known.deleted(name("bad"), version(12)), Some(Gone { name: name("bad"), told: false }));
    assert!(known.applied(&name("turned"), version(13), true));
    assert!(known.applied(&name("turned"), version(14), false));
    assert_eq!(known.deleted(name("turned"), version(15)), Some(Gone { name: name("turned"), told: true }));
}

#[test]
fn versions_that_are_no_numbers_are_always_news() {
    let mut known = listed(&[]);
    let opaque = Version::of("abc");
    assert!(known.applied(&name("a"), opaque, true));
    assert!(known.applied(&name("a"), opaque, true));
    known.begin_listing();
    assert!(known.listed(&name("a"), opaque, true));
    assert_eq!(known.end_listing(opaque), []);
    assert!(known.deleted(name("a"), opaque).is_some());
    assert!(known.applied(&name("a"), opaque, true));
}

proptest! {
    /// However often and in whatever order news is repeated, the newest counts.
    #[test]
    fn repeated_news_changes_nothing(
        // Which object each version changes, and whether that deletes it.
        changes in prop::collection::vec((0u8..4, any::<bool>()), 1..40),
        // Up to which change the watch has come, and which change up to there is repeated then.
        repeats in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>()), 0..40),
        settles in prop::collection::vec(any::<prop::sample::Index>(), 0..5),
    ) {
        let mut known = listed(&[]);
        let mut state: BTreeMap<u8, usize> = BTreeMap::new();
        let take = |known: &mut Known, state: &mut BTreeMap<u8, usize>, index: usize| {
            let (object, deletes) = changes[index];
            let (text, version) = (object.to_string(), version(11 + index as u64));
            if deletes {
                if known.deleted(name(&text), version).is_some() {
                    state.remove(&object);
                }
            } else if known.applied(&name(&text), version, true) {
                state.insert(object, index);
            }
        };
        let mut truth = BTreeMap::new();
        for index in 0..changes.len() {
            let (object, deletes) = changes[index];
            if deletes { truth.remove(&object); } else { truth.insert(object, index); }
            take(&mut known, &mut state, index);
            for (at, repeated) in &repeats {
                if at.index(changes.len()) == index {
                    take(&mut known, &mut state, repeated.index(index + 1));
                }
            }
            if settles.iter().any(|at| at.index(changes.len()) == index) {
                known.settle(version(11 + index as u64));
            }
            prop_assert_eq!(&state, &truth);
        }
    }
}
