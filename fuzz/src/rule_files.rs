use std::path::Path;

use ferroute_core::IpFamily;
use ferroute_inspect::trace::DumpedRules;

/// Parses files with rules of other hosts: output of `iptables-save`, `nft`, `ipset` and `ipvsadm`, and scripts of commands. The
/// first byte selects the IP family; zero bytes separate files.
///
/// # Panics
///
/// Reading the files or describing what they lack panics.
pub fn rule_files(input: &[u8]) {
    let [selector, text @ ..] = input else { return };
    let family = if selector & 1 == 0 { IpFamily::V4 } else { IpFamily::V6 };
    let Ok(text) = str::from_utf8(text) else { return };
    let texts: Vec<(&Path, String)> = text.split('\0').map(|text| (Path::new("rules"), text.to_owned())).collect();
    if let Ok(rules) = DumpedRules::parse(&texts, family) {
        let _ = (rules.gap(family), rules.missing(family));
    }
}
