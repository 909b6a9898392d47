//! The state of a reflector and its transitions, without I/O.
//!
//! ```text
//!    ┌─ failed ─┐              ┌─ changed, bookmark, watch ended ─┐
//!    │          ▼              │                                  ▼
//!    └──────── List ─ listed ─►└───────────── Watch ──────────────┘
//!               ▲                               │
//!               └─ expired, rejected, rolled back ◄┘
//! ```

use super::version_cache::ResourceVersion;

/// State of a reflector, and its next request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// A list is due or being received. Objects that arrive belong to it; earlier objects stay valid until it is
    /// complete.
    ///
    /// A complete list leads to [`Phase::Watch`]. A failed list is requested again; the failure may change the kind of
    /// request.
    List(List),
    /// All changes up to `version` have been received. A watch that resumes from this version is due or open.
    ///
    /// A watch that ends or breaks resumes from the last version received. If the server no longer has that version
    /// or rejects the request, or if a bookmark shows that it has been rolled back, a new list is due.
    Watch {
        /// The last resource version received.
        version: String,
    },
}

/// A list request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct List {
    /// The state to list.
    pub(super) version: ListVersion,
    /// The kind of request.
    pub(super) strategy: Strategy,
    /// The size of the responses, in [`Strategy::Pages`] or where streaming lists are not supported.
    pub(super) paging: Paging,
}

/// The resource version of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ListVersion {
    /// Any version: no version has been received yet. The server answers from its cache, without querying etcd; the
    /// watch catches up.
    Any,
    /// No older than this version, so that a list from another API server does not undo changes.
    NotOlderThan(String),
    /// The most recent version: the server does not have, or does not have yet, the version that was requested before.
    MostRecent,
}

/// The request that lists objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Strategy {
    /// A watch that starts with all objects (KEP-3157), or a list in pages where the server does not support that.
    Streaming,
    /// A list in pages at once: the last streaming list has failed.
    Pages,
}

/// The size of a list's responses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Paging {
    /// A limited number of objects.
    Limited,
    /// All objects at once: the server did not keep the state of the list until its last page.
    Unlimited,
}

/// An input of the state machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Transition {
    /// The list is complete as of this version.
    Listed(String),
    /// A watch has sent a change with this version.
    Changed(String),
    /// A watch has sent a bookmark: all changes up to this version have been received.
    Bookmark(String),
    /// The server no longer has the requested version (410 Gone), or does not have it yet (504).
    Expired,
    /// The server does not keep the state of the list for its next page (410 Gone).
    ContinueExpired,
    /// The server rejects the request itself, so that a retry does not help.
    Rejected,
    /// A list has failed, possibly because a proxy in between does not support this kind of request.
    ListFailed,
}

impl Default for Phase {
    fn default() -> Self {
        Self::list(ListVersion::Any)
    }
}

impl Phase {
    fn list(version: ListVersion) -> Self {
        Self::List(List { version, strategy: Strategy::Streaming, paging: Paging::Limited })
    }

    /// Returns the state after a transition.
    pub(super) fn next(self, transition: Transition) -> Self {
        match (self, transition) {
            (Self::List(_), Transition::Listed(version)) => Self::Watch { version },
            (Self::List(list), Transition::Expired) => Self::List(List { version: ListVersion::MostRecent, ..list }),
            (Self::List(list), Transition::ContinueExpired) => {
                Self::List(List { version: ListVersion::MostRecent, paging: Paging::Unlimited, ..list })
            }
            (Self::List(list), Transition::ListFailed) => Self::List(List { strategy: list.strategy.other(), ..list }),
            (Self::Watch { version: last }, Transition::Changed(version)) => {
                let is_newer = !ResourceVersion::parse(&version).is_at_most(ResourceVersion::parse(&last));
                Self::Watch { version: if is_newer { version } else { last } }
            }
            (Self::Watch { version: last }, Transition::Bookmark(version)) => {
                if ResourceVersion::parse(&version).is_older_than(ResourceVersion::parse(&last)) {
                    // The server has been restored from a backup, so that later versions are no longer meaningful.
                    return Self::list(ListVersion::MostRecent);
                }
                Self::Watch { version }
            }
            (Self::Watch { version }, Transition::Expired | Transition::Rejected) => {
                Self::list(ListVersion::NotOlderThan(version))
            }
            (state, _) => state,
        }
    }
}

