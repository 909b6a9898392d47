use std::fmt;

use super::Row;

/// Writes a table of at most `lines` lines with the headings, each at most `width` characters wide. Endpoints that do
/// not fit are left out from the idlest on.
///
/// # Errors
/// Only those of `out`.
pub fn write_rows_into(out: &mut impl fmt::Write, rows: &[Row], width: usize, lines: usize) -> fmt::Result {
    let told = &rows[..rows.len().min(lines.saturating_sub(1))];
    let names = told.iter().map(|row| row.service_port.chars().count()).chain([SERVICE_PORT.len()]);
    let name_width = names.max().unwrap_or_default();
    write_line_into(out, &format!("{NEW:>NUMBER$}  {SERVICE_PORT:<name_width$}  {ENDPOINTS}"), width)?;
    for row in told {
        let mut line = format!("{:>NUMBER$.1}  {:<name_width$}", row.per_second, row.service_port);
        for rate in &row.endpoints {
            let text = format!("  {} {:.0} %", rate.endpoint, rate.share * 100.0);
            if line.chars().count() + text.chars().count() > width {
                break;
            }
            line += &text;
        }
        write_line_into(out, &line, width)?;
    }
    Ok(())
}

fn write_line_into(out: &mut impl fmt::Write, line: &str, width: usize) -> fmt::Result {
    let line: String = line.chars().take(width).collect();
    writeln!(out, "{}", line.trim_end())
}

const NEW: &str = "new/s";
const SERVICE_PORT: &str = "service port";
const ENDPOINTS: &str = "endpoints with their shares";
/// Characters for the number of connections.
const NUMBER: usize = 9;
