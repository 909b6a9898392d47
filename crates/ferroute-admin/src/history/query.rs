use ferroute_core::NamespacedName;

/// The query of `/services` and `/changes`: a selection of Services, and a page in the manner of Kubernetes' lists.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ServiceQuery {
    /// Only Services of this namespace.
    pub(crate) namespace: Option<String>,
    /// Only Services of this name.
    pub(crate) name: Option<String>,
    /// Maximum number of items in the response; `None` for all.
    pub(crate) limit: Option<usize>,
    /// The position after which the response begins, from an earlier response.
    pub(crate) r#continue: Option<String>,
}

/// A parameter of the query is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum QueryError {
    #[error("invalid limit {0:?}: not a number")]
    Limit(String),
    #[error("invalid continue {0:?}: not from an earlier response")]
    Continue(String),
}

impl ServiceQuery {
    /// Parses `namespace`, `name`, `limit` and `continue`, and ignores other parameters. As in Kubernetes, a limit of 0
    /// means no limit.
    pub(crate) fn parse(query: &str) -> Result<Self, QueryError> {
        let mut parsed = Self::default();
        for (key, value) in form_urlencoded::parse(query.as_bytes()) {
            match &*key {
                "namespace" => parsed.namespace = Some(value.into_owned()),
                "name" => parsed.name = Some(value.into_owned()),
                "limit" => {
                    let limit: usize = value.parse().map_err(|_| QueryError::Limit(value.into_owned()))?;
                    parsed.limit = Some(limit).filter(|limit| *limit > 0);
                }
                "continue" if !value.is_empty() => parsed.r#continue = Some(value.into_owned()),
                _ => {}
            }
        }
        Ok(parsed)
    }

    /// Returns the Service after which `/services` continues.
    pub(crate) fn after_service(&self) -> Result<Option<NamespacedName>, QueryError> {
        let name = |token: &String| {
            let (namespace, name) = token.split_once('/').ok_or_else(|| QueryError::Continue(token.clone()))?;
            Ok(NamespacedName::new(namespace, name))
        };
        self.r#continue.as_ref().map(name).transpose()
    }

    /// Returns the number of changes after which `/changes` continues.
    pub(crate) fn after_changes(&self) -> Result<usize, QueryError> {
        let number = |token: &String| token.parse().map_err(|_| QueryError::Continue(token.clone()));
        Ok(self.r#continue.as_ref().map(number).transpose()?.unwrap_or(0))
    }

    /// Reports whether the query selects a Service.
    pub(crate) fn selects(&self, service: &NamespacedName) -> bool {
        let matches = |filter: &Option<String>, text: &str| filter.as_deref().is_none_or(|filter| filter == text);
        matches(&self.namespace, service.namespace()) && matches(&self.name, service.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_select_services_and_pages() {
        let parsed = ServiceQuery::parse("namespace=shop%2Done&other=x&limit=2&continue=a/b").unwrap();
        assert_eq!(parsed.namespace.as_deref(), Some("shop-one"));
        assert_eq!((parsed.limit, parsed.after_service()), (Some(2), Ok(Some(NamespacedName::new("a", "b")))));
        assert_eq!(ServiceQuery::parse("limit=0&continue="), Ok(ServiceQuery::default()));
        assert_eq!(ServiceQuery::parse("continue=7").unwrap().after_changes(), Ok(7));
    }

    #[test]
    fn invalid_parameters_are_errors() {
        assert_eq!(ServiceQuery::parse("limit=-1"), Err(QueryError::Limit("-1".to_owned())));
        let parsed = ServiceQuery::parse("continue=x").unwrap();
        assert_eq!(parsed.after_service(), Err(QueryError::Continue("x".to_owned())));
        assert_eq!(parsed.after_changes(), Err(QueryError::Continue("x".to_owned())));
    }
}
