//! Interference of other programs with the rules, and the rules of other programs.

use std::net::SocketAddr;

use crate::{
    Case, Mode,
    cluster::pod_addresses,
    in_each_mode, in_every_mode,
    rules::{self, ForeignRules},
    traffic::{Connection, Flow, Reply, Traffic},
    udp::other_service,
    wait, web, web_tcp, web_udp,
};

in_each_mode!(
    flushed_rules_are_restored,
    single_deleted_rules_are_restored,
    rules_of_other_programs_are_not_changed,
    names_of_other_objects_cost_no_sync,
    connections_that_began_without_masquerading_are_served_after_the_repair,
);
in_every_mode!(connections_that_began_without_rules_are_served_after_the_repair);

/// Waits until the rules are restored, and checks that connections work.
#[track_caller]
fn wait_repaired(case: &Case, before: &[String]) {
    wait("restored rules", || (case.rules() == before).then_some(()));
    for to in web_tcp() {
        case.connect(to).unwrap();
    }
}

fn flushed_rules_are_restored(mode: Mode) {
    let flushes: &[&[&str]] = match mode {
        Mode::Iptables | Mode::Userspace => &[
            &["iptables", "-w", "-t", "nat", "-F"],
            &["ip6tables", "-w", "-t", "filter", "-F"],
            &["nft", "flush", "ruleset"],
        ],
        Mode::Nftables => &[&["nft", "flush", "ruleset"], &["nft", "delete", "table", "ip6", "ferroute"]],
    };
    for flush in flushes {
        let case = Case::new(mode, &web(&[0, 1]));
        let foreign = ForeignRules::add(&case.cluster.node);
        let before = case.rules();
        let mut connections = web_tcp().map(|to| Connection::open(&case.cluster.client, to).unwrap());
        case.cluster.node.command(flush[0], &flush[1..]);
        let remaining = foreign.list(&case.cluster.node);
        wait_repaired(&case, &before);
        assert_eq!(foreign.list(&case.cluster.node), remaining, "{flush:?}");
        for connection in &mut connections {
            connection.echo("still here").unwrap();
        }
        // Later changes are applied.
        case.files.apply(&web(&[2]));
        case.wait_gone(0);
        assert_eq!(web_tcp().map(|to| case.connect(to).unwrap()), [2, 2], "{flush:?}");
    }
}

fn single_deleted_rules_are_restored(mode: Mode) {
    let case = Case::new(mode, &web(&[0, 1]));
    let foreign = ForeignRules::add(&case.cluster.node);
    let (before, foreign_rules) = (case.rules(), foreign.list(&case.cluster.node));
    match mode {
        Mode::Iptables | Mode::Userspace => {
            let is_dispatch = |rule: &&String| rule.starts_with("-A KUBE-SERVICES -d 10.96.0.1/32 -p tcp");
            let rule = before.iter().find(is_dispatch).unwrap();
            case.cluster.node.feed(
                "iptables-restore",
                &["--noflush"],
                &format!("*nat\n{}\nCOMMIT\n", rule.replacen("-A", "-D", 1)),
            );
        }
        Mode::Nftables => {
            let script = "delete element ip ferroute services { 10.96.0.1 . tcp . 80 }";
            case.cluster.node.feed("nft", &["-f", "-"], script);
        }
    }
    wait_repaired(&case, &before);
    assert_eq!(foreign.list(&case.cluster.node), foreign_rules);
}

fn rules_of_other_programs_are_not_changed(mode: Mode) {
    let mut case = Case::new(mode, &web(&[0]));
    assert!(case.proxy.stop("TERM").success());
    // The rules exist before the proxy starts, syncs, changes its mode and exits.
    let foreign = ForeignRules::add(&case.cluster.node);
    let foreign_rules = foreign.list(&case.cluster.node);
    for mode in [mode, mode.other()] {
        case.start_again(mode);
        let traffic = Traffic::start(&case.cluster.client, web_tcp()[0]);
        for pods in [&[0, 1, 2][..], &[2], &[0]] {
            case.files.apply(&web(pods));
            (0..3).filter(|pod| !pods.contains(pod)).for_each(|pod| case.wait_gone(pod));
            traffic.wait_for_more();
        }
        wait("removal of the other mode's rules", || {
            rules::of_proxy(&case.cluster.node, mode.other()).is_empty().then_some(())
        });
        assert_eq!(foreign.list(&case.cluster.node), foreign_rules, "{mode:?}");
        assert!(case.proxy.stop("TERM").success());
        assert_eq!(foreign.list(&case.cluster.node), foreign_rules, "{mode:?}");
        traffic.assert_no_failure();
    }
}

