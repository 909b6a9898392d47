//! Commands whose text is shown by node: nodes with the same text are combined.

use std::fmt;

use ferroute_core::Escaped;
use ferroute_inspect::about::RUNNING_PROXY;
use serde::Serialize;
use serde_json::Value;

use crate::{
    Fleet, NodeAnswer, NodeProxy,
    answer::{ask_command, write_printed_into},
};

/// Output of a command on some nodes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Same {
    /// The nodes.
    pub nodes: Vec<String>,
    /// The output, as JSON or text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output: Option<Value>,
    /// Reason why there is no answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Whether the command reports a problem.
    pub problem: bool,
}

/// Runs a command on all nodes. Its exit status is 0, or 1 or 2 for answers like "no" and "maybe".
pub async fn same_everywhere(fleet: &Fleet, proxies: &[NodeProxy], arguments: &[String], json: bool) -> Vec<Same> {
    let arguments = arguments.to_vec();
    let answers = fleet.ask(proxies, |fleet, proxy| {
        let arguments = arguments.clone();
        async move {
            let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
            let (mut output, status) = ask_command(&fleet, &proxy, &arguments, json).await?;
            remove_about(&mut output);
            Ok((output, status))
        }
    });
    let mut groups: Vec<Same> = Vec::new();
    for NodeAnswer { proxy, result } in answers.await {
        let (output, error, problem) = match result {
            Ok((output, status)) => (Some(output), None, status != 0),
            Err(error) => (None, Some(error), true),
        };
        match groups.iter_mut().find(|group| group.output == output && group.error == error) {
            Some(group) => group.nodes.push(proxy.node),
            None => groups.push(Same { nodes: vec![proxy.node], output, error, problem }),
        }
    }
    groups
}

/// Removes the subject of the output if it is the node's proxy, as expected. The subject differs between nodes.
fn remove_about(output: &mut Value) {
    match output {
        Value::String(text) if text.starts_with(RUNNING_PROXY) => {
            let end = text.find('\n').map_or(text.len(), |end| end + 1);
            text.drain(..end);
        }
        Value::Object(fields) if fields.get("about").is_some_and(|about| about["proxy"] == "running") => {
            fields.remove("about");
        }
        _ => {}
    }
}

/// Writes the texts with their nodes.
///
/// # Errors
/// Only errors of `out`.
pub fn write_same_into(out: &mut impl fmt::Write, groups: &[Same]) -> fmt::Result {
    for (index, group) in groups.iter().enumerate() {
        if index > 0 {
            writeln!(out)?;
        }
        writeln!(out, "== {}", Escaped(group.nodes.join(", ")))?;
        write_printed_into(out, group.output.as_ref(), group.error.as_deref())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_with_the_same_output_of_their_proxies_are_equal() {
        let after = |mut output: Value| {
            remove_about(&mut output);
            output
        };
        let text = |line: &str| Value::from(format!("{line}\nno problems\n"));
        assert_eq!(after(text("running proxy: node node-1, nftables mode")), "no problems\n");
        let none = text("no Ferroute proxy runs here: node node-1 (assumed), iptables mode (assumed)");
        assert_eq!(after(none.clone()), none);
        let report = serde_json::json!({"about": {"proxy": "running", "node": {}}, "findings": []});
        assert_eq!(after(report), serde_json::json!({"findings": []}));
    }
}
