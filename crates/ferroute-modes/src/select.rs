//! The selection of a mode.
//!
//! | configured mode | called as `kube-proxy` | called by any other name |
//! | --- | --- | --- |
//! | any | that mode, or its fallback where the host does not support it | the same |
//! | none | iptables, as in kube-proxy 1.36 | nftables where the kernel supports it, else iptables |

use std::{fmt, mem};

use anyhow::Context;
use ferroute_config::{FieldErrors, KubeProxyConfiguration, ModeName, Resolved, settings::Settings};
use ferroute_core::IpFamily;

use crate::{Registry, kernel_has_ipv6};

/// The name under which the program was called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CalledAs {
    /// `kube-proxy`: the caller expects kube-proxy's behaviour.
    KubeProxy,
    /// Any other name.
    Ferroute,
}

/// Reason why a mode was selected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The mode is configured.
    Configured,
    /// No mode is configured; this is kube-proxy's default.
    KubeProxyDefault,
    /// No mode is configured; the kernel supports all features that nftables mode needs.
    Supported,
    /// No mode is configured; nftables mode is unavailable for this reason.
    Unavailable(String),
    /// The configured mode is unavailable for this reason.
    Fallback(ModeName, String),
}

impl Reason {
    /// Returns a warning if the choice may change with a later version of Kubernetes.
    pub fn warning(&self) -> Option<&'static str> {
        // kubernetes/kubernetes#139957, in kube-proxy since 1.37.
        (*self == Self::KubeProxyDefault).then_some(
            "no proxy mode is configured, so the mode is iptables, as in kube-proxy. Kubernetes is going to change this default to nftables \
             (KEP-5343): set the mode explicitly",
        )
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Configured => f.write_str("configured"),
            Self::KubeProxyDefault => f.write_str("no mode configured; kube-proxy's default"),
            Self::Supported => f.write_str("no mode configured; supported by the kernel"),
            Self::Unavailable(reason) => write!(f, "no mode configured; nftables is unavailable: {reason}"),
            Self::Fallback(mode, reason) => write!(f, "{mode} is configured, but unavailable: {reason}"),
        }
    }
}

impl Registry {
    /// Selects a mode if none is configured, and resolves the configuration for it.
    ///
    /// # Errors
    /// If the configuration is invalid in that mode.
    pub fn select(&self, settings: &mut Settings, called_as: CalledAs) -> anyhow::Result<Reason> {
        let probe = |resolved: &Resolved| {
            let mode = self.active(resolved.mode);
            let families = IpFamily::BOTH.into_iter().filter(|family| *family == IpFamily::V4 || kernel_has_ipv6());
            families.into_iter().try_for_each(|family| match mode.probe(resolved, family) {
                Ok(_) => Ok(()),
                Err(reason) => Err(format!("{family}: {reason}")),
            })
        };
        let selected = self.select_with(&settings.config, called_as, probe);
        let (resolved, reason) = selected.context("the configuration is invalid")?;
        let flags = mem::take(&mut settings.resolved.flags);
        settings.resolved = resolved;
        settings.resolved.set_flags(flags);
        Ok(reason)
    }

