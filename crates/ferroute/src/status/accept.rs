//! In which form somebody wants a z-page: what an `Accept` header asks for, chosen as Kubernetes 1.36 chooses.
//!
//! ```text
//!   no header, */*, text/plain                                  plain text, for people
//!   application/json;g=config.k8s.io;v=v1beta1;as=Statusz       an object, for programs; also v1alpha1 and YAML
//!   application/json alone, another kind, group or version      nothing: 406
//! ```
//!
//! What is *not* here: the pages, and Kubernetes' binary encodings (Protobuf, which its z-pages refuse too, and CBOR,
//! which is behind a feature gate that is off).

use hyper::{HeaderMap, header::ACCEPT};

/// A form in which a page is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// Plain text.
    Text,
    /// An object of Kubernetes.
    Object(Syntax, Version),
}

/// How an object is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Syntax {
    Json,
    Yaml,
}

/// Versions of the objects; their fields are the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Version {
    V1Beta1,
    V1Alpha1,
}

/// The group of the objects.
pub(super) const GROUP: &str = "config.k8s.io";

impl Syntax {
    /// In this order they are tried where a wildcard allows each.
    const ALL: [Self; 2] = [Self::Json, Self::Yaml];

    /// The media type, whose first part is `application`.
    pub(super) fn subtype(self) -> &'static str {
        match self {
            Self::Json => "json",
            Self::Yaml => "yaml",
        }
    }
}

impl Version {
    const ALL: [Self; 2] = [Self::V1Beta1, Self::V1Alpha1];

    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::V1Beta1 => "v1beta1",
            Self::V1Alpha1 => "v1alpha1",
        }
    }
}

impl Form {
    /// What is asked for of the page whose object is a `kind`; `None` if it cannot be had.
    pub(super) fn asked(headers: &HeaderMap, kind: &str) -> Option<Self> {
        let headers: Vec<&str> =
            headers.get_all(ACCEPT).iter().map(|value| value.to_str().unwrap_or_default()).collect();
        let mut clauses: Vec<Clause<'_>> =
            headers.iter().flat_map(|value| value.split(',')).filter_map(Clause::parse).collect();
        if headers.iter().all(|value| value.trim().is_empty()) {
            return Some(Self::Text);
        }
        // A stable order: of those that are wanted as much, the first counts.
        clauses.sort_by(|a, b| b.quality.total_cmp(&a.quality).then(a.wildcards().cmp(&b.wildcards())));
        clauses.iter().filter(|clause| clause.quality > 0.0).find_map(|clause| clause.form(kind))
    }
}

/// One of the media types that are accepted.
struct Clause<'a> {
    kind: &'a str,
    subtype: &'a str,
    /// From 0, not at all, to 1.
    quality: f32,
    /// The object's kind, group and version; empty where none is named.
    object: [&'a str; 3],
    /// It asks for a stream, or for a version of the server, which no page has.
    is_beyond: bool,
}

impl<'a> Clause<'a> {
    /// `None` for what is no media type.
    fn parse(text: &'a str) -> Option<Self> {
        let mut parts = text.split(';').map(str::trim);
        let (kind, subtype) = parts.next()?.split_once('/')?;
        let mut clause = Self { kind, subtype, quality: 1.0, object: [""; 3], is_beyond: false };
        for (name, value) in parts.filter_map(|part| part.split_once('=')) {
            match (name.trim(), value.trim().trim_matches('"')) {
                ("as", value) => clause.object[0] = value,
                ("g", value) => clause.object[1] = value,
                ("v", value) => clause.object[2] = value,
                ("q", value) => clause.quality = value.parse().unwrap_or(1.0),
                ("stream" | "sv", value) => clause.is_beyond |= !value.is_empty(),
                _ => {}
            }
        }
        Some(clause)
    }

    /// How many of its two parts are open.
    fn wildcards(&self) -> usize {
        [self.kind, self.subtype].into_iter().filter(|part| *part == "*").count()
    }

    fn is(&self, kind: &str, subtype: &str) -> bool {
        match (self.kind, self.subtype) {
            ("*", "*") => true,
            (own, "*") => own == kind,
            own => own == (kind, subtype),
        }
    }

