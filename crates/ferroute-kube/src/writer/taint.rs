//! A taint goes from the Node.

use serde::Deserialize;
use serde_json::{Value, json};

use super::{ApiWriter, WriteError};
use crate::Permission;

/// What of a Node is read. Taints are kept as they are: what is not ours must come out as it went in.
#[derive(Debug, Deserialize)]
struct TaintedNode {
    metadata: Metadata,
    #[serde(default)]
    spec: Spec,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    resource_version: String,
}

#[derive(Debug, Default, Deserialize)]
struct Spec {
    #[serde(default)]
    taints: Option<Vec<Value>>,
}

impl ApiWriter {
    /// Takes every taint with this key from this node's Node, whatever its value and effect. Whether there was one.
    ///
    /// # Errors
    ///
    /// The Node cannot be read or changed. Somebody else's change in the meantime is one of these (a conflict): then
    /// nothing has been written.
    pub async fn remove_taint(&self, key: &str) -> Result<bool, WriteError> {
        let path = format!("/api/v1/nodes/{}", self.node);
        let node: TaintedNode = self.exchange(Permission::on_nodes("get"), &path, None).await?;
        let taints = node.spec.taints.unwrap_or_default();
        let rest: Vec<&Value> = taints.iter().filter(|taint| taint["key"] != key).collect();
        if rest.len() == taints.len() {
            return Ok(false);
        }
        // With the version, a list that is not the newest any more is not written over a newer one.
        let rest = if rest.is_empty() { Value::Null } else { json!(rest) };
        let patch = json!({"metadata": {"resourceVersion": node.metadata.resource_version}, "spec": {"taints": rest}});
        let _: Value = self.exchange(Permission::on_nodes("patch"), &path, Some(&patch)).await?;
        Ok(true)
    }
}
