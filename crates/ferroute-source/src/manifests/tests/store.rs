//! The store alone: the events that result from reading files.

use std::{
    collections::BTreeSet,
    io::Read,
    process::{Command, Stdio},
};

use proptest::{collection::vec, prelude::*};

use super::{Directory, INVALID, INVALID_FIELD, SYNCED, endpoints, is_of_empty_directory, service, slice};
use crate::{
    Event,
    manifests::{
        Closed,
        file::Reader,
        read_once, read_once_where,
        store::{Store, Work},
    },
};

/// A store over a directory.
struct Fixture {
    directory: Directory,
    store: Store,
}

impl Fixture {
    /// Creates a store that has sent the initial list of the files.
    fn synced(files: &[(&str, &str)]) -> Self {
        let mut fixture = Self { directory: Directory::new(), store: Store::default() };
        files.iter().for_each(|(name, text)| fixture.directory.write(name, text));
        let names: Vec<_> = files.iter().map(|(name, _)| *name).collect();
        let lines = fixture.read(&names);
        assert!(SYNCED.iter().all(|synced| lines.contains(&(*synced).to_owned())), "{lines:?}");
        fixture
    }

    /// Reads files and returns the resulting events, which must be one batch.
    fn read(&mut self, names: &[&str]) -> Vec<String> {
        let read = names.iter().map(|name| self.directory.file(name)).collect();
        self.refresh(Work { read, complete: true, ..Work::default() })
    }

