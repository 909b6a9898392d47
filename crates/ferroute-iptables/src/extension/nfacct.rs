use super::*;

/// `-m nfacct`.
pub(super) static NFACCT: Entry<Match> = Entry {
    names: &["nfacct"],
    options: &["--nfacct-name TEXT"],
    structures: &[("nfacct", 0), ("nfacct", 1)],
    samples: &["-m nfacct --nfacct-name  one", "-m nfacct --nfacct-name  \"-m two\""],
    parse: |options| Some(Match::Nfacct(options.only("--nfacct-name")?.text()?.into())),
    print: |module, out| {
        let Match::Nfacct(name) = module else { return Err(fmt::Error) };
        // iptables 1.8 writes two blanks here.
        out.write_str(" -m nfacct --nfacct-name  ")?;
        write_quoted(out, name)
    },
    encode: |module, _, _| {
        let Match::Nfacct(name) = module else { return None };
        (name.len() < MAX_NAME).then(|| Structure::new("nfacct", 0, 40).put(0, name.as_bytes()))
    },
    decode: |structure, _| Some(Match::Nfacct(structure.text(0, MAX_NAME)?.into())),
};

/// `NFACCT_NAME_MAX`.
const MAX_NAME: usize = 32;