    fn form(&self, kind: &str) -> Option<Form> {
        let [named, group, version] = self.object;
        if self.is_beyond {
            return None;
        }
        if self.object == [""; 3] {
            return self.is("text", "plain").then_some(Form::Text);
        }
        let version = Version::ALL.into_iter().find(|known| known.as_str() == version)?;
        let syntax = Syntax::ALL.into_iter().find(|syntax| self.is("application", syntax.subtype()))?;
        ((named, group) == (kind, GROUP)).then_some(Form::Object(syntax, version))
    }
}

#[cfg(test)]
mod tests {
    use hyper::header::HeaderValue;

    use super::*;

    fn asked(accept: &[&'static str]) -> Option<Form> {
        let mut headers = HeaderMap::new();
        for value in accept {
            headers.append(ACCEPT, HeaderValue::from_static(value));
        }
        Form::asked(&headers, "Statusz")
    }

    const JSON: Option<Form> = Some(Form::Object(Syntax::Json, Version::V1Beta1));
    const TEXT: Option<Form> = Some(Form::Text);

    #[test]
    fn whoever_asks_for_no_object_gets_text() {
        assert_eq!(asked(&[]), TEXT);
        for accept in ["", "*/*", "text/*", "text/plain", "text/html,*/*;q=0.8", "text/plain;charset=utf-8"] {
            assert_eq!(asked(&[accept]), TEXT, "{accept:?}");
        }
    }

    #[test]
    fn an_object_is_had_by_its_kind_group_and_version() {
        assert_eq!(asked(&["application/json;v=v1beta1;g=config.k8s.io;as=Statusz"]), JSON);
        assert_eq!(asked(&["application/json; as=Statusz; v=v1beta1; g=config.k8s.io"]), JSON);
        assert_eq!(asked(&["*/*;as=Statusz;v=v1beta1;g=config.k8s.io"]), JSON);
        let alpha = Some(Form::Object(Syntax::Json, Version::V1Alpha1));
        assert_eq!(asked(&["application/json;v=v1alpha1;g=config.k8s.io;as=Statusz"]), alpha);
        let yaml = Some(Form::Object(Syntax::Yaml, Version::V1Beta1));
        assert_eq!(asked(&["application/yaml;v=v1beta1;g=config.k8s.io;as=Statusz"]), yaml);
    }

    #[test]
    fn what_is_not_wholly_named_or_not_there_cannot_be_had() {
        for accept in [
            "application/json",
            "application/json;v=v1beta1;g=config.k8s.io",
            "application/json;v=v1beta1;as=Statusz",
            "application/json;v=v1;g=config.k8s.io;as=Statusz",
            "application/json;v=v1beta1;g=config.k8s.io;as=Flagz",
            "application/json;v=v1beta1;g=config.k8s.io;as=Statusz;stream=watch",
            "text/plain;v=v1beta1;g=config.k8s.io;as=Statusz",
            "application/cbor;v=v1beta1;g=config.k8s.io;as=Statusz",
            "application/vnd.kubernetes.protobuf;v=v1beta1;g=config.k8s.io;as=Statusz",
            "application/xml",
            "text/plain;q=0",
            "nonsense",
        ] {
            assert_eq!(asked(&[accept]), None, "{accept:?}");
        }
    }

    #[test]
    fn the_best_that_can_be_had_is_taken() {
        let later =
            "application/json;v=v2;g=config.k8s.io;as=Statusz,application/json;v=v1beta1;g=config.k8s.io;as=Statusz";
        assert_eq!(asked(&[later]), JSON, "a program names the newest version first that it can read");
        assert_eq!(asked(&["application/json;v=foo;g=config.k8s.io;as=Statusz,*/*"]), TEXT);
        assert_eq!(asked(&["*/*,application/json;v=v1beta1;g=config.k8s.io;as=Statusz"]), JSON, "wildcards come last");
        let less = "application/json;v=v1beta1;g=config.k8s.io;as=Statusz;q=0.5,text/plain;q=0.9";
        assert_eq!(asked(&[less]), TEXT);
        assert_eq!(asked(&["application/json", "text/plain"]), TEXT, "in two headers");
    }
}