    /// Resolves a configuration. `probe` checks whether its mode is supported; it is called only if the selection depends on
    /// it.
    fn select_with(
        &self,
        config: &KubeProxyConfiguration,
        called_as: CalledAs,
        probe: impl FnOnce(&Resolved) -> Result<(), String>,
    ) -> Result<(Resolved, Reason), FieldErrors> {
        // Defaults of other fields depend on the mode.
        let resolve =
            |mode: ModeName| self.resolve(&KubeProxyConfiguration { mode: mode.as_str().to_owned(), ..config.clone() });
        if !config.mode.is_empty() {
            let configured = self.resolve(config)?;
            let Some(fallback) = self.active(configured.mode).fallback() else {
                return Ok((configured, Reason::Configured));
            };
            return match probe(&configured) {
                Ok(()) => Ok((configured, Reason::Configured)),
                Err(reason) => Ok((resolve(fallback)?, Reason::Fallback(configured.mode, reason))),
            };
        }
        match called_as {
            CalledAs::KubeProxy => Ok((resolve(ModeName::IPTABLES)?, Reason::KubeProxyDefault)),
            CalledAs::Ferroute => {
                let nftables = resolve(ModeName::NFTABLES)?;
                match probe(&nftables) {
                    Ok(()) => Ok((nftables, Reason::Supported)),
                    Err(reason) => Ok((resolve(ModeName::IPTABLES)?, Reason::Unavailable(reason))),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use ferroute_core::NodePortAddresses;

    use super::*;
    use crate::REGISTRY;

    fn config(mode: &str) -> KubeProxyConfiguration {
        KubeProxyConfiguration { mode: mode.to_owned(), ..KubeProxyConfiguration::default() }.defaulted()
    }

    fn selected(mode: &str, called_as: CalledAs, probe: Result<(), &str>) -> (&'static str, Reason) {
        let (resolved, reason) =
            REGISTRY.select_with(&config(mode), called_as, |_| probe.map_err(str::to_owned)).unwrap();
        (resolved.mode.as_str(), reason)
    }

    #[test]
    fn configured_mode_is_selected_without_a_probe() {
        for called_as in [CalledAs::KubeProxy, CalledAs::Ferroute] {
            for mode in ["iptables", "nftables"] {
                let selected =
                    REGISTRY.select_with(&config(mode), called_as, |_| unreachable!("probe is not needed")).unwrap();
                assert_eq!((selected.0.mode.as_str(), selected.1), (mode, Reason::Configured));
            }
        }
    }

    #[test]
    fn ipvs_falls_back_to_iptables_with_its_defaults_where_unsupported() {
        for called_as in [CalledAs::KubeProxy, CalledAs::Ferroute] {
            assert_eq!(selected("ipvs", called_as, Ok(())), ("ipvs", Reason::Configured));
            let reason = Reason::Fallback(ModeName::IPVS, "no ip_vs".to_owned());
            assert_eq!(selected("ipvs", called_as, Err("no ip_vs")), ("iptables", reason));
        }
        let probe = |resolved: &Resolved| {
            assert_eq!((resolved.mode, resolved.settings.localhost_node_ports), (ModeName::IPVS, false));
            Err("no ip_vs".to_owned())
        };
        let (resolved, reason) = REGISTRY.select_with(&config("ipvs"), CalledAs::KubeProxy, probe).unwrap();
        assert!(resolved.settings.localhost_node_ports);
        assert!(reason.to_string().ends_with("no ip_vs"));
    }

    #[test]
    fn kube_proxys_default_is_selected_under_its_name_without_a_probe() {
        let (resolved, reason) =
            REGISTRY.select_with(&config(""), CalledAs::KubeProxy, |_| unreachable!("probe is not needed")).unwrap();
        assert_eq!((resolved.mode, reason), (ModeName::IPTABLES, Reason::KubeProxyDefault));
    }

    #[test]
    fn nftables_is_selected_where_supported_and_iptables_elsewhere() {
        assert_eq!(selected("", CalledAs::Ferroute, Ok(())), ("nftables", Reason::Supported));
        let (mode, reason) = selected("", CalledAs::Ferroute, Err("the kernel has no nf_tables"));
        assert_eq!((mode, &reason), ("iptables", &Reason::Unavailable("the kernel has no nf_tables".to_owned())));
        assert!(reason.to_string().ends_with("the kernel has no nf_tables"));
    }

    #[test]
    fn other_fields_have_the_defaults_of_the_selected_mode() {
        let settings_after = |probe: Result<(), String>| {
            let (resolved, _) = REGISTRY
                .select_with(&config(""), CalledAs::Ferroute, |resolved| {
                    assert_eq!(resolved.settings.node_port_addresses, NodePortAddresses::Primary);
                    probe
                })
                .unwrap();
            (resolved.settings.node_port_addresses, resolved.settings.localhost_node_ports)
        };
        assert_eq!(settings_after(Ok(())), (NodePortAddresses::Primary, false));
        assert_eq!(settings_after(Err("no nf_tables".to_owned())), (NodePortAddresses::All, true));
    }

    #[test]
    fn unknown_mode_is_rejected() {
        let rejected =
            REGISTRY.select_with(&config("ebpf"), CalledAs::Ferroute, |_| unreachable!("probe is not needed"));
        assert!(rejected.unwrap_err().to_string().contains("ebpf"));
    }
}
