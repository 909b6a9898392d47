//! The choice between the iptables programs and netlink, and the backend that is used.

use std::{fmt, path::PathBuf, sync::Arc};

use ferroute_core::{IpFamily, error_chain};

use super::{
    access::RuleAccess,
    legacy::{self, LegacyError},
    process::Exec,
    programs::{IptablesPrograms, ProgramsError},
    version::Backend,
};
use crate::{
    ChainName, SavedRules, TableName,
    native::{Modules, NativeRules, ReadError, probe},
};

/// The access to the rules of this host, with the reason for its choice.
#[derive(Clone, Debug)]
pub struct ChosenAccess {
    /// The access.
    pub access: RuleAccess,
    /// Reason why this access was chosen.
    pub reason: String,
}

impl fmt::Display for ChosenAccess {
    /// `by netlink: the host's iptables uses nf_tables`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.access.iptables_programs() {
            Some(programs) => write!(f, "by {}, {}", programs.restore.display(), programs.release)?,
            None => f.write_str("by netlink")?,
        }
        write!(f, ": {}", self.reason)
    }
}

impl ChosenAccess {
    /// Chooses the access to the rules of an IP family in the calling thread's network namespace.
    ///
    /// Rules must be in the backend that the host's other programs use, above all the kubelet. Rules of nf_tables are
    /// accessed by netlink, unless the kernel lacks a required module, such as one of `modules`; rules of the legacy
    /// backend are accessed by its programs. With `require_programs`, netlink is not considered.
    ///
    /// # Errors
    /// If the programs are missing or fail and the rules cannot be accessed by netlink.
    pub fn find(
        family: IpFamily,
        exec: Arc<dyn Exec>,
        path: &[PathBuf],
        require_programs: bool,
        modules: Modules,
    ) -> Result<Self, ProgramsError> {
        let default = IptablesPrograms::find_installed(family, None, &*exec, path);
        let backend =
            kubelet_backend(family, &*exec, path).or(default.as_ref().ok().map(|found| found.release.backend));
        let (backend, mut reason) = match backend {
            Some(Backend::Legacy) => (Backend::Legacy, "the host's iptables uses the legacy backend"),
            Some(Backend::NfTables) => (Backend::NfTables, "the host's iptables uses nf_tables"),
            // As far as that shows without the programs and the kubelet.
            None if legacy::tables(family).is_ok_and(|tables| !tables.is_empty()) => {
                (Backend::Legacy, "the host has tables of the legacy backend")
            }
            None => (
                Backend::NfTables,
                match default {
                    Err(ProgramsError::Missing { .. }) => "no iptables programs are installed",
                    _ => "the installed iptables programs cannot be run",
                },
            ),
        };
        let programs = match default {
            Ok(programs) if programs.release.backend == backend => Ok(programs),
            default => match IptablesPrograms::find_installed(family, Some(backend), &*exec, path) {
                // The caller warns of the rules in the other backend.
                Err(_) if backend == Backend::Legacy && default.is_ok() => {
                    reason = "the programs of the legacy backend, which the kubelet uses, are not installed";
                    default
                }
                found => found.map_err(|error| default.err().unwrap_or(error)),
            },
        };
        let is_legacy = programs.as_ref().map_or(backend, |programs| programs.release.backend) == Backend::Legacy;
        let checked = |programs: IptablesPrograms| programs.check_kernel(&*exec).map(|()| programs);
        let programs = match programs {
            programs if !is_legacy && !require_programs => programs,
            programs => match programs.and_then(checked) {
                Ok(programs) => {
                    let reason = if require_programs { "as configured" } else { reason };
                    return Ok(Self::by_programs(programs, exec, reason));
                }
                // No program of this host can have rules in the legacy backend.
                Err(error @ ProgramsError::NoTable { .. })
                    if !require_programs && legacy::tables(family).is_ok_and(|tables| tables.is_empty()) =>
                {
                    reason = "the kernel has no tables of the legacy backend";
                    Err(error)
                }
                Err(error) => return Err(error),
            },
        };
        let source = match probe(family, modules).and_then(|()| Ok(NativeRules::open(family)?)) {
            Ok(native) => return Ok(Self { access: RuleAccess::netlink(native), reason: reason.to_owned() }),
            Err(error) => error,
        };
        match programs.and_then(checked) {
            Ok(programs) => {
                let reason = format!("netlink is not possible: {}", error_chain(&source));
                Ok(Self::by_programs(programs, exec, &reason))
            }
            Err(programs) => Err(ProgramsError::Netlink { family, programs: programs.into(), source }),
        }
    }

