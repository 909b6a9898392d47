use ferroute_core::IpFamily;
use ferroute_netlink::{Attribute, Attributes, Batch, Malformed, Messages, nfnetlink};

use super::{
    constants::{byteorder, rule},
    object::Objects,
    userdata,
};
use crate::model::{Comment, Expression, Name, Rule, TableId};

/// A rule as the kernel lists it, without expressions that do nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EncodedRule {
    expressions: Vec<Expression>,
    comment: Option<Comment>,
}

impl EncodedRule {
    /// Reads the attributes of a rule.
    pub(super) fn parse(attributes: Attributes<'_>) -> Result<Self, Malformed> {
        let (mut expressions, mut comment) = (Vec::new(), None);
        for attribute in attributes {
            let attribute = attribute?;
            match attribute.kind {
                rule::EXPRESSIONS => {
                    expressions =
                        attribute.nested().map(|entry| Self::parse_expression(&entry?)).collect::<Result<_, _>>()?;
                    expressions.retain(|expression| !does_nothing(expression));
                }
                rule::USERDATA => comment = userdata::read_comment(attribute.payload),
                _ => {}
            }
        }
        Ok(Self { expressions, comment })
    }

    /// Whether the kernel would list `rule` like this. It adds attributes of its own to those that it was given.
    pub(crate) fn is(&self, rule: &Rule, family: IpFamily) -> bool {
        let Some(wanted) = Self::of(rule, family) else { return false };
        self.comment == wanted.comment
            && self.expressions.len() == wanted.expressions.len()
            && self
                .expressions
                .iter()
                .zip(&wanted.expressions)
                .all(|(listed, wanted)| listed.name == wanted.name && covers(&listed.data, &wanted.data))
    }
}

impl EncodedRule {
    /// Its expressions, in order.
    pub(super) fn expressions(&self) -> &[Expression] {
        &self.expressions
    }

    /// Its comment.
    pub(super) fn comment(&self) -> Option<&Comment> {
        self.comment.as_ref()
    }

    /// The rule as it is sent; `None` if it is too long for that.
    pub(super) fn of(rule: &Rule, family: IpFamily) -> Option<Self> {
        let mut batch = Batch::new();
        let id = TableId { family, name: Name::fixed("") };
        Objects { batch: &mut batch, id: &id }.add_rule(&Name::fixed(""), rule);
        let message = Messages::new(batch.as_bytes().ok()?).next()?.ok()?;
        let (_, attributes) = message.split_header::<{ nfnetlink::HEADER_LENGTH }>().ok()?;
        Self::parse(attributes).ok()
    }
}

impl EncodedRule {
    fn parse_expression(entry: &Attribute<'_>) -> Result<Expression, Malformed> {
        let (mut name, mut data) = (String::new(), Vec::new());
        for attribute in entry.nested() {
            let attribute = attribute?;
            match attribute.kind {
                rule::EXPRESSION_NAME => name = attribute.str()?.to_owned(),
                rule::EXPRESSION_DATA => data = attribute.payload.to_vec(),
                _ => {}
            }
        }
        Ok(Expression { name, data })
    }
}

/// Whether it turns the bytes of something around in its place that is shorter than the words that are turned.
///
/// `nft` writes such expressions where a key of a set with ranges has a field of one byte, such as a protocol. Those who
/// write rules without `nft` have no reason to.
fn does_nothing(expression: &Expression) -> bool {
    if expression.name != "byteorder" {
        return false;
    }
    let number = |kind| {
        let attribute = Attributes::new(&expression.data).flatten().find(|attribute| attribute.kind == kind)?;
        attribute.u32_be().ok()
    };
    let in_place = number(byteorder::SOURCE).is_some_and(|from| number(byteorder::DESTINATION) == Some(from));
    let is_shorter = number(byteorder::LENGTH).zip(number(byteorder::SIZE)).is_some_and(|(length, size)| length < size);
    in_place && is_shorter
}

/// Whether all attributes that were given are listed with the same content, at any depth.
fn covers(listed: &[u8], given: &[u8]) -> bool {
    if listed == given {
        return true;
    }
    let Ok(given) = Attributes::new(given).collect::<Result<Vec<_>, _>>() else { return false };
    let Ok(listed) = Attributes::new(listed).collect::<Result<Vec<_>, _>>() else { return false };
    !given.is_empty()
        && given
            .iter()
            .all(|given| listed.iter().any(|listed| listed.kind == given.kind && covers(listed.payload, given.payload)))
}
