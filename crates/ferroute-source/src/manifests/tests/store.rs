//! The store by itself: which events a reading of files gives.

use super::{BAD, BAD_FAULT, Directory, SYNCED, endpoints, service, slice};
use crate::{
    Event,
    manifests::{
        Stopped, read_once,
        store::{Store, Work},
    },
};

/// A store over a directory.
struct Fixture {
    directory: Directory,
    store: Store,
}

impl Fixture {
    /// A store that has listed the files once.
    fn listed(files: &[(&str, &str)]) -> Self {
        let mut fixture = Self { directory: Directory::new(), store: Store::default() };
        files.iter().for_each(|(name, text)| fixture.directory.write(name, text));
        let names: Vec<_> = files.iter().map(|(name, _)| *name).collect();
        let lines = fixture.read(&names);
        assert!(SYNCED.iter().all(|synced| lines.contains(&(*synced).to_owned())), "{lines:?}");
        fixture
    }

    /// What reading the files again tells, in one batch.
    fn read(&mut self, names: &[&str]) -> Vec<String> {
        let read = names.iter().map(|name| self.directory.file(name)).collect();
        self.refresh(Work { read, complete: true, ..Work::default() })
    }

    /// What it tells that files are gone.
    fn gone(&mut self, names: &[&str]) -> Vec<String> {
        let gone = names.iter().map(|name| self.directory.file(name)).collect();
        self.refresh(Work { gone, complete: true, ..Work::default() })
    }

    fn refresh(&mut self, work: Work) -> Vec<String> {
        let mut batches = Vec::new();
        self.store
            .refresh(work, &mut |batch| {
                batches.push(batch);
                Ok(())
            })
            .unwrap();
        assert!(batches.len() <= 1, "one change must be one batch");
        self.directory.lines(&batches.concat_all())
    }

    /// Writes a file and reads it.
    fn change(&mut self, name: &str, text: &str) -> Vec<String> {
        self.directory.write(name, text);
        self.read(&[name])
    }
}

trait ConcatAll {
    fn concat_all(self) -> Vec<Event>;
}

impl ConcatAll for Vec<Vec<Event>> {
    fn concat_all(self) -> Vec<Event> {
        self.into_iter().flatten().collect()
    }
}

#[test]
fn the_first_listing_tells_everything_and_ends_with_synced() {
    let directory = Directory::new();
    directory.write("a.yaml", &format!("{}{}", service("web", "10.0.0.1"), slice("web-1", "web", "10.1.0.1")));
    directory.write("b.json", r#"{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}}"#);
    directory.write(
        "c.json",
        r#"{"apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR", "metadata": {"name": "kubernetes"},
            "spec": {"cidrs": ["10.0.0.0/16"]}}"#,
    );
    let events = read_once(&directory.path).unwrap();
    let end = &events[events.len() - SYNCED.len()..];
    assert!(end.iter().all(|event| matches!(event, Event::Synced(_))));
    let objects = [
        "apply node n",
        "apply service CIDR kubernetes 10.0.0.0/16",
        "apply service web 10.0.0.1",
        "apply slice web-1 10.1.0.1",
    ];
    assert_eq!(directory.lines(&events), [&objects[..], &SYNCED].concat());
}

#[test]
fn an_empty_directory_is_synced_too() {
    let directory = Directory::new();
    assert_eq!(directory.lines(&read_once(&directory.path).unwrap()), SYNCED);
    assert!(read_once(&directory.file("missing")).is_err());
}

#[test]
fn a_large_first_listing_comes_in_parts() {
    let directory = Directory::new();
    let text: String = (0..1000).map(|i| service(&format!("s{i}"), "10.0.0.1")).collect();
    directory.write("a.yaml", &text);
    let mut sizes = Vec::new();
    let work = Work { read: [directory.file("a.yaml")].into(), complete: true, ..Work::default() };
    Store::default()
        .refresh(work, &mut |batch| {
            sizes.push(batch.len());
            Ok(())
        })
        .unwrap();
    assert!(sizes.len() > 3 && sizes.iter().sum::<usize>() == 1000 + SYNCED.len(), "{sizes:?}");
}

