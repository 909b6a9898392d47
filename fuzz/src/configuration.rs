use std::ffi::OsString;

use clap::Parser;
use ferroute_config::{
    KubeProxyConfiguration,
    flags::{KubeProxy, is_kube_proxy_flag},
    settings,
};
use ferroute_modes::REGISTRY;

/// Reads a `KubeProxyConfiguration`.
///
/// # Panics
///
/// A configuration that is written is read differently, or defaults change one that has them.
pub fn configuration(input: &[u8]) {
    let Ok(text) = str::from_utf8(input) else { return };
    let Ok(decoded) = KubeProxyConfiguration::from_text(text) else { return };
    let yaml = decoded.config.to_yaml();
    let again = KubeProxyConfiguration::from_text(&yaml).expect("a configuration that was just written");
    assert_eq!(again.config, decoded.config, "{yaml}");
    let _ = decoded.violations.iter().map(ToString::to_string).collect::<Vec<_>>();
    let config = decoded.config.defaulted();
    assert_eq!(config.clone().defaulted(), config);
    resolve(&config);
}

/// Parses a command line of `kube-proxy`, with an argument on each line.
///
/// # Panics
///
/// A flag that was given is not one of kube-proxy's or Ferroute's.
pub fn flags(input: &[u8]) {
    let Ok(text) = str::from_utf8(input) else { return };
    let arguments = ["kube-proxy"].into_iter().chain(text.split('\n')).map(OsString::from);
    let Ok(KubeProxy { run }) = KubeProxy::try_parse_from(arguments) else { return };
    for name in run.flags.given() {
        assert!(is_kube_proxy_flag(name) || FERROUTE_FLAGS.contains(&name));
    }
    // Reading the configuration file is not the subject.
    if run.args.proxy.general.config_file().is_none()
        && let Ok(settings) = settings::load_proxy(&run, &REGISTRY.names())
    {
        resolve(&settings.config);
    }
}

/// The flags that kube-proxy does not have.
const FERROUTE_FLAGS: [&str; 10] = [
    "manifests",
    "nftables-connection-counters",
    "count-traffic",
    "passive-ejection",
    "iptables-programs",
    "udp-timeout",
    "enable-service-status",
    "hold-node-ports",
    "protect-node-ports",
    "startup-taint",
];

fn resolve(config: &KubeProxyConfiguration) {
    let _ = config.warnings();
    let _ = config.to_configz();
    if let Err(errors) = REGISTRY.resolve(config) {
        assert!(!errors.to_string().is_empty());
    }
}
