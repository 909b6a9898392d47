use super::*;

/// The operation of [`Match::Recent`] on its list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RecentAction {
    /// Adds the address to the list; matches every packet.
    Set,
    /// Matches addresses in the list.
    Check,
}

/// The `recent` module on source addresses, as far as kube-proxy uses it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Recent {
    /// The operation.
    pub action: RecentAction,
    /// Ignores entries older than this many seconds.
    pub seconds: Option<u32>,
    /// Deletes older entries.
    pub reap: bool,
    /// The name of the list.
    pub name: Box<str>,
    /// The compared bits of the address.
    pub mask: IpAddr,
}

/// `-m recent`.
pub(super) static RECENT: Entry<Match> = Entry {
    names: &["recent"],
    options: &[
        "--set",
        "--rcheck",
        "--update",
        "--remove",
        "--seconds",
        "--reap",
        "--hitcount",
        "--rttl",
        "--name TEXT",
        "--mask",
        "--rsource",
        "--rdest",
    ],
    structures: &[("recent", 0), ("recent", 1)],
    samples: &[
        "-m recent --set --name X --mask 255.255.255.255 --rsource",
        "-m recent --rcheck --seconds 10 --reap --name X --mask ffff:ffff:ffff:ffff:: --rsource",
    ],
    parse: |options| {
        let (mut action, mut seconds, mut reap, mut name) = (None, None, false, "DEFAULT");
        let mut mask = all_ones(options.family);
        for option in options.list {
            match option.name {
                "--set" if option.is_flag() && action.is_none() => action = Some(RecentAction::Set),
                "--rcheck" if option.is_flag() && action.is_none() => action = Some(RecentAction::Check),
                "--seconds" => seconds = Some(option.plain_arg()?.parse().ok()?),
                "--reap" if option.is_flag() => reap = true,
                "--name" => name = option.plain_arg()?,
                "--mask" => mask = option.plain_arg()?.parse().ok()?,
                "--rsource" if option.is_flag() => {}
                _ => return None,
            }
        }
        Some(Match::Recent(Recent { action: action?, seconds, reap, name: name.into(), mask }))
    },
    print: |module, out| {
        let Match::Recent(Recent { action, seconds, reap, name, mask }) = module else { return Err(fmt::Error) };
        out.write_str(match action {
            RecentAction::Set => " -m recent --set",
            RecentAction::Check => " -m recent --rcheck",
        })?;
        if let Some(seconds) = seconds {
            write!(out, " --seconds {seconds}")?;
        }
        out.write_str(if *reap { " --reap" } else { "" })?;
        write!(out, " --name {name} --mask {mask} --rsource")
    },
    encode: |module, family, _| {
        let Match::Recent(Recent { action, seconds, reap, name, mask }) = module else { return None };
        (name.len() < MAX_NAME && IpFamily::of(*mask) == family).then_some(())?;
        let action = match action {
            RecentAction::Check => CHECK,
            RecentAction::Set => SET,
        };
        let checks = action | if *reap { REAP } else { 0 };
        let new = Structure::new("recent", 1, 232).put_u32(0, seconds.unwrap_or(0)).put_u8(8, checks);
        Some(new.put(10, name.as_bytes()).put_address(212, *mask))
    },
    // `struct xt_recent_mtinfo` and `xt_recent_mtinfo_v1`, which adds a mask.
    decode: |structure, family| {
        let (seconds, hits, checks) = (structure.u32(0)?, structure.u32(4)?, structure.u8(8)?);
        let (inverted, by_destination) = (structure.u8(9)?, structure.u8(210)?);
        let action = match checks & !REAP {
            CHECK => RecentAction::Check,
            SET => RecentAction::Set,
            _ => return None,
        };
        (hits == 0 && inverted == 0 && by_destination == 0).then_some(())?;
        Some(Match::Recent(Recent {
            action,
            seconds: (seconds > 0).then_some(seconds),
            reap: checks & REAP != 0,
            name: structure.text(10, MAX_NAME)?.into(),
            mask: if structure.revision == 0 { all_ones(family) } else { structure.address(family, 212)? },
        }))
    },
};

/// `XT_RECENT_NAME_LEN`.
const MAX_NAME: usize = 200;
const CHECK: u8 = 1 << 0;
const SET: u8 = 1 << 1;
const REAP: u8 = 1 << 5;
