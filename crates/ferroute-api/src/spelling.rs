//! Hints for misspelled names.

/// Returns a hint with the name that was probably meant, to append to an error; empty without one.
pub fn did_you_mean(similar: Option<&str>) -> String {
    similar.map(|name| format!(" (did you mean {name:?}?)")).unwrap_or_default()
}

/// Returns the candidate with the most similar name; `None` if none is similar enough.
pub fn similar(name: &str, candidates: impl Iterator<Item = &'static str>) -> Option<&'static str> {
    let lower = name.to_lowercase();
    let (length, limit) = (lower.chars().count(), name.len().max(3) / 3);
    let distance = |candidate: &str| strsim::osa_distance(&lower, &candidate.to_lowercase());
    // A file may have any number of unknown names, of any length.
    let may_be_near = |candidate: &&str| candidate.chars().count().abs_diff(length) <= limit;
    let near = candidates.filter(may_be_near).map(|candidate| (distance(candidate), candidate)).min()?;
    (near.0 <= limit).then_some(near.1)
}
