use super::*;

fn key(resource: Resource, name: &str) -> Key {
    Key { resource, name: ObjectName { namespace: "default".into(), name: name.into() } }
}

fn state(objects: &[(Resource, &str, &str)]) -> State {
    objects.iter().map(|(resource, name, content)| (key(*resource, name), Digest::of(*content))).collect()
}

#[test]
fn what_is_the_same_gives_no_step() {
    let state = state(&[(Resource::Services, "a", "1"), (Resource::Nodes, "n", "1")]);
    assert_eq!(diff(&state, &state), []);
}

#[test]
fn each_difference_gives_one_step_in_the_order_of_the_keys() {
    let old = state(&[
        (Resource::Services, "gone", "1"),
        (Resource::Services, "kept", "1"),
        (Resource::Services, "new-content", "1"),
        (Resource::EndpointSlices, "a", "1"),
    ]);
    let new = state(&[
        (Resource::Services, "added", "1"),
        (Resource::Services, "kept", "1"),
        (Resource::Services, "new-content", "2"),
        // Another kind of the same name and content is another object.
        (Resource::Nodes, "a", "1"),
    ]);
    assert_eq!(
        diff(&old, &new),
        [
            Step::Apply(key(Resource::Services, "added")),
            Step::Delete(key(Resource::Services, "gone")),
            Step::Apply(key(Resource::Services, "new-content")),
            Step::Delete(key(Resource::EndpointSlices, "a")),
            Step::Apply(key(Resource::Nodes, "a")),
        ]
    );
}

#[test]
fn from_nothing_all_is_applied_and_to_nothing_all_is_deleted() {
    let some = state(&[(Resource::Services, "a", "1")]);
    assert_eq!(diff(&State::new(), &some), [Step::Apply(key(Resource::Services, "a"))]);
    assert_eq!(diff(&some, &State::new()), [Step::Delete(key(Resource::Services, "a"))]);
}

#[test]
fn digests_differ_where_values_do() {
    assert_eq!(Digest::of("a"), Digest::of("a"));
    assert_ne!(Digest::of("a"), Digest::of("b"));
    let digest = Digest::of("a");
    assert_ne!(digest.0, digest.1);
}
