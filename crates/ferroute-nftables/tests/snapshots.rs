//! Reading tables of other programs and of Ferroute from the kernel. Each test has a separate network namespace.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

mod common;

use common::{Host, settings, table_id};
use ferroute_core::{Dataplane, IpFamily, testing::arbitrary};
use ferroute_nftables::{
    NftablesDataplane,
    kernel::{Consistency, Kernel, MemoryKernel, MemoryTable, NetlinkKernel, TableFamily, TableSnapshot},
    model::{Name, TableId},
    plan::render,
};
use ferroute_testing::NetNs;
use proptest::prelude::*;

fn read_tables(ns: &NetNs, family: IpFamily) -> Vec<TableSnapshot> {
    let (tables, reading) = ns.run(|| NetlinkKernel::open().unwrap().read_tables(family, &|_, _| true)).unwrap();
    assert_eq!(reading, Consistency::Consistent);
    tables
}

/// Loads a table with `nft` and returns the text of its snapshot.
fn read_back(family: IpFamily, text: &str) -> String {
    let ns = NetNs::new();
    ns.feed("nft", &["-f", "-"], text);
    let tables = read_tables(&ns, family);
    let [snapshot] = &*tables else { panic!("{tables:?}") };
    snapshot.table.text(&TableId { family, name: snapshot.name.clone() })
}

/// Returns the lines that only one of two texts contains.
fn differences(read: &[String], planned: &[String]) -> String {
    let only = |lines: &[String], reference: &[String], mark: &str| -> String {
        lines.iter().filter(|line| !reference.contains(line)).map(|line| format!("{mark} {line}\n")).collect()
    };
    only(read, planned, "+") + &only(planned, read, "-")
}

