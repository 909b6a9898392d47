use super::*;

/// `-m physdev --physdev-is-in`.
pub(super) static PHYSDEV: Entry<Match> = Entry {
    names: &["physdev"],
    options: &["--physdev-*"],
    structures: &[("physdev", 0)],
    samples: &["-m physdev --physdev-is-in", "-m physdev ! --physdev-is-in"],
    parse: |options| {
        let option = options.only("--physdev-is-in").filter(|option| option.args.is_empty())?;
        Some(Match::PhysdevIsIn(Sense::new(option.negated, ())))
    },
    print: |module, out| {
        let Match::PhysdevIsIn(bridged) = module else { return Err(fmt::Error) };
        write!(out, " -m physdev {}--physdev-is-in", if bridged.is_negated() { "! " } else { "" })
    },
    encode: |module, _, _| {
        let Match::PhysdevIsIn(bridged) = module else { return None };
        let inverted = if bridged.is_negated() { IS_IN } else { 0 };
        Some(Structure::new("physdev", 0, 72).put_u8(64, inverted).put_u8(65, IS_IN))
    },
    decode: |structure, _| {
        (structure.u8(65)? == IS_IN).then_some(())?;
        Some(Match::PhysdevIsIn(Sense::new(structure.u8(64)? == IS_IN, ())))
    },
};

const IS_IN: u8 = 1 << 3;
