use super::*;

/// A match on the bits of a packet's mark that `mask` selects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MarkMatch {
    /// The expected bits.
    pub value: u32,
    /// The compared bits.
    pub mask: u32,
}

impl MarkMatch {
    /// Matches if all bits of `mark` are set.
    pub fn has(mark: u32) -> Self {
        Self { value: mark, mask: mark }
    }

    /// Reports whether `mark` matches.
    pub fn matches(self, mark: u32) -> bool {
        mark & self.mask == self.value
    }

    fn parse(text: &str) -> Option<Self> {
        masked_number(text).map(|(value, mask)| Self { value, mask })
    }
}

impl fmt::Display for MarkMatch {
    /// Writes `0x4000/0x4000`; a mask with all bits is omitted.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.value)?;
        if self.mask == u32::MAX { Ok(()) } else { write!(f, "/{:#x}", self.mask) }
    }
}

/// `-m mark`.
pub(super) static MARK: Entry<Match> = Entry {
    names: &["mark"],
    options: &["--mark"],
    structures: &[("mark", 1)],
    samples: &["-m mark --mark 0x1", "-m mark ! --mark 0x4000/0x4000"],
    parse: |options| options.only("--mark")?.sense(MarkMatch::parse).map(Match::Mark),
    print: |module, out| {
        let Match::Mark(mark) = module else { return Err(fmt::Error) };
        out.write_str(" -m mark")?;
        write_sense(out, " --mark ", Some(mark))
    },
    encode: |module, _, _| {
        let Match::Mark(mark) = module else { return None };
        let MarkMatch { value, mask } = *mark.value();
        Some(Structure::new("mark", 1, 16).put_u32(0, value).put_u32(4, mask).put_u8(8, mark.is_negated().into()))
    },
    decode: |structure, _| {
        let mark = MarkMatch { value: structure.u32(0)?, mask: structure.u32(4)? };
        Some(Match::Mark(Sense::new(structure.u8(8)? != 0, mark)))
    },
};

/// `-j MARK`.
pub(super) static SET_MARK: Entry<Target> = Entry {
    names: &["MARK"],
    options: &[],
    structures: &[("MARK", 2)],
    samples: &["-j MARK --set-xmark 0x4000/0x4000", "-j MARK --set-xmark 0x4000/0x0"],
    parse: |options| {
        let [mark] = options.list else { return None };
        let text = mark.plain_arg()?;
        match mark.name {
            "--set-xmark" => masked_number(text).map(|(value, mask)| Target::Mark { value, mask }),
            "--set-mark" => masked_number(text).map(|(value, mask)| Target::Mark { value, mask: mask | value }),
            "--or-mark" => number(text).map(Target::or_mark),
            "--xor-mark" => number(text).map(Target::xor_mark),
            "--and-mark" => number(text).map(Target::and_mark),
            _ => None,
        }
    },
    print: |target, out| {
        let Target::Mark { value, mask } = target else { return Err(fmt::Error) };
        write!(out, " -j MARK --set-xmark {value:#x}/{mask:#x}")
    },
    encode: |target, _, _| {
        let Target::Mark { value, mask } = *target else { return None };
        Some(Structure::new("MARK", 2, 8).put_u32(0, value).put_u32(4, mask))
    },
    decode: |structure, _| Some(Target::Mark { value: structure.u32(0)?, mask: structure.u32(4)? }),
};

/// Parses `VALUE` or `VALUE/MASK`; the default mask has all bits.
fn masked_number(text: &str) -> Option<(u32, u32)> {
    match text.split_once('/') {
        None => Some((number(text)?, u32::MAX)),
        Some((value, mask)) => Some((number(value)?, number(mask)?)),
    }
}

/// Parses a number as C does: `0x…` is hexadecimal, `0…` octal.
fn number(text: &str) -> Option<u32> {
    if let Some(hex) = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        u32::from_str_radix(hex, 16).ok()
    } else if let Some(octal) = text.strip_prefix('0').filter(|rest| !rest.is_empty()) {
        u32::from_str_radix(octal, 8).ok()
    } else {
        text.parse().ok()
    }
}
