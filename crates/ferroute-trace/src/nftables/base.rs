use std::borrow::Cow;

use ferroute_nftables::{
    kernel::MemoryTable,
    model::{ChainWithRules, Hook as Of},
};

use crate::Hook;

/// A chain that a hook leads to.
#[derive(Clone, Debug)]
pub(crate) struct Base<'a> {
    pub(crate) table: &'a MemoryTable,
    /// What stories call the table.
    pub(crate) name: Cow<'static, str>,
    pub(crate) chain: &'a ChainWithRules,
    pub(crate) base: ferroute_nftables::model::Base,
}

impl From<Of> for Hook {
    fn from(hook: Of) -> Self {
        match hook {
            Of::Prerouting => Self::Prerouting,
            Of::Input => Self::Input,
            Of::Forward => Self::Forward,
            Of::Output => Self::Output,
            Of::Postrouting => Self::Postrouting,
        }
    }
}
