//! Faulty programs that replace those of iptables.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use crate::Files;

/// Scripts that execute the real programs, which are in later directories of `PATH`, or a fault.
pub(crate) struct Programs {
    directory: PathBuf,
    switch: PathBuf,
}

impl Programs {
    /// Creates scripts with these names and the fault `fault`, a shell script, which is off.
    pub(crate) fn new(files: &Files, names: &[&str], fault: &str) -> Self {
        let programs = Self { directory: files.path("programs"), switch: files.path("faulty") };
        fs::create_dir(&programs.directory).unwrap();
        for name in names {
            let switch = programs.switch.display();
            let script =
                format!("#!/bin/sh\nif [ -e {switch} ]; then {fault}; fi\nPATH=${{PATH#*:}} exec {name} \"$@\"\n");
            programs.write(name, &script);
        }
        programs
    }

    fn write(&self, name: &str, script: &str) {
        let path = self.directory.join(name);
        fs::write(&path, script).unwrap();
        fs::set_permissions(path, PermissionsExt::from_mode(0o755)).unwrap();
    }

    /// Turns the fault on or off.
    pub(crate) fn set_faulty(&self, faulty: bool) {
        if faulty {
            fs::write(&self.switch, "").unwrap();
        } else {
            fs::remove_file(&self.switch).unwrap();
        }
    }

    /// Returns the value of `PATH` with the scripts first.
    pub(crate) fn path(&self) -> String {
        format!("{}:{}:/usr/sbin:/sbin", self.directory.display(), std::env::var("PATH").unwrap())
    }
}

/// A fault that never ends. It appends the process ID to a file; see [`hung_processes`].
pub(crate) fn hang(files: &Files) -> String {
    format!("echo $$ >> {}; exec sleep 100000", files.path(HUNG).display())
}

/// Returns the processes that [`hang`] left running.
pub(crate) fn hung_processes(files: &Files) -> Vec<String> {
    let started = fs::read_to_string(files.path(HUNG)).unwrap_or_default();
    let is_running = |process: &str| {
        let status = fs::read_to_string(Path::new("/proc").join(process).join("stat")).unwrap_or_default();
        !status.is_empty() && !status.contains(") Z ")
    };
    started.lines().filter(|process| is_running(process)).map(str::to_owned).collect()
}

const HUNG: &str = "hung";
