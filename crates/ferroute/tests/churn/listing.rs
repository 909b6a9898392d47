//! Listed nftables tables as lines that can be compared: the proxy's table by its meaning, others literally.

use std::collections::{BTreeMap, BTreeSet};

/// The lines of each chain, set and map, by kind and name.
type Objects<'a> = BTreeMap<&'a str, Vec<&'a str>>;

/// Splits a listed table into one line per rule and element, each with its chain or set.
pub(crate) fn lines(table: &str, listed: &str) -> Vec<String> {
    let objects = objects(listed);
    let lines = if table.ends_with(" ferroute") { Table::new(&objects).lines() } else { plain_lines(&objects) };
    lines.into_iter().map(|line| format!("{table}, {line}")).collect()
}

fn objects(listed: &str) -> Objects<'_> {
    let mut objects = Objects::new();
    let mut object = "";
    for line in listed.lines().map(str::trim) {
        match line.strip_suffix(" {").filter(|_| !line.starts_with("elements")) {
            Some(header) => {
                object = header;
                objects.entry(object).or_default();
            }
            None => objects.entry(object).or_default().push(line),
        }
    }
    objects
}

fn plain_lines(objects: &Objects<'_>) -> Vec<String> {
    let lines = objects.iter().flat_map(|(header, lines)| {
        let (properties, elements) = properties_and_elements(lines);
        properties.into_iter().chain(elements).map(move |part| format!("{header}: {part}")).collect::<Vec<_>>()
    });
    lines.collect()
}

/// Separates rules and properties from elements.
fn properties_and_elements<'a>(lines: &[&'a str]) -> (Vec<&'a str>, Vec<&'a str>) {
    let start = lines.iter().position(|line| line.starts_with("elements = {")).unwrap_or(lines.len());
    let (properties, elements) = lines.split_at(start);
    let elements = elements.iter().flat_map(|line| line.split(','));
    let elements = elements.map(|part| part.trim().trim_start_matches("elements = {").trim_end_matches('}').trim());
    (
        properties.iter().copied().filter(|line| !line.is_empty() && *line != "}").collect(),
        elements.filter(|part| !part.is_empty()).collect(),
    )
}

/// The table of the proxy. The numbers of endpoint lists and slots, and the order within lists, depend on earlier
/// changes, so each frontend is shown with the objects that it leads to instead.
struct Table<'a> {
    objects: &'a Objects<'a>,
    /// The elements of maps, as keys and data.
    maps: BTreeMap<&'a str, BTreeMap<&'a str, &'a str>>,
    sets: BTreeMap<&'a str, BTreeSet<&'a str>>,
    /// All objects that are used, by map or set and key.
    used: BTreeSet<(&'a str, &'a str)>,
    /// Chains that packets can reach.
    reachable: BTreeSet<&'a str>,
}

/// Maps and sets whose elements are shown with the frontends that lead to them, or as unused.
const INDIRECT: [&str; 4] = ["map lists", "map tcp-endpoints", "map udp-endpoints", "map sctp-endpoints"];

impl<'a> Table<'a> {
    fn new(objects: &'a Objects<'a>) -> Self {
        let mut table = Self {
            objects,
            maps: BTreeMap::new(),
            sets: BTreeMap::new(),
            used: BTreeSet::new(),
            reachable: BTreeSet::new(),
        };
        for (&header, lines) in objects {
            let (_, elements) = properties_and_elements(lines);
            match header.split_once(' ') {
                Some(("map", _)) => {
                    let pairs = elements.into_iter().filter_map(|element| element.rsplit_once(" : "));
                    table.maps.insert(header, pairs.collect());
                }
                Some(("set", _)) => _ = table.sets.insert(header, elements.into_iter().collect()),
                _ => {}
            }
        }
        table
    }

    fn lines(mut self) -> Vec<String> {
        let mut lines = Vec::new();
        for map in ["map services", "map node-ports"] {
            for (frontend, request) in self.maps.get(map).cloned().unwrap_or_default() {
                lines.push(format!("{map}: {frontend} : {}", self.request(number(request), "map dispatch")));
            }
        }
        for (frontend, list) in self.maps.get("map restricted").cloned().unwrap_or_default() {
            let ranges = self.sets_with("set source-ranges-", list);
            lines.push(format!("map restricted: {frontend} : {ranges:?}"));
        }
        let hooked = self.objects.iter().filter(|(_, lines)| lines.iter().any(|line| line.contains(" hook ")));
        let hooked: Vec<&'a str> = hooked.map(|(header, _)| *header).collect();
        hooked.into_iter().for_each(|chain| self.reach(chain));
        for (header, object) in self.objects {
            let (properties, _) = properties_and_elements(object);
            let is_shown = !header.starts_with("chain ") || self.reachable.contains(header);
            let is_of_list =
                ["set source-ranges-", "set sticky-", "set new-clients-"].iter().any(|set| header.starts_with(set));
            // Unused chains and sets are kept for a while, and may be named in this chain.
            if is_shown
                && !is_of_list
                && !["chain remember", "chain admit"].contains(header)
                && *header != "chain source-ranges"
            {
                lines.extend(properties.iter().map(|property| format!("{header}: {property}")));
            }
            for indirect in INDIRECT.iter().filter(|indirect| *indirect == header) {
                let unused = self.maps[indirect].iter().filter(|(key, _)| !self.used.contains(&(*indirect, **key)));
                lines.extend(unused.map(|(key, data)| format!("{header}: unused {}", self.unused(header, key, data))));
            }
            if ["set hairpin", "set cluster-ips", "set node-port-addresses"].contains(header) {
                lines.extend(self.sets[header].iter().map(|element| format!("{header}: {element}")));
            }
        }
        lines
    }

