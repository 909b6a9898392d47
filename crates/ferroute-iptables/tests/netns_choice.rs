//! The choice of backend and access on hosts of all kinds. Each test has separate network namespaces.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on must fail")]

use std::{os::unix::fs::symlink, path::PathBuf, sync::Arc};

use ferroute_core::IpFamily;
use ferroute_iptables::{
    HostExec, TableName,
    exec::{Backend, ChosenAccess, OtherBackend, ProgramsError, search_path},
    native::Modules,
};
use ferroute_testing::NetNs;
use tempfile::TempDir;

/// A directory with some of the host's programs.
struct Bin(TempDir);

impl Bin {
    /// Links the programs of backends under other names, such as `iptables-nft` as `iptables`. Their behaviour depends
    /// on their names, and on the file that the name leads to.
    fn with(programs: &[(Backend, &str)]) -> Self {
        let bin = tempfile::tempdir().unwrap();
        for (backend, name) in programs {
            let infix = name.strip_prefix("iptables").unwrap();
            for (program, suffix) in ["iptables", "ip6tables"]
                .iter()
                .flat_map(|program| ["", "-save", "-restore"].map(|suffix| (program, suffix)))
            {
                let target = format!("{program}-{}{suffix}", backend.infix());
                let target = search_path().iter().map(|path| path.join(&target)).find(|path| path.exists()).unwrap();
                symlink(target.canonicalize().unwrap(), bin.path().join(format!("{program}{infix}{suffix}"))).unwrap();
            }
        }
        Self(bin)
    }

    fn path(&self) -> Vec<PathBuf> {
        vec![self.0.path().to_owned()]
    }
}

fn chosen(node: &NetNs, family: IpFamily, path: &[PathBuf]) -> Result<ChosenAccess, ProgramsError> {
    node.run(|| ChosenAccess::find(family, Arc::new(HostExec), path, false, Modules::Common))
}

/// The backend, and whether it is accessed by netlink.
fn way(chosen: &ChosenAccess) -> (Backend, bool) {
    (chosen.access.backend(), chosen.access.iptables_programs().is_none())
}

const BY_NETLINK: (Backend, bool) = (Backend::NfTables, true);
const BY_LEGACY_PROGRAMS: (Backend, bool) = (Backend::Legacy, false);
const FAMILIES: [(IpFamily, &str, &str); 2] = [(IpFamily::V4, "iptables", "ip"), (IpFamily::V6, "ip6tables", "ip6")];

#[test]
fn rules_of_nft_in_any_table_do_not_matter() {
    let installed = [
        Bin::with(&[]),
        Bin::with(&[(Backend::NfTables, "iptables")]),
        Bin::with(&[(Backend::NfTables, "iptables"), (Backend::Legacy, "iptables-legacy")]),
    ];
    for (family, program, nft_family) in FAMILIES {
        for table in TableName::ALL {
            let node = NetNs::new();
            let chain = if table == TableName::Nat { "POSTROUTING" } else { "OUTPUT" };
            node.command(&format!("{program}-nft"), &["-w", "-t", table.as_str(), "-A", chain, "-j", "ACCEPT"]);
            node.command("nft", &[&format!("add rule {nft_family} {table} {chain} meta mark {{ 1, 2 }} counter")]);
            for bin in &installed {
                let chosen = chosen(&node, family, &bin.path()).unwrap();
                assert_eq!(way(&chosen), BY_NETLINK, "{chosen}");
            }
        }
    }
}

