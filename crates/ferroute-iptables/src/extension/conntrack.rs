use super::*;

/// A set of connection tracking states (`ct state`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct CtStates(u8);

impl CtStates {
    /// The packet cannot be associated with a connection.
    pub const INVALID: Self = Self(1);
    /// The packet starts a connection.
    pub const NEW: Self = Self(1 << 1);
    /// The packet starts a connection expected by another one, or is an ICMP error about it.
    pub const RELATED: Self = Self(1 << 2);
    /// The packet belongs to a connection with packets in both directions.
    pub const ESTABLISHED: Self = Self(1 << 3);
    /// The packet is exempt from connection tracking.
    pub const UNTRACKED: Self = Self(1 << 4);
    /// The connection's source is translated.
    pub const SNAT: Self = Self(1 << 5);
    /// The connection's destination is translated.
    pub const DNAT: Self = Self(1 << 6);

    /// Every state with its name, in `iptables-save`'s order, and its bit in the kernel's module.
    const ALL: [(Self, &str, u16); 7] = [
        (Self::INVALID, "INVALID", 1 << 0),
        (Self::NEW, "NEW", 1 << 3),
        (Self::RELATED, "RELATED", 1 << 2),
        (Self::ESTABLISHED, "ESTABLISHED", 1 << 1),
        (Self::UNTRACKED, "UNTRACKED", 1 << 8),
        (Self::SNAT, "SNAT", 1 << 6),
        (Self::DNAT, "DNAT", 1 << 7),
    ];

    /// The union of both sets.
    pub const fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Reports whether the sets have a state in common.
    pub fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// Parses `NEW,ESTABLISHED`.
    pub fn parse(text: &str) -> Option<Self> {
        text.split(',').try_fold(Self::default(), |states, word| {
            Self::ALL.iter().find(|(_, name, _)| *name == word).map(|(state, ..)| states.or(*state))
        })
    }
}

impl fmt::Display for CtStates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = Self::ALL.iter().filter(|(state, ..)| self.intersects(*state));
        for (n, (_, name, _)) in known.enumerate() {
            f.write_str(if n == 0 { "" } else { "," })?;
            f.write_str(name)?;
        }
        Ok(())
    }
}

/// `-m conntrack`.
pub(super) static CONNTRACK: Entry<Match> = Entry {
    names: &["conntrack"],
    options: &["--ct*"],
    structures: &[("conntrack", 1), ("conntrack", 2), ("conntrack", 3)],
    samples: &[
        "-m conntrack --ctstate INVALID,SNAT,DNAT",
        "-m conntrack ! --ctstate NEW,RELATED,ESTABLISHED,UNTRACKED",
    ],
    parse: |options| options.only("--ctstate")?.sense(CtStates::parse).map(Match::Conntrack),
    print: |module, out| {
        let Match::Conntrack(states) = module else { return Err(fmt::Error) };
        out.write_str(" -m conntrack")?;
        write_sense(out, " --ctstate ", Some(states))
    },
    encode: |module, _, _| {
        let Match::Conntrack(states) = module else { return None };
        Some(encode(states, STATE))
    },
    decode: |structure, _| decode(structure, STATE).map(Match::Conntrack),
};

/// `-m state`, which the kernel stores as `conntrack` with a flag.
pub(super) static STATE_MODULE: Entry<Match> = Entry {
    names: &["state"],
    options: &["--state"],
    structures: &[("conntrack", 1), ("conntrack", 2), ("conntrack", 3)],
    samples: &["-m state --state NEW", "-m state ! --state RELATED,ESTABLISHED"],
    parse: |options| options.only("--state")?.sense(CtStates::parse).map(Match::State),
    print: |module, out| {
        let Match::State(states) = module else { return Err(fmt::Error) };
        out.write_str(" -m state")?;
        write_sense(out, " --state ", Some(states))
    },
    encode: |module, _, _| {
        let Match::State(states) = module else { return None };
        Some(encode(states, STATE | STATE_ALIAS))
    },
    decode: |structure, _| decode(structure, STATE | STATE_ALIAS).map(Match::State),
};

/// `struct xt_conntrack_mtinfo3` with a condition on the state.
fn encode(states: &Sense<CtStates>, flags: u16) -> Structure<'static> {
    let negated = u16::from(states.is_negated()) * STATE;
    let known = CtStates::ALL.iter().filter(|(state, ..)| states.value().intersects(*state));
    let mask = known.fold(0, |mask, (.., bit)| mask | bit);
    Structure::new("conntrack", 3, 168).put_u16(146, flags).put_u16(148, negated).put_u16(150, mask)
}

/// Decodes `struct xt_conntrack_mtinfo1`, whose state is a byte, or a later revision.
fn decode(structure: &Structure<'_>, wanted_flags: u16) -> Option<Sense<CtStates>> {
    let (flags, inverted) = (structure.u16(146)?, structure.u16(148)?);
    let mask = if structure.revision == 1 { structure.u8(150)?.into() } else { structure.u16(150)? };
    (flags == wanted_flags && structure.is_zero_except(|at| (146..154).contains(&at))).then_some(())?;
    let known = CtStates::ALL.iter().filter(|(.., bit)| mask & bit != 0);
    let (states, bits) =
        known.fold((CtStates::default(), 0), |(states, bits), (state, _, bit)| (states.or(*state), bits | bit));
    (bits == mask).then(|| Sense::new(inverted & STATE != 0, states))
}

const STATE: u16 = 1 << 0;
/// Printed as `-m state`.
const STATE_ALIAS: u16 = 1 << 13;
