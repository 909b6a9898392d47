//! A start results in the same state for any previous state of the kernel as for an empty kernel, and does not change
//! objects of other programs. A running proxy detects and repairs each single change of its table.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

mod common;

use std::{
    io::Write,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
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
    /// The last digit of a number or an address is changed.
    Digit(Index, u8),
    /// A line is added after another one.
    Add(Index, &'static str),
    /// A command for `nft`.
    Command(&'static str),
    /// A rule is deleted, duplicated, or has a word changed, while all other objects stay.
    Rule(Index, Change),
    /// An element is deleted, or has a word changed, while all other objects stay.
    Element(Index, Change),
}

/// A change of one rule or element.
#[derive(Clone, Debug)]
enum Change {
    Delete,
    Repeat,
    /// A word is that of another rule or element.
    Copy(Index, Index, Index),
    /// The last digit of a number or an address is changed.
    Digit(Index, u8),
    /// A comment, a counter or the like is added.
    Add(&'static str),
}

/// Lines that may be added as an attribute, a rule or an object of the table.
const LINES: [&str; 13] = [
    "comment \"theirs\"",
    "gc-interval 1h",
    "policy memory",
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

/// What may be added to a rule or an element.
const ADDITIONS: [&str; 6] = [
    "comment \"theirs\"",
    "counter",
    "timeout 1h",
    "timeout 1h expires 30m",
    "limit rate 1/second",
    "meta mark set 0x7",
];

const COMMANDS: [&str; 22] = [
    "add chain FAMILY ferroute x ; add map FAMILY ferroute vm { type ipv4_addr : verdict ; elements = { 192.0.2.1 : jump x } ; }",
    "insert rule FAMILY ferroute services jump { drop ; }",
    "insert rule FAMILY ferroute services meta l4proto { tcp, udp } drop",
    "add table FAMILY ferroute { flags dormant ; }",
    "flush table FAMILY ferroute",
    "delete table FAMILY ferroute",
    "flush map FAMILY ferroute services",
    "flush map FAMILY ferroute dispatch",
    "add chain FAMILY ferroute first { type filter hook prerouting priority -500 ; policy drop ; }",
    "add element FAMILY ferroute dispatch { 1:1 : drop }",
    "add counter FAMILY ferroute theirs",
    "add flowtable FAMILY ferroute theirs { hook ingress priority 0 ; devices = { lo } ; }",
    "add quota FAMILY ferroute theirs { over 10 mbytes ; }",
    "add limit FAMILY ferroute theirs { rate 10/second ; }",
    "add ct helper FAMILY ferroute theirs { type \"ftp\" protocol tcp ; }",
    "add ct timeout FAMILY ferroute theirs { protocol tcp ; policy = { established : 10 } ; }",
    "add synproxy FAMILY ferroute theirs { mss 1460 ; wscale 7 ; }",
    "add set FAMILY ferroute theirs { type ipv4_addr . inet_service ; flags dynamic,timeout ; timeout 1m ; size 10 ; }",
    "add counter FAMILY ferroute theirs ; insert rule FAMILY ferroute services counter name theirs",
    "rename chain FAMILY ferroute services theirs",
    "add chain FAMILY ferroute theirs { comment \"theirs\" ; } ; add rule FAMILY ferroute theirs jump services",
    "add chain FAMILY ferroute last { type nat hook output priority 500 ; } ; add rule FAMILY ferroute last jump services",
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
        6 => (any::<Index>(), change()).prop_map(|(rule, change)| Damage::Rule(rule, change)),
        6 => (any::<Index>(), change()).prop_map(|(element, change)| Damage::Element(element, change)),
    ]
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        1 => Just(Change::Delete),
        1 => Just(Change::Repeat),
        2 => any::<(Index, Index, Index)>().prop_map(|(to, other, from)| Change::Copy(to, other, from)),
        2 => (any::<Index>(), 0..10_u8).prop_map(|(word, digit)| Change::Digit(word, digit)),
        2 => prop::sample::select(&ADDITIONS).prop_map(Change::Add),
    ]
}

impl Change {
    /// Returns the changed text; `None` if it is deleted.
    fn apply(&self, text: &str, others: &[String]) -> Option<String> {
        let words: Vec<&str> = text.split(' ').collect();
        match self {
            Self::Delete => None,
            Self::Repeat => Some(text.to_owned()),
            Self::Copy(to, other, from) => {
                let others: Vec<&str> = others[other.index(others.len())].split(' ').collect();
                Some(text.replacen(words[to.index(words.len())], others[from.index(others.len())], 1))
            }
            Self::Digit(word, digit) => Some(with_last_digit(text, &words, word, *digit)),
            // To the key of an element, the end of a rule, or its start, where statements precede the verdict.
            Self::Add(what) => Some(match text.split_once(" : ") {
                Some((key, data)) => format!("{key} {what} : {data}"),
                None if what.starts_with("meta") => format!("{what} {text}"),
                None => format!("{text} {what}"),
            }),
        }
    }
}

/// Changes the last digit of one of the words that end with a digit.
fn with_last_digit(text: &str, words: &[&str], word: &Index, digit: u8) -> String {
    let words: Vec<&&str> = words.iter().filter(|word| ends_with_digit(word)).collect();
    if words.is_empty() {
        return text.to_owned();
    }
    replace_last_digit(text, words[word.index(words.len())], digit)
}

fn ends_with_digit(word: &str) -> bool {
    word.ends_with(|last: char| last.is_ascii_digit())
}

fn replace_last_digit(text: &str, word: &str, digit: u8) -> String {
    text.replacen(word, &format!("{}{digit}", &word[..word.len() - 1]), 1)
}

/// A rule or an element of the table.
struct Object {
    /// The chain or set.
    parent: String,
    text: String,
    handle: String,
}

/// Returns the rules of a table as `nft -s -a` lists it.
fn rules(listed: &str) -> Vec<Object> {
    let (mut chain, mut rules) = ("", Vec::new());
    for line in listed.lines().map(str::trim) {
        let Some((text, handle)) = line.split_once(" # handle ") else { continue };
        match text.strip_suffix(" {") {
            Some(object) => chain = object.strip_prefix("chain ").unwrap_or_default(),
            None => rules.push(Object { parent: chain.to_owned(), text: text.to_owned(), handle: handle.to_owned() }),
        }
    }
    rules
}

/// Returns the elements of the sets and maps of a table as `nft -s -a` lists it.
fn elements(listed: &str) -> Vec<Object> {
    let mut elements = Vec::new();
    for object in listed.split("\n\t}") {
        let Some((head, rest)) = object.split_once("elements = {") else { continue };
        let name = head.lines().find_map(|line| line.trim().split_once(" {")).unwrap().0;
        let parent = name.split(' ').nth(1).unwrap();
        let texts = rest
            .trim_end_matches([' ', '\t', '\n', '}'])
            .split(',')
            .map(|text| text.split_whitespace().collect::<Vec<_>>().join(" "));
        elements.extend(texts.map(|text| Object { parent: parent.to_owned(), text, handle: String::new() }));
    }
    elements
}

impl Damage {
    /// Changes the table, unless `nft` rejects the change. Reports whether the table was changed.
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
        if let Self::Rule(index, change) | Self::Element(index, change) = self {
            return self.apply_in_place(ns, family, *index, change);
        }
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
                let mut words = words(&lines);
                words.retain(|(_, word)| ends_with_digit(word));
                if words.is_empty() {
                    return false;
                }
                let (number, word) = &words[word.index(words.len())];
                lines[*number] = replace_last_digit(&lines[*number], word, *digit);
            }
            Self::Add(line, text) => lines.insert(line.index(lines.len()), (*text).to_owned()),
            Self::Command(_) | Self::Rule(..) | Self::Element(..) => unreachable!("handled above"),
        }
        load(ns, &format!("delete table {family} ferroute\n{}\n", lines.join("\n")))
    }

    fn apply_in_place(&self, ns: &NetNs, family: &str, index: Index, change: &Change) -> bool {
        let listed = ns.command("nft", &["-s", "-a", "list", "table", family, "ferroute"]);
        let is_rule = matches!(self, Self::Rule(..));
        let objects = if is_rule { rules(&listed) } else { elements(&listed) };
        if objects.is_empty() {
            return false;
        }
        let Object { parent, text, handle } = &objects[index.index(objects.len())];
        let others: Vec<String> = objects.iter().map(|object| object.text.clone()).collect();
        let parent = format!("{family} ferroute {parent}");
        let key = text.split([':', '"']).next().unwrap().trim_end_matches("comment ");
        let commands = match (is_rule, change.apply(text, &others)) {
            (true, None) => format!("delete rule {parent} handle {handle}"),
            (true, Some(same)) if same == *text => format!("add rule {parent} handle {handle} {text}"),
            (true, Some(other)) => format!("replace rule {parent} handle {handle} {other}"),
            (false, None) => format!("delete element {parent} {{ {key} }}"),
            (false, Some(other)) => format!("delete element {parent} {{ {key} }}\nadd element {parent} {{ {other} }}"),
        };
        load(ns, &commands)
    }
}

