use ferroute_iptables::{Match, Target};

use super::*;

/// Returns all that is not known about the effect of a rule on a packet.
fn unknown(rule: &str, packet: &Packet) -> Vec<String> {
    let verdicts = leaves(&rules(packet.family(), &format!("*raw\n-A PREROUTING {rule}")), &host(), packet).into_iter();
    let unknown = verdicts.flat_map(|leaf| {
        let reason = match leaf.verdict {
            Verdict::Unknown { reason } => Some(reason),
            _ => None,
        };
        leaf.assumptions.into_iter().map(|assumption| assumption.to_string()).chain(reason)
    });
    unknown.collect()
}

/// The packets that the samples are tried with, one of each family.
fn packets() -> [Packet; 2] {
    ["10.0.0.1:80", "[fd00:96::1]:80"].map(from_pod)
}

#[test]
fn effect_of_every_match_of_the_table_is_known() {
    for (sample, packet) in Match::samples().flat_map(|sample| packets().map(|packet| (sample, packet))) {
        let unknown = unknown(&format!("{sample} -j DROP"), &packet);
        // This is how verbatim text is printed.
        assert!(unknown.iter().all(|condition| !condition.contains('`')), "{sample}: {unknown:?}");
    }
    assert_eq!(unknown("-m other -j DROP", &packets()[0]).len(), 2, "one for each result of the condition");
}

#[test]
fn effect_of_every_target_of_the_table_is_known() {
    for (sample, packet) in Target::samples().flat_map(|sample| packets().map(|packet| (sample, packet))) {
        let unknown = unknown(sample, &packet);
        assert!(unknown.iter().all(|reason| !reason.starts_with("effect of")), "{sample}: {unknown:?}");
    }
    assert_eq!(unknown("-j TEE", &packets()[0]), ["effect of `-j TEE`"]);
}
