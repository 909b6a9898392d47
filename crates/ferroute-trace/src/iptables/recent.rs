//! `-m recent`: lists of addresses that rules fill, and that the same or other rules look up.

use std::net::IpAddr;

use ferroute_iptables::{Match, RecentAction};

use super::{conditions::ExtensionResult, foreign::Words, shown};
use crate::{PacketState, changes::Recency, walk::Unknown};

/// The options of `-m recent`.
pub(crate) struct Recent<'m> {
    action: Action,
    negated: bool,
    list: &'m str,
    seconds: Option<u32>,
    /// Required number of times that the address was added.
    hits: u32,
    mask: Option<IpAddr>,
    by_destination: bool,
    has_ttl: bool,
    /// The module in the syntax of `iptables-save`, unless it follows from the other fields.
    text: &'m str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Set,
    Check,
    /// A check that adds the address once more if it matches.
    Update,
    Remove,
}

impl<'m> Recent<'m> {
    /// Returns the options of a module; `None` for other modules.
    pub(crate) fn of(module: &'m Match) -> Option<Self> {
        match module {
            Match::Recent(recent) => Some(Self {
                action: if recent.action == RecentAction::Set { Action::Set } else { Action::Check },
                negated: false,
                list: &recent.name,
                seconds: recent.seconds,
                hits: 0,
                mask: Some(recent.mask),
                by_destination: false,
                has_ttl: false,
                text: "",
            }),
            Match::Other(text) => Self::parse(text),
            _ => None,
        }
    }

    /// Reads the text of a module; `None` for other modules.
    pub(crate) fn parse(text: &'m str) -> Option<Self> {
        let words = Words::parse(text.strip_prefix("-m ")?).filter(|words| words.name == "recent")?;
        let actions = [
            ("--set", Action::Set),
            ("--rcheck", Action::Check),
            ("--update", Action::Update),
            ("--remove", Action::Remove),
        ];
        let (negated, action) = words.options.iter().find_map(|(negated, option, _)| {
            let (_, action) = actions.iter().find(|(name, _)| name == option)?;
            Some((*negated, *action))
        })?;
        Some(Self {
            action,
            negated,
            list: words.argument("--name").unwrap_or("DEFAULT"),
            seconds: words.argument("--seconds").and_then(|seconds| seconds.parse().ok()),
            hits: words.argument("--hitcount").map_or(Some(0), |hits| hits.parse().ok())?,
            mask: words.argument("--mask").and_then(|mask| mask.parse().ok()),
            by_destination: words.has("--rdest"),
            has_ttl: words.has("--rttl"),
            text,
        })
    }

    /// Returns the condition that an address is listed, as a sentence.
    fn sentence(&self) -> String {
        let list = self.list;
        match (self.text, self.seconds) {
            ("", None) => format!("{IN_LIST}{list}"),
            ("", Some(seconds)) => format!("{IN_LIST}{list}{LAST}{seconds} s)"),
            (text, _) => format!("`{}` matches", shown(text)),
        }
    }

    /// Reads a [sentence](Self::sentence); `None` for other conditions.
    fn from_sentence(sentence: &'m str) -> Option<Self> {
        if let Some(text) = sentence.strip_prefix('`') {
            return Self::parse(text.strip_suffix("` matches")?);
        }
        let list = sentence.strip_prefix(IN_LIST)?;
        let (list, seconds) = match list.split_once(LAST) {
            Some((list, seconds)) => (list, Some(seconds.strip_suffix(" s)")?.parse().ok()?)),
            None => (list, None),
        };
        let (action, negated, by_destination, has_ttl) = (Action::Check, false, false, false);
        Some(Self { action, negated, list, seconds, hits: 0, mask: None, by_destination, has_ttl, text: "" })
    }

    /// Reports whether the module changes its list.
    pub(crate) fn changes(&self) -> bool {
        self.action != Action::Check
    }
}

