use ferroute_core::NamespacedName;

use super::*;

fn key(resource: Resource, name: &str) -> Key {
    Key { resource, name: NamespacedName::new("default", name) }
}

fn state(objects: &[(Resource, &str, &str)]) -> Contents {
    objects.iter().map(|(resource, name, content)| (key(*resource, name), Digest::new(*content))).collect()
}

#[test]
fn equal_states_do_not_differ() {
    let state = state(&[(Resource::Services, "a", "1"), (Resource::Nodes, "n", "1")]);
    assert_eq!(diff(&state, &state), []);
}

#[test]
fn diff_returns_one_change_per_object_in_order() {
    let old = state(&[
        (Resource::Services, "deleted", "1"),
        (Resource::Services, "kept", "1"),
        (Resource::Services, "new-content", "1"),
        (Resource::EndpointSlices, "a", "1"),
    ]);
    let new = state(&[
        (Resource::Services, "added", "1"),
        (Resource::Services, "kept", "1"),
        (Resource::Services, "new-content", "2"),
        // Another kind with the same name and content is another object.
        (Resource::Nodes, "a", "1"),
    ]);
    assert_eq!(
        diff(&old, &new),
        [
            (key(Resource::Services, "added"), Some(Digest::new("1"))),
            (key(Resource::Services, "deleted"), None),
            (key(Resource::Services, "new-content"), Some(Digest::new("2"))),
            (key(Resource::EndpointSlices, "a"), None),
            (key(Resource::Nodes, "a"), Some(Digest::new("1"))),
        ]
    );
}

#[test]
fn everything_differs_from_the_empty_state() {
    let some = state(&[(Resource::Services, "a", "1")]);
    assert_eq!(diff(&Contents::new(), &some), [(key(Resource::Services, "a"), Some(Digest::new("1")))]);
    assert_eq!(diff(&some, &Contents::new()), [(key(Resource::Services, "a"), None)]);
}
