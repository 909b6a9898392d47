use ferroute_api::Object;

/// The objects as YAML, a document each.
///
/// # Errors
///
/// None that these objects are known to give; the writer of YAML allows for some.
pub(crate) fn to_yaml(objects: &[Object]) -> Result<String, serde_saphyr::ser_error::Error> {
    let mut text = String::new();
    for object in objects {
        let kind = object.kind();
        let body = match object {
            Object::Service(object) => serde_saphyr::to_string(object),
            Object::EndpointSlice(object) => serde_saphyr::to_string(object),
            Object::Endpoints(object) => serde_saphyr::to_string(object),
            Object::Node(object) => serde_saphyr::to_string(object),
            Object::ServiceCidr(object) => serde_saphyr::to_string(object),
            Object::Pod(object) => serde_saphyr::to_string(object),
            Object::Deployment(object) => serde_saphyr::to_string(object),
        };
        text.push_str(&format!("---\napiVersion: {}\nkind: {kind}\n{}", kind.api_version(), body?));
    }
    Ok(text)
}