/// Loads text with `nft`. Reports whether it was accepted.
fn load(ns: &NetNs, text: &str) -> bool {
    let spawn = || Command::new("nft").args(["-f", "-"]).stdin(Stdio::piped()).stderr(Stdio::null()).spawn();
    let mut child = ns.run(spawn).unwrap();
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    child.wait().unwrap().success()
}

/// Objects of other programs: names of any bytes, and names like the proxy's.
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

/// Returns `nft`'s listing of other programs' objects, with handles.
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

/// Starts a proxy once, and returns the kernel's state afterwards.
fn start(ns: &NetNs, table: &ServiceTable) -> (NftablesDataplane, Contents) {
    let family = table.family;
    let mut dataplane = ns.run(|| NftablesDataplane::open(family, settings(), Box::new(Host::default())).unwrap());
    dataplane.resync(table).unwrap();
    let found = found(ns, family);
    (dataplane, found)
}

/// Returns the kernel's objects of the proxy.
fn found(ns: &NetNs, family: IpFamily) -> Contents {
    let mut kernel = ns.run(|| NetlinkKernel::open().unwrap());
    let own =
        |listed: TableFamily, name: &str| listed == TableFamily::Ip(family) && name == table_id(family).name.as_str();
    let (mut tables, consistency) = kernel.read_tables(family, &own).unwrap();
    assert_eq!((tables.len(), consistency), (1, Consistency::Consistent));
    contents(&tables.remove(0).table, family)
}