    fn by_programs(programs: IptablesPrograms, exec: Arc<dyn Exec>, reason: &str) -> Self {
        let access = RuleAccess::programs(programs, exec);
        let access = match NativeRules::open(access.family()) {
            Ok(rules) => access.with_repairs(rules),
            Err(_) => access,
        };
        Self { access, reason: reason.to_owned() }
    }
}

/// The rules of the backend that Ferroute does not use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtherBackend {
    /// The backend.
    pub backend: Backend,
    /// Number of rules. The kernel applies them as well, before or after Ferroute's.
    pub rules: usize,
    /// Whether the kubelet's chains are only in this backend, which is therefore the one that the host uses.
    pub has_kubelet: bool,
}

impl OtherBackend {
    /// Reads the rules in the backend other than that of `used`; `None` if there are none.
    ///
    /// # Errors
    /// If there may be rules, but they cannot be read.
    pub fn find(used: &RuleAccess, exec: &dyn Exec, path: &[PathBuf]) -> Result<Option<Self>, AccessError> {
        let (family, backend) = (used.family(), used.backend().other());
        let saved = match backend {
            Backend::Legacy => legacy::snapshot(family, None, exec, path)?,
            Backend::NfTables => {
                let opened = NativeRules::open(family);
                Some(opened.map_err(|source| ReadError { table: TableName::Filter, source })?.snapshot()?)
            }
        };
        let Some(SavedRules { rules, .. }) = saved else { return Ok(None) };
        let chains = rules.tables.values().flat_map(|table| table.chains.values());
        let number = chains.map(|chain| chain.rules.len()).sum();
        let has_kubelet = kubelet_backend(family, exec, path) == Some(backend);
        Ok((number > 0 || has_kubelet).then_some(Self { backend, rules: number, has_kubelet }))
    }
}

/// Reason why the rules of a backend cannot be accessed. There may be some.
#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    /// Error of the legacy backend.
    #[error(transparent)]
    Legacy(#[from] LegacyError),
    /// Error of nf_tables.
    #[error(transparent)]
    NfTables(#[from] ReadError),
}

/// Returns an access to each backend that may have rules of an IP family in the calling thread's network namespace, and the
/// reasons why others have none. This runs no program unless the legacy backend has tables.
pub fn existing_accesses(
    family: IpFamily,
    exec: &Arc<dyn Exec>,
    path: &[PathBuf],
) -> Vec<Result<RuleAccess, AccessError>> {
    let mut accesses = Vec::new();
    match NativeRules::open_existing(family) {
        Ok(rules) => accesses.extend(rules.map(|rules| Ok(RuleAccess::netlink(rules)))),
        Err(source) => accesses.push(Err(ReadError { table: TableName::Filter, source }.into())),
    }
    match legacy::programs(family, &**exec, path) {
        Ok(programs) => accesses.extend(programs.map(|programs| Ok(RuleAccess::programs(programs, Arc::clone(exec))))),
        Err(error) => accesses.push(Err(error.into())),
    }
    accesses
}

/// Returns the only backend that has the kubelet's chains; `None` if neither or both have them, or if it cannot be
/// determined.
fn kubelet_backend(family: IpFamily, exec: &dyn Exec, path: &[PathBuf]) -> Option<Backend> {
    let in_nf_tables = NativeRules::open(family).is_ok_and(|rules| {
        KUBELET_CHAINS.iter().any(|chain| rules.has_chain(TableName::Mangle, *chain).unwrap_or(false))
    });
    let mangle = Some(TableName::Mangle);
    let in_legacy = legacy::snapshot(family, mangle, exec, path)
        .ok()
        .flatten()
        .is_some_and(|saved| KUBELET_CHAINS.iter().any(|chain| saved.rules.chain(TableName::Mangle, *chain).is_some()));
    match (in_nf_tables, in_legacy) {
        (true, false) => Some(Backend::NfTables),
        (false, true) => Some(Backend::Legacy),
        _ => None,
    }
}

/// The chains that the kubelet creates in table mangle as a hint to the backend that it uses.
const KUBELET_CHAINS: [ChainName; 2] =
    [ChainName::literal("KUBE-IPTABLES-HINT"), ChainName::literal("KUBE-KUBELET-CANARY")];
