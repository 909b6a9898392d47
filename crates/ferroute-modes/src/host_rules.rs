//! The access to the iptables rules of this host, for the modes that write them.

use std::sync::Arc;

use anyhow::Context;
use ferroute_config::{FamilySupport, Resolved};
use ferroute_core::{IpFamily, NodeView, error_chain};
use ferroute_iptables::{
    GenerationTracker, HostExec,
    exec::{ChosenAccess, OtherBackend, ProgramsError, RuleAccess, search_path},
    native::Modules,
};

use crate::kernel_has_ipv6;

/// Access to the iptables rules of each IP family that the proxy serves, and the state that its users share.
pub(super) struct HostRules {
    /// Detects changes of rules by other programs.
    pub(super) generations: GenerationTracker,
    /// The access by IP family.
    pub(super) families: Vec<(IpFamily, ChosenAccess)>,
    /// The IP families that are not served.
    pub(super) disabled: Vec<IpFamily>,
}

impl HostRules {
    /// Determines the access, and logs the reason if an IP family is disabled.
    ///
    /// # Errors
    /// If no IP family that the configuration requires can be served.
    pub(super) fn find(resolved: &Resolved, node: &NodeView, modules: Modules) -> anyhow::Result<Self> {
        let [ipv4, ipv6] = IpFamily::BOTH.map(|family| find_access(resolved, family, modules));
        let support = FamilySupport { ipv4: ipv4.is_ok(), ipv6: ipv6.is_ok() && kernel_has_ipv6() };
        let served = match resolved.families(node, support) {
            Ok(families) => families,
            Err(error) => {
                // An operator may be able to fix the reasons.
                for reason in [ipv4.err(), ipv6.err()].into_iter().flatten() {
                    tracing::error!("{}", error_chain(&reason));
                }
                return Err(error.into());
            }
        };
        let generations =
            GenerationTracker::open().context("cannot read the kernel's generation of nf_tables rules")?;
        let (mut families, mut disabled) = (Vec::new(), Vec::new());
        for (family, access) in IpFamily::BOTH.into_iter().zip([ipv4, ipv6]) {
            if served.iter().any(|served| served == family) {
                let access = access?;
                warn_of_other_backend(&access.access);
                families.push((family, access));
            } else {
                let reason =
                    access.err().map_or("the kernel does not support it".to_owned(), |error| error_chain(&error));
                tracing::info!(%family, "IP family is disabled: {reason}");
                disabled.push(family);
            }
        }
        Ok(Self { generations, families, disabled })
    }
}

/// Chooses the access to the rules of an IP family, which contain these modules.
///
/// # Errors
/// If they cannot be accessed.
pub(super) fn find_access(
    resolved: &Resolved,
    family: IpFamily,
    modules: Modules,
) -> Result<ChosenAccess, ProgramsError> {
    ChosenAccess::find(family, Arc::new(HostExec), &search_path(), resolved.flags.require_iptables_programs, modules)
}

/// Checks that the rules of an IP family can be accessed. Returns the way of access, with the reason, for
/// [`Mode::probe`].
///
/// # Errors
/// The reason why they cannot be accessed.
///
/// [`Mode::probe`]: super::Mode::probe
pub(super) fn probe_access(resolved: &Resolved, family: IpFamily, modules: Modules) -> Result<Option<String>, String> {
    find_access(resolved, family, modules).map(|access| Some(access.to_string())).map_err(|error| error_chain(&error))
}

/// Logs a warning if both backends of iptables have rules: both apply to every packet, in an order that is hard to predict.
fn warn_of_other_backend(used: &RuleAccess) {
    let family = used.family();
    match OtherBackend::find(used, &HostExec, &search_path()) {
        Ok(Some(OtherBackend { backend, rules, has_kubelet })) => tracing::warn!(
            %family, rules, kubelet = has_kubelet,
            "iptables backend {backend} has rules, too; a host should use one backend only"
        ),
        Ok(None) => {}
        Err(error) => {
            tracing::warn!(%family, "the other iptables backend may have rules, too: {}", error_chain(&error));
        }
    }
}
