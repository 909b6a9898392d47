//! Writes of a proxy: its Node, and Events.

use ferroute_config::MediaType;
use ferroute_source::Resource;
use http_body_util::BodyExt;
use hyper::{Method, Request, StatusCode, body::Incoming};
use serde_json::Value;

use super::{
    ClusterData, ServedCluster,
    serve::{FakeResponse, status, whole},
};

/// Responds to a write, or to a request for a single Node.
pub(super) async fn respond(shared: &ServedCluster, request: Request<Incoming>) -> FakeResponse {
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let text = match request.into_body().collect().await {
        Ok(body) => body.to_bytes(),
        Err(_) => return status(400, MediaType::Json, None),
    };
    let body: Value = serde_json::from_slice(&text).unwrap_or_default();
    let outcome = shared.change(|state| {
        if method != Method::GET && !state.behaviour.failed_writes.is_empty() {
            return Err(state.behaviour.failed_writes.remove(0));
        }
        let outcome = apply(state, &method, &path, &body)?;
        if method != Method::GET {
            state.writes.push((format!("{method} {path}"), body));
        }
        Ok(outcome)
    });
    match outcome {
        Ok(object) => whole(StatusCode::OK, MediaType::Json.as_str(), object.to_string().into()),
        Err(code) => status(code, MediaType::Json, None),
    }
}

/// Returns the object of the response, or an error status.
fn apply(state: &mut ClusterData, method: &Method, path: &str, body: &Value) -> Result<Value, u16> {
    if let Some(name) = path.strip_prefix("/api/v1/nodes/") {
        let mut node = state.store.get(Resource::Nodes, "", name).ok_or(404_u16)?.clone();
        if method == Method::PATCH {
            let wanted = &body["metadata"]["resourceVersion"];
            if !wanted.is_null() && *wanted != node["metadata"]["resourceVersion"] {
                return Err(409);
            }
            merge(&mut node, body);
            state.store.apply(Resource::Nodes, node.clone());
        }
        return Ok(node);
    }
    let created = |path: &str| {
        let is_event = |(written, event): &&(String, Value)| {
            written.strip_prefix("POST ").is_some_and(|events| {
                event["metadata"]["name"].as_str().is_some_and(|name| path == format!("{events}/{name}"))
            })
        };
        state.writes.iter().any(|write| is_event(&write))
    };
    match *method {
        Method::POST if path.starts_with("/apis/events.k8s.io/v1/namespaces/") => Ok(body.clone()),
        Method::PATCH if created(path) => Ok(body.clone()),
        _ => Err(404),
    }
}

/// A JSON merge patch (RFC 7396).
fn merge(object: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *object = patch.clone();
        return;
    };
    if !object.is_object() {
        *object = Value::Object(serde_json::Map::new());
    }
    let Value::Object(object) = object else { return };
    for (key, value) in patch {
        if value.is_null() {
            object.remove(key);
        } else {
            merge(object.entry(key).or_insert(Value::Null), value);
        }
    }
}
