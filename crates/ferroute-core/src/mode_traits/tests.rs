use super::*;

const MODES: [&ModeTraits; 4] =
    [&ModeTraits::IPTABLES, &ModeTraits::NFTABLES, &ModeTraits::IPVS, &ModeTraits::USERSPACE];

#[test]
fn every_difference_between_modes_is_described() {
    let configured = |traits: &ModeTraits| ConfiguredMode { traits: *traits, settings: ProxySettings::default() };
    for one in MODES.map(configured) {
        for other in MODES.map(configured) {
            let all = ModeTrait::ALL.iter().fold(one.clone(), |mode, it| it.replaced(&mode, &other));
            assert_eq!(all, other);
            for it in ModeTrait::ALL {
                let differs = it.replaced(&one, &other) != one;
                assert_eq!(it.value(&one.traits) != it.value(&other.traits), differs, "{}", it.name);
            }
        }
    }
}

#[test]
fn table_in_the_documentation_states_the_traits() {
    let mut expected = "| | iptables | nftables | ipvs | userspace |\n| --- | --- | --- | --- | --- |\n".to_owned();
    for it in ModeTrait::ALL {
        expected += &format!("| {} | {} |\n", it.title, MODES.map(|traits| it.value(traits)).join(" | "));
    }
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/modes.md");
    let documentation = std::fs::read_to_string(path).unwrap();
    assert!(documentation.contains(&expected), "docs/modes.md should contain\n{expected}");
}