#[test]
fn foreign_table_is_read_with_chains_sets_and_elements() {
    let text = read_back(
        IpFamily::V4,
        r#"table ip other {
            set clients { type ipv4_addr; flags dynamic,timeout; timeout 3h; elements = { 10.0.0.4 }; }
            set nets { type ipv4_addr; flags interval; elements = { 10.0.0.0/8, 172.16.0.0-172.16.0.5, 192.168.1.7 }; }
            map ports { type inet_proto . inet_service : verdict; elements = { tcp . 30001 comment "a" : goto service }; }
            map marks { typeof meta mark : ip daddr; elements = { 0x5 : 10.0.0.1 }; }
            chain in { type filter hook input priority -5; policy drop; ct state established,related accept; }
            chain out { type route hook output priority 0; oifname != "eth*" meta mark set 0x5; }
            chain nat { type nat hook prerouting priority -100;
                ip daddr 10.96.0.1 tcp dport 80 ip saddr != 10.0.0.0/9 jump service
                fib daddr type local ip daddr != 127.0.0.0/8 meta l4proto . th dport vmap @ports
                ip saddr != @nets drop
                ip saddr @clients tcp dport 80-90 return
                dnat to meta mark map @marks
            }
            chain service {
                iifname "cni0" mark and 0x4000 == 0 return
                mark set mark or 0x4000
                mark set mark xor 0x4000
                update @clients { ip saddr }
                meta l4proto tcp dnat to 10.0.0.4:8080
            }
            chain post { type nat hook postrouting priority 100; oifname "eth0" masquerade; snat to 10.9.9.9; }
            chain shuffled { type nat hook postrouting priority 101;
                oifname "a" masquerade random,persistent
                oifname "b" snat to 10.9.9.9 persistent
                oifname "c" snat to 10.9.9.1-10.9.9.9 fully-random,persistent
                oifname "d" snat ip prefix to 10.9.9.0/24 random
                oifname "e" snat to ip saddr map { 10.0.0.1 : 10.9.9.9 } persistent
            }
            chain shuffled_before { type nat hook prerouting priority -99;
                tcp dport 1 redirect to :8080 random
                tcp dport 2 dnat to 10.0.0.1:8080 persistent
            }
            chain odd {
                limit rate 5/second counter accept
                tcp flags syn log prefix "x" reject with tcp reset
                tcp sport 1024-65535 accept
                udp dport != 53-60 accept
                icmp type echo-request reject with icmp type admin-prohibited
                meta mark set ct mark
                ct mark set meta mark
                udp dport 53 notrack
                dnat to 10.0.0.1-10.0.0.3
                ip dscp 3 accept
                fib daddr . iif type local accept
            }
        }"#,
    );
    insta::assert_snapshot!(text, @r#"
    table ip other {
    	map __map0 {
    		type ipv4_addr : ipv4_addr
    		elements = { 10.0.0.1 : 10.9.9.9 }
    	}

    	set clients {
    		type ipv4_addr
    		size 65535
    		flags dynamic,timeout
    		elements = { 10.0.0.4 }
    	}

    	map marks {
    		type integer : ipv4_addr
    		elements = { 0x00000005 : 10.0.0.1 }
    	}

    	set nets {
    		type ipv4_addr
    		flags interval
    		elements = { 10.0.0.0/8,
    			     172.16.0.0/30,
    			     172.16.0.4/31,
    			     192.168.1.7 }
    	}

    	map ports {
    		type inet_proto . inet_service : verdict
    		elements = { tcp . 30001 comment "a" : goto service }
    	}

    	chain in {
    		type filter hook input priority -5;
    		policy drop;
    		ct state established,related accept
    	}

    	chain nat {
    		type nat hook prerouting priority -100;
    		policy accept;
    		ip daddr 10.96.0.1 meta l4proto tcp th dport 80 ip saddr != 10.0.0.0/9 jump service
    		fib daddr type local ip daddr != 127.0.0.0/8 meta l4proto . th dport vmap @ports
    		ip saddr != @nets drop
    		ip saddr @clients meta l4proto tcp th dport 80-90 return
    		dnat ip to meta mark map @marks
    	}

    	chain odd {
    		limit rate 5/second counter packets 0 bytes 0 accept
    		meta l4proto tcp tcp flags syn log prefix "x" reject with tcp reset
    		meta l4proto tcp th sport 1024-65535 accept
    		meta l4proto udp th dport != 53-60 accept
    		meta l4proto icmp icmp type echo-request reject with icmp admin-prohibited
    		meta mark set ct mark
    		ct mark set meta mark
    		meta l4proto udp th dport 53 notrack
    		dnat to 10.0.0.1-10.0.0.3
    		ip dscp 3 accept
    		fib daddr . iif type local accept
    	}

    	chain out {
    		type route hook output priority 0;
    		policy accept;
    		oifname != "eth*" meta mark set 0x00000005
    	}

    	chain post {
    		type nat hook postrouting priority 100;
    		policy accept;
    		oifname "eth0" masquerade
    		snat to 10.9.9.9
    	}

    	chain service {
    		iifname "cni0" meta mark & 0x00004000 == 0x00000000 return
    		meta mark set meta mark | 0x00004000
    		meta mark set meta mark ^ 0x00004000
    		update @clients { ip saddr }
    		meta l4proto tcp dnat to 10.0.0.4:8080
    	}

    	chain shuffled {
    		type nat hook postrouting priority 101;
    		policy accept;
    		oifname "a" masquerade random,persistent
    		oifname "b" snat to 10.9.9.9 persistent
    		oifname "c" snat to 10.9.9.1-10.9.9.9 fully-random,persistent
    		oifname "d" snat to 10.9.9.0-10.9.9.255 random
    		oifname "e" snat ip to ip saddr map @__map0 persistent
    	}

    	chain shuffled_before {
    		type nat hook prerouting priority -99;
    		policy accept;
    		meta l4proto tcp th dport 1 redirect to :8080 random
    		meta l4proto tcp th dport 2 dnat to 10.0.0.1:8080 persistent
    	}

    }
    "#);
}

#[test]
fn anonymous_sets_and_maps_are_read_with_their_elements() {
    let text = read_back(
        IpFamily::V4,
        r#"table ip other {
            chain a {
                ip saddr != { 10.0.0.0/8, 192.168.1.7 } drop
                iifname { "eth0", "cni*" } tcp dport { 80, 8000-8010 } accept
                ct state vmap { established : accept, invalid : drop }
                ip daddr . tcp dport { 10.0.0.1 . 80, 10.0.0.2 . 81 } accept
                numgen random mod 2 vmap { 0 : goto b, 1 : jump c }
                dnat to ip daddr . tcp dport map { 10.0.0.1 . 80 : 10.1.1.1 . 8080 }
            }
            chain b { reject; }
            chain c { accept; }
        }"#,
    );
    insta::assert_snapshot!(text, @r#"
    table ip other {
    	map __map0 {
    		type integer : verdict
    		elements = { 0x00000001 : drop,
    			     0x00000002 : accept }
    	}

    	map __map1 {
    		type integer : verdict
    		elements = { 0x00000000 : goto b,
    			     0x00000001 : jump c }
    	}

    	map __map2 {
    		type ipv4_addr . inet_service : ipv4_addr . inet_service
    		elements = { 10.0.0.1 . 80 : 10.1.1.1 . 8080 }
    	}

    	set __set0 {
    		type ipv4_addr
    		flags interval
    		elements = { 10.0.0.0/8,
    			     192.168.1.7 }
    	}

    	set __set1 {
    		type ifname
    		flags interval
    		elements = { "eth0",
    			     "cni*" }
    	}

    	set __set2 {
    		type inet_service
    		flags interval
    		elements = { 80,
    			     8000-8010 }
    	}

    	set __set3 {
    		type ipv4_addr . inet_service
    		elements = { 10.0.0.1 . 80,
    			     10.0.0.2 . 81 }
    	}

    	chain a {
    		ip saddr != @__set0 drop
    		iifname @__set1 meta l4proto tcp th dport @__set2 accept
    		ct state vmap @__map0
    		meta l4proto tcp ip daddr . th dport @__set3 accept
    		numgen random mod 2 vmap @__map1
    		meta l4proto tcp dnat ip to ip daddr . th dport map @__map2
    	}

    	chain b {
    		reject
    	}

    	chain c {
    		accept
    	}

    }
    "#);
}

