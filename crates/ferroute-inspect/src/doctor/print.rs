use std::fmt;

use crate::doctor::{Examination, Finding, Severity};

/// Writes an examination for people.
///
/// # Errors
/// Only those of `out`.
pub fn write_examination_into(out: &mut impl fmt::Write, examination: &Examination) -> fmt::Result {
    let Examination { findings, unknown, sound } = examination;
    for Finding { check, severity, what, breaks, mend } in findings {
        let title = match severity {
            Severity::Problem => "PROBLEM",
            Severity::Warning => "WARNING",
            Severity::Note => "note",
        };
        writeln!(out, "{title}: {what}  [{check}]")?;
        writeln!(out, "    breaks: {breaks}")?;
        writeln!(out, "    mend:   {mend}")?;
    }
    for unknown in unknown {
        writeln!(out, "could not tell: {}: {}", unknown.check, unknown.why)?;
    }
    if !sound.is_empty() {
        writeln!(out, "sound: {}", sound.join(", "))?;
    }
    Ok(())
}
