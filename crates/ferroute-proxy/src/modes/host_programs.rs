//! The iptables programs of this host, for the modes that write iptables rules.

use std::sync::Arc;

use anyhow::Context;
use ferroute_config::{FamilySupport, Resolved};
use ferroute_core::{IpFamily, NodeView};
use ferroute_iptables::{
    GenerationTracker, HostExec, IptablesPrograms,
    exec::{OtherBackend, search_path},
};

use super::kernel_has_ipv6;
use crate::logging::chain;

/// The iptables programs of each IP family that the proxy serves, and what their users share.
pub(super) struct HostPrograms {
    /// Runs the programs.
    pub(super) exec: Arc<HostExec>,
    /// Detects changes of rules by other programs.
    pub(super) generations: GenerationTracker,
    /// The programs by IP family.
    pub(super) families: Vec<(IpFamily, IptablesPrograms)>,
    /// The IP families that are not served.
    pub(super) disabled: Vec<IpFamily>,
}

impl HostPrograms {
    /// Finds the programs, and logs why an IP family is disabled.
    ///
    /// # Errors
    /// If no IP family that the configuration requires can be served.
    pub(super) fn find(resolved: &Resolved, node: &NodeView) -> anyhow::Result<Self> {
        let exec = Arc::new(HostExec);
        let path = search_path();
        let [ipv4, ipv6] = IpFamily::BOTH.map(|family| IptablesPrograms::find_for_kubelet(family, &*exec, &path));
        let support = FamilySupport { ipv4: ipv4.is_ok(), ipv6: ipv6.is_ok() && kernel_has_ipv6() };
        let served = match resolved.families(node, support) {
            Ok(families) => families,
            Err(error) => {
                // An operator may be able to fix the reasons.
                for reason in [ipv4.err(), ipv6.err()].into_iter().flatten() {
                    tracing::error!("{}", chain(&reason));
                }
                return Err(error.into());
            }
        };
        let generations =
            GenerationTracker::open().context("cannot read the kernel's generation of nf_tables rules")?;
        let (mut families, mut disabled) = (Vec::new(), Vec::new());
        for (family, programs) in IpFamily::BOTH.into_iter().zip([ipv4, ipv6]) {
            if served.iter().any(|served| served == family) {
                let programs = programs?;
                warn_of_other_backend(&programs, &exec);
                families.push((family, programs));
            } else {
                let reason = programs.err().map_or("the kernel does not support it".to_owned(), |error| chain(&error));
                tracing::info!(%family, "IP family is disabled: {reason}");
                disabled.push(family);
            }
        }
        Ok(Self { exec, generations, families, disabled })
    }
}

/// Checks that this host has the programs of an IP family.
///
/// # Errors
/// The reason why it has not.
pub(super) fn probe_programs(family: IpFamily) -> Result<(), String> {
    let programs = IptablesPrograms::find_for_kubelet(family, &HostExec, &search_path());
    programs.map(|_| ()).map_err(|error| chain(&error))
}

/// Logs a warning if both backends of iptables have rules: both apply to every packet, in an order that is hard to predict.
fn warn_of_other_backend(programs: &IptablesPrograms, exec: &HostExec) {
    match programs.other_backend(exec, &search_path()) {
        Ok(Some(OtherBackend { backend, rules, has_kubelet })) if rules > 0 || has_kubelet => tracing::warn!(
            family = %programs.family, rules, kubelet = has_kubelet,
            "iptables backend {backend} has rules, too; a host should use one backend only"
        ),
        Ok(_) => {}
        Err(error) => tracing::debug!("cannot check the other iptables backend: {}", chain(&error)),
    }
}
