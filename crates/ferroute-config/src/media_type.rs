//! Media types for responses of the API server.

use crate::ClientConnectionConfiguration;

/// A media type that Ferroute decodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MediaType {
    /// `application/json`.
    Json,
    /// `application/vnd.kubernetes.protobuf`, which is more compact and cheaper for the API server.
    Protobuf,
}

impl MediaType {
    /// Returns the name in headers and in the configuration.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Json => "application/json",
            Self::Protobuf => "application/vnd.kubernetes.protobuf",
        }
    }

    /// Parses a media type and ignores its parameters, as in `application/json;stream=watch`. Returns `None` for
    /// unsupported types.
    pub fn parse(text: &str) -> Option<Self> {
        let name = text.split(';').next().unwrap_or_default().trim();
        [Self::Json, Self::Protobuf].into_iter().find(|media_type| name.eq_ignore_ascii_case(media_type.as_str()))
    }
}

impl ClientConnectionConfiguration {
    /// Returns the media types to accept in responses, the preferred one first. There is at least one.
    ///
    /// As in client-go, `acceptContentTypes` takes precedence over `contentType`, and a `contentType` of protobuf also
    /// accepts JSON.
    pub fn accepted(&self) -> Vec<MediaType> {
        let listed = self.listed_media_types();
        if !listed.is_empty() {
            return listed;
        }
        match MediaType::parse(&self.content_type) {
            Some(MediaType::Protobuf) => vec![MediaType::Protobuf, MediaType::Json],
            Some(MediaType::Json) | None => vec![MediaType::Json],
        }
    }

    /// Returns the supported media types of `acceptContentTypes`.
    pub(crate) fn listed_media_types(&self) -> Vec<MediaType> {
        let mut listed = Vec::new();
        for text in self.accept_content_types.split(',') {
            // The API server responds to a wildcard with JSON.
            let is_any = ["*/*", "application/*"].contains(&text.split(';').next().unwrap_or_default().trim());
            let media_type = if is_any { Some(MediaType::Json) } else { MediaType::parse(text) };
            listed.extend(media_type.filter(|media_type| !listed.contains(media_type)));
        }
        listed
    }
}

#[cfg(test)]
mod tests {
    use MediaType::{Json, Protobuf};

    use super::*;

    fn accepted(accept_content_types: &str, content_type: &str) -> Vec<MediaType> {
        let connection = ClientConnectionConfiguration {
            accept_content_types: accept_content_types.into(),
            content_type: content_type.into(),
            ..ClientConnectionConfiguration::default()
        };
        connection.accepted()
    }

    #[test]
    fn content_type_is_accepted_and_protobuf_implies_json() {
        assert_eq!(accepted("", "application/vnd.kubernetes.protobuf"), [Protobuf, Json]);
        assert_eq!(accepted("", "application/json"), [Json]);
        assert_eq!(accepted("", ""), [Json]);
        assert_eq!(accepted("", "application/yaml"), [Json]);
    }

    #[test]
    fn accept_content_types_take_precedence_in_their_order() {
        let protobuf = "application/vnd.kubernetes.protobuf";
        assert_eq!(accepted("application/json", protobuf), [Json]);
        assert_eq!(accepted("application/json, application/vnd.kubernetes.protobuf;q=0.5", ""), [Json, Protobuf]);
        assert_eq!(accepted("application/vnd.kubernetes.protobuf,*/*,application/json", ""), [Protobuf, Json]);
        assert_eq!(accepted(protobuf, "application/json"), [Protobuf]);
    }

    #[test]
    fn unsupported_media_types_are_not_accepted() {
        assert_eq!(accepted("application/cbor,application/json", ""), [Json]);
        assert_eq!(accepted("application/cbor", "application/vnd.kubernetes.protobuf"), [Protobuf, Json]);
    }

    #[test]
    fn parameters_and_case_are_ignored() {
        assert_eq!(MediaType::parse("application/vnd.kubernetes.protobuf;stream=watch"), Some(Protobuf));
        assert_eq!(MediaType::parse("Application/JSON; charset=utf-8"), Some(Json));
        assert_eq!(MediaType::parse("text/html"), None);
    }
}
