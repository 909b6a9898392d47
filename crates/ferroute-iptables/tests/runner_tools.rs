//! Tools are found, told apart, and missed by name. The tools are scripts of a few words.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on must fail")]

mod common;

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use ferroute_core::IpFamily;
use ferroute_iptables::{
    HostPrograms, Tools,
    runner::{Backend, Locking, OtherBackend, Unusable, search_path},
};
use tempfile::TempDir;

/// A directory with programs.
struct Bin(TempDir);

impl Bin {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    /// The tools of a family as this version has them; `restore_version` tells whether `iptables-restore` knows
    /// `--version`.
    fn with_tools(self, prefix: &str, version: &str, restore_version: bool) -> Self {
        let tells = format!("[ \"$1\" = --version ] && echo '{prefix} {version}'; exit 0");
        let restore = if restore_version { tells.clone() } else { "cat; exit 0".to_owned() };
        self.program(prefix, &tells).program(&format!("{prefix}-restore"), &restore).save(prefix, "")
    }

    fn save(self, prefix: &str, text: &str) -> Self {
        self.program(&format!("{prefix}-save"), &format!("cat <<'END'\n{text}\nEND"))
    }

    fn program(self, name: &str, script: &str) -> Self {
        common::script::script(&self.0.path().join(name), script);
        self
    }

    fn path(&self) -> [PathBuf; 2] {
        [PathBuf::from("/nonexistent"), self.0.path().to_owned()]
    }

    fn find(&self, family: IpFamily) -> Result<Tools, Unusable> {
        Tools::find(family, &HostPrograms, &self.path())
    }

    fn other_backend(&self) -> Option<OtherBackend> {
        self.find(IpFamily::V4).unwrap().other_backend(&HostPrograms, &self.path()).unwrap()
    }
}

#[test]
fn the_tools_of_a_family_are_found_with_their_version_and_backend() {
    let bin =
        Bin::new().with_tools("iptables", "v1.8.9 (nf_tables)", true).with_tools("ip6tables", "v1.8.7 (legacy)", true);
    let tools = bin.find(IpFamily::V4).unwrap();
    assert_eq!(tools.save, bin.0.path().join("iptables-save"));
    assert_eq!(tools.release, "iptables v1.8.9 (nf_tables)".parse().unwrap());
    let tools = bin.find(IpFamily::V6).unwrap();
    assert_eq!(tools.restore, bin.0.path().join("ip6tables-restore"));
    assert_eq!(tools.release.backend, Backend::Legacy);
}

#[test]
fn who_takes_the_lock_depends_on_what_restore_can_do() {
    let locking = |version, restore_version| {
        Bin::new().with_tools("iptables", version, restore_version).find(IpFamily::V4).unwrap().locking
    };
    assert_eq!(locking("v1.8.9 (nf_tables)", true), Locking::Restore(&["-w", "5"]));
    assert_eq!(locking("v1.8.4 (legacy)", true), Locking::Restore(&["-w", "5", "-W", "100000"]));
    assert_eq!(locking("v1.6.2", true), Locking::Restore(&["-w", "5", "-W", "100000"]));
    assert_eq!(locking("v1.4.21", true), Locking::Restore(&["-w"]), "brought to the old version by a distribution");
    assert_eq!(locking("v1.4.21", false), Locking::Ours);
}

#[test]
fn a_missing_program_is_named_with_its_package() {
    let bin = Bin::new().with_tools("iptables", "v1.8.9 (nf_tables)", true);
    let directory = bin.0.path().display().to_string();
    let error = bin.find(IpFamily::V6).unwrap_err().to_string();
    assert_eq!(
        error,
        format!("ip6tables is in none of /nonexistent:{directory}; it comes with the package \"iptables\"")
    );

    fs::set_permissions(bin.0.path().join("iptables-restore"), PermissionsExt::from_mode(0o644)).unwrap();
    let error = bin.find(IpFamily::V4).unwrap_err();
    assert!(matches!(&error, Unusable::Missing { program, .. } if program == "iptables-restore"), "{error}");
}

