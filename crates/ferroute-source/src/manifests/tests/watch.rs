//! Changes of files as made by administrators and tools, detected with inotify.

use std::{fs, io::Write, os::unix::fs::symlink, path::Path, time::Duration};

use tokio::{sync::mpsc, task::JoinHandle, time::timeout};

use super::{Directory, INVALID, INVALID_FIELD, SYNCED, is_of_empty_directory, service, slice};
use crate::{Event, Manifests};

/// A running source and its receiver.
struct Source {
    batches: mpsc::Receiver<Vec<Event>>,
    task: JoinHandle<()>,
    /// Number of calls of [`Source::assert_idle`].
    changes: u8,
}

impl Drop for Source {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Source {
    fn start(path: &Path) -> Self {
        Self::start_with(path, Duration::from_millis(100))
    }

    fn start_with(path: &Path, grace_period: Duration) -> Self {
        let (sender, batches) = mpsc::channel(16);
        // Polling must not hide missing inotify events.
        let manifests = Manifests { path: path.to_owned(), grace_period, poll_interval: 10 * TIMEOUT };
        let task = tokio::spawn(async move { manifests.watch(sender).await.unwrap() });
        Self { batches, task, changes: 0 }
    }

    /// Watches a directory and waits for the initial list.
    async fn synced(directory: &Directory) -> Self {
        let mut source = Self::start(&directory.path);
        source.expect(directory, &SYNCED).await;
        source
    }

    /// The same, with a grace period that does not expire even on a busy machine.
    async fn synced_with_long_grace_period(directory: &Directory) -> Self {
        let mut source = Self::start_with(&directory.path, TIMEOUT);
        source.expect(directory, &SYNCED).await;
        source
    }

    async fn batch(&mut self) -> Vec<Event> {
        timeout(TIMEOUT, self.batches.recv()).await.expect("no batch received").expect("source has ended")
    }

    /// Receives batches until all of these lines have been received. Returns all other lines.
    async fn expect(&mut self, directory: &Directory, lines: &[&str]) -> Vec<String> {
        let mut missing: Vec<_> = lines.to_vec();
        let mut unexpected = Vec::new();
        while !missing.is_empty() {
            for line in directory.lines(&self.batch().await) {
                match missing.iter().position(|missing| *missing == line) {
                    Some(index) => drop(missing.remove(index)),
                    None => unexpected.push(line),
                }
            }
        }
        unexpected
    }

    /// Returns the lines of the next batch, which must contain the whole change.
    async fn next(&mut self, directory: &Directory) -> Vec<String> {
        directory.lines(&self.batch().await)
    }

