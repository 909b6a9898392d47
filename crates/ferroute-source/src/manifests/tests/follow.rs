//! Following files as people and tools really change them.

use std::{fs, io::Write, os::unix::fs::symlink, path::Path, time::Duration};

use tokio::{sync::mpsc, task::JoinHandle, time::timeout};

use super::{BAD, BAD_FAULT, Directory, SYNCED, service, slice};
use crate::{Event, Manifests};

/// Somebody who follows manifests.
struct Follower {
    batches: mpsc::Receiver<Vec<Event>>,
    task: JoinHandle<()>,
    /// How often [`Follower::nothing_else`] has changed its file.
    changes: u8,
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Follower {
    fn start(path: &Path) -> Self {
        Self::start_with(path, Duration::from_millis(100))
    }

    /// Gives missing files some time to come back.
    fn start_with(path: &Path, grace: Duration) -> Self {
        let (sender, batches) = mpsc::channel(16);
        // Only notices are to lead to changes here.
        let manifests = Manifests { path: path.to_owned(), grace, look_interval: 10 * A_LONG_TIME };
        let task = tokio::spawn(async move { manifests.follow(sender).await.unwrap() });
        Self { batches, task, changes: 0 }
    }

    /// Follows a directory that has been listed.
    async fn listed(directory: &Directory) -> Self {
        let mut follower = Self::start(&directory.path);
        follower.expect(directory, &SYNCED).await;
        follower
    }

    /// The same, with as much time for files to come back as tests on a busy machine may need.
    async fn listed_with_patience(directory: &Directory) -> Self {
        let mut follower = Self::start_with(&directory.path, A_LONG_TIME);
        follower.expect(directory, &SYNCED).await;
        follower
    }

    async fn batch(&mut self) -> Vec<Event> {
        timeout(A_LONG_TIME, self.batches.recv()).await.expect("no batch comes").expect("the source has ended")
    }

    /// Takes batches until all these lines have come. What else comes is given back.
    async fn expect(&mut self, directory: &Directory, lines: &[&str]) -> Vec<String> {
        let mut missing: Vec<_> = lines.to_vec();
        let mut others = Vec::new();
        while !missing.is_empty() {
            for line in directory.lines(&self.batch().await) {
                match missing.iter().position(|missing| *missing == line) {
                    Some(index) => drop(missing.remove(index)),
                    None => others.push(line),
                }
            }
        }
        others
    }

    /// The lines of the next batch, which must hold the whole change.
    async fn next(&mut self, directory: &Directory) -> Vec<String> {
        directory.lines(&self.batch().await)
    }

    /// Makes sure that nothing was told so far but what has been taken: a change of another file is the next thing.
    async fn nothing_else(&mut self, directory: &Directory) {
        self.changes += 1;
        let ip = format!("10.9.9.{}", self.changes);
        directory.replace("zzz.yaml", &service("last", &ip));
        assert_eq!(self.next(directory).await, [format!("apply service last {ip}")]);
    }
}

/// Only a bound for tests that fail.
const A_LONG_TIME: Duration = Duration::from_secs(60);

#[tokio::test]
async fn a_file_replaced_by_rename_is_read() {
    let directory = Directory::new();
    directory.write("a.yaml", &service("x", "10.0.0.1"));
    let mut follower = Follower::listed(&directory).await;
    directory.replace("a.yaml", &service("x", "10.0.0.2"));
    assert_eq!(follower.next(&directory).await, ["apply service x 10.0.0.2"]);
    directory.replace("b.yaml", &slice("x-1", "x", "10.1.0.1"));
    assert_eq!(follower.next(&directory).await, ["apply slice x-1 10.1.0.1"]);
    follower.nothing_else(&directory).await;
}

#[tokio::test]
async fn a_file_written_in_two_halves_counts_when_it_is_closed() {
    let directory = Directory::new();
    directory.write("a.yaml", &[service("x", "10.0.0.1"), service("y", "10.0.0.2")].concat());
    let mut follower = Follower::listed(&directory).await;
    let mut file = fs::File::create(directory.file("a.yaml")).unwrap();
    file.write_all(service("x", "10.0.0.3").as_bytes()).unwrap();
    file.sync_all().unwrap();
    // Other files are read meanwhile, this one is not.
    follower.nothing_else(&directory).await;
    file.write_all(service("y", "10.0.0.4").as_bytes()).unwrap();
    drop(file);
    assert_eq!(follower.next(&directory).await, ["apply service x 10.0.0.3", "apply service y 10.0.0.4"]);
}

#[tokio::test]
async fn a_new_file_counts_when_it_is_closed() {
    let directory = Directory::new();
    let mut follower = Follower::listed(&directory).await;
    let mut file = fs::File::create(directory.file("a.yaml")).unwrap();
    file.write_all(service("x", "10.0.0.1").as_bytes()).unwrap();
    follower.nothing_else(&directory).await;
    file.write_all(service("y", "10.0.0.2").as_bytes()).unwrap();
    drop(file);
    assert_eq!(follower.next(&directory).await, ["apply service x 10.0.0.1", "apply service y 10.0.0.2"]);
}

#[tokio::test]
async fn editors_that_move_the_old_file_away_first_delete_nothing() {
    let directory = Directory::new();
    directory.write("a.yaml", &[service("x", "10.0.0.1"), service("y", "10.0.0.2")].concat());
    let mut follower = Follower::listed_with_patience(&directory).await;
    // As vim does with the option `backup`.
    directory.write("4913", "");
    directory.remove("4913");
    directory.write(".a.yaml.swp", "swap");
    fs::rename(directory.file("a.yaml"), directory.file("a.yaml~")).unwrap();
    directory.write("a.yaml", &[service("x", "10.0.0.1"), service("y", "10.0.0.3")].concat());
    directory.remove("a.yaml~");
    directory.remove(".a.yaml.swp");
    assert_eq!(follower.next(&directory).await, ["apply service y 10.0.0.3"]);
    follower.nothing_else(&directory).await;
}

#[tokio::test]
async fn a_deleted_file_takes_its_objects_with_it() {
    let directory = Directory::new();
    directory.write("a.yaml", &[service("x", "10.0.0.1"), slice("x-1", "x", "10.1.0.1")].concat());
    directory.write("b.yaml", &service("y", "10.0.0.2"));
    let mut follower = Follower::listed(&directory).await;
    directory.remove("a.yaml");
    assert_eq!(follower.next(&directory).await, ["delete service default/x", "delete slice default/x-1"]);
    // Renamed to something that is no manifest.
    fs::rename(directory.file("b.yaml"), directory.file("b.yaml.off")).unwrap();
    assert_eq!(follower.next(&directory).await, ["delete service default/y"]);
    fs::rename(directory.file("b.yaml.off"), directory.file("b.yaml")).unwrap();
    assert_eq!(follower.next(&directory).await, ["apply service y 10.0.0.2"]);
}

#[tokio::test]
async fn a_bad_file_is_told_of_and_so_is_its_recovery() {
    let directory = Directory::new();
    directory.write("a.yaml", &service("x", "10.0.0.1"));
    let mut follower = Follower::listed(&directory).await;
    directory.replace("a.yaml", BAD);
    let problem =
        format!("cannot use all of a.yaml, so its last good version stays in force: document 1, line 5: {BAD_FAULT}");
    assert_eq!(follower.next(&directory).await, [format!("problem: {problem}")]);
    directory.replace("a.yaml", &service("x", "10.0.0.2"));
    assert_eq!(follower.next(&directory).await, ["apply service x 10.0.0.2".to_owned(), format!("solved: {problem}")]);
}

#[tokio::test]
async fn a_config_map_is_followed_through_its_links() {
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
    let mut follower = Follower::listed(&directory).await;
    for number in 2..5 {
        version(number, &format!("10.0.0.{number}"));
        fs::remove_dir_all(directory.file(&format!("..v{}", number - 1))).unwrap();
        assert_eq!(
            follower.next(&directory).await,
            [format!("apply service x 10.0.0.{number}"), format!("apply service y 10.0.0.{number}")]
        );
    }
    follower.nothing_else(&directory).await;
}

#[tokio::test]
async fn the_target_of_a_link_is_followed() {
    let directory = Directory::new();
    let elsewhere = Directory::new();
    elsewhere.write("real", &service("x", "10.0.0.1"));
    symlink(elsewhere.file("real"), directory.file("a.yaml")).unwrap();
    let mut follower = Follower::listed(&directory).await;
    elsewhere.write("real", &service("x", "10.0.0.2"));
    assert_eq!(follower.next(&directory).await, ["apply service x 10.0.0.2"]);
    elsewhere.replace("real", &service("x", "10.0.0.3"));
    assert_eq!(follower.next(&directory).await, ["apply service x 10.0.0.3"]);
    elsewhere.remove("real");
    assert_eq!(follower.next(&directory).await, ["delete service default/x"]);
    elsewhere.replace("real", &service("x", "10.0.0.4"));
    assert_eq!(follower.next(&directory).await, ["apply service x 10.0.0.4"]);
}

#[tokio::test]
async fn a_link_that_is_made_later_is_followed() {
    let directory = Directory::new();
    let elsewhere = Directory::new();
    let mut follower = Follower::listed(&directory).await;
    symlink(elsewhere.file("real"), directory.file("a.yaml")).unwrap();
    follower.nothing_else(&directory).await;
    elsewhere.write("real", &service("x", "10.0.0.1"));
    assert_eq!(follower.next(&directory).await, ["apply service x 10.0.0.1"]);
    elsewhere.write("other", &service("x", "10.0.0.2"));
    fs::hard_link(elsewhere.file("other"), directory.file("b.yaml")).unwrap();
    directory.remove("a.yaml");
    follower.expect(&directory, &["apply service x 10.0.0.2"]).await;
}

#[tokio::test]
async fn a_directory_that_is_made_again_is_picked_up_and_nothing_is_deleted_before() {
    let directory = Directory::new();
    directory.write("a.yaml", &service("x", "10.0.0.1"));
    let mut follower = Follower::listed_with_patience(&directory).await;
    let missing = format!("cannot read {}: No such file or directory (os error 2)", directory.path.display());
    let aside = directory.path.with_extension("aside");
    fs::rename(&directory.path, &aside).unwrap();
    follower.expect(&directory, &[&format!("problem: {missing}")]).await;
    // Nobody cares about it any more.
    fs::write(aside.join("a.yaml"), "").unwrap();

    fs::create_dir(&directory.path).unwrap();
    directory.write("a.yaml", &[service("x", "10.0.0.1"), service("y", "10.0.0.2")].concat());
    let others = follower.expect(&directory, &["apply service y 10.0.0.2"]).await;
    assert_eq!(others, [format!("solved: {missing}")]);
    directory.write("a.yaml", &service("x", "10.0.0.3"));
    follower.expect(&directory, &["apply service x 10.0.0.3", "delete service default/y"]).await;

    fs::remove_dir_all(&directory.path).unwrap();
    follower.expect(&directory, &[&format!("problem: {missing}")]).await;
    fs::create_dir(&directory.path).unwrap();
    directory.write("a.yaml", "");
    directory.write("b.yaml", &service("z", "10.0.0.4"));
    follower.expect(&directory, &["apply service z 10.0.0.4", "delete service default/x"]).await;
}

#[tokio::test]
async fn a_path_that_is_not_there_yet_is_waited_for() {
    let directory = Directory::new();
    let path = directory.file("not/there/yet");
    let mut follower = Follower::start(&path);
    assert_eq!(
        follower.next(&directory).await,
        ["problem: cannot read not/there/yet: No such file or directory (os error 2)"]
    );
    fs::create_dir_all(&path).unwrap();
    follower.expect(&directory, &SYNCED).await;
    fs::write(path.join("a.yaml"), service("x", "10.0.0.1")).unwrap();
    follower.expect(&directory, &["apply service x 10.0.0.1"]).await;
}

#[tokio::test]
async fn a_single_file_is_followed_and_stays_in_force_while_it_is_missing() {
    let directory = Directory::new();
    directory.write("one", &service("x", "10.0.0.1"));
    let mut follower = Follower::start(&directory.file("one"));
    assert_eq!(follower.expect(&directory, &SYNCED).await, ["apply service x 10.0.0.1"]);
    directory.write("one", &service("x", "10.0.0.2"));
    assert_eq!(follower.next(&directory).await, ["apply service x 10.0.0.2"]);
    directory.replace("one", &service("x", "10.0.0.3"));
    assert_eq!(follower.next(&directory).await, ["apply service x 10.0.0.3"]);
    // Its neighbours are nothing to us.
    directory.write("two.yaml", &service("y", "10.0.0.1"));
    directory.remove("one");
    let missing = "cannot read one: No such file or directory (os error 2)";
    assert_eq!(follower.next(&directory).await, [format!("problem: {missing}")]);
    directory.replace("one", &service("z", "10.0.0.4"));
    assert_eq!(
        follower.next(&directory).await,
        ["apply service z 10.0.0.4".to_owned(), "delete service default/x".to_owned(), format!("solved: {missing}")]
    );
}

#[tokio::test]
async fn objects_that_move_between_files_are_not_gone_in_between() {
    let directory = Directory::new();
    directory.write("a.yaml", &service("x", "10.0.0.1"));
    let mut follower = Follower::listed_with_patience(&directory).await;
    fs::rename(directory.file("a.yaml"), directory.file("b.yaml")).unwrap();
    follower.nothing_else(&directory).await;
    directory.write(".c", &service("x", "10.0.0.2"));
    directory.remove("b.yaml");
    fs::rename(directory.file(".c"), directory.file("c.yaml")).unwrap();
    assert_eq!(follower.next(&directory).await, ["apply service x 10.0.0.2"]);
    follower.nothing_else(&directory).await;
}

#[tokio::test]
async fn a_thousand_services_are_listed_and_one_change_is_one_event() {
    let directory = Directory::new();
    let text = |changed: &str| -> String {
        (0..1000).map(|i| service(&format!("s{i}"), if i == 500 { changed } else { "10.0.0.1" })).collect()
    };
    directory.write("a.yaml", &text("10.0.0.1"));
    let mut follower = Follower::start(&directory.path);
    assert_eq!(follower.expect(&directory, &SYNCED).await.len(), 1000);
    directory.replace("a.yaml", &text("10.0.0.2"));
    assert_eq!(follower.next(&directory).await, ["apply service s500 10.0.0.2"]);
}

#[tokio::test]
async fn many_files_written_at_once_are_all_read() {
    let directory = Directory::new();
    let mut follower = Follower::listed(&directory).await;
    let expected: Vec<String> = (0..300).map(|i| format!("apply service s{i} 10.0.0.1")).collect();
    for i in 0..300 {
        directory.write(&format!("{i}.yaml"), &service(&format!("s{i}"), "10.0.0.1"));
    }
    let expected: Vec<&str> = expected.iter().map(String::as_str).collect();
    assert_eq!(follower.expect(&directory, &expected).await, [""; 0]);
}

#[tokio::test]
async fn when_the_kernel_loses_notices_everything_is_read_again() {
    let directory = Directory::new();
    directory.write("a.yaml", &service("x", "10.0.0.1"));
    let mut follower = Follower::listed(&directory).await;
    // Nobody takes notices meanwhile, since this runtime has one thread only. Two names, because equal notices in a row
    // count as one.
    let room = fs::read_to_string("/proc/sys/fs/inotify/max_queued_events").unwrap();
    for i in 0..=room.trim().parse::<usize>().unwrap() {
        directory.write([".x", ".y"][i % 2], "");
    }
    directory.write("a.yaml", &service("x", "10.0.0.2"));
    assert_eq!(follower.next(&directory).await, ["apply service x 10.0.0.2"]);
}

#[tokio::test]
async fn following_ends_when_nobody_listens() {
    let directory = Directory::new();
    let (sender, receiver) = mpsc::channel(16);
    let task = tokio::spawn(Manifests::new(&directory.path).follow(sender));
    drop(receiver);
    timeout(A_LONG_TIME, task).await.expect("it goes on").unwrap().unwrap();
}