#[test]
fn inet_table_is_read_as_packets_of_one_family_see_it() {
    let ns = NetNs::new();
    ns.feed(
        "nft",
        &["-f", "-"],
        r#"table inet both {
            chain in { type filter hook input priority 10;
                ip saddr 10.0.0.1 accept
                ip6 saddr fd00::1 accept
                meta l4proto tcp reject
            }
            chain first { type filter hook ingress device "lo" priority 0; drop; }
        }
        table ip own { chain a { accept; }; }
        table ip6 other { chain a { drop; }; }
        table arp none { chain a { accept; }; }
        table ip asleep { flags dormant; chain a { drop; }; }"#,
    );
    let names = |family| {
        let tables = read_tables(&ns, family);
        tables.iter().map(|table| format!("{} {}", table.family, table.name)).collect::<Vec<_>>()
    };
    assert_eq!(names(IpFamily::V4), ["inet both", "ip own"]);
    assert_eq!(names(IpFamily::V6), ["inet both", "ip6 other"]);
    let [v4, v6] = IpFamily::BOTH.map(|family| {
        let both = read_tables(&ns, family).remove(0);
        assert_eq!((both.family, &*both.unsupported_base_chains), (TableFamily::Inet, &[Name::fixed("first")][..]));
        let rules = &both.table.chain(&Name::fixed("in")).unwrap().rules;
        rules.iter().map(|rule| rule.text(family).to_string()).collect::<Vec<_>>()
    });
    assert_eq!(
        v4,
        [
            "meta nfproto ipv4 ip saddr 10.0.0.1 accept",
            "meta nfproto ipv6 ip6 saddr fd00::1 accept",
            "meta l4proto tcp reject with icmpx port-unreachable",
        ]
    );
    assert_eq!(v6[1], "meta nfproto ipv6 ip6 saddr fd00::1 accept");
}

#[test]
fn counters_of_elements_are_read() {
    let ns = NetNs::new();
    ns.feed(
        "nft",
        &["-f", "-"],
        "table ip other {
            set ports { type inet_service; counter; elements = { 9, 10 }; }
            chain out { type filter hook output priority 0; udp dport @ports accept; }
        }",
    );
    let socket = ns.run(|| std::net::UdpSocket::bind("127.0.0.1:0")).unwrap();
    (0..3).for_each(|_| _ = socket.send_to(b"four", "127.0.0.1:9"));
    let table = read_tables(&ns, IpFamily::V4).remove(0);
    let counted = |port| {
        let key = [ferroute_nftables::Value::Port(port)].into_iter().collect();
        table.counter(&Name::fixed("ports"), &key).map(|counter| (counter.packets, counter.bytes))
    };
    assert_eq!([9, 10, 11].map(counted), [Some((3, 3 * (20 + 8 + 4))), Some((0, 0)), None]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn ferroutes_table_is_read_back_as_planned(cluster in arbitrary::cluster(), counters in any::<bool>()) {
        let ns = NetNs::new();
        for family in IpFamily::BOTH {
            let settings = ferroute_nftables::plan::NftablesSettings { counters, ..settings() };
            let table = cluster.table(family);
            let mut dataplane =
                ns.run(|| NftablesDataplane::open(family, settings.clone(), Box::new(Host::default())).unwrap());
            dataplane.resync(&table).unwrap();
            let mut memory = MemoryKernel::new();
            memory.commit(&render(&table, &settings, &Host::default().0)).unwrap();
            let id = table_id(family);
            let snapshot = read_tables(&ns, family).remove(0);
            prop_assert_eq!(snapshot.undecoded_sets, vec![]);
            let text = |table: &MemoryTable| {
                let text = table.text(&id);
                // The table's comment does not affect packets.
                text.lines().filter(|line| !line.starts_with("\tcomment") && !line.is_empty()).map(str::to_owned).collect()
            };
            let [read, planned]: [Vec<String>; 2] = [&snapshot.table, memory.table(&id).unwrap()].map(text);
            prop_assert!(read == planned, "{}", differences(&read, &planned));
        }
    }
}
