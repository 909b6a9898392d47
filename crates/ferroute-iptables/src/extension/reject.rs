use super::*;

/// The error that `REJECT` sends (`--reject-with`).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum RejectWith {
    /// ICMP port unreachable; the default for IPv4.
    IcmpPortUnreachable,
    /// ICMPv6 port unreachable; the default for IPv6.
    Icmp6PortUnreachable,
    /// A TCP reset.
    TcpReset,
    /// Another ICMP message, by its name in `iptables`.
    Other(Box<str>),
}

impl RejectWith {
    /// Returns the error for a port without a listener, which is the default.
    pub fn port_unreachable(family: IpFamily) -> Self {
        match family {
            IpFamily::V4 => Self::IcmpPortUnreachable,
            IpFamily::V6 => Self::Icmp6PortUnreachable,
        }
    }

    /// The name in `iptables`.
    pub fn as_str(&self) -> &str {
        match self {
            Self::IcmpPortUnreachable => "icmp-port-unreachable",
            Self::Icmp6PortUnreachable => "icmp6-port-unreachable",
            Self::TcpReset => "tcp-reset",
            Self::Other(name) => name,
        }
    }

    /// Parses a name in `iptables`; any word is accepted.
    pub fn from_word(word: &str) -> Self {
        [Self::IcmpPortUnreachable, Self::Icmp6PortUnreachable, Self::TcpReset]
            .into_iter()
            .find(|with| with.as_str() == word)
            .unwrap_or_else(|| Self::Other(word.into()))
    }
}

/// `-j REJECT`.
pub(super) static REJECT: Entry<Target> = Entry {
    names: &["REJECT"],
    options: &[],
    structures: &[("REJECT", 0)],
    samples: &[
        "-j REJECT --reject-with icmp-port-unreachable",
        "-j REJECT --reject-with icmp6-port-unreachable",
        "-j REJECT --reject-with icmp-admin-prohibited",
        "-j REJECT --reject-with tcp-reset",
    ],
    parse: |options| {
        Some(Target::Reject(match options.list {
            [] => RejectWith::port_unreachable(options.family),
            _ => RejectWith::from_word(options.only("--reject-with")?.plain_arg()?),
        }))
    },
    print: |target, out| {
        let Target::Reject(with) = target else { return Err(fmt::Error) };
        write!(out, " -j REJECT --reject-with {}", with.as_str())
    },
    encode: |target, family, _| {
        let Target::Reject(with) = target else { return None };
        let (number, _) = reject_words(family).iter().find(|(_, word)| *word == with.as_str())?;
        Some(Structure::new("REJECT", 0, 8).put_u32(0, *number))
    },
    decode: |structure, family| {
        let number = structure.u32(0)?;
        let (_, word) = reject_words(family).iter().find(|(code, _)| *code == number)?;
        Some(Target::Reject(RejectWith::from_word(word)))
    },
};

/// The numbers of `enum ipt_reject_with` and `ip6t_reject_with`.
fn reject_words(family: IpFamily) -> &'static [(u32, &'static str)] {
    match family {
        IpFamily::V4 => &[
            (0, "icmp-net-unreachable"),
            (1, "icmp-host-unreachable"),
            (2, "icmp-proto-unreachable"),
            (3, "icmp-port-unreachable"),
            (5, "icmp-net-prohibited"),
            (6, "icmp-host-prohibited"),
            (7, "tcp-reset"),
            (8, "icmp-admin-prohibited"),
        ],
        IpFamily::V6 => &[
            (0, "icmp6-no-route"),
            (1, "icmp6-adm-prohibited"),
            (3, "icmp6-addr-unreachable"),
            (4, "icmp6-port-unreachable"),
            (6, "tcp-reset"),
            (7, "icmp6-policy-fail"),
            (8, "icmp6-reject-route"),
        ],
    }
}
