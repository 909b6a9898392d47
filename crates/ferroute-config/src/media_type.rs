//! In which form the API server is asked to answer.

use crate::ClientConnectionConfiguration;

/// A form in which Ferroute reads what the API server sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MediaType {
    /// `application/json`.
    Json,
    /// `application/vnd.kubernetes.protobuf`, which is shorter and costs the server less.
    Protobuf,
}

impl MediaType {
    /// As headers and the configuration spell it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Json => "application/json",
            Self::Protobuf => "application/vnd.kubernetes.protobuf",
        }
    }

    /// Reads it; parameters, such as in `application/json;stream=watch`, are passed over. `None`: it is another one.
    pub fn of(text: &str) -> Option<Self> {
        let name = text.split(';').next().unwrap_or_default().trim();
        [Self::Json, Self::Protobuf].into_iter().find(|known| name.eq_ignore_ascii_case(known.as_str()))
    }
}

impl ClientConnectionConfiguration {
    /// The forms that the API server may answer in, the preferred one first; there is at least one.
    ///
    /// As in client-go, `acceptContentTypes` goes before `contentType`, and with protobuf alone JSON is taken too.
    pub fn accepted(&self) -> Vec<MediaType> {
        let listed = self.listed();
        if !listed.is_empty() {
            return listed;
        }
        match MediaType::of(&self.content_type) {
            Some(MediaType::Protobuf) => vec![MediaType::Protobuf, MediaType::Json],
            Some(MediaType::Json) | None => vec![MediaType::Json],
        }
    }

    /// What `acceptContentTypes` has of the forms that are read.
    pub(crate) fn listed(&self) -> Vec<MediaType> {
        let mut listed = Vec::new();
        for text in self.accept_content_types.split(',') {
            // Servers answer in JSON where anything will do.
            let is_any = ["*/*", "application/*"].contains(&text.split(';').next().unwrap_or_default().trim());
            let media_type = if is_any { Some(MediaType::Json) } else { MediaType::of(text) };
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
    fn the_content_type_asks_for_its_own_form_and_protobuf_for_json_too() {
        assert_eq!(accepted("", "application/vnd.kubernetes.protobuf"), [Protobuf, Json]);
        assert_eq!(accepted("", "application/json"), [Json]);
        assert_eq!(accepted("", ""), [Json]);
        assert_eq!(accepted("", "application/yaml"), [Json]);
    }

    #[test]
    fn what_is_accepted_goes_before_the_content_type_in_its_order() {
        let protobuf = "application/vnd.kubernetes.protobuf";
        assert_eq!(accepted("application/json", protobuf), [Json]);
        assert_eq!(accepted("application/json, application/vnd.kubernetes.protobuf;q=0.5", ""), [Json, Protobuf]);
        assert_eq!(accepted("application/vnd.kubernetes.protobuf,*/*,application/json", ""), [Protobuf, Json]);
        assert_eq!(accepted(protobuf, "application/json"), [Protobuf]);
    }

    #[test]
    fn forms_that_are_not_read_are_not_asked_for() {
        assert_eq!(accepted("application/cbor,application/json", ""), [Json]);
        assert_eq!(accepted("application/cbor", "application/vnd.kubernetes.protobuf"), [Protobuf, Json]);
    }

    #[test]
    fn parameters_and_the_case_of_letters_do_not_matter() {
        assert_eq!(MediaType::of("application/vnd.kubernetes.protobuf;stream=watch"), Some(Protobuf));
        assert_eq!(MediaType::of("Application/JSON; charset=utf-8"), Some(Json));
        assert_eq!(MediaType::of("text/html"), None);
    }
}
