use serde::Serialize;

use crate::doctor::{Facts, checks};

/// What came out of all checks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Examination {
    /// What is wrong, the worst first.
    pub findings: Vec<Finding>,
    /// What could not be found out.
    pub unknown: Vec<Unknown>,
    /// Checks that found nothing.
    pub sound: Vec<&'static str>,
}

/// Something that is wrong, or may become so.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Name of the check.
    pub check: &'static str,
    /// How bad it is.
    pub severity: Severity,
    /// What was seen.
    pub what: String,
    /// What it breaks.
    pub breaks: String,
    /// How to mend it.
    pub mend: String,
}

/// How bad something is, the worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Services do not work, or not all of them.
    Problem,
    /// Services can fail for some clients, or soon.
    Warning,
    /// Nothing is broken by it, but one should know.
    Note,
}

/// A check that cannot tell.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Unknown {
    /// Name of the check.
    pub check: &'static str,
    /// Why.
    pub why: String,
}

/// Makes all checks.
pub fn examine(facts: &Facts) -> Examination {
    let mut examination = Examination::default();
    for check in checks::ALL {
        match (check.look)(facts) {
            Verdict::NotAsked => {}
            Verdict::Unknown(why) => examination.unknown.push(Unknown { check: check.name, why }),
            Verdict::Found(flaws) if flaws.is_empty() => examination.sound.push(check.name),
            Verdict::Found(flaws) => examination.findings.extend(flaws.into_iter().map(|flaw| {
                let Flaw { severity, what, breaks, mend } = flaw;
                Finding { check: check.name, severity, what, breaks, mend }
            })),
        }
    }
    examination.findings.sort_by_key(|finding| finding.severity);
    examination
}

/// A check's part of a [`Finding`].
pub(crate) struct Flaw {
    pub(crate) severity: Severity,
    pub(crate) what: String,
    pub(crate) breaks: String,
    pub(crate) mend: String,
}

impl Flaw {
    pub(crate) fn new(
        severity: Severity,
        what: impl Into<String>,
        breaks: impl Into<String>,
        mend: impl Into<String>,
    ) -> Self {
        Self { severity, what: what.into(), breaks: breaks.into(), mend: mend.into() }
    }
}

/// What a check says.
pub(crate) enum Verdict {
    /// It makes no sense here: there is no such thing.
    NotAsked,
    /// It cannot tell, and why.
    Unknown(String),
    /// What it found, if anything.
    Found(Vec<Flaw>),
}

impl From<Result<Vec<Flaw>, String>> for Verdict {
    fn from(looked: Result<Vec<Flaw>, String>) -> Self {
        looked.map_or_else(Self::Unknown, Self::Found)
    }
}