/// Returns the objects of the table as `nft` lists them, in a stable order, without elements that rules add to sets.
fn text(ns: &NetNs, family: IpFamily) -> Vec<String> {
    let listed = ns.try_command("nft", &["-s", "list", "table", family_name(family), "ferroute"]);
    let listed = String::from_utf8(listed.stdout).unwrap();
    let is_dynamic = |set: &str| set.starts_with("clients-by-") || set == "affinity";
    let mut text: Vec<String> = elements(&listed)
        .into_iter()
        .filter(|element| !is_dynamic(&element.parent))
        .map(|element| format!("{}: {}", element.parent, element.text))
        .collect();
    let mut object = "";
    for line in listed.lines().map(str::trim).filter(|line| !line.contains(" : ") && !line.ends_with([',', '}'])) {
        object = line.strip_suffix(" {").unwrap_or(object);
        text.push(format!("{object}: {line}"));
    }
    // The order of rules matters.
    text.sort_by_key(|line| line.split_once(": ").map(|(object, _)| object.to_owned()));
    text
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
        // No differences remain.
        prop_assert!(!dataplane.was_modified_externally().unwrap());
        let again = dataplane.resync(&table).unwrap();
        prop_assert_eq!((again.written, again.removed), (0, 0), "after {:?}", accepted);
    }

    #[test]
    fn a_running_proxy_notices_and_repairs_each_single_change(
        cluster in arbitrary::cluster(),
        damages in prop::collection::vec(damage(), 4..12),
        family in prop::sample::select(&IpFamily::BOTH),
    ) {
        let table = cluster.table(family);
        let ns = NetNs::new();
        let (mut dataplane, wanted) = start(&ns, &table);
        for damage in damages {
            let before = text(&ns, family);
            if !damage.apply(&ns, family) || text(&ns, family) == before {
                continue;
            }
            // There are pauses between comparisons.
            let deadline = Instant::now() + Duration::from_secs(60);
            while !dataplane.was_modified_externally().unwrap() {
                prop_assert!(Instant::now() < deadline, "{:?} led to {:#?}", damage, text(&ns, family));
                thread::sleep(Duration::from_millis(20));
            }
            dataplane.resync(&table).unwrap();
            prop_assert_eq!(found(&ns, family), wanted.clone(), "after {:?}", damage);
        }
    }
}