impl PacketState<'_> {
    /// Returns the address for the list.
    fn listed(&self, recent: &Recent<'_>) -> IpAddr {
        let address = if recent.by_destination { self.destination.ip() } else { self.source.ip() };
        match (address, recent.mask) {
            (IpAddr::V4(address), Some(IpAddr::V4(mask))) => (address & mask).into(),
            (IpAddr::V6(address), Some(IpAddr::V6(mask))) => (address & mask).into(),
            (address, _) => address,
        }
    }

    pub(super) fn matches_recent(&self, recent: &Recent<'_>) -> ExtensionResult {
        let (list, needed) = (recent.list, recent.hits.max(1));
        // Whether the list had the address before the packet; `false` also if that was too long ago.
        let (before, reason) = match (self.original.remembered.get(list), recent.seconds) {
            (Some(age), Some(limit)) if *age > limit => {
                (Some(false), format!("client is in list {list} since {age} s, not at most {limit} s"))
            }
            (Some(_), _) if recent.has_ttl => (None, String::new()),
            (Some(_), _) => (Some(true), String::new()),
            // Clients of Services are assumed to be new.
            (None, _) if list.starts_with(AFFINITY) => (Some(false), format!("client is not in list {list}")),
            (None, _) => (None, String::new()),
        };
        let (is_listed, reason) = match (recent.action, self.changes.recency(list, self.listed(recent))) {
            (Action::Set, _) => (Some(true), String::new()),
            (_, Some(Recency { added, .. })) if added >= needed => (Some(true), String::new()),
            (_, Some(Recency { was_removed: true, added: 0 })) => {
                (Some(false), format!("an earlier rule has removed the address from list {list}"))
            }
            (_, Some(Recency { added, was_removed })) if was_removed || before == Some(false) => {
                (Some(false), format!("address was added to list {list} {added} times, not {needed}"))
            }
            (_, Some(Recency { added, .. })) => {
                ((before == Some(true) && added + 1 >= needed).then_some(true), String::new())
            }
            (_, None) if needed > 1 && before == Some(true) => (None, String::new()),
            (_, None) => (before, reason),
        };
        match is_listed {
            None => ExtensionResult::Unknown(Unknown::new(recent.sentence())),
            Some(is_listed) if is_listed != recent.negated => ExtensionResult::Match,
            Some(true) => ExtensionResult::Mismatch(format!("address is in list {list}")),
            Some(false) => ExtensionResult::Mismatch(reason),
        }
    }

    /// Changes the list of a module that matched: adds or removes the address.
    fn change_recent(&mut self, recent: &Recent<'_>) {
        if recent.changes() {
            let address = self.listed(recent);
            self.changes.set_recent(recent.list, address, recent.action != Action::Remove);
        }
    }

    /// Applies the changes that a module makes if it matches, to lists and to labels of the connection.
    pub(crate) fn change_by_module(&mut self, module: &Match) {
        if let Some(recent) = Recent::of(module) {
            self.change_recent(&recent);
        } else if let Match::Other(text) = module
            && let Some(label) = set_label(text)
        {
            self.changes.labels.push(label.into());
        }
    }
}

/// Reports whether a module changes something if it matches.
pub(super) fn changes(module: &Match) -> bool {
    match module {
        Match::Other(text) => changes_by_text(text),
        module => Recent::of(module).is_some_and(|recent| recent.changes()),
    }
}

/// The same for a module in the text of `iptables-save`.
pub(crate) fn changes_by_text(text: &str) -> bool {
    Recent::parse(text).is_some_and(|recent| recent.changes()) || set_label(text).is_some()
}

/// Returns the label that `-m connlabel --set` sets.
fn set_label(text: &str) -> Option<&str> {
    let words = Words::parse(text.strip_prefix("-m ")?)?;
    words.argument("--label").filter(|_| words.name == "connlabel" && words.has("--set"))
}

/// Returns whether a condition on a list holds if another one does or does not, as sentences: an address that was added more
/// often, or within a shorter time, was also added less often; `None` if that does not follow.
pub(crate) fn implied(known: &str, holds: bool, condition: &str) -> Option<bool> {
    let [known, asked] = [known, condition].map(Recent::from_sentence);
    let (known, asked) = (known?, asked?);
    let all_bits = [IpAddr::from([u8::MAX; 4]), IpAddr::from([u8::MAX; 16])];
    let mask = |it: &Recent<'_>| it.mask.filter(|mask| !all_bits.contains(mask));
    let subject = |it: &Recent<'_>| (it.list.to_owned(), mask(it), it.by_destination, it.has_ttl);
    if subject(&known) != subject(&asked) || known.has_ttl {
        return None;
    }
    let seconds = |it: &Recent<'_>| it.seconds.unwrap_or(u32::MAX);
    let is_easier =
        |it: &Recent<'_>, than: &Recent<'_>| it.hits.max(1) <= than.hits.max(1) && seconds(it) >= seconds(than);
    let matches = match holds != known.negated {
        true if is_easier(&asked, &known) => true,
        false if is_easier(&known, &asked) => false,
        _ => return None,
    };
    Some(matches != asked.negated)
}

/// The beginning of the condition that a list has the source.
const IN_LIST: &str = "the source is in list ";
/// The part of this condition before a time.
const LAST: &str = " (added in the last ";
/// The beginning of the names of the lists of session affinity.
const AFFINITY: &str = "KUBE-SEP-";
