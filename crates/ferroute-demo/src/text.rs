//! Text layout: columns and bars.

use std::fmt::Write;

use ferroute_core::Style;

/// Returns a bar of up to `width` characters for `part` of `whole`.
pub(crate) fn bar(style: Style, part: usize, whole: usize, width: usize) -> String {
    let length = (part * width + whole / 2).checked_div(whole).unwrap_or(0);
    match style {
        Style::Plain => "#".repeat(length),
        Style::Terminal => style.highlight(&"█".repeat(length)),
    }
}

/// Aligns cells in columns, two spaces apart, in lines that start with `indent`.
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

/// Returns the number of characters without escape sequences.
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
    fn cells_are_aligned_with_and_without_colours() {
        for style in [Style::Plain, Style::Terminal] {
            let rows = [vec![style.bold("a"), "b".into()], vec!["long".into(), style.dim("c"), "d".into()]];
            let text = columns("  ", &rows);
            let bare = text.replace("\x1b[1m", "").replace("\x1b[2m", "").replace("\x1b[0m", "");
            assert_eq!(bare, "  a     b\n  long  c  d\n");
        }
    }

    #[test]
    fn bars_are_proportional() {
        assert_eq!(bar(Style::Plain, 50, 100, 10), "#####");
        assert_eq!(bar(Style::Plain, 0, 0, 10), "");
    }
}