    /// Describes an element that no frontend leads to: a service port may have requests for kinds of frontends that it does not
    /// have.
    fn unused(&self, header: &str, key: &str, data: &str) -> String {
        let is_request = header == "map lists";
        let text = |number: u32| text(number & !LIST);
        if is_request { format!("{} : {}", text(number(key)), text(number(data))) } else { format!("{key} : {data}") }
    }

    /// Describes where a request leads to.
    fn request(&mut self, request: u32, dispatch: &'a str) -> String {
        let Some(answer) = self.find("map lists", request) else {
            return "an unknown list".to_owned();
        };
        let class = number(answer) & !LIST | 1;
        let Some(verdict) = self.find(dispatch, class) else {
            return format!("{answer}, an unknown class");
        };
        let mut text = format!("{verdict} {:?}", self.endpoints(request & LIST));
        if let Some(chain) = verdict.strip_prefix("goto ") {
            if let Some((header, _)) = self.objects.get_key_value(format!("chain {chain}").as_str()) {
                self.reach(header);
            }
            if chain.starts_with("external-local") {
                let local = request & !EXTERNAL_LOCAL | LOCAL;
                text += &format!(", others {}", self.request(local, "map local-dispatch"));
            }
        }
        text
    }

    /// Returns the data of a map's element, and marks it as used.
    fn find(&mut self, map: &'a str, wanted: u32) -> Option<&'a str> {
        let (key, data) = self.maps.get(map)?.iter().find(|(key, _)| number(key) == wanted)?;
        self.used.insert((map, key));
        Some(data)
    }

    /// Returns the endpoints of a list and its affinity timeout, sorted.
    fn endpoints(&mut self, list: u32) -> Vec<String> {
        let slots: BTreeSet<u32> = self
            .maps
            .get("map slots")
            .into_iter()
            .flatten()
            .filter(|(key, _)| key.split_once(" . ").is_some_and(|(owner, _)| number(owner) == list))
            .map(|(_, slot)| number(slot))
            .collect();
        let mut endpoints = Vec::new();
        for map in ["map tcp-endpoints", "map udp-endpoints", "map sctp-endpoints"] {
            for (&key, endpoint) in self.maps.get(map).into_iter().flatten() {
                let owner = key.split_once(" . ").map(|(owner, _)| number(owner));
                if owner.is_some_and(|owner| owner == list || slots.contains(&owner)) {
                    self.used.insert((map, key));
                    endpoints.push(format!("{map} {endpoint}"));
                }
            }
        }
        endpoints.extend(self.sets_with("set sticky-", &text(list)));
        endpoints.sort_unstable();
        endpoints
    }

    /// Returns the elements that belong to a list in all sets whose names start with this.
    fn sets_with(&self, start: &str, list: &str) -> Vec<String> {
        let sets = self.sets.iter().filter(|(header, _)| header.starts_with(start));
        let elements = sets.flat_map(|(header, elements)| elements.iter().map(move |element| (header, element)));
        let elements = elements.filter_map(|(header, element)| {
            let (value, owner) = element.rsplit_once(" . ").unwrap_or(("", element));
            (number(owner) == number(list)).then(|| format!("{header} {value}"))
        });
        elements.collect()
    }

    fn reach(&mut self, chain: &'a str) {
        if self.reachable.insert(chain) {
            for word in self.objects[chain].iter().flat_map(|line| line.split([' ', ','])) {
                if let Some((next, _)) = self.objects.get_key_value(format!("chain {word}").as_str()) {
                    self.reach(next);
                }
            }
        }
    }
}

/// The bits of a number that are a list.
const LIST: u32 = 0x000f_ffff;
/// Bit of requests whose external clients use only this node's endpoints.
const EXTERNAL_LOCAL: u32 = 0x0020_0000;
/// The bit that is set in the list of this node's endpoints.
const LOCAL: u32 = 2;

/// Parses a number in the form `class:list` of `nft`, in which zeros are left out.
fn number(text: &str) -> u32 {
    let (high, low) = text.trim().split_once(':').unwrap_or(("", "0"));
    let part = |digits: &str| if digits.is_empty() { 0 } else { u32::from_str_radix(digits, 16).unwrap_or(u32::MAX) };
    part(high).wrapping_shl(16) | part(low)
}

fn text(number: u32) -> String {
    format!("{:x}:{:x}", number >> 16, number & 0xffff)
}
