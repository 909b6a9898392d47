use std::{borrow::Cow, collections::BTreeMap, fmt};

use ferroute_core::{Escaped, IpFamily};
use serde::{Deserialize, Serialize};

use super::{Inputs, checks};

/// The results of all checks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Diagnosis {
    /// The problems found, the most severe first.
    pub findings: Vec<Finding>,
    /// Checks without a result.
    pub unknown: Vec<Unknown>,
    /// Checks that passed.
    pub passed: Vec<Cow<'static, str>>,
    /// The way in which the mode accesses the rules of each IP family, if there are several.
    pub access: Vec<String>,
}

/// A problem that a check found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// The name of the check.
    pub check: Cow<'static, str>,
    /// Code of the problem, for programs with separate texts: the name of the check and, if it finds several kinds of
    /// problems, the kind: `conntrack-table.full`.
    #[serde(default)]
    pub code: Cow<'static, str>,
    /// The names and numbers in the texts.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub values: BTreeMap<Cow<'static, str>, String>,
    /// The severity.
    pub severity: Severity,
    /// The problem.
    pub problem: String,
    /// Effect on Services.
    pub effect: String,
    /// How to fix it.
    pub fix: String,
}

/// The severity of a finding, the most severe first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Some or all Services do not work.
    Problem,
    /// Services can fail for some clients, or soon.
    Warning,
    /// For information.
    Note,
}

/// A check without a result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unknown {
    /// The name of the check.
    pub check: Cow<'static, str>,
    /// The reason.
    pub reason: String,
}

impl Severity {
    /// Returns the name, as in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Problem => "problem",
            Self::Warning => "warning",
            Self::Note => "note",
        }
    }
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Runs all checks.
pub fn diagnose(inputs: &Inputs) -> Diagnosis {
    let mut diagnosis = Diagnosis::default();
    for check in checks::ALL {
        match (check.run)(inputs) {
            CheckResult::NotApplicable => {}
            CheckResult::Unknown(reason) => diagnosis.unknown.push(Unknown { check: check.name.into(), reason }),
            CheckResult::Defects(defects) if defects.is_empty() => diagnosis.passed.push(check.name.into()),
            CheckResult::Defects(defects) => diagnosis.findings.extend(defects.into_iter().map(|defect| {
                let Defect { severity, kind, values, problem, effect, fix } = defect;
                let code = kind.map_or(check.name.into(), |kind| format!("{}.{kind}", check.name).into());
                Finding { check: check.name.into(), code, values, severity, problem, effect, fix }
            })),
        }
    }
    diagnosis.findings.sort_by_key(|finding| finding.severity);
    for family in IpFamily::BOTH {
        if let Ok(Some(access)) = &inputs.families[family.index()].supported {
            diagnosis.access.push(format!("{family} rules of {} mode: {access}", inputs.mode));
        }
    }
    diagnosis
}

/// Writes a diagnosis as text.
///
/// # Errors
/// Only errors of `out`.
pub fn write_diagnosis_into(out: &mut impl fmt::Write, diagnosis: &Diagnosis) -> fmt::Result {
    let Diagnosis { findings, unknown, passed, access } = diagnosis;
    for Finding { check, severity, problem, effect, fix, code: _, values: _ } in findings {
        let severity = severity.as_str().to_uppercase();
        writeln!(out, "{severity}: {}  [{check}]", Escaped(problem))?;
        writeln!(out, "    effect: {}", Escaped(effect))?;
        writeln!(out, "    fix:    {}", Escaped(fix))?;
    }
    for Unknown { check, reason } in unknown {
        writeln!(out, "UNKNOWN: {}  [{check}]", Escaped(reason))?;
    }
    if !passed.is_empty() {
        writeln!(out, "passed: {}", passed.join(", "))?;
    }
    for access in access {
        writeln!(out, "{}", Escaped(access))?;
    }
    Ok(())
}

/// A [`Finding`] without the name of its check.
pub(super) struct Defect {
    severity: Severity,
    /// Kind of the defect, if the check finds several kinds.
    kind: Option<&'static str>,
    values: BTreeMap<Cow<'static, str>, String>,
    problem: String,
    effect: String,
    fix: String,
}

impl Defect {
    pub(super) fn new(
        severity: Severity,
        problem: impl Into<String>,
        effect: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        let (problem, effect, fix) = (problem.into(), effect.into(), fix.into());
        Self { severity, kind: None, values: BTreeMap::new(), problem, effect, fix }
    }

    /// Sets the kind of the defect, which distinguishes it from others that the same check finds.
    pub(super) fn kind(mut self, kind: &'static str) -> Self {
        self.kind = Some(kind);
        self
    }

    /// Adds a name or number in the texts.
    pub(super) fn with(mut self, name: &'static str, value: impl fmt::Display) -> Self {
        self.values.insert(name.into(), value.to_string());
        self
    }
}

/// The result of a check.
pub(super) enum CheckResult {
    /// The check does not apply to this host or mode.
    NotApplicable,
    /// An input is missing, for this reason.
    Unknown(String),
    /// The problems found, if any.
    Defects(Vec<Defect>),
}

impl From<Result<Vec<Defect>, String>> for CheckResult {
    fn from(result: Result<Vec<Defect>, String>) -> Self {
        result.map_or_else(Self::Unknown, Self::Defects)
    }
}
