//! Discovery of the iptables programs, which shell scripts replace.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on must fail")]

mod common;

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use ferroute_core::IpFamily;
use ferroute_iptables::{
    HostExec, IptablesPrograms,
    exec::{Backend, Locking, ProgramsError, search_path},
};
use tempfile::TempDir;

/// A directory with programs.
struct Bin(TempDir);

impl Bin {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    /// Adds the programs of a version; `restore_version` makes `iptables-restore` support `--version`.
    fn with_programs(self, prefix: &str, version: &str, restore_version: bool) -> Self {
        let print_version = format!("[ \"$1\" = --version ] && echo '{prefix} {version}'; exit 0");
        let restore = if restore_version { print_version.clone() } else { "cat; exit 0".to_owned() };
        self.program(prefix, &print_version).program(&format!("{prefix}-restore"), &restore).save(prefix, "")
    }

    fn save(self, prefix: &str, text: &str) -> Self {
        self.program(&format!("{prefix}-save"), &format!("cat <<'END'\n{text}\nEND"))
    }

    fn program(self, name: &str, script: &str) -> Self {
        common::netns_host::script(&self.0.path().join(name), script);
        self
    }

    fn path(&self) -> [PathBuf; 2] {
        [PathBuf::from("/nonexistent"), self.0.path().to_owned()]
    }

    fn find(&self, family: IpFamily) -> Result<IptablesPrograms, ProgramsError> {
        IptablesPrograms::find(family, &HostExec, &self.path())
    }
}

#[test]
fn the_programs_of_a_family_are_found_with_their_version_and_backend() {
    let bin = Bin::new().with_programs("iptables", "v1.8.9 (nf_tables)", true).with_programs(
        "ip6tables",
        "v1.8.7 (legacy)",
        true,
    );
    let programs = bin.find(IpFamily::V4).unwrap();
    assert_eq!(programs.save, bin.0.path().join("iptables-save"));
    assert_eq!(programs.release, "iptables v1.8.9 (nf_tables)".parse().unwrap());
    let programs = bin.find(IpFamily::V6).unwrap();
    assert_eq!(programs.restore, bin.0.path().join("ip6tables-restore"));
    assert_eq!(programs.release.backend, Backend::Legacy);
}

#[test]
fn locking_depends_on_the_features_of_restore() {
    let locking = |version, restore_version| {
        Bin::new().with_programs("iptables", version, restore_version).find(IpFamily::V4).unwrap().locking
    };
    assert_eq!(locking("v1.8.9 (nf_tables)", true), Locking::Restore(&["-w", "5"]));
    assert_eq!(locking("v1.8.4 (legacy)", true), Locking::Restore(&["-w", "5", "-W", "100000"]));
    assert_eq!(locking("v1.6.2", true), Locking::Restore(&["-w", "5", "-W", "100000"]));
    assert_eq!(locking("v1.4.21", true), Locking::Restore(&["-w"]), "backported by a distribution");
    assert_eq!(locking("v1.4.21", false), Locking::Ferroute);
}

#[test]
fn the_error_for_a_missing_program_names_its_package() {
    let bin = Bin::new().with_programs("iptables", "v1.8.9 (nf_tables)", true);
    let directory = bin.0.path().display().to_string();
    let error = bin.find(IpFamily::V6).unwrap_err().to_string();
    assert_eq!(
        error,
        format!("ip6tables not found in /nonexistent:{directory}; it is part of the package \"iptables\"")
    );

    fs::set_permissions(bin.0.path().join("iptables-restore"), PermissionsExt::from_mode(0o644)).unwrap();
    let error = bin.find(IpFamily::V4).unwrap_err();
    assert!(matches!(&error, ProgramsError::Missing { program, .. } if program == "iptables-restore"), "{error}");
}

#[test]
fn a_kernel_without_the_tables_is_distinguished_from_missing_programs() {
    let bin = Bin::new().with_programs("ip6tables", "v1.8.9 (legacy)", true).program(
        "ip6tables",
        "[ \"$1\" = --version ] && { echo 'ip6tables v1.8.9 (legacy)'; exit 0; }\n\
         echo \"can't initialize ip6tables table \\`nat': Table does not exist\" >&2; exit 3",
    );
    let error = bin.find(IpFamily::V6).unwrap_err().to_string();
    let program = bin.0.path().join("ip6tables").display().to_string();
    assert_eq!(
        error,
        format!(
            "{program} cannot access the IPv6 nat table of the kernel: can't initialize ip6tables table `nat': Table does not exist"
        )
    );
}

#[test]
fn the_error_for_an_unknown_version_names_the_program() {
    let bin = Bin::new().with_programs("iptables", "", true);
    let error = bin.find(IpFamily::V4).unwrap_err();
    let program = bin.0.path().join("iptables").display().to_string();
    assert_eq!(error.to_string(), format!("cannot determine the version of {program}"));
}

#[test]
fn the_sbin_directories_are_searched_even_if_missing_from_the_path() {
    let path = search_path();
    for directory in ["/usr/sbin", "/sbin"] {
        assert_eq!(path.iter().filter(|entry| *entry == Path::new(directory)).count(), 1, "{directory} in {path:?}");
    }
}
