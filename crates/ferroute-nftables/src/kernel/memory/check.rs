//! What nf_tables checks before it takes a change.

use std::collections::BTreeSet;

use ferroute_core::IpFamily;

use super::{MemoryTable, Objection};
use crate::model::{DataType, Datum, Field, Holds, Key, Match, Name, Statement, Value, Verdict};

impl MemoryTable {
    /// Whether everything that a statement speaks of is there.
    pub(super) fn check(&self, statement: &Statement) -> Result<(), Objection> {
        if let Statement::Verdict(Verdict::Goto(chain) | Verdict::Jump(chain)) = statement
            && !self.chains.contains_key(chain)
        {
            return Err(Objection::NotFound);
        }
        let Some(name) = set_of(statement) else { return Ok(()) };
        let set = &self.sets.get(name).ok_or(Objection::NotFound)?.set;
        let key_fits = key_of(statement).is_some_and(|key| {
            key.len() == set.key.len() && key.iter().zip(&set.key).all(|(field, data_type)| is_of(*field, *data_type))
        });
        let is_map = set.holds != Holds::Nothing;
        let wants_set = matches!(statement, Statement::Match(_) | Statement::Note { .. });
        if key_fits && is_map != wants_set { Ok(()) } else { Err(Objection::Other) }
    }

    pub(super) fn leads_to(&self, chain: &Name) -> bool {
        let verdicts =
            self.sets.values().flat_map(|set| set.elements.values()).filter_map(|element| match &element.datum {
                Some(Datum::Verdict(verdict)) => Some(verdict),
                _ => None,
            });
        let in_rules = self.statements().filter_map(|statement| match statement {
            Statement::Verdict(verdict) => Some(verdict),
            _ => None,
        });
        verdicts.chain(in_rules).any(|verdict| matches!(verdict, Verdict::Goto(to) | Verdict::Jump(to) if to == chain))
    }

    pub(super) fn statements(&self) -> impl Iterator<Item = &Statement> {
        self.chains.values().flat_map(|chain| &chain.rules).flat_map(|rule| &rule.statements)
    }

    /// Whether no packet can go round in circles, nor through more chains than the kernel has patience for.
    pub(super) fn can_be_walked(&self) -> bool {
        let bases = self.chains.values().filter(|chain| chain.chain.base.is_some());
        bases.into_iter().all(|chain| self.walk(&chain.chain.name, 0, &mut BTreeSet::new()))
    }

    fn walk<'a>(&'a self, name: &'a Name, depth: usize, on_the_way: &mut BTreeSet<&'a Name>) -> bool {
        if depth > DEEPEST || !on_the_way.insert(name) {
            return false;
        }
        let rules = self.chains.get(name).into_iter().flat_map(|chain| &chain.rules);
        let good = rules
            .flat_map(|rule| &rule.statements)
            .flat_map(|statement| self.targets(statement))
            .all(|target| self.walk(target, depth + 1, on_the_way));
        on_the_way.remove(name);
        good
    }

    /// The chains that a statement can lead to.
    fn targets<'a>(&'a self, statement: &'a Statement) -> Vec<&'a Name> {
        let target = |verdict: &'a Verdict| match verdict {
            Verdict::Goto(chain) | Verdict::Jump(chain) => Some(chain),
            Verdict::Accept | Verdict::Drop | Verdict::Return => None,
        };
        match statement {
            Statement::Verdict(verdict) => target(verdict).into_iter().collect(),
            Statement::Dispatch { map, .. } => {
                let verdicts = self.elements(map).filter_map(|element| match &element.datum {
                    Some(Datum::Verdict(verdict)) => Some(verdict),
                    _ => None,
                });
                verdicts.filter_map(target).collect()
            }
            _ => Vec::new(),
        }
    }
}

/// The set or map that a statement uses.
pub(super) fn set_of(statement: &Statement) -> Option<&Name> {
    match statement {
        Statement::Match(Match::Member { set, .. }) | Statement::Note { set, .. } => Some(set),
        Statement::PriorityFromMap { map, .. }
        | Statement::Learn { map, .. }
        | Statement::Forget { map, .. }
        | Statement::Translate { map, .. }
        | Statement::Dispatch { map, .. } => Some(map),
        _ => None,
    }
}

fn key_of(statement: &Statement) -> Option<&[Field]> {
    match statement {
        Statement::Match(Match::Member { key, .. })
        | Statement::Note { key, .. }
        | Statement::Dispatch { key, .. }
        | Statement::PriorityFromMap { key, .. }
        | Statement::Learn { key, .. }
        | Statement::Forget { key, .. }
        | Statement::Translate { key, .. } => Some(key),
        _ => None,
    }
}

fn is_of(field: Field, data_type: DataType) -> bool {
    IpFamily::BOTH.into_iter().any(|family| field.data_type(family) == data_type)
}

pub(super) fn fit(values: &[Value], types: &[DataType], last_may_be_range: bool) -> bool {
    let one = |(i, (value, data_type)): (usize, (&Value, &DataType))| match (value, data_type) {
        (Value::Address(address), DataType::Ipv4Address) => address.is_ipv4(),
        (Value::Address(address), DataType::Ipv6Address) => address.is_ipv6(),
        (Value::Network(net), DataType::Ipv4Address) => {
            last_may_be_range && i + 1 == types.len() && net.addr().is_ipv4()
        }
        (Value::Network(net), DataType::Ipv6Address) => {
            last_may_be_range && i + 1 == types.len() && net.addr().is_ipv6()
        }
        (Value::Protocol(_), DataType::Protocol)
        | (Value::Port(_), DataType::Port)
        | (Value::Class(_), DataType::Class)
        | (Value::Number(_), DataType::Number)
        | (Value::Interface(_), DataType::Interface) => true,
        _ => false,
    };
    values.len() == types.len() && values.iter().zip(types).enumerate().all(one)
}

pub(super) fn overlap(a: &Key, b: &Key) -> bool {
    a.iter().zip(b).all(|(a, b)| a.first() <= b.last() && b.first() <= a.last())
}

/// `NFT_JUMP_STACK_SIZE`.
const DEEPEST: usize = 16;
