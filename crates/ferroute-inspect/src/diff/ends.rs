use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
};

use ferroute_trace::{Leaf, Packet, Verdict};

/// What becomes of a packet, as far as it matters to who sends and receives it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum End {
    /// It gets to an address, seen as from another, through an interface (`None`: to the host itself).
    Delivered {
        /// Where it gets.
        to: SocketAddr,
        /// Whom it is from, for who is there.
        from: IpAddr,
        /// The interface.
        through: Option<String>,
    },
    /// No rule had to do with it.
    Untouched,
    /// The sender is told that nobody listens.
    Refused,
    /// It vanishes.
    Dropped,
    /// There is no way to where it should go.
    NoRoute,
    /// The rules do not tell.
    Unknown {
        /// Why not.
        why: String,
    },
}

/// Everything that can become of a packet, each with its share of all cases, 0 to 1.
pub type Ends = BTreeMap<End, f64>;

/// Adds up the verdicts of a walk.
pub fn ends(packet: &Packet, leaves: impl IntoIterator<Item = Leaf>) -> Ends {
    let mut ends = Ends::new();
    for Leaf { verdict, share, assumptions, .. } in leaves {
        let end = match verdict {
            // An assumption makes shares meaningless: both cases have their own.
            _ if !assumptions.is_empty() => {
                End::Unknown { why: format!("it depends on whether {}", assumptions[0].condition) }
            }
            Verdict::Delivered { to, from, .. } if (to, from) == (packet.destination, packet.source.ip()) => {
                End::Untouched
            }
            Verdict::Delivered { to, from, interface: through, .. } => End::Delivered { to, from, through },
            Verdict::Rejected { .. } => End::Refused,
            Verdict::Dropped => End::Dropped,
            Verdict::NoRoute => End::NoRoute,
            Verdict::Unknown { reason } => End::Unknown { why: reason },
        };
        *ends.entry(end).or_default() += share;
    }
    ends
}

/// Whether two walks come to the same ends about as often. Chance has 31 bits in the kernel, and of what is left after
/// many endpoints, rounding takes its part.
pub(super) fn agree(one: &Ends, other: &Ends) -> bool {
    one.keys().eq(other.keys()) && one.values().zip(other.values()).all(|(one, other)| shares_agree(*one, *other))
}

/// Two shares are the same but for rounding.
pub(super) fn shares_agree(one: f64, other: f64) -> bool {
    (one - other).abs() <= ROUNDING * one.max(other)
}

/// What rounding may take of a share, as a part of it. An endpoint more among a thousand takes ten times as much.
const ROUNDING: f64 = 1e-4;
