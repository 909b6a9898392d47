use crate::{
    Assumption, Ending, Hook, Host, Packet, Verdict, iptables, nftables,
    path::Path,
    ruleset::{Entry, Ruleset},
    state::State,
};

/// A packet with all that it has met on one of its ways.
#[derive(Clone)]
pub(crate) struct Journey<'a, P> {
    pub(crate) state: State<'a>,
    /// Where it is; `None` before the first hook.
    place: Option<Place>,
    /// How often chance takes this way.
    pub(crate) share: f64,
    pub(crate) assuming: Vec<Assumption>,
    pub(crate) path: P,
}

/// A hook, and which of the chains there is next.
#[derive(Clone, Copy)]
struct Place {
    hook: Hook,
    next: usize,
}

/// How a packet leaves a hook's chain.
pub(crate) enum Passage {
    /// It goes on.
    Passed,
    /// It has come to its end.
    End(Verdict),
}

/// All ways of a packet, one after the other, each looked for when it is asked for.
///
/// Where chance decides, or something that we do not know, a way splits in two; the one that waits is taken up when the
/// other one has come to its end.
pub(crate) struct Journeys<'a, P> {
    rules: Ruleset<'a>,
    waiting: Vec<Task<'a, P>>,
    ended: usize,
}

enum Task<'a, P> {
    /// Between two chains of hooks.
    Between(Journey<'a, P>),
    /// In one of them.
    Iptables(iptables::Walker<'a, P>),
    /// In one of them.
    Nftables(nftables::Walker<'a, P>),
}

impl<'a, P: Path> Journey<'a, P> {
    fn new(host: &'a Host, packet: &'a Packet) -> Self {
        let state = State::new(host, packet, P::EXPLAINS);
        Self { state, place: None, share: 1.0, assuming: Vec::new(), path: P::default() }
    }

    /// The hook that it is at; the first one before all.
    pub(crate) fn hook(&self) -> Hook {
        self.place.map_or(Hook::Prerouting, |place| place.hook)
    }

    /// Goes to the next chain that a hook leads to; the packet may end before it.
    fn advance(&mut self, rules: &Ruleset<'a>) -> Result<Entry<'a>, Verdict> {
        loop {
            let Place { hook, next } = match self.place {
                Some(place) => place,
                None => Place { hook: self.state.packet.set_out(&mut self.path)?, next: 0 },
            };
            let mut entries = rules.entries(hook).iter().enumerate().skip(next);
            if let Some((at, entry)) = entries.find(|(_, entry)| !entry.is_nat() || self.state.sees_nat()) {
                self.place = Some(Place { hook, next: at + 1 });
                return Ok(entry.clone());
            }
            let next = self.state.packet.next_hook(hook, &mut self.path)?;
            self.state.nat_is_settled = false;
            self.place = Some(Place { hook: next, next: 0 });
        }
    }

    fn end(self, verdict: Verdict) -> (Ending, P) {
        (Ending { verdict, share: self.share, assuming: self.assuming }, self.path)
    }
}

impl<'a, P: Path> Journeys<'a, P> {
    pub(crate) fn new(rules: Ruleset<'a>, host: &'a Host, packet: &'a Packet) -> Self {
        Self { rules, waiting: vec![Task::Between(Journey::new(host, packet))], ended: 0 }
    }

    fn too_many(&mut self, journey: Journey<'a, P>) -> (Ending, P) {
        self.waiting.clear();
        journey.end(Verdict::Unknown { why: format!("there are more than {MOST_ENDINGS} ways") })
    }
}

impl<'a, P: Path> Iterator for Journeys<'a, P> {
    type Item = (Ending, P);

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let (journey, passage) = match self.waiting.pop()? {
                Task::Between(journey) if self.ended >= MOST_ENDINGS => return Some(self.too_many(journey)),
                Task::Between(mut journey) => match journey.advance(&self.rules) {
                    Ok(entry) => {
                        self.waiting.push(match entry {
                            Entry::Iptables(base) => Task::Iptables(iptables::Walker::new(base, journey)),
                            Entry::Nftables(base) => Task::Nftables(nftables::Walker::new(base, journey)),
                        });
                        continue;
                    }
                    Err(verdict) => (journey, Passage::End(verdict)),
                },
                Task::Iptables(walker) if self.ended >= MOST_ENDINGS => return Some(self.too_many(walker.journey)),
                Task::Iptables(mut walker) => {
                    let passage = walker.run(&mut |other| self.waiting.push(Task::Iptables(other)));
                    (walker.journey, passage)
                }
                Task::Nftables(walker) if self.ended >= MOST_ENDINGS => return Some(self.too_many(walker.journey)),
                Task::Nftables(mut walker) => {
                    let passage = walker.run(&mut |other| self.waiting.push(Task::Nftables(other)));
                    (walker.journey, passage)
                }
            };
            match passage {
                Passage::Passed => self.waiting.push(Task::Between(journey)),
                Passage::End(verdict) => {
                    self.ended += if journey.assuming.is_empty() { 1 } else { WEIGHT_OF_GUESSES };
                    return Some(journey.end(verdict));
                }
            }
        }
    }
}

/// How many ends a walk may have. Each endpoint takes one, and nftables mode has room for 16 bits of them.
const MOST_ENDINGS: usize = 1 << 17;
/// For how many others an end counts that depends on guesses, which may double the ways again and again.
const WEIGHT_OF_GUESSES: usize = 8;