    /// Asserts that no other event is queued: the next one is a change of another file.
    async fn assert_idle(&mut self, directory: &Directory) {
        self.changes += 1;
        let ip = format!("10.9.9.{}", self.changes);
        directory.replace("zzz.yaml", &service("last", &ip));
        assert_eq!(self.next(directory).await, [format!("apply service last {ip}")]);
    }
}

/// The problem of a link without a target.
const DANGLING: &str = "ignoring a.yaml: cannot follow the link: No such file or directory (os error 2)";

const TIMEOUT: Duration = Duration::from_secs(60);

#[tokio::test]
async fn directory_without_manifests_is_a_problem_until_there_is_one() {
    let directory = Directory::new();
    let mut source = Source::start(&directory.path);
    let batch = source.batch().await;
    assert!(batch.iter().any(|event| matches!(event, Event::Problem(_)) && is_of_empty_directory(event)), "{batch:?}");
    directory.write("a.yaml", &service("x", "10.0.0.1"));
    let batch = source.batch().await;
    assert!(batch.iter().any(|event| matches!(event, Event::Resolved(_)) && is_of_empty_directory(event)), "{batch:?}");
    assert_eq!(directory.lines(&batch), ["apply service x 10.0.0.1"]);
}

#[tokio::test]
async fn file_replaced_by_rename_is_read() {
    let directory = Directory::new();
    directory.write("a.yaml", &service("x", "10.0.0.1"));
    let mut source = Source::synced(&directory).await;
    directory.replace("a.yaml", &service("x", "10.0.0.2"));
    assert_eq!(source.next(&directory).await, ["apply service x 10.0.0.2"]);
    directory.replace("b.yaml", &slice("x-1", "x", "10.1.0.1"));
    assert_eq!(source.next(&directory).await, ["apply slice x-1 10.1.0.1"]);
    source.assert_idle(&directory).await;
}

#[tokio::test]
async fn file_written_in_two_parts_is_read_when_closed() {
    let directory = Directory::new();
    directory.write("a.yaml", &[service("x", "10.0.0.1"), service("y", "10.0.0.2")].concat());
    let mut source = Source::synced(&directory).await;
    let mut file = fs::File::create(directory.file("a.yaml")).unwrap();
    file.write_all(service("x", "10.0.0.3").as_bytes()).unwrap();
    file.sync_all().unwrap();
    // Other files are read in the meantime, but not this one.
    source.assert_idle(&directory).await;
    file.write_all(service("y", "10.0.0.4").as_bytes()).unwrap();
    drop(file);
    assert_eq!(source.next(&directory).await, ["apply service x 10.0.0.3", "apply service y 10.0.0.4"]);
}

#[tokio::test]
async fn new_file_is_read_when_closed() {
    let directory = Directory::new();
    let mut source = Source::synced(&directory).await;
    let mut file = fs::File::create(directory.file("a.yaml")).unwrap();
    file.write_all(service("x", "10.0.0.1").as_bytes()).unwrap();
    source.assert_idle(&directory).await;
    file.write_all(service("y", "10.0.0.2").as_bytes()).unwrap();
    drop(file);
    assert_eq!(source.next(&directory).await, ["apply service x 10.0.0.1", "apply service y 10.0.0.2"]);
}

#[tokio::test]
async fn editor_that_moves_old_file_away_first_deletes_nothing() {
    let directory = Directory::new();
    directory.write("a.yaml", &[service("x", "10.0.0.1"), service("y", "10.0.0.2")].concat());
    let mut source = Source::synced_with_long_grace_period(&directory).await;
    // Like vim with the option `backup`.
    directory.write("4913", "");
    directory.remove("4913");
    directory.write(".a.yaml.swp", "swap");
    fs::rename(directory.file("a.yaml"), directory.file("a.yaml~")).unwrap();
    directory.write("a.yaml", &[service("x", "10.0.0.1"), service("y", "10.0.0.3")].concat());
    directory.remove("a.yaml~");
    directory.remove(".a.yaml.swp");
    assert_eq!(source.next(&directory).await, ["apply service y 10.0.0.3"]);
    source.assert_idle(&directory).await;
}

#[tokio::test]
async fn objects_of_deleted_file_are_deleted() {
    let directory = Directory::new();
    directory.write("a.yaml", &[service("x", "10.0.0.1"), slice("x-1", "x", "10.1.0.1")].concat());
    directory.write("b.yaml", &service("y", "10.0.0.2"));
    let mut source = Source::synced(&directory).await;
    directory.remove("a.yaml");
    assert_eq!(source.next(&directory).await, ["delete service default/x", "delete slice default/x-1"]);
    // Renamed to a name that is not a manifest's.
    fs::rename(directory.file("b.yaml"), directory.file("b.yaml.off")).unwrap();
    assert_eq!(source.next(&directory).await, ["delete service default/y"]);
    fs::rename(directory.file("b.yaml.off"), directory.file("b.yaml")).unwrap();
    assert_eq!(source.next(&directory).await, ["apply service y 10.0.0.2"]);
}

#[tokio::test]
async fn invalid_file_and_its_correction_are_reported() {
    let directory = Directory::new();
    directory.write("a.yaml", &service("x", "10.0.0.1"));
    let mut source = Source::synced(&directory).await;
    directory.replace("a.yaml", INVALID);
    let problem =
        format!("invalid manifest a.yaml; keeping its last valid version: document 1, line 5: {INVALID_FIELD}");
    assert_eq!(source.next(&directory).await, [format!("problem: {problem}")]);
    directory.replace("a.yaml", &service("x", "10.0.0.2"));
    assert_eq!(source.next(&directory).await, ["apply service x 10.0.0.2".to_owned(), format!("resolved: {problem}")]);
}

#[tokio::test]
async fn config_map_volume_is_watched_through_its_links() {
    let directory = Directory::new();
    let version = |number: u8, ip: &str| {
        fs::create_dir(directory.file(&format!("..v{number}"))).unwrap();
        directory.write(&format!("..v{number}/a.yaml"), &service("x", ip));
        directory.write(&format!("..v{number}/b.yaml"), &service("y", ip));
        symlink(format!("..v{number}"), directory.file("..data_tmp")).unwrap();
        fs::rename(directory.file("..data_tmp"), directory.file("..data")).unwrap();
    };
    version(1, "10.0.0.1");
    symlink("..data/a.yaml", directory.file("a.yaml")).unwrap();
    symlink("..data/b.yaml", directory.file("b.yaml")).unwrap();
    let mut source = Source::synced(&directory).await;
    for number in 2..5 {
        version(number, &format!("10.0.0.{number}"));
        fs::remove_dir_all(directory.file(&format!("..v{}", number - 1))).unwrap();
        assert_eq!(
            source.next(&directory).await,
            [format!("apply service x 10.0.0.{number}"), format!("apply service y 10.0.0.{number}")]
        );
    }
    source.assert_idle(&directory).await;
}

#[tokio::test]
async fn target_of_link_is_watched() {
    let directory = Directory::new();
    let elsewhere = Directory::new();
    elsewhere.write("real", &service("x", "10.0.0.1"));
    symlink(elsewhere.file("real"), directory.file("a.yaml")).unwrap();
    let mut source = Source::synced(&directory).await;
    elsewhere.write("real", &service("x", "10.0.0.2"));
    assert_eq!(source.next(&directory).await, ["apply service x 10.0.0.2"]);
    elsewhere.replace("real", &service("x", "10.0.0.3"));
    assert_eq!(source.next(&directory).await, ["apply service x 10.0.0.3"]);
    elsewhere.remove("real");
    assert_eq!(source.next(&directory).await, ["delete service default/x".to_owned(), format!("problem: {DANGLING}")]);
    elsewhere.replace("real", &service("x", "10.0.0.4"));
    assert_eq!(source.next(&directory).await, ["apply service x 10.0.0.4".to_owned(), format!("resolved: {DANGLING}")]);
}

#[tokio::test]
async fn link_created_later_is_watched() {
    let directory = Directory::new();
    let elsewhere = Directory::new();
    let mut source = Source::synced(&directory).await;
    symlink(elsewhere.file("real"), directory.file("a.yaml")).unwrap();
    assert_eq!(source.next(&directory).await, [format!("problem: {DANGLING}")]);
    source.assert_idle(&directory).await;
    elsewhere.write("real", &service("x", "10.0.0.1"));
    assert_eq!(source.next(&directory).await, ["apply service x 10.0.0.1".to_owned(), format!("resolved: {DANGLING}")]);
    elsewhere.write("other", &service("x", "10.0.0.2"));
    fs::hard_link(elsewhere.file("other"), directory.file("b.yaml")).unwrap();
    directory.remove("a.yaml");
    source.expect(&directory, &["apply service x 10.0.0.2"]).await;
}

#[tokio::test]
async fn entries_that_are_not_read_are_reported_once() {
    let directory = Directory::new();
    fs::create_dir(directory.file("a.yaml")).unwrap();
    let mut source = Source::start_with(&directory.path, TIMEOUT);
    let problem = "ignoring a.yaml: it is a directory, and subdirectories are not read";
    source.expect(&directory, &[&[&*format!("problem: {problem}")], &SYNCED[..]].concat()).await;
    source.assert_idle(&directory).await;
    directory.write("b.JSON", "");
    let upper = "ignoring b.JSON: the names of manifests end in .yaml, .yml or .json, in lower case";
    assert_eq!(source.next(&directory).await, [format!("problem: {upper}")]);
    fs::remove_dir(directory.file("a.yaml")).unwrap();
    assert_eq!(source.next(&directory).await, [format!("resolved: {problem}")]);
    source.assert_idle(&directory).await;
}

#[tokio::test]
async fn recreated_directory_is_read_and_nothing_is_deleted_before() {
    let directory = Directory::new();
    directory.write("a.yaml", &service("x", "10.0.0.1"));
    let mut source = Source::synced_with_long_grace_period(&directory).await;
    let missing = format!("cannot read {}: No such file or directory (os error 2)", directory.path.display());
    let aside = directory.path.with_extension("aside");
    fs::rename(&directory.path, &aside).unwrap();
    source.expect(&directory, &[&format!("problem: {missing}")]).await;
    // A change in the old directory has no effect.
    fs::write(aside.join("a.yaml"), "").unwrap();

    fs::create_dir(&directory.path).unwrap();
    directory.write("a.yaml", &[service("x", "10.0.0.1"), service("y", "10.0.0.2")].concat());
    let remaining = source.expect(&directory, &["apply service y 10.0.0.2"]).await;
    assert_eq!(remaining, [format!("resolved: {missing}")]);
    directory.write("a.yaml", &service("x", "10.0.0.3"));
    source.expect(&directory, &["apply service x 10.0.0.3", "delete service default/y"]).await;

    fs::remove_dir_all(&directory.path).unwrap();
    source.expect(&directory, &[&format!("problem: {missing}")]).await;
    fs::create_dir(&directory.path).unwrap();
    directory.write("a.yaml", "");
    directory.write("b.yaml", &service("z", "10.0.0.4"));
    source.expect(&directory, &["apply service z 10.0.0.4", "delete service default/x"]).await;
}

#[tokio::test]
async fn missing_path_is_waited_for() {
    let directory = Directory::new();
    let path = directory.file("not/there/yet");
    let mut source = Source::start(&path);
    assert_eq!(
        source.next(&directory).await,
        ["problem: cannot read not/there/yet: No such file or directory (os error 2)"]
    );
    fs::create_dir_all(&path).unwrap();
    source.expect(&directory, &SYNCED).await;
    fs::write(path.join("a.yaml"), service("x", "10.0.0.1")).unwrap();
    source.expect(&directory, &["apply service x 10.0.0.1"]).await;
}

#[tokio::test]
async fn single_file_is_watched_and_stays_applied_while_missing() {
    let directory = Directory::new();
    directory.write("one", &service("x", "10.0.0.1"));
    let mut source = Source::start(&directory.file("one"));
    assert_eq!(source.expect(&directory, &SYNCED).await, ["apply service x 10.0.0.1"]);
    directory.write("one", &service("x", "10.0.0.2"));
    assert_eq!(source.next(&directory).await, ["apply service x 10.0.0.2"]);
    directory.replace("one", &service("x", "10.0.0.3"));
    assert_eq!(source.next(&directory).await, ["apply service x 10.0.0.3"]);
    // Other files in its directory are ignored.
    directory.write("two.yaml", &service("y", "10.0.0.1"));
    directory.remove("one");
    let missing = "cannot read one: No such file or directory (os error 2)";
    assert_eq!(source.next(&directory).await, [format!("problem: {missing}")]);
    directory.replace("one", &service("z", "10.0.0.4"));
    assert_eq!(
        source.next(&directory).await,
        ["apply service z 10.0.0.4".to_owned(), "delete service default/x".to_owned(), format!("resolved: {missing}")]
    );
}

#[tokio::test]
async fn objects_moved_between_files_are_not_deleted() {
    let directory = Directory::new();
    directory.write("a.yaml", &service("x", "10.0.0.1"));
    let mut source = Source::synced_with_long_grace_period(&directory).await;
    fs::rename(directory.file("a.yaml"), directory.file("b.yaml")).unwrap();
    source.assert_idle(&directory).await;
    directory.write(".c", &service("x", "10.0.0.2"));
    directory.remove("b.yaml");
    fs::rename(directory.file(".c"), directory.file("c.yaml")).unwrap();
    assert_eq!(source.next(&directory).await, ["apply service x 10.0.0.2"]);
    source.assert_idle(&directory).await;
}

#[tokio::test]
async fn one_change_among_a_thousand_services_is_one_event() {
    let directory = Directory::new();
    let text = |changed: &str| -> String {
        (0..1000).map(|i| service(&format!("s{i}"), if i == 500 { changed } else { "10.0.0.1" })).collect()
    };
    directory.write("a.yaml", &text("10.0.0.1"));
    let mut source = Source::start(&directory.path);
    assert_eq!(source.expect(&directory, &SYNCED).await.len(), 1000);
    directory.replace("a.yaml", &text("10.0.0.2"));
    assert_eq!(source.next(&directory).await, ["apply service s500 10.0.0.2"]);
}

#[tokio::test]
async fn many_files_written_at_the_same_time_are_all_read() {
    let directory = Directory::new();
    let mut source = Source::synced(&directory).await;
    let expected: Vec<String> = (0..300).map(|i| format!("apply service s{i} 10.0.0.1")).collect();
    for i in 0..300 {
        directory.write(&format!("{i}.yaml"), &service(&format!("s{i}"), "10.0.0.1"));
    }
    let expected: Vec<&str> = expected.iter().map(String::as_str).collect();
    assert_eq!(source.expect(&directory, &expected).await, [""; 0]);
}

#[tokio::test]
async fn all_files_are_read_after_inotify_queue_overflow() {
    let directory = Directory::new();
    directory.write("a.yaml", &service("x", "10.0.0.1"));
    let mut source = Source::synced(&directory).await;
    // inotify events are not read in the meantime, since this runtime has a single thread. Two names, because the
    // kernel merges consecutive equal events.
    let limit = fs::read_to_string("/proc/sys/fs/inotify/max_queued_events").unwrap();
    for i in 0..=limit.trim().parse::<usize>().unwrap() {
        directory.write([".x", ".y"][i % 2], "");
    }
    directory.write("a.yaml", &service("x", "10.0.0.2"));
    assert_eq!(source.next(&directory).await, ["apply service x 10.0.0.2"]);
}

#[tokio::test]
async fn watching_ends_when_receiver_is_dropped() {
    let directory = Directory::new();
    let (sender, receiver) = mpsc::channel(16);
    let task = tokio::spawn(Manifests::new(&directory.path).watch(sender));
    drop(receiver);
    timeout(TIMEOUT, task).await.expect("watching does not end").unwrap().unwrap();
}
