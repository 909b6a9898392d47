use super::*;

const MODES: [&ModeTraits; 4] =
    [&ModeTraits::IPTABLES, &ModeTraits::NFTABLES, &ModeTraits::IPVS, &ModeTraits::USERSPACE];

#[test]
fn every_difference_between_modes_is_described() {
    for one in MODES {
        for other in MODES {
            let all = ModeTrait::ALL.iter().fold(*one, |traits, it| it.replaced(&traits, other));
            assert_eq!(all, *other);
            for it in ModeTrait::ALL {
                let differs = it.replaced(one, other) != *one;
                assert_eq!(it.value(one) != it.value(other), differs, "{}", it.name);
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
