//! Hints for misspelled names.

/// Returns a hint with the name that was probably meant, to append to an error; empty without one.
pub fn did_you_mean(similar: Option<&str>) -> String {
    similar.map(|name| format!(" (did you mean {name:?}?)")).unwrap_or_default()
}

/// Returns the candidate with the most similar name; `None` if none is similar enough.
pub fn similar(name: &str, candidates: impl Iterator<Item = &'static str>) -> Option<&'static str> {
    let lower = name.to_lowercase();
    let distance = |candidate: &str| strsim::osa_distance(&lower, &candidate.to_lowercase());
    let near = candidates.map(|candidate| (distance(candidate), candidate)).min()?;
    (near.0 * 3 <= name.len().max(3)).then_some(near.1)
}
