use super::*;

/// A match on the members of an ipset.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SetMatch {
    /// The name of the set.
    pub name: Box<str>,
    /// The sides of the packet that each dimension of the set's members is compared with.
    pub sides: Box<[SetSide]>,
}

/// The side of a packet that one dimension of an ipset's members is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SetSide {
    /// The source address or port (`src`).
    Source,
    /// The destination address or port (`dst`).
    Destination,
}

impl SetMatch {
    /// Parses the arguments of `--match-set`: the name, and sides such as `dst,dst,src`.
    fn parse(name: &str, sides: &str) -> Option<Self> {
        let sides = sides.split(',').map(|side| match side {
            "src" => Some(SetSide::Source),
            "dst" => Some(SetSide::Destination),
            _ => None,
        });
        Some(Self { name: name.into(), sides: sides.collect::<Option<_>>()? })
    }
}

impl fmt::Display for SetMatch {
    /// `KUBE-CLUSTER-IP dst,dst`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        for (n, side) in self.sides.iter().enumerate() {
            f.write_str(if n == 0 { " " } else { "," })?;
            f.write_str(match side {
                SetSide::Source => "src",
                SetSide::Destination => "dst",
            })?;
        }
        Ok(())
    }
}

/// `-m set`. The kernel has the number of the set: [`set_number`] returns it, and the decoded match lacks the name.
pub(super) static SET: Entry<Match> = Entry {
    names: &["set"],
    options: &["--match-set"],
    // Later revisions add options, which are zero without them.
    structures: &[("set", 1), ("set", 2), ("set", 3), ("set", 4)],
    samples: &["-m set --match-set 7 dst", "-m set ! --match-set 7 src,dst,src"],
    parse: |options| {
        let set = options.only("--match-set")?;
        let [name, sides] = set.args else { return None };
        Some(Match::Set(Sense::new(set.negated, SetMatch::parse(name.plain()?, sides.plain()?)?)))
    },
    print: |module, out| {
        let Match::Set(set) = module else { return Err(fmt::Error) };
        out.write_str(" -m set")?;
        write_sense(out, " --match-set ", Some(set))
    },
    // `struct xt_set_info_match_v4`: the number of the set, its dimensions, and a bit for each dimension that is a
    // source.
    encode: |module, _, sets| {
        let Match::Set(set) = module else { return None };
        let SetMatch { name, sides } = set.value();
        let dimensions = u8::try_from(sides.len()).ok().filter(|dimensions| *dimensions <= MAX_DIMENSIONS)?;
        let inverted = if set.is_negated() { INVERTED } else { 0 };
        let flags = (1..).zip(sides).fold(inverted, |flags, (n, side)| match side {
            SetSide::Source => flags | 1 << n,
            SetSide::Destination => flags,
        });
        Some(Structure::new("set", 4, 48).put_u16(0, sets.number(name)?).put_u8(2, dimensions).put_u8(3, flags))
    },
    decode: |structure, _| {
        let (dimensions, flags) = (structure.u8(2)?, structure.u8(3)?);
        let is_valid = dimensions <= MAX_DIMENSIONS && u32::from(flags) < 2 << dimensions;
        (is_valid && structure.is_zero_except(|at| at < 4)).then_some(())?;
        let side = |n: u8| if flags & (1 << n) == 0 { SetSide::Destination } else { SetSide::Source };
        let set = SetMatch { name: "".into(), sides: (1..=dimensions).map(side).collect() };
        Some(Match::Set(Sense::new(flags & INVERTED != 0, set)))
    },
};

/// Returns the number of the set that a structure of this module matches.
pub(crate) fn set_number(structure: &Structure<'_>) -> Option<u16> {
    structure.u16(0)
}

/// `IPSET_INV_MATCH`.
const INVERTED: u8 = 1 << 0;
/// `IPSET_DIM_MAX` minus one for the inversion.
const MAX_DIMENSIONS: u8 = 6;
