//! From any state of the kernel, one start leads to what a start on an empty kernel leads to, and changes nothing of others.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

mod common;

use std::{
    io::Write,
    process::{Command, Stdio},
};

use common::{Contents, Host, contents, settings, table_id};
use ferroute_core::{Dataplane, IpFamily, ServiceTable, testing::arbitrary};
use ferroute_nftables::{
    NftablesDataplane,
    kernel::{Consistency, NetlinkKernel, TableFamily},
    model::family_name,
};
use ferroute_testing::NetNs;
use proptest::{prelude::*, sample::Index};

/// A change of the proxy's table as `nft` lists it. `nft` may not accept it.
#[derive(Clone, Debug)]
enum Damage {
    /// A line is missing.
    Delete(Index),
    /// A line is there twice.
    Repeat(Index),
    /// Two lines are exchanged.
    Exchange(Index, Index),
    /// A word is that of another place.
    Copy { from: Index, to: Index },
    /// A number or an address has another last digit.
    Digit(Index, u8),
    /// A line is added at another one.
    Add(Index, &'static str),
    /// Something that `nft` executes.
    Command(&'static str),
}

/// What an attribute, a rule or an object of the table could be as well.
const LINES: [&str; 10] = [
    "drop",
    "accept",
    "counter",
    "size 4096",
    "flags interval",
    "flags timeout",
    "timeout 1h",
    "policy drop",
    "chain pick-3 {\n drop\n }",
    "set sticky-77 {\n type ipv4_addr\n flags interval\n elements = { 10.0.0.0/8 }\n }",
];

const COMMANDS: [&str; 8] = [
    "add table FAMILY ferroute { flags dormant ; }",
    "flush table FAMILY ferroute",
    "delete table FAMILY ferroute",
    "flush map FAMILY ferroute services",
    "flush map FAMILY ferroute dispatch",
    "add chain FAMILY ferroute first { type filter hook prerouting priority -500 ; policy drop ; }",
    "add element FAMILY ferroute dispatch { 1:1 : drop }",
    "add flowtable FAMILY ferroute theirs { hook ingress priority 0 ; devices = { lo } ; }",
];

fn damage() -> impl Strategy<Value = Damage> {
    prop_oneof![
        2 => any::<Index>().prop_map(Damage::Delete),
        1 => any::<Index>().prop_map(Damage::Repeat),
        1 => any::<(Index, Index)>().prop_map(|(one, other)| Damage::Exchange(one, other)),
        4 => any::<(Index, Index)>().prop_map(|(from, to)| Damage::Copy { from, to }),
        4 => (any::<Index>(), 0..10_u8).prop_map(|(word, digit)| Damage::Digit(word, digit)),
        2 => (any::<Index>(), prop::sample::select(&LINES)).prop_map(|(line, text)| Damage::Add(line, text)),
        2 => prop::sample::select(&COMMANDS).prop_map(Damage::Command),
    ]
}

impl Damage {
    /// Changes the table, or leaves it as it is if `nft` does not accept the change. Reports whether it did.
    fn apply(&self, ns: &NetNs, family: IpFamily) -> bool {
        let family = family_name(family);
        if let Self::Command(command) = self {
            return load(ns, &command.replace("FAMILY", family));
        }
        let listed = ns.try_command("nft", &["list", "table", family, "ferroute"]);
        if !listed.status.success() {
            return false;
        }
        let listed = String::from_utf8(listed.stdout).unwrap();
        let mut lines: Vec<String> = listed.lines().map(str::to_owned).collect();
        let words = |lines: &[String]| -> Vec<(usize, String)> {
            let of_line = |(number, line): (usize, &String)| {
                line.split_whitespace().map(|word| (number, word.to_owned())).collect::<Vec<_>>()
            };
            lines.iter().enumerate().flat_map(of_line).collect()
        };
        match self {
            Self::Delete(line) => drop(lines.remove(line.index(lines.len()))),
            Self::Repeat(line) => {
                let number = line.index(lines.len());
                lines.insert(number, lines[number].clone());
            }
            Self::Exchange(one, other) => {
                let (one, other) = (one.index(lines.len()), other.index(lines.len()));
                lines.swap(one, other);
            }
            Self::Copy { from, to } => {
                let words = words(&lines);
                let ((_, from), (number, to)) = (&words[from.index(words.len())], &words[to.index(words.len())]);
                lines[*number] = lines[*number].replacen(to, from, 1);
            }
            Self::Digit(word, digit) => {
                let has_digit = |word: &&(usize, String)| word.1.ends_with(|last: char| last.is_ascii_digit());
                let all = words(&lines);
                let words: Vec<_> = all.iter().filter(has_digit).collect();
                let (number, word) = words[word.index(words.len())];
                let other = format!("{}{digit}", &word[..word.len() - 1]);
                lines[*number] = lines[*number].replacen(word, &other, 1);
            }
            Self::Add(line, text) => lines.insert(line.index(lines.len()), (*text).to_owned()),
            Self::Command(_) => unreachable!("handled above"),
        }
        load(ns, &format!("delete table {family} ferroute\n{}\n", lines.join("\n")))
    }
}

/// Loads text with `nft`. Reports whether it was accepted.
fn load(ns: &NetNs, text: &str) -> bool {
    let spawn = || Command::new("nft").args(["-f", "-"]).stdin(Stdio::piped()).stderr(Stdio::null()).spawn();
    let mut child = ns.run(spawn).unwrap();
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    child.wait().unwrap().success()
}

/// Objects of others: names of any bytes, and names like the proxy's.
const OTHERS: &str = r"
set -e
name=$(printf 'B\374ro\377')
for iptables in iptables ip6tables; do
    for table in filter nat mangle raw; do
        $iptables -w -t $table -N $name
        $iptables -w -t $table -A $name -m comment --comment $name
        $iptables -w -t $table -A OUTPUT -m mark --mark 0x77 -j $name
    done
done
nft -f - <<END
add table inet ferroute
add chain inet ferroute services { type filter hook output priority -101; }
add rule inet ferroute services tcp dport 7 drop
add set inet ferroute cluster-ips { type ipv4_addr; flags interval; elements = { 192.0.2.0/24 }; }
add table ip ferroute-of-others
add map ip ferroute-of-others dispatch { type mark : verdict; elements = { 7 : drop }; }
END
";

/// Returns what `nft` lists of others, with handles.
fn others(ns: &NetNs, family: IpFamily) -> Vec<u8> {
    let mut all = Vec::new();
    let own = format!("{} ferroute", family_name(family));
    for table in ns.command("nft", &["list", "tables"]).lines() {
        let table = table.strip_prefix("table ").unwrap();
        if table != own {
            let (family, name) = table.split_once(' ').unwrap();
            let listed = ns.try_command("nft", &["-a", "-s", "list", "table", family, name]);
            assert!(listed.status.success(), "{table}");
            all.extend(listed.stdout);
        }
    }
    all
}

/// Starts a proxy once, and returns what the kernel has then.
fn start(ns: &NetNs, table: &ServiceTable) -> (NftablesDataplane, Contents) {
    let family = table.family;
    let mut dataplane = ns.run(|| NftablesDataplane::open(family, settings(), Box::new(Host::default())).unwrap());
    dataplane.resync(table).unwrap();
    let mut kernel = ns.run(|| NetlinkKernel::open().unwrap());
    let own =
        |listed: TableFamily, name: &str| listed == TableFamily::Ip(family) && name == table_id(family).name.as_str();
    let (mut tables, consistency) = kernel.read_tables(family, &own).unwrap();
    assert_eq!((tables.len(), consistency), (1, Consistency::Consistent));
    (dataplane, contents(&tables.remove(0).table, family))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn one_start_leads_from_any_state_to_that_of_a_start_on_an_empty_kernel(
        before in prop::option::weighted(0.9, arbitrary::cluster()),
        cluster in arbitrary::cluster(),
        is_same: bool,
        damages in prop::collection::vec(damage(), 0..12),
        family in prop::sample::select(&IpFamily::BOTH),
    ) {
        let table = cluster.table(family);
        let [ns, empty] = [NetNs::new(), NetNs::new()];
        ns.command("sh", &["-c", OTHERS]);
        let of_others = others(&ns, family);
        if let Some(before) = before {
            let before = if is_same { &table } else { &before.table(family) };
            start(&ns, before);
        }
        let accepted: Vec<&Damage> = damages.iter().filter(|damage| damage.apply(&ns, family)).collect();
        let (_, wanted) = start(&empty, &table);
        let (mut dataplane, found) = start(&ns, &table);
        prop_assert_eq!(found, wanted, "after {:?}", accepted);
        prop_assert!(of_others == others(&ns, family), "others are as before, after {accepted:?}");
        // Nothing is left to do.
        prop_assert!(!dataplane.was_modified_externally().unwrap());
        let again = dataplane.resync(&table).unwrap();
        prop_assert_eq!((again.written, again.removed, again.full), (0, 0, false), "after {:?}", accepted);
    }
}
