//! Single rounds, in which the kernel's notices are not read: what is read when.

use std::time::Duration;

use inotify::Inotify;

use super::{Directory, SYNCED, service};
use crate::manifests::{
    follower::Follower,
    watch::{Dirty, Watched},
};

/// What a round tells.
fn round(follower: &mut Follower, directory: &Directory, dirty: &Dirty) -> Vec<String> {
    let mut events = Vec::new();
    follower
        .round(dirty, &mut |batch| {
            events.extend(batch);
            Ok(())
        })
        .unwrap();
    directory.lines(&events)
}

#[test]
fn a_missing_file_has_its_time_of_grace() {
    let directory = Directory::new();
    directory.write("a.yaml", &service("x", "10.0.0.1"));
    let inotify = Inotify::init().unwrap();
    let start = |grace| {
        let mut follower = Follower::new(directory.path.clone(), grace, Watched::new(inotify.watches()));
        round(&mut follower, &directory, &Dirty::all());
        follower
    };
    let (mut patient, mut impatient) = (start(Duration::from_secs(3600)), start(Duration::ZERO));
    directory.remove("a.yaml");
    assert_eq!(round(&mut patient, &directory, &Dirty::default()), [""; 0]);
    assert_eq!(round(&mut impatient, &directory, &Dirty::default()), ["delete service default/x"]);
    directory.write("a.yaml", &service("x", "10.0.0.2"));
    let dirty = Dirty { files: [directory.file("a.yaml")].into(), ..Dirty::default() };
    assert_eq!(round(&mut patient, &directory, &dirty), ["apply service x 10.0.0.2"]);
}

#[test]
fn a_file_that_is_the_same_at_two_looks_is_read() {
    let directory = Directory::new();
    let inotify = Inotify::init().unwrap();
    let mut follower = Follower::new(directory.path.clone(), Duration::ZERO, Watched::new(inotify.watches()));
    directory.write("a.yaml", &service("x", "10.0.0.1"));
    let look = Dirty { look: true, ..Dirty::default() };

    assert_eq!(round(&mut follower, &directory, &Dirty::all())[1..], SYNCED);
    assert_eq!(round(&mut follower, &directory, &look), [""; 0]);

    directory.write("a.yaml", &service("x", "10.0.0.22"));
    assert_eq!(round(&mut follower, &directory, &Dirty::default()), [""; 0]);
    assert_eq!(round(&mut follower, &directory, &look), [""; 0]);
    // Somebody is still writing.
    directory.write("a.yaml", &service("x", "10.0.0.233"));
    assert_eq!(round(&mut follower, &directory, &look), [""; 0]);
    assert_eq!(round(&mut follower, &directory, &look), ["apply service x 10.0.0.233"]);
    assert_eq!(round(&mut follower, &directory, &look), [""; 0]);

    directory.write("b.yaml", &service("y", "10.0.0.4"));
    assert_eq!(round(&mut follower, &directory, &look), [""; 0]);
    assert_eq!(round(&mut follower, &directory, &look), ["apply service y 10.0.0.4"]);
}
