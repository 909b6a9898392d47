//! Which mode is taken. Pure: whether the kernel can do one is asked through a function.
//!
//! | asked for | called `kube-proxy` | called anything else |
//! | --- | --- | --- |
//! | a mode, by flag or configuration | that mode | that mode |
//! | nothing | iptables, as kube-proxy 1.36 does | nftables where the kernel can do all that it needs, else iptables |

use std::fmt;

use ferroute_config::{FieldErrors, KubeProxyConfiguration, Mode, Resolved};

/// Under which name the program was called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CalledAs {
    /// `kube-proxy`: whoever does that expects all that kube-proxy does.
    KubeProxy,
    /// Any other name.
    Ferroute,
}

/// Why a mode was taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    /// Somebody has asked for it.
    Asked,
    /// Nobody has asked for one, and this is kube-proxy's default.
    KubeProxyDefault,
    /// Nobody has asked for one, and the kernel can do all that nftables mode needs.
    Able,
    /// Nobody has asked for one, and nftables mode is not to be had; what came in its way.
    Unable(String),
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Asked => f.write_str("it was asked for"),
            Self::KubeProxyDefault => f.write_str("none was asked for, and this is kube-proxy's default"),
            Self::Able => f.write_str("none was asked for, and the kernel can do all that it needs"),
            Self::Unable(why) => write!(f, "none was asked for, and nftables is not to be had: {why}"),
        }
    }
}

/// Resolves a configuration, with a mode where it asks for none. `probe` finds out whether nftables mode is to be had
/// with what the configuration says; it is asked only where that matters.
///
/// # Errors
/// What is wrong with the configuration.
pub(crate) fn choose(
    config: &KubeProxyConfiguration,
    called_as: CalledAs,
    probe: impl FnOnce(&Resolved) -> Result<(), String>,
) -> Result<(Resolved, Reason), FieldErrors> {
    if !config.mode.is_empty() {
        return Ok((config.resolve()?, Reason::Asked));
    }
    // What other fields mean depends on the mode, so the whole is resolved for it.
    let resolved_for =
        |mode: &Mode| KubeProxyConfiguration { mode: mode.as_str().to_owned(), ..config.clone() }.resolve();
    let iptables = || resolved_for(&Mode::Iptables);
    match called_as {
        CalledAs::KubeProxy => Ok((iptables()?, Reason::KubeProxyDefault)),
        CalledAs::Ferroute => {
            let nftables = resolved_for(&Mode::Nftables)?;
            match probe(&nftables) {
                Ok(()) => Ok((nftables, Reason::Able)),
                Err(why) => Ok((iptables()?, Reason::Unable(why))),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use ferroute_core::NodePortAddresses;

    use super::*;

    fn config(mode: &str) -> KubeProxyConfiguration {
        KubeProxyConfiguration { mode: mode.to_owned(), ..KubeProxyConfiguration::default() }.defaulted()
    }

    fn chosen(mode: &str, called_as: CalledAs, probe: Result<(), &str>) -> (&'static str, Reason) {
        let (resolved, reason) = choose(&config(mode), called_as, |_| probe.map_err(str::to_owned)).unwrap();
        (resolved.mode.as_str(), reason)
    }

    #[test]
    fn what_is_asked_for_is_taken_whatever_the_kernel_can_do() {
        for called_as in [CalledAs::KubeProxy, CalledAs::Ferroute] {
            for mode in ["iptables", "nftables", "ipvs"] {
                let asked = choose(&config(mode), called_as, |_| unreachable!("the kernel is not asked")).unwrap();
                assert_eq!((asked.0.mode.as_str(), asked.1), (mode, Reason::Asked));
            }
        }
    }

    #[test]
    fn under_kube_proxys_name_its_default_holds_and_the_kernel_is_not_asked() {
        let (resolved, reason) =
            choose(&config(""), CalledAs::KubeProxy, |_| unreachable!("the kernel is not asked")).unwrap();
        assert_eq!((resolved.mode, reason), (Mode::Iptables, Reason::KubeProxyDefault));
    }

    #[test]
    fn nftables_is_taken_where_the_kernel_can_do_it_and_iptables_elsewhere() {
        assert_eq!(chosen("", CalledAs::Ferroute, Ok(())), ("nftables", Reason::Able));
        let (mode, reason) = chosen("", CalledAs::Ferroute, Err("the kernel has no nf_tables"));
        assert_eq!((mode, &reason), ("iptables", &Reason::Unable("the kernel has no nf_tables".to_owned())));
        assert!(reason.to_string().ends_with("the kernel has no nf_tables"));
    }

    #[test]
    fn other_fields_have_the_defaults_of_the_mode_that_is_taken() {
        let of = |probe: Result<(), String>| {
            let (resolved, _) = choose(&config(""), CalledAs::Ferroute, |asked| {
                assert_eq!(asked.settings.node_port_addresses, NodePortAddresses::Primary);
                probe
            })
            .unwrap();
            (resolved.settings.node_port_addresses, resolved.settings.localhost_node_ports)
        };
        assert_eq!(of(Ok(())), (NodePortAddresses::Primary, false));
        assert_eq!(of(Err("no".to_owned())), (NodePortAddresses::All, true));
    }

    #[test]
    fn a_mode_that_does_not_exist_is_refused() {
        let refused = choose(&config("ebpf"), CalledAs::Ferroute, |_| unreachable!("nothing is to be chosen"));
        assert!(refused.unwrap_err().to_string().contains("ebpf"));
    }
}
