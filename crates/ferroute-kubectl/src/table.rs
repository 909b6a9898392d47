//! Columns of text.

use std::fmt;

use ferroute_core::Escaped;

/// Writes rows, of which the first is the header, as columns that are as wide as their longest text. The text may come
/// from nodes, so it is escaped.
pub(crate) fn write_table_into(out: &mut impl fmt::Write, rows: &[Vec<String>]) -> fmt::Result {
    let rows: Vec<Vec<String>> =
        rows.iter().map(|row| row.iter().map(|text| Escaped(text).to_string()).collect()).collect();
    let columns = rows.iter().map(Vec::len).max().unwrap_or_default();
    let width = |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|text| text.chars().count()).max();
    let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or_default()).collect();
    for row in &rows {
        let cells: Vec<String> = row.iter().zip(&widths).map(|(text, width)| format!("{text:<width$}")).collect();
        writeln!(out, "{}", cells.join("  ").trim_end())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_and_text_is_escaped() {
        let rows = [["NODE", "READY"], ["node-1\u{1b}[2J", "yes"]].map(|row| row.map(str::to_owned).to_vec());
        let mut text = String::new();
        write_table_into(&mut text, &rows).expect("strings accept everything");
        assert_eq!(text, "NODE             READY\nnode-1\\u{1b}[2J  yes\n");
    }
}
