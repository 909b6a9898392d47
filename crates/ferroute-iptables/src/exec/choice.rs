//! The choice between the iptables programs and netlink.

use std::{fmt, fs, path::PathBuf, sync::Arc};

use ferroute_core::{IpFamily, error_chain};

use super::{
    access::RuleAccess,
    process::Exec,
    programs::{IptablesPrograms, ProgramsError},
    version::Backend,
};
use crate::{
    ChainName, TableName,
    native::{Modules, NativeRules, probe},
};

/// The access to the rules of this host, with the reason for its choice.
#[derive(Clone, Debug)]
pub struct ChosenAccess {
    /// The access.
    pub access: RuleAccess,
    /// The installed programs of the same backend, which `access` may not need.
    pub programs: Option<IptablesPrograms>,
    /// Why this access was chosen.
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
    /// accessed by netlink, unless the kernel lacks a module for it, such as one of `modules`; those of the legacy backend
    /// by its programs. With `require_programs`, netlink is not considered.
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
        let found = IptablesPrograms::find_for_kubelet(family, &*exec, path);
        let (programs, reason) = match found {
            Ok(programs) if require_programs => return Ok(Self::by_programs(programs, exec, "as configured")),
            Ok(programs) if programs.release.backend == Backend::Legacy => {
                return Ok(Self::by_programs(programs, exec, "the host's iptables uses the legacy backend"));
            }
            Ok(programs) => (Ok(programs), "the host's iptables uses nf_tables"),
            Err(error @ ProgramsError::Missing { .. }) if !require_programs && !is_legacy_host(family) => {
                (Err(error), "no iptables programs are installed")
            }
            Err(error) => return Err(error),
        };
        let native = probe(family, modules).and_then(|()| Ok(NativeRules::open(family)?));
        match (native, programs) {
            (Ok(native), programs) => {
                Ok(Self { access: RuleAccess::netlink(native), programs: programs.ok(), reason: reason.to_owned() })
            }
            (Err(error), Ok(programs)) => {
                let reason = format!("netlink is not possible: {}", error_chain(&error));
                Ok(Self::by_programs(programs, exec, &reason))
            }
            (Err(error), Err(missing)) => {
                tracing::info!(%family, "rules cannot be written by netlink: {}", error_chain(&error));
                Err(missing)
            }
        }
    }

    fn by_programs(programs: IptablesPrograms, exec: Arc<dyn Exec>, reason: &str) -> Self {
        let access = RuleAccess::programs(programs.clone(), exec);
        Self { access, programs: Some(programs), reason: reason.to_owned() }
    }
}

/// Returns an access to each backend that may have rules of an IP family in the calling thread's network namespace. This runs
/// no program unless the legacy backend has tables.
pub fn existing_accesses(family: IpFamily, exec: &Arc<dyn Exec>, path: &[PathBuf]) -> Vec<RuleAccess> {
    let native = NativeRules::open(family).ok().map(RuleAccess::netlink);
    let has_legacy = has_legacy_tables(family);
    let legacy = has_legacy.then(|| IptablesPrograms::find_backend(family, Backend::Legacy, &**exec, path).ok());
    let legacy = legacy.flatten().map(|programs| RuleAccess::programs(programs, Arc::clone(exec)));
    native.into_iter().chain(legacy).collect()
}

/// Reports whether this host's programs use the legacy backend, as far as that shows without them: it has tables there, and
/// the kubelet has none of its chains in nf_tables.
fn is_legacy_host(family: IpFamily) -> bool {
    has_legacy_tables(family) && !NativeRules::open(family).is_ok_and(|rules| has_kubelet(&rules))
}

fn has_legacy_tables(family: IpFamily) -> bool {
    let tables = match family {
        IpFamily::V4 => "/proc/thread-self/net/ip_tables_names",
        IpFamily::V6 => "/proc/thread-self/net/ip6_tables_names",
    };
    fs::read_to_string(tables).is_ok_and(|tables| !tables.trim().is_empty())
}

fn has_kubelet(rules: &NativeRules) -> bool {
    KUBELET_CHAINS.iter().any(|chain| rules.has_chain(TableName::Mangle, *chain).unwrap_or(false))
}

/// The chains that the kubelet creates in table mangle as a hint to the backend that it uses.
const KUBELET_CHAINS: [ChainName; 2] =
    [ChainName::literal("KUBE-IPTABLES-HINT"), ChainName::literal("KUBE-KUBELET-CANARY")];
