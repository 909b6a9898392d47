//! Discovery of the iptables programs, with shell scripts in their place.

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
    exec::{Backend, Locking, OtherBackend, ProgramsError, search_path},
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

    fn other_backend(&self) -> Option<OtherBackend> {
        self.find(IpFamily::V4).unwrap().other_backend(&HostExec, &self.path()).unwrap()
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
fn rules_in_the_other_backend_are_counted_and_the_kubelets_backend_is_detected() {
    let nft = || Bin::new().with_programs("iptables", "v1.8.9 (nf_tables)", true);
    let rules = "*filter\n:INPUT ACCEPT [0:0]\n-A INPUT -j DROP\n-A INPUT -j DROP\nCOMMIT";
    let kubelet = "*mangle\n:KUBE-IPTABLES-HINT - [0:0]\n:KUBE-KUBELET-CANARY - [0:0]\nCOMMIT";
    let other = |rules, has_kubelet| Some(OtherBackend { backend: Backend::Legacy, rules, has_kubelet });
    assert_eq!(nft().other_backend(), None, "its programs are not installed");
    assert_eq!(nft().save("iptables-legacy", "").other_backend(), None);
    assert_eq!(nft().save("iptables-legacy", rules).other_backend(), other(2, false));
    assert_eq!(nft().save("iptables-legacy", kubelet).other_backend(), other(0, true));
    assert_eq!(
        other(3, true).unwrap().to_string(),
        "iptables (legacy) has 3 rules that the kernel applies in addition to Ferroute's, and the kubelet uses it: \
         Ferroute's rules may bypass those of the kubelet and the network plugin"
    );
    // The kubelet's backend was changed, or two kubelets run.
    assert_eq!(nft().save("iptables-legacy", kubelet).save("iptables", kubelet).other_backend(), other(0, false));
}

#[test]
fn the_backend_with_only_the_kubelets_chains_is_preferred() {
    let both = || {
        let nft = Bin::new().with_programs("iptables", "v1.8.9 (nf_tables)", true).save("iptables", "");
        nft.with_programs("iptables-legacy", "v1.8.9 (legacy)", true)
    };
    let (kubelet, nothing) = ("*mangle\n:KUBE-IPTABLES-HINT - [0:0]\nCOMMIT", "*mangle\nCOMMIT");
    let taken = |bin: Bin| {
        let programs = IptablesPrograms::find_for_kubelet(IpFamily::V4, &HostExec, &bin.path()).unwrap();
        (programs.release.backend, programs.restore.file_name().unwrap().to_owned())
    };
    let (nft, legacy) = ((Backend::NfTables, "iptables-restore"), (Backend::Legacy, "iptables-legacy-restore"));
    let of = |(backend, name): (Backend, &str)| (backend, name.into());
    assert_eq!(taken(both().save("iptables-legacy", kubelet)), of(legacy));
    assert_eq!(taken(both().save("iptables-legacy", nothing)), of(nft));
    assert_eq!(taken(both().save("iptables", kubelet).save("iptables-legacy", kubelet)), of(nft));
    // Only its iptables-save is installed, so the default is used.
    let partly = Bin::new().with_programs("iptables", "v1.8.9 (nf_tables)", true).save("iptables", "");
    assert_eq!(taken(partly.save("iptables-legacy", kubelet)), of(nft));
}

#[test]
fn the_sbin_directories_are_searched_even_if_missing_from_the_path() {
    let path = search_path();
    for directory in ["/usr/sbin", "/sbin"] {
        assert_eq!(path.iter().filter(|entry| *entry == Path::new(directory)).count(), 1, "{directory} in {path:?}");
    }
}
