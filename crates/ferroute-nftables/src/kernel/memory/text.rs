use std::fmt;

use super::{MemorySet, MemoryTable};
use crate::model::{ChainWithRules, Element, TableId, family_name, join};

/// A table that is to be printed as `nft list table` does.
pub(super) struct TableText<'a> {
    pub(super) id: &'a TableId,
    pub(super) table: &'a MemoryTable,
}

impl fmt::Display for TableText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TableId { family, name } = self.id;
        writeln!(f, "table {} {name} {{", family_name(*family))?;
        if let Some(comment) = &self.table.comment {
            writeln!(f, "\t{comment}\n")?;
        }
        for MemorySet { set, elements, .. } in self.table.sets.values() {
            writeln!(f, "\t{} {} {{", set.keyword(), set.name)?;
            set.properties().iter().try_for_each(|property| writeln!(f, "\t\t{property}"))?;
            if !elements.is_empty() {
                let elements: Vec<&Element> = elements.values().collect();
                writeln!(f, "\t\telements = {{ {} }}", join(&elements, ",\n\t\t\t     "))?;
            }
            writeln!(f, "\t}}\n")?;
        }
        for ChainWithRules { chain, rules } in self.table.chains.values() {
            writeln!(f, "\tchain {} {{", chain.name)?;
            chain.properties().iter().try_for_each(|property| writeln!(f, "\t\t{property};"))?;
            rules.iter().try_for_each(|rule| writeln!(f, "\t\t{}", rule.text(*family)))?;
            writeln!(f, "\t}}\n")?;
        }
        writeln!(f, "}}")
    }
}
