//! Single synchronizations without reading inotify events.

use std::time::Duration;

use inotify::Inotify;

use super::{Directory, SYNCED, service};
use crate::manifests::{
    reflector::Reflector,
    watch::{Changes, Watches},
};

/// Returns the events of a synchronization.
fn sync(reflector: &mut Reflector, directory: &Directory, changes: &Changes) -> Vec<String> {
    let mut events = Vec::new();
    reflector
        .sync(changes, &mut |batch| {
            events.extend(batch);
            Ok(())
        })
        .unwrap();
    directory.lines(&events)
}

#[test]
fn missing_file_has_a_grace_period() {
    let directory = Directory::new();
    directory.write("a.yaml", &service("x", "10.0.0.1"));
    let inotify = Inotify::init().unwrap();
    let start = |grace_period| {
        let mut reflector = Reflector::new(directory.path.clone(), grace_period, Watches::new(inotify.watches()));
        sync(&mut reflector, &directory, &Changes::all());
        reflector
    };
    let (mut long, mut zero) = (start(Duration::from_secs(3600)), start(Duration::ZERO));
    directory.remove("a.yaml");
    assert_eq!(sync(&mut long, &directory, &Changes::default()), [""; 0]);
    assert_eq!(sync(&mut zero, &directory, &Changes::default()), ["delete service default/x"]);
    directory.write("a.yaml", &service("x", "10.0.0.2"));
    let changes = Changes { files: [directory.file("a.yaml")].into(), ..Changes::default() };
    assert_eq!(sync(&mut long, &directory, &changes), ["apply service x 10.0.0.2"]);
}

#[test]
fn file_unchanged_between_two_polls_is_read() {
    let directory = Directory::new();
    let inotify = Inotify::init().unwrap();
    let mut reflector = Reflector::new(directory.path.clone(), Duration::ZERO, Watches::new(inotify.watches()));
    directory.write("a.yaml", &service("x", "10.0.0.1"));
    let poll = Changes { poll: true, ..Changes::default() };

    assert_eq!(sync(&mut reflector, &directory, &Changes::all())[1..], SYNCED);
    assert_eq!(sync(&mut reflector, &directory, &poll), [""; 0]);

    directory.write("a.yaml", &service("x", "10.0.0.22"));
    assert_eq!(sync(&mut reflector, &directory, &Changes::default()), [""; 0]);
    assert_eq!(sync(&mut reflector, &directory, &poll), [""; 0]);
    // The file is still being written.
    directory.write("a.yaml", &service("x", "10.0.0.233"));
    assert_eq!(sync(&mut reflector, &directory, &poll), [""; 0]);
    assert_eq!(sync(&mut reflector, &directory, &poll), ["apply service x 10.0.0.233"]);
    assert_eq!(sync(&mut reflector, &directory, &poll), [""; 0]);

    directory.write("b.yaml", &service("y", "10.0.0.4"));
    assert_eq!(sync(&mut reflector, &directory, &poll), [""; 0]);
    assert_eq!(sync(&mut reflector, &directory, &poll), ["apply service y 10.0.0.4"]);
}

/// As if no file descriptor were left, the end of which is not reported.
#[test]
fn what_could_not_be_read_is_read_again_without_an_event() {
    let directory = Directory::new();
    let inotify = Inotify::init().unwrap();
    let mut reflector = Reflector::new(directory.path.clone(), Duration::ZERO, Watches::new(inotify.watches()));
    let mut next = |changes: &Changes| {
        let mut events = Vec::new();
        let next = reflector.sync(changes, &mut |batch| {
            events.extend(batch);
            Ok(())
        });
        (directory.lines(&events), next.unwrap().due.is_some())
    };
    directory.write("a.yaml", &service("x", "10.0.0.1"));
    assert!(!next(&Changes::all()).1);

    // A file: reading the memory of a process without an offset fails.
    let changes = Changes { files: [directory.file("a.yaml")].into(), ..Changes::default() };
    directory.remove("a.yaml");
    std::os::unix::fs::symlink("/proc/self/mem", directory.file("a.yaml")).unwrap();
    let problem = "cannot read a.yaml: Input/output error (os error 5)";
    assert_eq!(next(&changes), (vec![format!("problem: {problem}")], true));
    assert_eq!(next(&Changes::default()), (Vec::new(), true));
    directory.remove("a.yaml");
    directory.write("a.yaml", &service("x", "10.0.0.2"));
    let lines = ["apply service x 10.0.0.2".to_owned(), format!("resolved: {problem}")];
    assert_eq!(next(&Changes::default()), (lines.to_vec(), false));

    // The list of files, while one of them changes.
    directory.write("a.yaml", &service("x", "10.0.0.3"));
    let aside = directory.path.with_extension("aside");
    std::fs::rename(&directory.path, &aside).unwrap();
    let (lines, is_due) = next(&changes);
    assert!(lines.len() == 1 && lines[0].starts_with("problem: cannot read ") && is_due, "{lines:?}");
    std::fs::rename(&aside, &directory.path).unwrap();
    let (lines, is_due) = next(&Changes::default());
    assert!(lines.len() == 2 && lines[0] == "apply service x 10.0.0.3" && !is_due, "{lines:?}");
}
