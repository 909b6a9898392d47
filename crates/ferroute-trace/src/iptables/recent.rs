//! `-m recent`: lists of addresses that rules fill, and that the same or other rules look up.

use std::net::IpAddr;

use ferroute_iptables::{Match, RecentAction};

use super::{conditions::ExtensionResult, foreign::Words, shown};
use crate::{PacketState, walk::Unknown};

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
    text: &'m str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Set,
    Check,
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
            ("--update", Action::Check),
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
        let list = recent.list;
        let (is_listed, reason) = match (recent.action, self.changes.is_recent(list, self.listed(recent))) {
            (Action::Set, _) => (Some(true), String::new()),
            (_, Some(true)) if recent.hits <= 1 => (Some(true), String::new()),
            (_, Some(true)) => (None, String::new()),
            (_, Some(false)) => (Some(false), format!("an earlier rule has removed the address from list {list}")),
            (_, None) => match (self.original.remembered.get(list), recent.seconds) {
                (Some(age), Some(limit)) if *age > limit => {
                    (Some(false), format!("client is in list {list} since {age} s, not at most {limit} s"))
                }
                (Some(_), _) if recent.hits > 1 || recent.has_ttl => (None, String::new()),
                (Some(_), _) => (Some(true), String::new()),
                // Clients of Services are assumed to be new.
                (None, _) if list.starts_with(AFFINITY) => (Some(false), format!("client is not in list {list}")),
                (None, _) => (None, String::new()),
            },
        };
        match is_listed {
            None => {
                let condition = match recent.text {
                    "" => format!("the source is in list {list}"),
                    text => format!("`{}` matches", shown(text)),
                };
                ExtensionResult::Unknown(Unknown::new(condition))
            }
            Some(is_listed) if is_listed != recent.negated => ExtensionResult::Match,
            Some(true) => ExtensionResult::Mismatch(format!("address is in list {list}")),
            Some(false) => ExtensionResult::Mismatch(reason),
        }
    }

    /// Changes the list of a module that was evaluated: adds or removes the address.
    pub(crate) fn change_recent(&mut self, recent: &Recent<'_>) {
        if recent.changes() {
            let address = self.listed(recent);
            self.changes.set_recent(recent.list, address, recent.action == Action::Set);
        }
    }
}

/// The beginning of the names of the lists of session affinity.
const AFFINITY: &str = "KUBE-SEP-";