#[test]
fn what_was_told_of_a_list_that_turns_out_to_be_cut_off_is_taken_back() {
    let directory = Directory::new();
    let item = r#"{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "x"}, "spec": {"clusterIP": "10.0.0.1", "ports": [{"port": 80}]}}"#;
    directory.write("a.json", &format!(r#"{{"apiVersion": "v1", "kind": "List", "items": [{item},"#));
    let events = read_once(&directory.path).unwrap();
    let told = |event: &Event| matches!(event, Event::ServiceApplied(_));
    let taken_back = |event: &Event| matches!(event, Event::ServiceDeleted(_));
    assert!(events.iter().position(taken_back) > events.iter().position(told));
    assert_eq!(events.iter().filter(|event| told(event)).count(), 1);
    assert!(directory.lines(&events).contains(
        &"problem: cannot use all of a.json: document 1, line 1: not valid JSON: EOF while parsing a value".to_owned()
    ));
}

#[test]
fn only_what_changed_is_told() {
    let mut fixture = Fixture::listed(&[("a.yaml", &[service("x", "10.0.0.1"), service("y", "10.0.0.2")].concat())]);
    assert_eq!(fixture.read(&["a.yaml"]), [""; 0]);
    let text = [service("x", "10.0.0.1"), service("y", "10.0.0.3"), service("z", "10.0.0.4")].concat();
    assert_eq!(fixture.change("a.yaml", &text), ["apply service y 10.0.0.3", "apply service z 10.0.0.4"]);
    assert_eq!(
        fixture.change("a.yaml", &service("z", "10.0.0.4")),
        ["delete service default/x", "delete service default/y"]
    );
}

#[test]
fn what_only_looks_different_is_not_told() {
    let mut fixture = Fixture::listed(&[("a.yaml", &service("x", "10.0.0.1"))]);
    let text = "# new\n{spec: {clusterIP: '10.0.0.1', ports: [{port: 80}], other: 1}, kind: Service, metadata: {name: x}, apiVersion: v1}\n";
    assert_eq!(fixture.change("a.yaml", text), [""; 0]);
}

#[test]
fn an_object_may_move_from_file_to_file() {
    let mut fixture = Fixture::listed(&[("a.yaml", &service("x", "10.0.0.1")), ("b.yaml", "")]);
    fixture.directory.write("a.yaml", "");
    fixture.directory.write("b.yaml", &service("x", "10.0.0.1"));
    assert_eq!(fixture.read(&["a.yaml", "b.yaml"]), [""; 0]);
}

#[test]
fn at_first_the_good_documents_of_a_bad_file_count() {
    let mut fixture = Fixture { directory: Directory::new(), store: Store::default() };
    let problem = format!("problem: cannot use all of a.yaml: document 2, line 10: {BAD_FAULT}");
    let text = [&service("x", "10.0.0.1"), BAD].concat();
    assert_eq!(fixture.change("a.yaml", &text), [&["apply service x 10.0.0.1", &*problem][..], &SYNCED].concat());
    // Told once, however often it is read.
    assert_eq!(fixture.read(&["a.yaml"]), [""; 0]);
    // There is no good version yet that could stay in force.
    let text = [&service("y", "10.0.0.2"), BAD].concat();
    assert_eq!(fixture.change("a.yaml", &text), ["apply service y 10.0.0.2", "delete service default/x"]);
    assert_eq!(fixture.change("a.yaml", &service("y", "10.0.0.2")), [problem.replace("problem", "solved")]);
}

#[test]
fn a_file_that_turns_bad_stays_in_force_as_a_whole_until_it_is_good_again() {
    let mut fixture = Fixture::listed(&[
        ("a.yaml", &[service("x", "10.0.0.1"), service("y", "10.0.0.2")].concat()),
        ("b.yaml", &service("z", "10.0.0.3")),
    ]);
    let text = [&service("x", "10.0.0.9"), BAD].concat();
    let problem =
        format!("cannot use all of a.yaml, so its last good version stays in force: document 2, line 10: {BAD_FAULT}");
    assert_eq!(fixture.change("a.yaml", &text), [format!("problem: {problem}")]);
    // Other files are not held up.
    assert_eq!(fixture.change("b.yaml", &service("z", "10.0.0.4")), ["apply service z 10.0.0.4"]);
    assert_eq!(
        fixture.change("a.yaml", &service("x", "10.0.0.9")),
        ["apply service x 10.0.0.9".to_owned(), "delete service default/y".to_owned(), format!("solved: {problem}")]
    );
}

#[test]
fn a_value_that_no_proxy_can_use_makes_a_file_bad_like_text_that_cannot_be_read() {
    let mut fixture = Fixture::listed(&[("a.yaml", &service("x", "10.0.0.1"))]);
    let text = [service("y", "10.0.0.2"), service("x", "10.0.0.300")].concat();
    let problem = "cannot use all of a.yaml, so its last good version stays in force: document 2, line 6: \
                   Service default/x: spec.clusterIP: invalid IP address \"10.0.0.300\"";
    assert_eq!(fixture.change("a.yaml", &text), [format!("problem: {problem}")]);
    let slice = slice("x-1", "x", "fd00::1");
    let problems = fixture.change("a.yaml", &[service("x", "10.0.0.1"), slice].concat());
    assert!(
        problems.iter().any(|line| line.contains("EndpointSlice default/x-1: endpoints[0].addresses[0]: fd00::1")),
        "{problems:?}"
    );
}

#[test]
fn a_file_that_is_no_text_any_more_stays_in_force() {
    let mut fixture = Fixture::listed(&[("a.yaml", &service("x", "10.0.0.1"))]);
    std::fs::write(fixture.directory.file("a.yaml"), b"kind: \xff").unwrap();
    assert_eq!(fixture.read(&["a.yaml"]), ["problem: cannot read a.yaml as text: not UTF-8 at byte 6"]);
    assert_eq!(
        fixture.change("a.yaml", ""),
        ["delete service default/x", "solved: cannot read a.yaml as text: not UTF-8 at byte 6"]
    );
}

#[test]
fn a_file_that_cannot_be_read_stays_in_force() {
    let mut fixture = Fixture::listed(&[("a.yaml", &service("x", "10.0.0.1"))]);
    fixture.directory.remove("a.yaml");
    std::fs::create_dir(fixture.directory.file("a.yaml")).unwrap();
    assert_eq!(fixture.read(&["a.yaml"]), ["problem: cannot read a.yaml: Is a directory (os error 21)"]);
    std::fs::remove_dir(fixture.directory.file("a.yaml")).unwrap();
    assert_eq!(fixture.read(&["a.yaml"]), [""; 0]);
    assert_eq!(
        fixture.gone(&["a.yaml"]),
        ["delete service default/x", "solved: cannot read a.yaml: Is a directory (os error 21)"]
    );
}

#[test]
fn of_an_object_that_is_there_twice_the_first_counts() {
    let mut fixture = Fixture { directory: Directory::new(), store: Store::default() };
    fixture.directory.write("a.yaml", &service("x", "10.0.0.1"));
    fixture.directory.write("b.yaml", &[service("x", "10.0.0.2"), service("y", "10.0.0.3")].concat());
    let duplicate = "Service default/x is in a.yaml already, so that in b.yaml is passed over";
    let lines = fixture.read(&["a.yaml", "b.yaml"]);
    assert_eq!(lines[..3], ["apply service x 10.0.0.1", "apply service y 10.0.0.3", &format!("problem: {duplicate}")]);
    // It does not matter which file is read when.
    assert_eq!(fixture.read(&["b.yaml"]), [""; 0]);
    assert_eq!(fixture.change("a.yaml", ""), ["apply service x 10.0.0.2".to_owned(), format!("solved: {duplicate}")]);
    assert_eq!(
        fixture.change("a.yaml", &service("x", "10.0.0.1")),
        ["apply service x 10.0.0.1".to_owned(), format!("problem: {duplicate}")]
    );
    assert_eq!(fixture.gone(&["a.yaml"]), ["apply service x 10.0.0.2".to_owned(), format!("solved: {duplicate}")]);
}

#[test]
fn an_object_that_is_twice_in_one_file_is_told_of_too() {
    let mut fixture = Fixture::listed(&[("a.yaml", "")]);
    assert_eq!(
        fixture.change("a.yaml", &[service("x", "10.0.0.1"), service("x", "10.0.0.2")].concat()),
        [
            "apply service x 10.0.0.1",
            "problem: Service default/x is in a.yaml already, so that in a.yaml is passed over"
        ]
    );
}

#[test]
fn while_the_second_cannot_be_read_the_first_stays_in_force() {
    let mut fixture = Fixture::listed(&[("a.yaml", &service("x", "10.0.0.1")), ("b.yaml", &service("x", "10.0.0.2"))]);
    fixture.change("b.yaml", BAD);
    let lines = fixture.gone(&["a.yaml"]);
    assert!(lines.len() == 1 && lines[0].starts_with("solved: "), "{lines:?}");
    assert!(fixture.change("b.yaml", &service("x", "10.0.0.2")).contains(&"apply service x 10.0.0.2".to_owned()));
}

#[test]
fn endpoints_are_told_as_slices_unless_the_service_has_its_own() {
    let mut fixture = Fixture::listed(&[("a.yaml", &endpoints("other", "10.1.0.9")), ("b.yaml", "")]);
    assert_eq!(
        fixture.change("a.yaml", &endpoints("web", "10.1.0.1")),
        ["apply slice web-mirrored-ipv4 10.1.0.1", "delete slice default/other-mirrored-ipv4"]
    );
    assert_eq!(
        fixture.change("b.yaml", &slice("web-1", "web", "10.1.0.2")),
        ["apply slice web-1 10.1.0.2", "delete slice default/web-mirrored-ipv4"]
    );
    assert_eq!(fixture.change("a.yaml", &endpoints("web", "10.1.0.3")), [""; 0]);
    assert_eq!(fixture.gone(&["b.yaml"]), ["apply slice web-mirrored-ipv4 10.1.0.3", "delete slice default/web-1"]);
}

#[test]
fn endpoints_are_listed_at_first_too() {
    let directory = Directory::new();
    directory.write("a.yaml", &[endpoints("web", "10.1.0.1"), endpoints("db", "10.1.0.2")].concat());
    directory.write("b.yaml", &slice("db-1", "db", "10.1.0.3"));
    let lines = directory.lines(&read_once(&directory.path).unwrap());
    assert_eq!(lines[..2], ["apply slice db-1 10.1.0.3", "apply slice web-mirrored-ipv4 10.1.0.1"]);
    assert_eq!(lines[2..], SYNCED);
}

#[test]
fn kinds_that_are_not_for_a_proxy_are_told_of_once_for_each_file() {
    let object = |version: &str, kind: &str, name: &str| {
        format!("---\n{{apiVersion: {version}, kind: {kind}, metadata: {{name: {name}}}}}\n")
    };
    let text = [
        object("apps/v1", "Deployment", "a"),
        object("v1", "Pod", "b"),
        object("v1", "Pod", "c"),
        object("example.com/v1", "Thing", "d"),
    ]
    .concat();
    let mut fixture = Fixture::listed(&[("a.yaml", "")]);
    let problem =
        "a.yaml has objects that are not for a proxy: 1 Deployment (apps/v1), 1 Thing (example.com/v1), 2 Pod (v1)";
    assert_eq!(fixture.change("a.yaml", &text), [format!("problem: {problem}")]);
    assert_eq!(fixture.change("a.yaml", &[&text, &*service("x", "10.0.0.1")].concat()), ["apply service x 10.0.0.1"]);
    assert_eq!(fixture.change("a.yaml", &service("x", "10.0.0.1")), [format!("solved: {problem}")]);
}

#[test]
fn nothing_more_is_read_when_nobody_listens() {
    let directory = Directory::new();
    directory.write("a.yaml", &service("x", "10.0.0.1"));
    let work = Work { read: [directory.file("a.yaml")].into(), complete: true, ..Work::default() };
    assert!(Store::default().refresh(work, &mut |_| Err(Stopped)).is_err());
}