#[test]
fn a_kernel_without_the_tables_is_told_from_missing_tools() {
    let bin = Bin::new().with_tools("ip6tables", "v1.8.9 (legacy)", true).program(
        "ip6tables",
        "[ \"$1\" = --version ] && { echo 'ip6tables v1.8.9 (legacy)'; exit 0; }\n\
         echo \"can't initialize ip6tables table \\`nat': Table does not exist\" >&2; exit 3",
    );
    let error = bin.find(IpFamily::V6).unwrap_err().to_string();
    let program = bin.0.path().join("ip6tables").display().to_string();
    assert_eq!(
        error,
        format!(
            "the kernel gives no IPv6 nat table to {program}: can't initialize ip6tables table `nat': Table does not exist"
        )
    );
}

#[test]
fn a_program_that_is_no_iptables_is_named() {
    let bin = Bin::new().with_tools("iptables", "", true);
    let error = bin.find(IpFamily::V4).unwrap_err();
    assert_eq!(error.to_string(), format!("{} does not tell its version", bin.0.path().join("iptables").display()));
}

#[test]
fn rules_in_the_other_backend_are_counted_and_kubelets_choice_is_seen() {
    let nft = || Bin::new().with_tools("iptables", "v1.8.9 (nf_tables)", true);
    let rules = "*filter\n:INPUT ACCEPT [0:0]\n-A INPUT -j DROP\n-A INPUT -j DROP\nCOMMIT";
    let kubelet = "*mangle\n:KUBE-IPTABLES-HINT - [0:0]\n:KUBE-KUBELET-CANARY - [0:0]\nCOMMIT";
    let seen = |rules, has_kubelet| Some(OtherBackend { backend: Backend::Legacy, rules, has_kubelet });
    assert_eq!(nft().other_backend(), None, "its tools are not there");
    assert_eq!(nft().save("iptables-legacy", "").other_backend(), None);
    assert_eq!(nft().save("iptables-legacy", rules).other_backend(), seen(2, false));
    assert_eq!(nft().save("iptables-legacy", kubelet).other_backend(), seen(0, true));
    assert_eq!(
        seen(3, true).unwrap().to_string(),
        "iptables (legacy) holds 3 rules that the kernel obeys as well as ours, and the kubelet uses it: ours may go past \
         its rules and those of the network plugin"
    );
    // kubelet has changed its mind, or two of them run.
    assert_eq!(nft().save("iptables-legacy", kubelet).save("iptables", kubelet).other_backend(), seen(0, false));
}

#[test]
fn the_backend_that_only_the_kubelet_shows_to_be_in_use_is_taken() {
    let both = || {
        let nft = Bin::new().with_tools("iptables", "v1.8.9 (nf_tables)", true).save("iptables", "");
        nft.with_tools("iptables-legacy", "v1.8.9 (legacy)", true)
    };
    let (kubelet, nothing) = ("*mangle\n:KUBE-IPTABLES-HINT - [0:0]\nCOMMIT", "*mangle\nCOMMIT");
    let taken = |bin: Bin| {
        let tools = Tools::find_beside_kubelet(IpFamily::V4, &HostPrograms, &bin.path()).unwrap();
        (tools.release.backend, tools.restore.file_name().unwrap().to_owned())
    };
    let (nft, legacy) = ((Backend::NfTables, "iptables-restore"), (Backend::Legacy, "iptables-legacy-restore"));
    let of = |(backend, name): (Backend, &str)| (backend, name.into());
    assert_eq!(taken(both().save("iptables-legacy", kubelet)), of(legacy));
    assert_eq!(taken(both().save("iptables-legacy", nothing)), of(nft));
    assert_eq!(taken(both().save("iptables", kubelet).save("iptables-legacy", kubelet)), of(nft));
    // Its rules can be seen, but not changed: better the default than none.
    let partly = Bin::new().with_tools("iptables", "v1.8.9 (nf_tables)", true).save("iptables", "");
    assert_eq!(taken(partly.save("iptables-legacy", kubelet)), of(nft));
}

#[test]
fn directories_of_programs_for_root_are_searched_even_where_the_path_lacks_them() {
    let path = search_path();
    for directory in ["/usr/sbin", "/sbin"] {
        assert_eq!(path.iter().filter(|known| *known == Path::new(directory)).count(), 1, "{directory} in {path:?}");
    }
}
