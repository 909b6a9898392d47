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
