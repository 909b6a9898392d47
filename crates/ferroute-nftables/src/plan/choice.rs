use std::fmt;

use ferroute_core::{Method, Protocol, TableSize};

use super::{capacity::Capacity, frontend::PROTOCOLS};
use crate::model::{ClassId, CmpOp, Field, HashInput, Match, Rule, Statement};

/// Method of choosing one of the positions of a list, with the number of positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Choice {
    /// By a random number.
    Random(Capacity),
    /// In turn: up to [`EXACT_CYCLE`] positions, or a [`TableSize`] of them.
    RoundRobin(u32),
    /// By a hash of the client's address.
    SourceHash(TableSize),
    /// By a hash of the client's address and port.
    SourcePortHash(TableSize),
}

impl Choice {
    /// Returns the choice of a method from a list with this number of positions, which must be one that the method
    /// uses.
    pub(crate) fn new(method: Method, positions: usize) -> Self {
        match method {
            _ if positions == 1 => Self::Random(Capacity::fitting(1)),
            Method::RoundRobin => Self::RoundRobin(u32::try_from(positions).unwrap_or(Capacity::MAX)),
            Method::SourceHash => Self::SourceHash(TableSize::at_least(positions)),
            Method::SourcePortHash => Self::SourcePortHash(TableSize::at_least(positions)),
            Method::Random | Method::LeastConnections => Self::Random(Capacity::fitting(positions)),
        }
    }

    /// Returns the number of positions, or a little more.
    pub(crate) fn positions(self) -> u32 {
        match self {
            Self::Random(capacity) => capacity.get(),
            Self::RoundRobin(length) => length,
            Self::SourceHash(size) | Self::SourcePortHash(size) => u32::try_from(size.get()).unwrap_or(Capacity::MAX),
        }
    }

    /// Returns the position among all choices, from 1.
    pub(crate) fn step(self) -> u32 {
        let table = |size: TableSize| TableSize::ALL.iter().take_while(|other| **other <= size).count() as u32;
        match self {
            Self::Random(capacity) => capacity.step(),
            Self::RoundRobin(length @ ..=EXACT_CYCLE) => CYCLES + length,
            Self::RoundRobin(length) => LONG_CYCLES + table(TableSize::at_least(length as usize)),
            Self::SourceHash(size) => SOURCE_HASHES + table(size),
            Self::SourcePortHash(size) => SOURCE_PORT_HASHES + table(size),
        }
    }

    /// Returns the choice at a position; `None` if the position has none. The inverse of [`Choice::step`].
    pub(crate) fn from_step(step: u32) -> Option<Self> {
        let table = |base: u32| TableSize::ALL.get((step - base - 1) as usize).copied();
        Some(if step <= CYCLES {
            Self::Random(Capacity::from_step(step)?)
        } else if step <= LONG_CYCLES {
            Self::RoundRobin(step - CYCLES)
        } else if step <= SOURCE_HASHES {
            Self::RoundRobin(u32::try_from(table(LONG_CYCLES)?.get()).ok()?)
        } else if step <= SOURCE_PORT_HASHES {
            Self::SourceHash(table(SOURCE_HASHES)?)
        } else {
            Self::SourcePortHash(table(SOURCE_PORT_HASHES)?)
        })
    }

    /// Returns rules that try `rule` with a chosen position, and then with the first one.
    ///
    /// If a transaction takes effect between two lookups of a packet, the packet may request a position past the end of
    /// a list that has become shorter. The first position exists as long as the list has endpoints.
    pub(super) fn rules(self, rule: impl Fn(Field) -> Rule) -> Vec<Rule> {
        let count = self.positions();
        let mut rules = match self {
            Self::Random(capacity) => vec![rule(Field::NumgenRandom { count, first: 1 }); capacity.tries()],
            Self::RoundRobin(_) => {
                COUNTERS.map(|counter| counted(counter, rule(Field::NumgenInc { count, first: 1 }))).into()
            }
            Self::SourceHash(_) => vec![rule(hash(HashInput::Saddr, count))],
            Self::SourcePortHash(_) => vec![rule(hash(HashInput::SaddrSport, count))],
        };
        if count > 1 {
            let first = rule(Field::NumgenRandom { count: 1, first: 1 });
            rules.push(first.comment("the list has just become shorter"));
        }
        rules
    }

    /// Returns rules that try `rule` for each protocol.
    pub(super) fn rules_by_protocol(self, rule: impl Fn(Protocol, Field) -> Rule) -> Vec<Rule> {
        PROTOCOLS.into_iter().flat_map(|protocol| self.rules(|position| rule(protocol, position))).collect()
    }
}

/// Returns the number of positions of a round of this many endpoints. In a longer round, some endpoints have one more
/// position than others: at most a sixteenth more connections.
pub(super) fn cycle_length(endpoints: usize) -> usize {
    if endpoints <= EXACT_CYCLE as usize { endpoints } else { TableSize::at_least(endpoints * 16).get() }
}

fn hash(input: HashInput, count: u32) -> Field {
    Field::Jhash { input, count, seed: SEED, first: 1 }
}

/// Increments the counter of a round. A chain serves all Services with the same number of endpoints. If these shared
/// one counter, two Services used alternately would get the same endpoint again and again, so neighbouring numbers have
/// different counters.
fn counted(counter: ClassId, rule: Rule) -> Rule {
    let field = Field::PriorityBits(COUNTER);
    let matches = Match::Cmp { field, mask: u32::MAX, op: CmpOp::Eq, value: counter.into() };
    let statements: Vec<Statement> = [matches.into()].into_iter().chain(rule.statements).collect();
    Rule { statements, ..rule }
}

impl fmt::Display for Choice {
    /// Writes the end of the chain's name.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Random(capacity) => capacity.fmt(f),
            Self::RoundRobin(length) => write!(f, "round-robin-{length}"),
            Self::SourceHash(size) => write!(f, "source-hash-{size}"),
            Self::SourcePortHash(size) => write!(f, "source-port-hash-{size}"),
        }
    }
}

/// The longest cycle that has one position for each endpoint.
const EXACT_CYCLE: u32 = 64;
/// The steps of [`Choice::RoundRobin`] follow those of capacities.
const CYCLES: u32 = Capacity::COUNT;
const LONG_CYCLES: u32 = CYCLES + EXACT_CYCLE;
const SOURCE_HASHES: u32 = LONG_CYCLES + TableSize::ALL.len() as u32;
const SOURCE_PORT_HASHES: u32 = SOURCE_HASHES + TableSize::ALL.len() as u32;
/// Seed of all hashes; it must be the same on all nodes.
const SEED: u32 = 0x6665_7272;
/// Bits of a list that select the counter of a round: the lowest bits of its number. Besides these and the lowest bit,
/// the value has no bits of a list.
const COUNTER: ClassId = ClassId::new(0, 0x1d);
/// The values of these bits.
const COUNTERS: [ClassId; 8] = {
    let mut counters = [ClassId(0); 8];
    let mut i = 0;
    while i < 8 {
        counters[i] = ClassId::new(0, (i as u16) << 2 | 1);
        i += 1;
    }
    counters
};
