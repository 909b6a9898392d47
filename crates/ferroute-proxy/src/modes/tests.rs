use super::*;

fn names(leftovers: &[Box<dyn Leftovers>]) -> usize {
    leftovers.len()
}

#[test]
fn each_configured_mode_has_one_active_mode() {
    let active = |configured| (REGISTRY.active(configured).name(), REGISTRY.substitute(configured));
    assert_eq!(active(ModeName::IPTABLES), (ModeName::IPTABLES, None));
    assert_eq!(active(ModeName::NFTABLES), (ModeName::NFTABLES, None));
    assert_eq!(active(ModeName::IPVS), (ModeName::IPTABLES, Some(ModeName::IPTABLES)));
}

#[test]
fn cleanup_removes_the_leftovers_of_every_mode() {
    // Two families of iptables rules, counters, four tables, virtual servers with their sets.
    assert_eq!(names(&REGISTRY.leftovers()), 8);
}
