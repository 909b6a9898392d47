use crate::Endpoint;

/// Whether traffic of one policy uses an endpoint, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Eligibility {
    /// Used: it is ready.
    Ready,
    /// Used: nothing is ready, and it still serves while it terminates.
    LastResort,
    /// Not used: it is not ready.
    NotReady,
    /// Not used: it terminates and serves no more.
    Terminated,
    /// Not used: it terminates, and there are ready ones.
    Terminating,
    /// Not used: it runs on another node, or nobody says on which.
    OtherNode,
    /// Not used: its hints are for other nodes.
    HintedOtherNode,
    /// Not used: its hints are for other zones.
    HintedOtherZone,
}

impl Eligibility {
    /// New connections go there.
    pub fn is_used(self) -> bool {
        matches!(self, Self::Ready | Self::LastResort)
    }
}

/// Which endpoints may be used at all, whatever their state.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Scope<'a> {
    Anywhere,
    /// Hints for this node are obeyed.
    HintedNode(&'a str),
    /// Hints for this zone are obeyed.
    HintedZone(&'a str),
    /// Policy Local.
    ThisNode,
}

/// A choice among one list of endpoints: the one place that decides who is used.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Selection<'a> {
    scope: Scope<'a>,
    any_ready: bool,
}

impl<'a> Selection<'a> {
    /// Ready endpoints within the scope; if there are none, those that still serve while they terminate.
    pub(crate) fn new(endpoints: &[Endpoint], scope: Scope<'a>) -> Self {
        Self {
            scope,
            any_ready: endpoints.iter().any(|endpoint| endpoint.ready && scope.objection(endpoint).is_none()),
        }
    }

    /// How one of the endpoints stands in it. What keeps an endpoint from being used anywhere is told first; hints are
    /// told last, for they are about ready endpoints only.
    pub(crate) fn eligibility(&self, endpoint: &Endpoint) -> Eligibility {
        let candidate = match (endpoint.ready, endpoint.is_serving_terminating()) {
            (true, _) => Eligibility::Ready,
            (false, true) => Eligibility::LastResort,
            (false, false) if endpoint.terminating => return Eligibility::Terminated,
            (false, false) => return Eligibility::NotReady,
        };
        match self.scope.objection(endpoint) {
            Some(Eligibility::OtherNode) => Eligibility::OtherNode,
            _ if candidate == Eligibility::LastResort && self.any_ready => Eligibility::Terminating,
            Some(objection) => objection,
            None => candidate,
        }
    }

    /// Those that are used.
    pub(crate) fn choose<'e>(&self, endpoints: &'e [Endpoint]) -> Vec<&'e Endpoint> {
        endpoints.iter().filter(|endpoint| self.eligibility(endpoint).is_used()).collect()
    }
}

impl Scope<'_> {
    /// Why an endpoint is out of the scope; `None` if it is within.
    fn objection(self, endpoint: &Endpoint) -> Option<Eligibility> {
        let (within, objection) = match self {
            Self::Anywhere => return None,
            Self::HintedNode(node) => (endpoint.hints_node(node), Eligibility::HintedOtherNode),
            Self::HintedZone(zone) => (endpoint.hints_zone(zone), Eligibility::HintedOtherZone),
            Self::ThisNode => (endpoint.local, Eligibility::OtherNode),
        };
        (!within).then_some(objection)
    }
}
