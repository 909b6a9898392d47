//! The checks that nf_tables applies to changes.

use std::collections::BTreeSet;

use ferroute_core::IpFamily;

use super::{ErrorKind, MemoryTable};
use crate::model::{Data, DataType, Field, Key, Match, Name, Opaque, Outcome, SetData, Statement, Value, Verdict};

impl MemoryTable {
    /// Checks the chains, flowtables and sets that a statement refers to.
    pub(super) fn check(&self, statement: &Statement) -> Result<(), ErrorKind> {
        if let Statement::Verdict(Verdict::Goto(chain) | Verdict::Jump(chain)) = statement
            && !self.chains.contains_key(chain)
        {
            return Err(ErrorKind::NotFound);
        }
        if let Statement::FlowAdd(flowtable) = statement
            && !self.flowtables.contains_key(flowtable)
        {
            return Err(ErrorKind::NotFound);
        }
        let Some(name) = set_of(statement) else { return Ok(()) };
        let set = &self.sets.get(name).ok_or(ErrorKind::NotFound)?.set;
        let key_fits = key_of(statement).is_some_and(|key| {
            key.len() == set.key.len()
                && key.iter().zip(&set.key).all(|(field, data_type)| has_type(*field, *data_type))
        });
        let is_map = set.data != SetData::None;
        let expects_set = matches!(statement, Statement::Match(_) | Statement::UpdateSet { .. });
        if key_fits && is_map != expects_set { Ok(()) } else { Err(ErrorKind::Other) }
    }

    /// Reports whether a rule looks up elements of a set or map.
    pub fn looks_up(&self, set: &Name) -> bool {
        self.statements().any(|statement| match statement {
            Statement::UpdateSet { .. } | Statement::UpdateMap { .. } | Statement::DeleteFromMap { .. } => false,
            Statement::Opaque(Opaque { outcome: Outcome::Foreign(foreign), .. }) => foreign.looks_up() == Some(set),
            other => set_of(other) == Some(set),
        })
    }

    pub(super) fn is_referenced(&self, chain: &Name) -> bool {
        let verdicts =
            self.sets.values().flat_map(|set| set.elements.values()).filter_map(|element| match &element.data {
                Some(Data::Verdict(verdict)) => Some(verdict),
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

    /// Reports whether chains form a loop or exceed the kernel's limit of nested jumps.
    pub(super) fn has_loop(&self) -> bool {
        let bases = self.chains.values().filter(|chain| chain.chain.base.is_some());
        bases.into_iter().any(|chain| !self.walk(&chain.chain.name, 0, &mut BTreeSet::new()))
    }

    fn walk<'a>(&'a self, name: &'a Name, depth: usize, path: &mut BTreeSet<&'a Name>) -> bool {
        if depth > NFT_JUMP_STACK_SIZE || !path.insert(name) {
            return false;
        }
        let rules = self.chains.get(name).into_iter().flat_map(|chain| &chain.rules);
        let is_valid = rules
            .flat_map(|rule| &rule.statements)
            .flat_map(|statement| self.targets(statement))
            .all(|target| self.walk(target, depth + 1, path));
        path.remove(name);
        is_valid
    }

    /// Returns the chains that a statement can jump or go to.
    fn targets<'a>(&'a self, statement: &'a Statement) -> Vec<&'a Name> {
        let target = |verdict: &'a Verdict| match verdict {
            Verdict::Goto(chain) | Verdict::Jump(chain) => Some(chain),
            Verdict::Accept | Verdict::Drop | Verdict::Return | Verdict::Continue => None,
        };
        match statement {
            Statement::Verdict(verdict) => target(verdict).into_iter().collect(),
            Statement::Vmap { map, .. } => {
                let verdicts = self.elements(map).filter_map(|element| match &element.data {
                    Some(Data::Verdict(verdict)) => Some(verdict),
                    _ => None,
                });
                verdicts.filter_map(target).collect()
            }
            _ => Vec::new(),
        }
    }
}

/// Returns the set or map that a statement refers to.
pub(super) fn set_of(statement: &Statement) -> Option<&Name> {
    match statement {
        Statement::Match(Match::InSet { set, .. }) | Statement::UpdateSet { set, .. } => Some(set),
        Statement::MetaPriorityMap { map, .. }
        | Statement::UpdateMap { map, .. }
        | Statement::DeleteFromMap { map, .. }
        | Statement::DnatMap { map, .. }
        | Statement::Vmap { map, .. } => Some(map),
        _ => None,
    }
}

fn key_of(statement: &Statement) -> Option<&[Field]> {
    match statement {
        Statement::Match(Match::InSet { key, .. })
        | Statement::UpdateSet { key, .. }
        | Statement::Vmap { key, .. }
        | Statement::MetaPriorityMap { key, .. }
        | Statement::UpdateMap { key, .. }
        | Statement::DeleteFromMap { key, .. }
        | Statement::DnatMap { key, .. } => Some(key),
        _ => None,
    }
}

fn has_type(field: Field, data_type: DataType) -> bool {
    IpFamily::BOTH.into_iter().any(|family| field.data_type(family) == data_type)
}

pub(super) fn fit(values: &[Value], types: &[DataType], last_may_be_range: bool) -> bool {
    let one = |(i, (value, data_type)): (usize, (&Value, &DataType))| match (value, data_type) {
        (Value::Address(address), DataType::Ipv4Addr) => address.is_ipv4(),
        (Value::Address(address), DataType::Ipv6Addr) => address.is_ipv6(),
        (Value::Network(net), DataType::Ipv4Addr) => last_may_be_range && i + 1 == types.len() && net.addr().is_ipv4(),
        (Value::Network(net), DataType::Ipv6Addr) => last_may_be_range && i + 1 == types.len() && net.addr().is_ipv6(),
        (Value::Protocol(_), DataType::InetProto)
        | (Value::Port(_), DataType::InetService)
        | (Value::ClassId(_), DataType::ClassId)
        | (Value::Integer(_), DataType::Integer)
        | (Value::IfName(_), DataType::IfName) => true,
        _ => false,
    };
    values.len() == types.len() && values.iter().zip(types).enumerate().all(one)
}

pub(super) fn overlap(a: &Key, b: &Key) -> bool {
    a.iter().zip(b).all(|(a, b)| a.first() <= b.last() && b.first() <= a.last())
}

/// The kernel's limit of nested jumps (`include/net/netfilter/nf_tables.h`).
const NFT_JUMP_STACK_SIZE: usize = 16;
