use super::*;

/// Returns the cells of a mode in the table of `docs/modes.md`, each with the title of its row.
fn cells(traits: &ModeTraits) -> Vec<(&'static str, String)> {
    // Without `..`: a new trait needs a row.
    let ModeTraits {
        without_local_endpoints,
        local_policy_for_all_clients,
        sources,
        protocols,
        hairpin,
        rejects_own_external_connections,
        source_ranges_before_rejection,
        source_ranges_on_external_ips,
        unknown_ports,
        unassigned_addresses,
        refuses_node_ports_at_all_addresses,
        localhost_node_ports,
        binds_service_addresses,
        accepts_in_firewalls,
        methods,
        weights,
    } = *traits;
    let yes = |yes: bool| if yes { "yes" } else { "no" }.to_owned();
    let clients = |clients: &[Client]| match clients {
        [] => "no",
        [Client::Pod, Client::Outside] => "except for the node's own",
        _ => "yes",
    };
    vec![
        (
            "policy Local, and no endpoint on this node",
            match without_local_endpoints {
                WithoutLocalEndpoints::Drop => "dropped",
                WithoutLocalEndpoints::UseCluster => "endpoints of other nodes",
            }
            .to_owned(),
        ),
        ("external policy Local also applies to pods and the node itself", yes(local_policy_for_all_clients)),
        (
            "source address that endpoints see, with external policy Local",
            match sources {
                Sources::Clients => "the client's",
                Sources::ServiceOfNode => "the client's; of the node's own connections the Service's",
                Sources::Node => "always the node's",
            }
            .to_owned(),
        ),
        ("protocols", protocols.iter().map(|protocol| protocol.as_str().to_uppercase()).collect::<Vec<_>>().join(", ")),
        (
            "connections of an endpoint to itself are masqueraded",
            match hairpin {
                Hairpin::All => "yes",
                Hairpin::OnThisNode => "on this node",
            }
            .to_owned(),
        ),
        (
            "the node's own connections to external addresses without endpoints",
            if rejects_own_external_connections { "rejected" } else { "leave the node" }.to_owned(),
        ),
        ("source ranges also apply without endpoints", clients(source_ranges_before_rejection).to_owned()),
        ("source ranges apply to a load balancer IP that is also an external IP", yes(source_ranges_on_external_ips)),
        ("connections to unknown ports of cluster IPs", unknown_ports.as_str().to_owned()),
        ("packets to unassigned addresses in ServiceCIDRs", unassigned_addresses.as_str().to_owned()),
        (
            "node ports without endpoints are refused at",
            if refuses_node_ports_at_all_addresses { "all addresses of the node" } else { "`nodePortAddresses`" }
                .to_owned(),
        ),
        ("node ports can be served on 127.0.0.1", yes(localhost_node_ports)),
        ("Service addresses are addresses of the host", yes(binds_service_addresses)),
        ("Service traffic is accepted in the iptables tables", yes(accepts_in_firewalls)),
        (
            "[methods](balancing.md) that choose endpoints",
            match methods {
                [] => "that of `ipvs.scheduler`".to_owned(),
                methods => methods.iter().map(|method| method.as_str()).collect::<Vec<_>>().join(", "),
            },
        ),
        ("[weights](balancing.md#weights) of endpoints", yes(weights)),
    ]
}

#[test]
fn table_in_the_documentation_states_the_traits() {
    let modes = [&ModeTraits::IPTABLES, &ModeTraits::NFTABLES, &ModeTraits::IPVS, &ModeTraits::USERSPACE].map(cells);
    let mut expected = "| | iptables | nftables | ipvs | userspace |\n| --- | --- | --- | --- | --- |\n".to_owned();
    for (i, (title, _)) in modes[0].iter().enumerate() {
        let row = modes.each_ref().map(|cells| cells[i].1.as_str()).join(" | ");
        expected += &format!("| {title} | {row} |\n");
    }
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/modes.md");
    let documentation = std::fs::read_to_string(path).unwrap();
    assert!(documentation.contains(&expected), "docs/modes.md should contain\n{expected}");
}