    /// Deletes files from the store and returns the resulting events.
    fn delete(&mut self, names: &[&str]) -> Vec<String> {
        let deleted = names.iter().map(|name| self.directory.file(name)).collect();
        self.refresh(Work { deleted, complete: true, ..Work::default() })
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

    /// Writes a file, reads it and returns the resulting events.
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
fn initial_list_contains_all_objects_and_ends_with_synced() {
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
fn empty_directory_is_synced() {
    let directory = Directory::new();
    let events = read_once(&directory.path).unwrap();
    assert!(events.iter().any(is_of_empty_directory), "{events:?}");
    assert_eq!(directory.lines(&events), SYNCED);
    assert!(read_once(&directory.file("missing")).is_err());
}

#[test]
fn large_initial_list_is_sent_in_several_batches() {
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
fn objects_of_truncated_list_are_deleted_again() {
    let directory = Directory::new();
    let item = r#"{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "x"}, "spec": {"clusterIP": "10.0.0.1", "ports": [{"port": 80}]}}"#;
    directory.write("a.json", &format!(r#"{{"apiVersion": "v1", "kind": "List", "items": [{item},"#));
    let events = read_once(&directory.path).unwrap();
    let applied = |event: &Event| matches!(event, Event::ServiceApplied(_));
    let deleted = |event: &Event| matches!(event, Event::ServiceDeleted(_));
    assert!(events.iter().position(deleted) > events.iter().position(applied));
    assert_eq!(events.iter().filter(|event| applied(event)).count(), 1);
    assert!(directory.lines(&events).contains(
        &"problem: invalid manifest a.json: document 1, line 1: invalid JSON: EOF while parsing a value".to_owned()
    ));
}

#[test]
fn only_changed_objects_are_sent() {
    let mut fixture = Fixture::synced(&[("a.yaml", &[service("x", "10.0.0.1"), service("y", "10.0.0.2")].concat())]);
    assert_eq!(fixture.read(&["a.yaml"]), [""; 0]);
    let text = [service("x", "10.0.0.1"), service("y", "10.0.0.3"), service("z", "10.0.0.4")].concat();
    assert_eq!(fixture.change("a.yaml", &text), ["apply service y 10.0.0.3", "apply service z 10.0.0.4"]);
    assert_eq!(
        fixture.change("a.yaml", &service("z", "10.0.0.4")),
        ["delete service default/x", "delete service default/y"]
    );
}

#[test]
fn equivalent_text_is_not_a_change() {
    let mut fixture = Fixture::synced(&[("a.yaml", &service("x", "10.0.0.1"))]);
    let text = "# new\n{spec: {clusterIP: '10.0.0.1', ports: [{port: 80}], other: 1}, kind: Service, metadata: {name: x}, apiVersion: v1}\n";
    assert_eq!(fixture.change("a.yaml", text), [""; 0]);
}

#[test]
fn object_may_move_between_files() {
    let mut fixture = Fixture::synced(&[("a.yaml", &service("x", "10.0.0.1")), ("b.yaml", "")]);
    fixture.directory.write("a.yaml", "");
    fixture.directory.write("b.yaml", &service("x", "10.0.0.1"));
    assert_eq!(fixture.read(&["a.yaml", "b.yaml"]), [""; 0]);
}

#[test]
fn valid_documents_of_never_valid_file_are_applied() {
    let mut fixture = Fixture { directory: Directory::new(), store: Store::default() };
    let problem = format!("problem: invalid manifest a.yaml: document 2, line 10: {INVALID_FIELD}");
    let text = [&service("x", "10.0.0.1"), INVALID].concat();
    assert_eq!(fixture.change("a.yaml", &text), [&["apply service x 10.0.0.1", &*problem][..], &SYNCED].concat());
    // Sent once, for any number of reads of the file.
    assert_eq!(fixture.read(&["a.yaml"]), [""; 0]);
    // There is no valid version yet that could stay applied.
    let text = [&service("y", "10.0.0.2"), INVALID].concat();
    assert_eq!(fixture.change("a.yaml", &text), ["apply service y 10.0.0.2", "delete service default/x"]);
    assert_eq!(fixture.change("a.yaml", &service("y", "10.0.0.2")), [problem.replace("problem", "resolved")]);
}

#[test]
fn last_valid_version_of_invalid_file_stays_applied_as_a_whole() {
    let mut fixture = Fixture::synced(&[
        ("a.yaml", &[service("x", "10.0.0.1"), service("y", "10.0.0.2")].concat()),
        ("b.yaml", &service("z", "10.0.0.3")),
    ]);
    let text = [&service("x", "10.0.0.9"), INVALID].concat();
    let problem =
        format!("invalid manifest a.yaml; keeping its last valid version: document 2, line 10: {INVALID_FIELD}");
    assert_eq!(fixture.change("a.yaml", &text), [format!("problem: {problem}")]);
    // Other files are not affected.
    assert_eq!(fixture.change("b.yaml", &service("z", "10.0.0.4")), ["apply service z 10.0.0.4"]);
    assert_eq!(
        fixture.change("a.yaml", &service("x", "10.0.0.9")),
        ["apply service x 10.0.0.9".to_owned(), "delete service default/y".to_owned(), format!("resolved: {problem}")]
    );
}

#[test]
fn invalid_field_value_makes_a_file_invalid() {
    let mut fixture = Fixture::synced(&[("a.yaml", &service("x", "10.0.0.1"))]);
    let text = [service("y", "10.0.0.2"), service("x", "10.0.0.300")].concat();
    let problem = "invalid manifest a.yaml; keeping its last valid version: document 2, line 7: \
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
fn invalid_values_in_lists_are_located_by_item() {
    let item = |name: &str, ip: &str| {
        format!(
            "- apiVersion: v1\n  kind: Service\n  metadata: {{name: {name}}}\n  \
             spec: {{clusterIP: {ip}, ports: [{{port: 80}}]}}\n"
        )
    };
    let list = |items: &str| format!("apiVersion: v1\nkind: List\nitems:\n{items}");
    let items = item("x", "10.0.0.1") + &item("b", "10.0.0.300");
    let nested = list(&format!("- null\n- {}", list(&items).trim_end().replace('\n', "\n  ")));
    let json = r#"{"kind": "List", "apiVersion": "v1", "items": [{"apiVersion": "v1", "kind": "Service",
        "metadata": {"name": "b"}, "spec": {"clusterIP": "10.0.0.300", "ports": [{"port": 80}]}}]}"#;
    for (text, place, path) in [
        (list(&items), ", line 8", "items[1]"),
        (format!("---\n{}", list(&items)), ", line 9", "items[1]"),
        (nested, ", line 12", "items[1].items[1]"),
        (json.to_owned(), "", "items[0]"),
    ] {
        let directory = Directory::new();
        directory.write("a.yaml", &text);
        let lines = directory.lines(&read_once(&directory.path).unwrap());
        let problem = format!(
            "problem: invalid manifest a.yaml: document 1{place}: Service default/b: {path}.spec.clusterIP: \
             invalid IP address \"10.0.0.300\""
        );
        assert!(lines.contains(&problem), "{problem}\nis missing in {lines:#?}");
    }
}

#[test]
fn last_valid_version_of_non_utf8_file_stays_applied() {
    let mut fixture = Fixture::synced(&[("a.yaml", &service("x", "10.0.0.1"))]);
    std::fs::write(fixture.directory.file("a.yaml"), b"kind: \xff").unwrap();
    assert_eq!(fixture.read(&["a.yaml"]), ["problem: cannot read a.yaml: invalid UTF-8 at byte 6"]);
    assert_eq!(
        fixture.change("a.yaml", ""),
        ["delete service default/x", "resolved: cannot read a.yaml: invalid UTF-8 at byte 6"]
    );
}

#[test]
fn last_valid_version_of_unreadable_file_stays_applied() {
    let mut fixture = Fixture::synced(&[("a.yaml", &service("x", "10.0.0.1"))]);
    fixture.directory.remove("a.yaml");
    std::fs::create_dir(fixture.directory.file("a.yaml")).unwrap();
    assert_eq!(fixture.read(&["a.yaml"]), ["problem: cannot read a.yaml: it is not a regular file"]);
    std::fs::remove_dir(fixture.directory.file("a.yaml")).unwrap();
    assert_eq!(fixture.read(&["a.yaml"]), [""; 0]);
    assert_eq!(
        fixture.delete(&["a.yaml"]),
        ["delete service default/x", "resolved: cannot read a.yaml: it is not a regular file"]
    );
}

/// Another process has a lease on the file, so that opening it blocks for up to a minute. Opening files such as
/// `/proc/kmsg` blocks, too.
#[test]
fn files_that_wait_delay_no_others() {
    const LEASE: &str =
        "$SIG{IO} = 'IGNORE'; open(F, '+<', shift) or die; fcntl(F, 1024, 1) or die; print 'held'; <STDIN>";
    let mut fixture = Fixture { directory: Directory::new(), store: Store::default() };
    fixture.directory.write("a.yaml", &service("x", "10.0.0.1"));
    fixture.directory.write("b.yaml", &service("y", "10.0.0.3"));
    let mut command = Command::new("perl");
    command.args(["-e", &format!("$| = 1; {LEASE}")]).arg(fixture.directory.file("a.yaml"));
    // It exits at the end of its standard input.
    let mut holder = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    holder.stdout.as_mut().unwrap().read_exact(&mut [0; 4]).unwrap();
    let unreadable = "cannot read a.yaml: Resource temporarily unavailable (os error 11)";
    let lines = fixture.read(&["a.yaml", "b.yaml"]);
    assert_eq!(lines[..2], ["apply service y 10.0.0.3".to_owned(), format!("problem: {unreadable}")]);
    drop(holder.stdin.take());
    holder.wait().unwrap();
    let resolved = format!("resolved: {unreadable}");
    assert_eq!(fixture.read(&["a.yaml"]), ["apply service x 10.0.0.1".to_owned(), resolved]);
}

#[test]
fn first_of_duplicate_definitions_applies() {
    let mut fixture = Fixture { directory: Directory::new(), store: Store::default() };
    fixture.directory.write("a.yaml", &service("x", "10.0.0.1"));
    fixture.directory.write("b.yaml", &[service("x", "10.0.0.2"), service("y", "10.0.0.3")].concat());
    let duplicate = "ignoring Service default/x in b.yaml: already defined in a.yaml";
    let lines = fixture.read(&["a.yaml", "b.yaml"]);
    assert_eq!(lines[..3], ["apply service x 10.0.0.1", "apply service y 10.0.0.3", &format!("problem: {duplicate}")]);
    // The order of reading does not matter.
    assert_eq!(fixture.read(&["b.yaml"]), [""; 0]);
    assert_eq!(fixture.change("a.yaml", ""), ["apply service x 10.0.0.2".to_owned(), format!("resolved: {duplicate}")]);
    assert_eq!(
        fixture.change("a.yaml", &service("x", "10.0.0.1")),
        ["apply service x 10.0.0.1".to_owned(), format!("problem: {duplicate}")]
    );
    assert_eq!(fixture.delete(&["a.yaml"]), ["apply service x 10.0.0.2".to_owned(), format!("resolved: {duplicate}")]);
}

#[test]
fn duplicate_definitions_in_one_file_are_reported() {
    let mut fixture = Fixture::synced(&[("a.yaml", "")]);
    assert_eq!(
        fixture.change("a.yaml", &[service("x", "10.0.0.1"), service("x", "10.0.0.2")].concat()),
        ["apply service x 10.0.0.1", "problem: ignoring Service default/x in a.yaml: already defined in a.yaml"]
    );
}

#[test]
fn first_definition_stays_applied_while_second_is_unreadable() {
    let mut fixture = Fixture::synced(&[("a.yaml", &service("x", "10.0.0.1")), ("b.yaml", &service("x", "10.0.0.2"))]);
    fixture.change("b.yaml", INVALID);
    let lines = fixture.delete(&["a.yaml"]);
    assert!(lines.len() == 1 && lines[0].starts_with("resolved: "), "{lines:?}");
    assert!(fixture.change("b.yaml", &service("x", "10.0.0.2")).contains(&"apply service x 10.0.0.2".to_owned()));
}

#[test]
fn endpoints_are_mirrored_unless_service_has_slices() {
    let mut fixture = Fixture::synced(&[("a.yaml", &endpoints("other", "10.1.0.9")), ("b.yaml", "")]);
    assert_eq!(
        fixture.change("a.yaml", &endpoints("web", "10.1.0.1")),
        ["apply slice web-mirrored-ipv4 10.1.0.1", "delete slice default/other-mirrored-ipv4"]
    );
    assert_eq!(
        fixture.change("b.yaml", &slice("web-1", "web", "10.1.0.2")),
        ["apply slice web-1 10.1.0.2", "delete slice default/web-mirrored-ipv4"]
    );
    assert_eq!(fixture.change("a.yaml", &endpoints("web", "10.1.0.3")), [""; 0]);
    assert_eq!(fixture.delete(&["b.yaml"]), ["apply slice web-mirrored-ipv4 10.1.0.3", "delete slice default/web-1"]);
}

#[test]
fn single_unusable_addresses_of_endpoints_are_ignored() {
    let text = |addresses: &str| {
        format!("apiVersion: v1\nkind: Endpoints\nmetadata: {{name: web}}\nsubsets: [{{addresses: [{addresses}]}}]\n")
    };
    let mut fixture = Fixture::synced(&[("a.yaml", "")]);
    let problem = "ignoring fields of Endpoints default/web in a.yaml: subsets[0].addresses[1].ip: 127.0.0.1 is a \
                   loopback address";
    assert_eq!(
        fixture.change("a.yaml", &text("{ip: 10.1.0.1}, {ip: 127.0.0.1}")),
        ["apply slice web-mirrored-ipv4 10.1.0.1".to_owned(), format!("problem: {problem}")]
    );
    // Also while the document is unchanged.
    assert_eq!(fixture.read(&["a.yaml"]), [""; 0]);
    assert_eq!(fixture.change("a.yaml", &text("{ip: 10.1.0.1}")), [format!("resolved: {problem}")]);
}

#[test]
fn pipes_are_not_waited_for() {
    let mut fixture = Fixture::synced(&[("a.yaml", &service("web", "10.0.0.1"))]);
    // It replaces a file that was listed.
    fixture.directory.remove("a.yaml");
    let path = fixture.directory.file("a.yaml");
    assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
    assert_eq!(fixture.read(&["a.yaml"]), ["problem: cannot read a.yaml: it is not a regular file"]);
    assert!(crate::manifest_files(&path).is_err());
}

#[test]
fn initial_list_contains_mirrored_endpoints() {
    let directory = Directory::new();
    directory.write("a.yaml", &[endpoints("web", "10.1.0.1"), endpoints("db", "10.1.0.2")].concat());
    directory.write("b.yaml", &slice("db-1", "db", "10.1.0.3"));
    let lines = directory.lines(&read_once(&directory.path).unwrap());
    assert_eq!(lines[..2], ["apply slice db-1 10.1.0.3", "apply slice web-mirrored-ipv4 10.1.0.1"]);
    assert_eq!(lines[2..], SYNCED);
}

#[test]
fn ignored_kinds_are_reported_once_per_file() {
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
    let mut fixture = Fixture::synced(&[("a.yaml", "")]);
    let problem = "a.yaml contains objects that a proxy does not use: 1 Deployment (apps/v1), 1 Thing (example.com/v1), 2 Pod (v1)";
    assert_eq!(fixture.change("a.yaml", &text), [format!("problem: {problem}")]);
    assert_eq!(fixture.change("a.yaml", &[&text, &*service("x", "10.0.0.1")].concat()), ["apply service x 10.0.0.1"]);
    assert_eq!(fixture.change("a.yaml", &service("x", "10.0.0.1")), [format!("resolved: {problem}")]);
}

#[test]
fn reading_ends_when_receiver_is_dropped() {
    let directory = Directory::new();
    directory.write("a.yaml", &service("x", "10.0.0.1"));
    let work = Work { read: [directory.file("a.yaml")].into(), complete: true, ..Work::default() };
    assert!(Store::default().refresh(work, &mut |_| Err(Closed)).is_err());
}

/// Returns a document with one of a few objects, in one of two versions.
fn document((object, version): (u8, u8)) -> String {
    let address = format!("10.0.0.{version}");
    match object {
        0 => service("web", &address),
        1 => service("db", &address),
        2 => slice("web-1", "web", &address),
        // The same object, of another Service.
        3 => slice("web-1", "db", &address),
        // Its slice is mirrored, unless the Service has another one.
        4 => endpoints("web", &address),
        _ => slice("web-mirrored-ipv4", "web", &address),
    }
}

/// Updates the applied objects and current problems for lines of events.
fn apply(current: &mut BTreeSet<String>, lines: Vec<String>) {
    for line in lines {
        if let Some(problem) = line.strip_prefix("resolved: ") {
            assert!(current.remove(&format!("problem: {problem}")), "{line}");
            continue;
        }
        // "apply slice web-1 10.0.0.1", "delete slice default/web-1"
        let object = line.rsplit_once(' ').map(|(object, _)| object.replace("apply ", ""));
        let name = line.strip_prefix("delete ").map(|object| object.replace("default/", "")).or(object);
        if let Some(name) = name.filter(|_| !line.starts_with("problem: ") && !line.starts_with("synced ")) {
            let existing = format!("apply {name} ");
            current.retain(|line| !line.starts_with(&existing));
        }
        if !line.starts_with("delete ") {
            current.insert(line);
        }
    }
}

/// A change of one of two files.
#[derive(Clone, Debug)]
enum Edit {
    Write(Vec<(u8, u8)>),
    /// Replaces the document at this position.
    Replace(usize, (u8, u8)),
    Delete,
}

fn edits() -> impl Strategy<Value = Vec<(usize, Edit)>> {
    let document = || (0..6_u8, 1..3_u8);
    let edit = prop_oneof![
        2 => vec(document(), 0..4).prop_map(Edit::Write),
        3 => (0..3_usize, document()).prop_map(|(at, document)| Edit::Replace(at, document)),
        1 => Just(Edit::Delete),
    ];
    vec((0..2_usize, edit), 1..16)
}

proptest! {
    #[test]
    fn changed_files_lead_to_the_same_state_as_a_first_read(edits in edits()) {
        let names = ["a.yaml", "b.yaml"];
        let mut files = [Vec::new(), Vec::new()];
        let mut fixture = Fixture { directory: Directory::new(), store: Store::default() };
        let mut current = BTreeSet::new();
        apply(&mut current, fixture.read(&[]));
        for (file, edit) in edits {
            let (name, documents) = (names[file], &mut files[file]);
            match edit {
                Edit::Write(new) => *documents = new,
                Edit::Replace(at, new) => documents.iter_mut().skip(at).take(1).for_each(|document| *document = new),
                Edit::Delete => documents.clear(),
            }
            if documents.is_empty() && fixture.directory.file(name).exists() {
                fixture.directory.remove(name);
                apply(&mut current, fixture.delete(&[name]));
            } else if !documents.is_empty() {
                let text: String = documents.iter().copied().map(document).collect();
                apply(&mut current, fixture.change(name, &text));
            }
            let mut expected = BTreeSet::new();
            apply(&mut expected, fixture.directory.lines(&read_once(&fixture.directory.path).unwrap()));
            prop_assert_eq!(&current, &expected);
        }
    }
}

#[test]
fn irrelevant_documents_are_skipped() {
    let directory = Directory::new();
    directory.write("a.yaml", "kind: [\n---\n{apiVersion: v1, kind: Node, metadata: {name: a}}\n");
    let events = read_once_where(&directory.path, |text| text.contains("Node")).unwrap();
    assert!(events.iter().any(|event| matches!(event, Event::NodeApplied(_))));
    assert!(!events.iter().any(|event| matches!(event, Event::Problem(_))));
}

#[test]
fn pipe_is_read_once() {
    let (reader, mut writer) = std::io::pipe().unwrap();
    std::io::Write::write_all(&mut writer, service("web", "10.0.0.1").as_bytes()).unwrap();
    drop(writer);
    let path = std::path::PathBuf::from(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&reader)));
    let input = crate::Input::new(&path).unwrap();
    for _ in 0..2 {
        assert!(matches!(&input.events()[0], crate::Event::ServiceApplied(_)));
        assert_eq!(input.text(&path).unwrap(), service("web", "10.0.0.1"));
    }
}

#[test]
fn several_paths_are_one_source() {
    let directory = Directory::new();
    directory.write("a.yaml", &endpoints("web", "10.1.0.1"));
    directory.write("b.yaml", &slice("web-1", "web", "10.1.0.2"));
    let mut input = crate::Input::default();
    // The order of the paths makes no difference.
    for name in ["b.yaml", "a.yaml"] {
        input.add(&directory.file(name)).unwrap();
    }
    assert_eq!(directory.lines(&input.events()), directory.lines(&read_once(&directory.path).unwrap()));
}

#[test]
fn threads_make_no_difference() {
    let directory = Directory::new();
    let list =
        format!("---\napiVersion: v1\nkind: List\nitems:\n- {}\n", "{apiVersion: v1, kind: Node, metadata: {name: a}}");
    let documents = (0..50).map(|i| match i % 7 {
        0 => INVALID.to_owned(),
        1 => "---\nkind: [\n".to_owned(),
        2 => list.clone(),
        // The first of several definitions applies.
        3 => service("same", &format!("10.0.0.{i}")),
        4 => endpoints(&format!("web-{i}"), "10.1.0.1"),
        5 => slice(&format!("slice-{i}"), &format!("web-{}", i - 1), "10.1.0.2"),
        _ => service(&format!("web-{i}"), &format!("10.0.1.{i}")),
    });
    // Long enough for several threads.
    let padding = "# \n".repeat(10_000);
    directory.write("a.yaml", &documents.map(|document| document + &padding).collect::<String>());
    directory.write("b.yaml", &service("last", "10.0.2.1"));
    let events = |in_parallel| {
        let mut store = Store::with_reader(Reader { in_parallel, ..Reader::default() });
        let read = ["a.yaml", "b.yaml"].map(|name| directory.file(name)).into();
        let mut events = Vec::new();
        let mut send = |batch| {
            events.extend(batch);
            Ok(())
        };
        store.refresh(Work { read, complete: true, ..Work::default() }, &mut send).unwrap();
        events.iter().map(|event| super::describe(event, &directory.path)).collect::<Vec<_>>()
    };
    let one = events(false);
    assert!(one.iter().any(|line| line.starts_with("problem")) && one.len() > 30, "{one:?}");
    assert_eq!(events(true), one);
}
