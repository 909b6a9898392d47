//! What the kernel holds of anybody's `iptables` rules, by both of its interfaces.

use std::{io::BufRead, path::PathBuf, process::ExitStatus};

use ferroute_core::IpFamily;

use super::{
    programs::{Call, Programs, RunError},
    tools::{locate, name},
    version::{Backend, Release},
};
use crate::{ParseError, RuleSet, Saved, SavedReader};

/// The rules of one backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundRules {
    /// Which one. The kernel obeys the rules of both.
    pub backend: Backend,
    /// Its rules.
    pub saved: Saved,
}

/// Why rules could not be read. Another try may help.
#[derive(Debug, thiserror::Error)]
pub enum FindError {
    /// A program did not run.
    #[error(transparent)]
    Run(#[from] RunError),
    /// A program failed.
    #[error("{} -c failed with {status}: {complaint}", .program.display())]
    Failed {
        /// The program.
        program: PathBuf,
        /// Its status.
        status: ExitStatus,
        /// What it said.
        complaint: String,
    },
    /// What a program printed ends too early.
    #[error("cannot understand what {} -c prints", .program.display())]
    Parse {
        /// The program.
        program: PathBuf,
        /// What is wrong.
        #[source]
        source: ParseError,
    },
}

/// Reads all rules of a family with whatever tools are in these directories; of backends that have no rules and no
/// tools, nothing is told.
///
/// # Errors
/// When one of the tools that are here does not do its work.
pub fn find_rules(family: IpFamily, programs: &dyn Programs, path: &[PathBuf]) -> Result<Vec<FoundRules>, FindError> {
    let mut found = Vec::new();
    for (backend, program) in savers(family, programs, path)? {
        let saved = save(family, programs, program)?;
        if has_something(&saved) {
            found.push(FoundRules { backend, saved });
        }
    }
    Ok(found)
}

/// The programs that show rules, at most one for each backend.
fn savers(family: IpFamily, programs: &dyn Programs, path: &[PathBuf]) -> Result<Vec<(Backend, PathBuf)>, FindError> {
    let named = [Backend::NfTables, Backend::Legacy]
        .into_iter()
        .filter_map(|backend| Some((backend, locate(&name(family, Some(backend), "-save"), path)?)));
    let named: Vec<_> = named.collect();
    if !named.is_empty() {
        return Ok(named);
    }
    // Before 1.8 there was one backend only, and its tools had no other names.
    let Some(program) = locate(&name(family, None, "-save"), path) else { return Ok(Vec::new()) };
    let mut said = String::new();
    programs.read(Call { program: &program, arguments: &["--version"] }, &mut |stdout| {
        stdout.read_to_string(&mut said).map(|_| ())
    })?;
    let backend = said.parse::<Release>().map_or(Backend::Legacy, |release| release.backend);
    Ok(vec![(backend, program)])
}

fn save(family: IpFamily, programs: &dyn Programs, program: PathBuf) -> Result<Saved, FindError> {
    let mut reader = SavedReader::new(family);
    // All tables, for to name one makes the legacy tools create it.
    let call = Call { program: &program, arguments: &["-c"] };
    let exit = programs.read(call, &mut |stdout| each_line(stdout, &mut |line| reader.line(line)))?;
    if !exit.status.success() {
        return Err(FindError::Failed { program, status: exit.status, complaint: exit.stderr });
    }
    reader.finish().map_err(|source| FindError::Parse { program, source })
}

fn each_line(text: &mut dyn BufRead, each: &mut dyn FnMut(&str)) -> std::io::Result<()> {
    let mut line = Vec::new();
    loop {
        line.clear();
        if text.read_until(b'\n', &mut line)? == 0 {
            return Ok(());
        }
        // Foreign comments can hold any bytes.
        each(&String::from_utf8_lossy(&line));
    }
}

/// Something is there that a packet could notice.
fn has_something(Saved { rules, unread, partial, .. }: &Saved) -> bool {
    let RuleSet { tables, .. } = rules;
    let mut chains = tables.values().flat_map(|table| table.chains.iter());
    let notable = chains.any(|(name, chain)| {
        let policy = chain.head.and_then(|head| head.policy);
        !name.is_builtin() || !chain.rules.is_empty() || policy == Some(crate::Policy::Drop)
    });
    notable || !unread.is_empty() || !partial.is_empty()
}
