//! The table of fields in docs/compat.md.

use super::*;

/// Collects the leaf fields and their values as text.
fn collect_leaves(value: &Value, path: &str, leaves: &mut Vec<(String, String)>) {
    match value {
        // The keys of featureGates are not fields.
        Value::Object(map) if path != "featureGates" => {
            for (name, value) in map {
                let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                collect_leaves(value, &path, leaves);
            }
        }
        Value::Null | Value::Object(_) | Value::Array(_) => leaves.push((path.to_owned(), String::new())),
        Value::String(text) => leaves.push((path.to_owned(), text.clone())),
        other => leaves.push((path.to_owned(), other.to_string())),
    }
}

#[test]
fn compat_table_has_every_field_with_its_default() {
    let text = include_str!("../../../../../docs/compat.md");
    let fields = text.split("## ").find(|section| section.starts_with("Fields ")).expect("a section on fields");
    let documented: Vec<(&str, &str)> = fields
        .lines()
        .filter_map(|line| line.strip_prefix("| `"))
        .map(|row| {
            let cells: Vec<&str> = row.split(" | ").collect();
            let [name, default, _] = cells.as_slice() else { panic!("not three cells: {row}") };
            (name.trim_end_matches('`'), default.trim_matches('`'))
        })
        .collect();
    let (mut all, mut defaults) = (Vec::new(), Vec::new());
    collect_leaves(&serde_json::to_value(every_field()).expect("JSON"), "", &mut all);
    let config = KubeProxyConfiguration::default().defaulted();
    collect_leaves(&serde_json::to_value(config).expect("JSON"), "", &mut defaults);
    for ((field, _), (name, default)) in all.iter().zip(&documented) {
        assert_eq!(field, name);
        match defaults.iter().find(|(other, _)| other == field) {
            // These fields have no defaults.
            _ if ["apiVersion", "kind"].contains(&field.as_str()) => {}
            Some((_, value)) => assert_eq!(value, default, "{field}"),
            // Fields that are omitted if empty.
            None => assert!(["", "false"].contains(default), "{field}: {default}"),
        }
    }
    assert_eq!(all.len(), documented.len());
}

/// Collects the fields of a JSON schema, with the types that it permits.
fn collect_schema(schema: &Value, path: &str, fields: &mut Vec<(String, Vec<String>)>) {
    let Some(properties) = schema["properties"].as_object() else {
        let types = match &schema["type"] {
            Value::String(name) => vec![name.clone()],
            Value::Array(names) => names.iter().filter_map(|name| Some(name.as_str()?.to_owned())).collect(),
            _ if schema["$ref"] == "#/definitions/list" => vec!["array".into()],
            // `const` and `enum`.
            _ => vec!["string".into()],
        };
        return fields.push((path.to_owned(), types));
    };
    assert_eq!(schema["additionalProperties"], false, "{path}: unknown fields are accepted");
    for (name, property) in properties {
        let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        collect_schema(property, &path, fields);
    }
}

#[test]
fn values_of_the_helm_chart_are_the_fields_with_their_types() {
    let text = include_str!("../../../../../deploy/helm/values.schema.json");
    let schema: Value = serde_json::from_str(text).expect("JSON");
    let (mut fields, mut all) = (Vec::new(), Vec::new());
    collect_schema(&schema["properties"]["config"], "", &mut fields);
    let example = serde_json::to_value(every_field()).expect("JSON");
    collect_leaves(&example, "", &mut all);
    // The chart sets these.
    all.retain(|(name, _)| !["clientConnection.kubeconfig", "hostnameOverride"].contains(&&**name));
    for ((name, types), (field, _)) in fields.iter().zip(&all) {
        assert_eq!(name, field);
        let type_name = match example.pointer(&format!("/{}", name.replace('.', "/"))).expect("a field") {
            Value::Bool(_) => "boolean",
            Value::Number(number) if number.is_f64() => "number",
            Value::Number(_) => "integer",
            Value::String(_) => "string",
            Value::Array(_) => "array",
            Value::Object(_) => "object",
            Value::Null => panic!("{name} has no example"),
        };
        assert!(types.iter().any(|permitted| permitted == type_name), "{name}: {types:?}, not {type_name}");
    }
    assert_eq!(fields.len(), all.len());
}
