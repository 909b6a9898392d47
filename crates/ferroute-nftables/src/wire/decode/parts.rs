//! The attributes of expressions.

use ferroute_netlink::{Attribute, Attributes};

use super::super::{constants::*, layout::Register};
use crate::model::Expression;

/// The attributes of an expression.
pub(super) struct Parts<'a> {
    pub(super) expression: &'a Expression,
    attributes: Vec<Attribute<'a>>,
}

impl<'a> Parts<'a> {
    pub(super) fn read(expression: &'a Expression) -> Option<Self> {
        let attributes = Attributes::new(&expression.data).collect::<Result<_, _>>().ok()?;
        Some(Self { expression, attributes })
    }

    pub(super) fn get(&self, kind: u16) -> Option<&Attribute<'a>> {
        self.attributes.iter().find(|attribute| attribute.kind == kind)
    }

    pub(super) fn u32(&self, kind: u16) -> Option<u32> {
        self.get(kind)?.u32_be().ok()
    }

    pub(super) fn text(&self, kind: u16) -> Option<&'a str> {
        self.get(kind)?.text()
    }

    pub(super) fn register(&self, kind: u16) -> Option<Register> {
        Register::from_number(self.u32(kind)?)
    }
}

/// Returns the bytes of a nested `NFTA_DATA_VALUE`.
pub(super) fn value<'a>(data: &Attribute<'a>) -> Option<&'a [u8]> {
    let attributes = data.nested().collect::<Result<Vec<_>, _>>().ok()?;
    attributes.iter().find(|attribute| attribute.kind == NFTA_DATA_VALUE).map(|attribute| attribute.payload)
}

/// Reports whether a verdict is `continue`, which has no effect.
pub(super) fn is_continue(data: &Attribute<'_>) -> bool {
    let verdict = data.nested().first(NFTA_DATA_VERDICT).ok().flatten();
    let code = verdict.and_then(|verdict| verdict.nested().first(NFTA_VERDICT_CODE).ok().flatten());
    code.and_then(|code| code.u32_be().ok()).is_some_and(|code| code.cast_signed() == libc::NFT_CONTINUE)
}

pub(super) fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().fold("0x".to_owned(), |text, byte| format!("{text}{byte:02x}"))
}