#[test]
fn the_backend_with_only_the_kubelets_chains_is_chosen() {
    let nft_default = Bin::with(&[(Backend::NfTables, "iptables"), (Backend::Legacy, "iptables-legacy")]);
    let legacy_default = Bin::with(&[(Backend::Legacy, "iptables")]);
    let no_legacy = Bin::with(&[(Backend::NfTables, "iptables")]);
    for (family, program, nft_family) in FAMILIES {
        // With or without rules that `iptables-nft` does not show beside the chain of the kubelet.
        for (in_nft, in_legacy, foreign) in [
            (false, false, false),
            (true, false, false),
            (true, false, true),
            (false, true, false),
            (true, true, false),
            (true, true, true),
        ] {
            let node = NetNs::new();
            let hint = |backend: Backend| {
                let program = format!("{program}-{}", backend.infix());
                node.command(&program, &["-w", "-t", "mangle", "-N", "KUBE-IPTABLES-HINT"]);
            };
            if in_nft {
                hint(Backend::NfTables);
            }
            if in_legacy {
                hint(Backend::Legacy);
            }
            if foreign {
                let rule = format!("add rule {nft_family} mangle KUBE-IPTABLES-HINT meta mark {{ 1, 2 }} counter");
                node.command("nft", &[&rule]);
            }
            let case = format!("{family}, {in_nft}, {in_legacy}, {foreign}");
            let of = |bin: &Bin| way(&chosen(&node, family, &bin.path()).unwrap());
            let only_legacy = in_legacy && !in_nft;
            assert_eq!(of(&nft_default), if only_legacy { BY_LEGACY_PROGRAMS } else { BY_NETLINK }, "{case}");
            let only_nft = in_nft && !in_legacy;
            assert_eq!(of(&legacy_default), if only_nft { BY_NETLINK } else { BY_LEGACY_PROGRAMS }, "{case}");
            assert_eq!(of(&no_legacy), BY_NETLINK, "{case}: the default if the others are not installed");
        }
    }
}

#[test]
fn legacy_tables_without_programs_are_an_error_unless_the_kubelet_uses_nf_tables() {
    let node = NetNs::new();
    node.command("iptables-legacy", &["-w", "-t", "nat", "-A", "POSTROUTING", "-o", "eth0", "-j", "MASQUERADE"]);
    let error = chosen(&node, IpFamily::V4, &[]).unwrap_err();
    assert!(matches!(error, ProgramsError::Missing { .. }), "{error}");
    assert_eq!(way(&chosen(&node, IpFamily::V6, &[]).unwrap()), BY_NETLINK);
    node.command("iptables-nft", &["-w", "-t", "mangle", "-N", "KUBE-IPTABLES-HINT"]);
    assert_eq!(way(&chosen(&node, IpFamily::V4, &[]).unwrap()), BY_NETLINK);
}

#[test]
fn rules_in_the_other_backend_are_counted() {
    let bin = Bin::with(&[(Backend::NfTables, "iptables"), (Backend::Legacy, "iptables-legacy")]);
    let node = NetNs::new();
    let other = |path: &[PathBuf]| {
        let used = chosen(&node, IpFamily::V4, &bin.path()).unwrap().access;
        node.run(|| OtherBackend::find(&used, &HostExec, path))
    };
    assert_eq!(other(&bin.path()).unwrap(), None);
    node.command("iptables-legacy", &["-w", "-A", "INPUT", "-j", "DROP"]);
    let legacy = |rules, has_kubelet| Some(OtherBackend { backend: Backend::Legacy, rules, has_kubelet });
    assert_eq!(other(&bin.path()).unwrap(), legacy(1, false));
    other(&[]).unwrap_err();
    node.command("iptables-legacy", &["-w", "-t", "mangle", "-N", "KUBE-KUBELET-CANARY"]);
    let nf_tables = Some(OtherBackend { backend: Backend::NfTables, rules: 0, has_kubelet: false });
    assert_eq!(other(&bin.path()).unwrap(), None, "{nf_tables:?}: the kubelet's backend is used");
    node.command("iptables-nft", &["-w", "-t", "raw", "-A", "OUTPUT", "-j", "ACCEPT"]);
    node.command("nft", &["add rule ip raw OUTPUT meta mark { 1, 2 } counter"]);
    assert_eq!(other(&bin.path()).unwrap(), nf_tables.map(|other| OtherBackend { rules: 2, ..other }));
}
