use ferroute_core::IpFamily;
use ferroute_netlink::{Attribute, Attributes, Batch, Malformed, Messages, nfnetlink};

use super::{constants::*, object::Objects, userdata};
use crate::model::{Comment, Expression, Name, Rule, TableId};

/// A rule as the kernel lists it, without expressions that have no effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EncodedRule {
    expressions: Vec<Expression>,
    comment: Option<Comment>,
}

impl EncodedRule {
    /// Parses the attributes of a rule.
    pub(super) fn parse(attributes: Attributes<'_>) -> Result<Self, Malformed> {
        let (mut expressions, mut comment) = (Vec::new(), None);
        for attribute in attributes {
            let attribute = attribute?;
            match attribute.kind {
                NFTA_RULE_EXPRESSIONS => {
                    expressions =
                        attribute.nested().map(|entry| Self::parse_expression(&entry?)).collect::<Result<_, _>>()?;
                    expressions.retain(|expression| !is_noop(expression));
                }
                NFTA_RULE_USERDATA => comment = userdata::read_comment(attribute.payload),
                _ => {}
            }
        }
        Ok(Self { expressions, comment })
    }

    /// Reports whether the kernel's listing of `rule` would equal this one. The kernel adds attributes to those that
    /// were sent.
    pub(crate) fn matches(&self, rule: &Rule, family: IpFamily) -> bool {
        let Some(expected) = Self::from_rule(rule, family) else { return false };
        self.comment == expected.comment
            && self.expressions.len() == expected.expressions.len()
            && self
                .expressions
                .iter()
                .zip(&expected.expressions)
                .all(|(listed, expected)| listed.name == expected.name && covers(&listed.data, &expected.data))
    }
}

impl EncodedRule {
    /// Returns the expressions, in order.
    pub(super) fn expressions(&self) -> &[Expression] {
        &self.expressions
    }

    /// Returns the comment.
    pub(super) fn comment(&self) -> Option<&Comment> {
        self.comment.as_ref()
    }

    /// Returns the rule as it is sent; `None` if it exceeds the length of a message.
    pub(super) fn from_rule(rule: &Rule, family: IpFamily) -> Option<Self> {
        let mut batch = Batch::new();
        let id = TableId { family, name: Name::fixed("") };
        Objects { batch: &mut batch, id: &id }.add_rule(&Name::fixed(""), rule);
        let message = Messages::new(batch.as_bytes().ok()?).next()?.ok()?;
        let (_, attributes) = message.split_header::<{ nfnetlink::HEADER_LENGTH }>().ok()?;
        Self::parse(attributes).ok()
    }
}

impl EncodedRule {
    /// Parses an expression of a rule, a set or an element.
    pub(super) fn parse_expression(entry: &Attribute<'_>) -> Result<Expression, Malformed> {
        let (mut name, mut data) = (String::new(), Vec::new());
        for attribute in entry.nested() {
            let attribute = attribute?;
            match attribute.kind {
                NFTA_EXPR_NAME => name = attribute.escaped_text().into_owned(),
                NFTA_EXPR_DATA => data = attribute.payload.to_vec(),
                _ => {}
            }
        }
        Ok(Expression { name, data })
    }
}

/// Reports whether the expression has no effect: an in-place byte order conversion of a value that is shorter than the
/// words to convert.
///
/// `nft` writes such expressions where a key of an interval set has a field of one byte, such as a protocol.
fn is_noop(expression: &Expression) -> bool {
    if expression.name != "byteorder" {
        return false;
    }
    let number = |kind| {
        let attribute = Attributes::new(&expression.data).flatten().find(|attribute| attribute.kind == kind)?;
        attribute.u32_be().ok()
    };
    let is_in_place = number(NFTA_BYTEORDER_SREG).is_some_and(|from| number(NFTA_BYTEORDER_DREG) == Some(from));
    let is_shorter =
        number(NFTA_BYTEORDER_LEN).zip(number(NFTA_BYTEORDER_SIZE)).is_some_and(|(length, size)| length < size);
    is_in_place && is_shorter
}

/// Reports whether `listed` contains all attributes of `sent` with the same content, at any depth.
fn covers(listed: &[u8], sent: &[u8]) -> bool {
    if listed == sent {
        return true;
    }
    let Ok(sent) = Attributes::new(sent).collect::<Result<Vec<_>, _>>() else { return false };
    let Ok(listed) = Attributes::new(listed).collect::<Result<Vec<_>, _>>() else { return false };
    !sent.is_empty()
        && sent
            .iter()
            .all(|sent| listed.iter().any(|listed| listed.kind == sent.kind && covers(listed.payload, sent.payload)))
}
