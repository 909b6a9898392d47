//! The match modules and targets of iptables that [`Rule`](crate::Rule)s can have: one table.
//!
//! Each module below has the types and the `Entry` of an extension. To add one, add its variant to [`Match`] or [`Target`]
//! and its entry to the list below, which does not compile without the other; neither does `ferroute-trace` without the
//! effect on packets. The tests here and in `ferroute-trace` then check all directions with the samples of the entry.

mod addrtype;
mod comment;
mod conntrack;
mod ipvs;
mod mark;
mod multiport;
mod nat;
mod nfacct;
mod options;
mod physdev;
mod recent;
mod reject;
mod set;
mod statistic;
mod structure;
#[cfg(test)]
mod tests;
mod transport;

// Also for the modules of the extensions.
use std::{
    fmt::{self, Write},
    net::{IpAddr, SocketAddr},
};

use ferroute_core::{IpFamily, Protocol};

pub use addrtype::AddressType;
pub use conntrack::CtStates;
pub use ipvs::VirtualServerMatch;
pub use mark::MarkMatch;
pub use multiport::{PortList, PortSide};
pub(crate) use options::{Opt, Options};
pub use recent::{Recent, RecentAction};
pub use reject::RejectWith;
pub(crate) use set::set_number;
pub use set::{SetMatch, SetSide};
pub use statistic::Probability;
pub(crate) use structure::{Bytes, Structure};
pub use transport::PortRange;

use structure::all_ones;

use crate::{
    Match, Sense, Target, address_text,
    native::SetNumbers,
    text::{write_quoted, write_sense},
};

/// A match module or target of iptables: a variant of `Part`, which is [`Match`] or [`Target`].
pub(crate) struct Entry<Part> {
    /// The names in text.
    names: &'static [&'static str],
    /// Options of a match module, including unsupported ones: `--syn`; `--ct*` for all with this prefix; `--name TEXT`
    /// if there is one argument, which may look like an option. Empty for a target, to which all options after it
    /// belong.
    options: &'static [&'static str],
    /// Names and revisions of the kernel's structures that can be decoded. Empty if the extension is supported as text
    /// only.
    structures: &'static [(&'static str, u32)],
    /// Examples as `iptables-save` prints them, which together contain every name, supported option and negation.
    samples: &'static [&'static str],
    /// Parses the options; `None` if one is unsupported.
    parse: fn(&Options<'_>) -> Option<Part>,
    /// Writes the text, preceded by a blank. Another variant is an error, as in `encode`.
    print: fn(&Part, &mut dyn Write) -> fmt::Result,
    /// Returns the structure in rules of a family; `None` if this value has none.
    encode: fn(&Part, IpFamily, &SetNumbers) -> Option<Structure<'static>>,
    /// Returns the value of one of the structures; `None` if it has unsupported options.
    decode: fn(&Structure<'_>, IpFamily) -> Option<Part>,
}

impl<Part> Entry<Part> {
    /// Parses the options; `None` if one is unsupported.
    pub(crate) fn parse(&self, options: &Options<'_>) -> Option<Part> {
        (self.parse)(options)
    }

    /// Reports whether the module has an option.
    pub(crate) fn has_option(&self, option: &str) -> bool {
        self.takes_text(option)
            || self.options.iter().any(|known| match known.strip_suffix('*') {
                Some(prefix) => option.starts_with(prefix),
                None => *known == option,
            })
    }

    /// Reports whether the module has an option with one argument, which may look like an option.
    pub(crate) fn takes_text(&self, option: &str) -> bool {
        self.options.iter().any(|known| known.strip_suffix(" TEXT") == Some(option))
    }
}

/// Defines the table of the extensions that are variants of a type, and the methods of that type for them.
macro_rules! extensions {
    ($table:ident of $part:ty: $others:pat => None, $($variant:pat => $entry:path,)*) => {
        static $table: &[&Entry<$part>] = &[$(&$entry),*];

        impl $part {
            /// Returns the extension with a name in text.
            pub(crate) fn named(name: &str) -> Option<&'static Entry<Self>> {
                $table.iter().copied().find(|entry| entry.names.contains(&name))
            }

            /// Returns the samples of all extensions as `iptables-save` prints them.
            pub fn samples() -> impl Iterator<Item = &'static str> {
                $table.iter().flat_map(|entry| entry.samples).copied()
            }

            /// Returns the extension; `None` for other variants.
            fn entry(&self) -> Option<&'static Entry<Self>> {
                match self {
                    $($variant => Some(&$entry),)*
                    $others => None,
                }
            }

            /// Writes the text of an extension, preceded by a blank.
            pub(crate) fn print(&self, out: &mut dyn Write) -> fmt::Result {
                self.entry().map_or(Err(fmt::Error), |entry| (entry.print)(self, out))
            }

            /// Returns the structure of an extension; `None` if it is unsupported, or has an ipset whose number is unknown.
            pub(crate) fn encode(&self, family: IpFamily, sets: &SetNumbers) -> Option<Structure<'static>> {
                (self.entry()?.encode)(self, family, sets)
            }

            /// Decodes a structure; `None` if it or one of its options is unsupported.
            pub(crate) fn decode(structure: &Structure<'_>, family: IpFamily) -> Option<Self> {
                let wanted = (&*structure.name, structure.revision);
                let named = $table.iter().filter(|entry| entry.structures.contains(&wanted));
                named.map(|entry| (entry.decode)(structure, family)).find(Option::is_some)?
            }
        }
    };
}

extensions! {
    MATCHES of Match:
    Self::Other(_) => None,
    Self::Comment(_) => comment::COMMENT,
    Self::Transport { .. } => transport::TRANSPORT,
    Self::Multiport { .. } => multiport::MULTIPORT,
    Self::Conntrack(_) => conntrack::CONNTRACK,
    Self::State(_) => conntrack::STATE_MODULE,
    Self::Mark(_) => mark::MARK,
    Self::AddrType { .. } => addrtype::ADDRTYPE,
    Self::Statistic(_) => statistic::STATISTIC,
    Self::Recent(_) => recent::RECENT,
    Self::Nfacct(_) => nfacct::NFACCT,
    Self::Set(_) => set::SET,
    Self::PhysdevIsIn(_) => physdev::PHYSDEV,
    Self::Ipvs(_) => ipvs::IPVS,
}

extensions! {
    TARGETS of Target:
    Self::Jump(_) | Self::Goto(_) | Self::Accept | Self::Drop | Self::Return | Self::Other(_) => None,
    Self::Reject(_) => reject::REJECT,
    Self::Mark { .. } => mark::SET_MARK,
    Self::Masquerade { .. } => nat::MASQUERADE,
    Self::Snat { .. } => nat::SNAT,
    Self::Dnat { .. } => nat::DNAT,
}