/// Adds objects with names, comments and matches that are not UTF-8, wherever the kernel permits it. Fails if it does
/// not.
const FOREIGN_NAMES: &str = r"
set -e
name=$(printf 'B\374ro\377')
ip link add $name type veth peer name peer0
ip link set $name up
ip link set peer0 up
ip address add 192.0.2.77/32 dev $name
ip route add 192.0.2.128/25 dev $name
for iptables in iptables ip6tables; do
    for table in filter nat mangle raw; do
        $iptables -w -t $table -N $name
        $iptables -w -t $table -A $name -i $name -m comment --comment $name
        $iptables -w -t $table -A OUTPUT -m mark --mark 0x77 -j $name
    done
done
";

fn names_of_other_objects_cost_no_sync(mode: Mode) {
    let mut case = Case::new(mode, &web(&[0]));
    case.cluster.node.command("sh", &["-c", FOREIGN_NAMES]);
    case.files.apply(&web(&[1]));
    case.wait_gone(0);
    assert!(case.proxy.stop("TERM").success());
    for mode in [mode, mode.other()] {
        case.start_again(mode);
        case.files.apply(&web(&[2]));
        case.wait_gone(1);
        case.files.apply(&web(&[1]));
        case.wait_gone(2);
        assert!(case.proxy.stop("TERM").success());
    }
    let listed = case.cluster.node.try_command("iptables-save", &[]).stdout;
    assert_eq!(listed.windows(5).filter(|bytes| bytes == b":B\xfcro").count(), 4, "they are unchanged");
}

/// Starts connections and flows while rules are damaged, and checks that they are served once the proxy has repaired
/// the rules. With `changes`, it finds the damage while it applies a change of another Service.
fn begin_before_repair(
    case: &Case,
    damage: &[&[&str]],
    changes: bool,
    connect: impl Fn(SocketAddr) -> std::io::Result<Connection> + Sync,
    open: impl Fn(SocketAddr) -> Flow,
) {
    // A rule must enable connection tracking while there are no rules of the proxy.
    let tracking = "add table inet tracking; add chain inet tracking input { type filter hook prerouting priority 0; }; \
                    add rule inet tracking input ct state new counter";
    case.proxy.signal("STOP");
    if changes {
        case.files.apply(&format!("{}{}", web(&[0]), other_service()));
    }
    damage.iter().for_each(|command| _ = case.cluster.node.command(command[0], &command[1..]));
    case.cluster.node.command("nft", &[tracking]);
    let flows = web_udp().map(open);
    std::thread::scope(|scope| {
        let connections = web_tcp().map(|to| {
            scope.spawn({
                let connect = &connect;
                move || connect(to)
            })
        });
        flows.iter().for_each(|flow| assert_eq!(flow.request(), Reply::None));
        case.proxy.signal("CONT");
        flows.iter().for_each(|flow| assert_eq!(flow.pod(), 0));
        for connection in connections {
            connection.join().unwrap().unwrap().echo("hello").unwrap();
        }
    });
}

/// First packets that no rule translates leave the node, and so do their repetitions.
fn connections_that_began_without_rules_are_served_after_the_repair(mode: Mode) {
    for changes in [false, true] {
        let case = Case::new(mode, &web(&[0]));
        let client = &case.cluster.client;
        let flush: &[&[&str]] = &[&["nft", "flush", "ruleset"]];
        begin_before_repair(&case, flush, changes, |to| Connection::open(client, to), |to| Flow::open(client, to));
    }
}

/// A pod receives no packets from its own address.
fn connections_that_began_without_masquerading_are_served_after_the_repair(mode: Mode) {
    let flush: &[&[&str]] = match mode {
        Mode::Nftables => &[
            &["nft", "flush", "chain", "ip", "ferroute", "nat-postrouting"],
            &["nft", "flush", "chain", "ip6", "ferroute", "nat-postrouting"],
        ],
        _ => &[
            &["iptables", "-w", "-t", "nat", "-F", "KUBE-POSTROUTING"],
            &["ip6tables", "-w", "-t", "nat", "-F", "KUBE-POSTROUTING"],
        ],
    };
    let source = |to: SocketAddr| SocketAddr::new(pod_addresses(0)[usize::from(to.is_ipv6())], 0);
    for changes in [false, true] {
        let case = Case::new(mode, &web(&[0]));
        let pods = &case.cluster.pods;
        begin_before_repair(
            &case,
            flush,
            changes,
            |to| Connection::open_from(pods, source(to), to),
            |to| Flow::open_from(pods, source(to), to),
        );
    }
}

/// Another program turns off the sysctl that node ports on localhost need.
#[test]
fn changed_sysctl_that_the_mode_relies_on_is_set_again() {
    let case = Case::new(Mode::Iptables, &web(&[0]));
    let read = || case.cluster.node.command("sysctl", &["-n", "net.ipv4.conf.all.route_localnet"]).trim().to_owned();
    wait("the sysctl", || (read() == "1").then_some(()));
    case.cluster.node.command("sysctl", &["-qw", "net.ipv4.conf.all.route_localnet=0"]);
    wait("the sysctl again", || (read() == "1").then_some(()));
    case.proxy.wait_log("route_localnet was changed to 0 by another program");
}
