//! Text for people: columns, and colours where there is a terminal to show them.

use std::fmt::Write;

/// How text may look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Style {
    /// Letters only: for files, pipes and logs.
    Plain,
    /// Bold type and colours.
    Terminal,
}

impl Style {
    pub(crate) fn bold(self, text: &str) -> String {
        self.wrap("1", text)
    }

    pub(crate) fn dim(self, text: &str) -> String {
        self.wrap("2", text)
    }

    pub(crate) fn good(self, text: &str) -> String {
        self.wrap("32", text)
    }

    pub(crate) fn bad(self, text: &str) -> String {
        self.wrap("31", text)
    }

    /// A bar for a share of the whole, up to `width` letters long.
    pub(crate) fn bar(self, part: usize, whole: usize, width: usize) -> String {
        let length = (part * width + whole / 2).checked_div(whole).unwrap_or(0);
        match self {
            Self::Plain => "#".repeat(length),
            Self::Terminal => self.wrap("36", &"█".repeat(length)),
        }
    }

    fn wrap(self, code: &str, text: &str) -> String {
        match self {
            Self::Plain => text.to_owned(),
            Self::Terminal => format!("\x1b[{code}m{text}\x1b[0m"),
        }
    }
}

/// Lines whose cells stand below each other, two spaces apart, each line after `indent`.
pub(crate) fn columns(indent: &str, rows: &[Vec<String>]) -> String {
    let count = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|cell| visible(cell)).max();
    let widths: Vec<usize> = (0..count).map(|column| width(column).unwrap_or(0)).collect();
    let mut text = String::new();
    for row in rows {
        let mut line = indent.to_owned();
        for (cell, width) in row.iter().zip(&widths) {
            let padding = width - visible(cell) + 2;
            let _ = write!(line, "{cell}{:padding$}", "");
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// The number of letters that a terminal shows of a text.
fn visible(text: &str) -> usize {
    let mut in_escape = false;
    let shown = text.chars().filter(|letter| {
        let is_escape = in_escape || *letter == '\x1b';
        in_escape = is_escape && *letter != 'm';
        !is_escape
    });
    shown.count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_stand_below_each_other_with_and_without_colours() {
        for style in [Style::Plain, Style::Terminal] {
            let rows = [vec![style.bold("a"), "b".into()], vec!["long".into(), style.dim("c"), "d".into()]];
            let text = columns("  ", &rows);
            let bare = text.replace("\x1b[1m", "").replace("\x1b[2m", "").replace("\x1b[0m", "");
            assert_eq!(bare, "  a     b\n  long  c  d\n");
        }
    }

    #[test]
    fn bars_are_in_proportion() {
        assert_eq!(Style::Plain.bar(50, 100, 10), "#####");
        assert_eq!(Style::Plain.bar(0, 0, 10), "");
    }
}