impl Strategy {
    fn other(self) -> Self {
        match self {
            Self::Streaming => Self::Pages,
            Self::Pages => Self::Streaming,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watch(version: &str) -> Phase {
        Phase::Watch { version: version.to_owned() }
    }

    fn list(version: ListVersion, strategy: Strategy, paging: Paging) -> Phase {
        Phase::List(List { version, strategy, paging })
    }

    fn after<const N: usize>(state: Phase, transitions: [Transition; N]) -> Phase {
        transitions.into_iter().fold(state, Phase::next)
    }

    fn listed(version: &str) -> Transition {
        Transition::Listed(version.to_owned())
    }

    fn changed(version: &str) -> Transition {
        Transition::Changed(version.to_owned())
    }

    fn bookmark(version: &str) -> Transition {
        Transition::Bookmark(version.to_owned())
    }

    #[test]
    fn first_list_is_of_any_version_and_leads_to_a_watch() {
        let first = list(ListVersion::Any, Strategy::Streaming, Paging::Limited);
        assert_eq!(Phase::default(), first);
        assert_eq!(after(first, [listed("7")]), watch("7"));
    }

    #[test]
    fn watch_advances_with_newer_versions_only() {
        assert_eq!(after(watch("7"), [changed("9"), changed("8")]), watch("9"));
        assert_eq!(after(watch("7"), [bookmark("7"), bookmark("12")]), watch("12"));
        assert_eq!(after(watch("7"), [changed("opaque")]), watch("opaque"));
    }

    #[test]
    fn expired_or_rejected_watch_leads_to_a_list_that_is_not_older() {
        let not_older = list(ListVersion::NotOlderThan("7".to_owned()), Strategy::Streaming, Paging::Limited);
        assert_eq!(after(watch("7"), [Transition::Expired]), not_older);
        assert_eq!(after(watch("7"), [Transition::Rejected]), not_older);
    }

    #[test]
    fn older_bookmark_leads_to_a_list_of_the_most_recent_version() {
        let most_recent = list(ListVersion::MostRecent, Strategy::Streaming, Paging::Limited);
        assert_eq!(after(watch("7"), [bookmark("6")]), most_recent);
    }

    #[test]
    fn list_of_an_expired_version_asks_for_the_most_recent_one() {
        let most_recent = |paging| list(ListVersion::MostRecent, Strategy::Streaming, paging);
        assert_eq!(after(watch("7"), [Transition::Expired, Transition::Expired]), most_recent(Paging::Limited));
        assert_eq!(after(Phase::default(), [Transition::ContinueExpired]), most_recent(Paging::Unlimited));
    }

    #[test]
    fn failed_lists_alternate_between_strategies_until_one_is_complete() {
        let any = |strategy| list(ListVersion::Any, strategy, Paging::Limited);
        let failed = || Transition::ListFailed;
        assert_eq!(after(Phase::default(), [failed()]), any(Strategy::Pages));
        assert_eq!(after(Phase::default(), [failed(), failed()]), any(Strategy::Streaming));
        let complete = after(Phase::default(), [failed(), Transition::ContinueExpired, listed("7")]);
        let next = after(complete, [Transition::Expired]);
        assert_eq!(next, list(ListVersion::NotOlderThan("7".to_owned()), Strategy::Streaming, Paging::Limited));
    }

    #[test]
    fn objects_of_a_list_do_not_advance_the_version() {
        assert_eq!(after(Phase::default(), [changed("7"), bookmark("8"), Transition::Rejected]), Phase::default());
    }
}
