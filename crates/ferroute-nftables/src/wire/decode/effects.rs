//! Expressions that change something.

use std::{net::IpAddr, time::Duration};

use super::{
    super::constants::expr::{
        DYNSET_ADD, DYNSET_DELETE, DYNSET_UPDATE, ICMP_PORT_UNREACHABLE, ICMPV6_PORT_UNREACHABLE, META_MARK,
        META_PRIORITY, NAT_DESTINATION, NAT_FULLY_RANDOM, NAT_SOURCE, REJECT_ICMPX, REJECT_TCP_RESET,
        REJECT_UNREACHABLE,
    },
    Decoder, Parts,
    held::Held,
};
use crate::model::{Class, DataType, Field, Holds, Name, Outcome, RejectWith, Statement, Value};

impl Decoder<'_, '_> {
    /// Sets the priority, the mark or something else.
    pub(super) fn set_meta(&mut self, parts: &Parts<'_>) -> Option<()> {
        let held = self.registers.at(parts.register(3)?);
        let statement = match (parts.u32(2)?, &held) {
            (META_PRIORITY, Held::Found { key, map, offset: 0 }) => {
                Some(Statement::PriorityFromMap { key: key.clone(), map: map.clone() })
            }
            (META_PRIORITY, Held::Field(Field::Random { count, first })) => {
                Some(Statement::PriorityAtRandom { count: *count, first: Class(*first) })
            }
            (META_PRIORITY, Held::Constant(bytes)) if bytes.iter().all(|byte| *byte == 0) => {
                Some(Statement::ClearPriority)
            }
            (META_MARK, Held::Bits { field: Field::Mark, keep, flip }) => Some(match (*keep, *flip) {
                (u32::MAX, bits) => Statement::FlipMark(bits),
                (keep, bits) if keep == !bits => Statement::SetMark(bits),
                (keep, flip) => Statement::ChangeMark { keep, flip },
            }),
            (META_MARK, Held::Constant(bytes)) => {
                let flip = u32::from_ne_bytes(bytes.as_slice().try_into().ok()?);
                Some(Statement::ChangeMark { keep: 0, flip })
            }
            _ => None,
        };
        match statement {
            Some(statement) => self.push(statement),
            None => {
                let outcome = match (parts.u32(2)?, &held) {
                    (META_MARK, _) => Outcome::Anything,
                    // A map may have no value for the packet.
                    (_, Held::Found { .. }) => Outcome::Condition,
                    _ => Outcome::Nothing,
                };
                self.opaque("meta set".to_owned(), outcome);
            }
        }
        Some(())
    }

    /// Adds, prolongs or removes an element.
    pub(super) fn dynset(&mut self, parts: &Parts<'_>) -> Option<()> {
        let name = Name::from(parts.text(1)?);
        let operation = parts.u32(3)?;
        let key = (self.set)(&name).and_then(|set| Some((set, self.key(parts.register(4)?, set)?)));
        let statement = key.and_then(|(set, key)| {
            let datum = parts.register(5).map(|register| self.registers.at(register));
            // Elements with expressions of their own, such as a limit, can also be conditions.
            let has_conditions = [EXPRESSION, EXPRESSIONS].iter().any(|kind| parts.get(*kind).is_some());
            // The kernel lists none as 0.
            let timeout = parts.get(TIMEOUT).and_then(|timeout| timeout.u64_be().ok()).filter(|timeout| *timeout > 0);
            match (operation, datum, timeout) {
                _ if has_conditions => None,
                (DYNSET_UPDATE, Some(Held::Field(Field::Priority)), Some(timeout)) => {
                    Some(Statement::Learn { key, map: name.clone(), timeout: Duration::from_millis(timeout) })
                }
                (DYNSET_DELETE, Some(Held::Field(Field::Priority)), None) => {
                    Some(Statement::Forget { key, map: name.clone() })
                }
                (DYNSET_ADD | DYNSET_UPDATE, None, _) if set.holds == Holds::Nothing => {
                    Some(Statement::Note { key, set: name.clone() })
                }
                _ => None,
            }
        });
        match statement {
            Some(statement) => self.push(statement),
            None => self.opaque(format!("element of @{name}"), Outcome::Condition),
        }
        Some(())
    }

    /// Gives the connection another source or destination.
    pub(super) fn nat(&mut self, parts: &Parts<'_>) -> Option<()> {
        let (kind, from) = (parts.u32(1)?, parts.register(3)?);
        let is_range = |first, last| parts.u32(last).is_some_and(|last| parts.u32(first) != Some(last));
        let address = self.registers.at(from);
        let port = parts.register(5).map(|register| self.registers.at(register));
        let statement = match (kind, &address, &port) {
            _ if is_range(3, 4) || is_range(5, 6) => None,
            (NAT_DESTINATION, Held::Found { key, map, offset: 0 }, port) => {
                let behind = DataType::address(self.family).length();
                let fits = match port {
                    None => true,
                    Some(port) => *port == Held::Found { key: key.clone(), map: map.clone(), offset: behind },
                };
                fits.then(|| Statement::Translate { key: key.clone(), map: map.clone() })
            }
            (NAT_DESTINATION, Held::Constant(bytes), None) => {
                Some(Statement::TranslateTo { address: self.address(bytes)?, port: None })
            }
            (NAT_DESTINATION, Held::Constant(bytes), Some(Held::Constant(port))) => {
                let port = Some(u16::from_be_bytes(port.as_slice().try_into().ok()?));
                Some(Statement::TranslateTo { address: self.address(bytes)?, port })
            }
            (NAT_SOURCE, Held::Constant(bytes), None) => Some(Statement::SourceFrom(self.address(bytes)?)),
            _ => None,
        };
        let what = if kind == NAT_DESTINATION { "dnat" } else { "snat" };
        match statement {
            Some(statement) => self.push(statement),
            None => self.opaque(what.to_owned(), Outcome::Anything),
        }
        Some(())
    }

    /// Other flags say which ports are chosen, which nobody here asks.
    pub(super) fn masquerade(&mut self, parts: &Parts<'_>) {
        let fully_random = parts.u32(1).is_some_and(|flags| flags & NAT_FULLY_RANDOM != 0);
        self.push(Statement::Masquerade { fully_random });
    }

    /// Tells the sender that the packet is refused.
    pub(super) fn reject(&mut self, parts: &Parts<'_>) -> Option<()> {
        let usual = match self.family {
            ferroute_core::IpFamily::V4 => ICMP_PORT_UNREACHABLE,
            ferroute_core::IpFamily::V6 => ICMPV6_PORT_UNREACHABLE,
        };
        let code = parts.get(2).map_or(Some(0), |code| code.u8().ok())?;
        self.push(Statement::Reject(match parts.u32(1)? {
            REJECT_UNREACHABLE if code == usual => RejectWith::PortUnreachable,
            REJECT_UNREACHABLE => RejectWith::Icmp(code),
            REJECT_TCP_RESET => RejectWith::TcpReset,
            REJECT_ICMPX => RejectWith::Icmpx(code),
            _ => return None,
        }));
        Some(())
    }

    fn address(&self, bytes: &[u8]) -> Option<IpAddr> {
        match self.field_value(Field::Source, bytes)? {
            Value::Address(address) => Some(address),
            _ => None,
        }
    }
}

/// `NFTA_DYNSET_*`.
const TIMEOUT: u16 = 6;
const EXPRESSION: u16 = 7;
const EXPRESSIONS: u16 = 10;
