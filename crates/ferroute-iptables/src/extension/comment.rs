use super::*;

/// `-m comment`.
pub(super) static COMMENT: Entry<Match> = Entry {
    names: &["comment"],
    options: &["--comment TEXT"],
    structures: &[("comment", 0)],
    samples: &["-m comment --comment one", "-m comment --comment \"-m \\\"two\\\"\""],
    parse: |options| Some(Match::Comment(options.only("--comment")?.text()?.into())),
    print: |module, out| {
        let Match::Comment(text) = module else { return Err(fmt::Error) };
        out.write_str(" -m comment --comment ")?;
        write_quoted(out, text)
    },
    encode: |module, _, _| {
        let Match::Comment(text) = module else { return None };
        let text = text.as_bytes();
        // The kernel requires a zero at the end.
        (text.len() < MAX_LENGTH && !text.contains(&0)).then(|| Structure::new("comment", 0, MAX_LENGTH).put(0, text))
    },
    decode: |structure, _| structure.text(0, structure.as_bytes().len()).map(|text| Match::Comment(text.into())),
};

/// `XT_MAX_COMMENT_LEN`.
const MAX_LENGTH: usize = 256;
