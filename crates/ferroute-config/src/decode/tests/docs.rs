//! The table of fields in the docs.

use super::*;

/// The fields that hold values, with these as texts.
fn leaves(value: &Value, path: &str, found: &mut Vec<(String, String)>) {
    match value {
        // Its names are not fields.
        Value::Object(map) if path != "featureGates" => {
            for (name, value) in map {
                let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                leaves(value, &path, found);
            }
        }
        Value::Null | Value::Object(_) | Value::Array(_) => found.push((path.to_owned(), String::new())),
        Value::String(text) => found.push((path.to_owned(), text.clone())),
        other => found.push((path.to_owned(), other.to_string())),
    }
}

#[test]
fn the_table_of_the_docs_has_every_field_with_its_default() {
    let text = include_str!("../../../../../docs/compat.md");
    let fields = text.split("## ").find(|section| section.starts_with("Fields ")).expect("a section on fields");
    let told: Vec<(&str, &str)> = fields
        .lines()
        .filter_map(|line| line.strip_prefix("| `"))
        .map(|row| {
            let cells: Vec<&str> = row.split(" | ").collect();
            let [name, default, _] = cells.as_slice() else { panic!("not three cells: {row}") };
            (name.trim_end_matches('`'), default.trim_matches('`'))
        })
        .collect();
    let (mut all, mut defaults) = (Vec::new(), Vec::new());
    leaves(&serde_json::to_value(every_field()).expect("JSON"), "", &mut all);
    let config = KubeProxyConfiguration::default().defaulted();
    leaves(&serde_json::to_value(config).expect("JSON"), "", &mut defaults);
    for ((field, _), (name, default)) in all.iter().zip(&told) {
        assert_eq!(field, name);
        match defaults.iter().find(|(other, _)| other == field) {
            // What these two hold is no default.
            _ if ["apiVersion", "kind"].contains(&field.as_str()) => {}
            Some((_, value)) => assert_eq!(value, default, "{field}"),
            // Fields that are left out where they say nothing.
            None => assert!(["", "false"].contains(default), "{field}: {default}"),
        }
    }
    assert_eq!(all.len(), told.len());
}
