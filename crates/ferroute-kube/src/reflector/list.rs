//! Lists: streaming where the server supports it, else in pages.

use http::StatusCode;
use tokio::time::{Instant, timeout_at};

use super::{
    Interruption, Reflector, RetryReason,
    state::{List, ListVersion, Paging, Strategy, Transition},
};
use crate::{
    api_client::{RequestError, ResponseStream},
    decode::{self, ListMeta},
    error::{ApiError, Cause},
    resource::plural,
    split::Splitter,
};

impl Reflector {
    /// Lists; a streaming list continues as the watch.
    pub(super) async fn list(&mut self, list: List) -> Result<(), Interruption> {
        let result = match list.strategy {
            Strategy::Pages => self.list_pages(&list).await,
            Strategy::Streaming => match self.list_streaming(&list).await {
                Err(Interruption::Retry(RetryReason::StreamingUnsupported)) => self.list_pages(&list).await,
                result => result,
            },
        };
        if let Err(Interruption::Failed(error)) = &result
            && self.is_listing()
            && !concerns_client(error)
        {
            // A proxy in between may break one kind of list and not the other.
            self.transition(Transition::ListFailed);
        }
        result
    }

    /// Lists by a watch that starts with all objects.
    async fn list_streaming(&mut self, list: &List) -> Result<(), Interruption> {
        self.objects.begin_list();
        let mut parameters = vec![("sendInitialEvents", "true"), ("resourceVersionMatch", "NotOlderThan")];
        if let ListVersion::NotOlderThan(version) = &list.version {
            parameters.push(("resourceVersion", version));
        }
        match self.open_watch(&parameters).await {
            Err(Interruption::Failed(error)) if error.status.is_some_and(means_unsupported) => {
                Err(Interruption::Retry(RetryReason::StreamingUnsupported))
            }
            Err(Interruption::Failed(error))
                if error.status.is_some_and(means_expired) && matches!(list.version, ListVersion::NotOlderThan(_)) =>
            {
                self.transition(Transition::Expired);
                Err(Interruption::Retry(RetryReason::Expired))
            }
            Err(interruption) => Err(interruption),
            Ok((response, deadline)) => self.read_watch(response, deadline).await,
        }
    }

    async fn list_pages(&mut self, list: &List) -> Result<(), Interruption> {
        self.objects.begin_list();
        let mut page = ListMeta::default();
        loop {
            let response = match self.request("list", &parameters(list, &page.r#continue)).await {
                Ok(response) => response,
                Err(error) if is_expired(error.status, list, &page) => {
                    self.transition(match page.r#continue.is_empty() {
                        true => Transition::Expired,
                        false => Transition::ContinueExpired,
                    });
                    return Err(Interruption::Retry(RetryReason::Expired));
                }
                Err(error) => return Err(error.into()),
            };
            let url = response.url.clone();
            let before = std::mem::replace(&mut page, self.read_page(response).await?);
            // A token contains the last key, so each page has another one.
            if !page.r#continue.is_empty() && page.r#continue == before.r#continue {
                let cause = Cause::text("each page of the list refers to the same next page".to_owned());
                let resource = plural(self.collection.resource);
                return Err(ApiError::InvalidResponse { url: url.to_string(), resource, cause }.into());
            }
            if page.r#continue.is_empty() {
                self.listed(page.resource_version);
                return Ok(self.events.flush().await?);
            }
        }
    }

    async fn read_page(&mut self, response: ResponseStream) -> Result<ListMeta, Interruption> {
        let ResponseStream { mut contents, url, media_type } = response;
        let waited = self.client.timing.response_timeout;
        let resource = plural(self.collection.resource);
        let invalid = |cause| ApiError::InvalidResponse { url: url.to_string(), resource, cause };
        let mut splitter = Splitter::list(media_type);
        // Bytes without objects are no progress.
        let mut end = Instant::now() + waited;
        loop {
            let part = match timeout_at(end, contents.next()).await {
                Ok(Some(part)) => part.map_err(|error| error.into_api_error(&url, resource))?,
                Ok(None) => break,
                Err(_) => return Err(ApiError::Timeout { url: url.to_string(), waited }.into()),
            };
            let (mut bytes, mut has_item) = (&*part, false);
            while let Some(item) = splitter.next(&mut bytes).map_err(|error| invalid(Cause::whole(&error)))? {
                has_item = true;
                let item = decode::item(media_type, item).map_err(|error| invalid(Cause::whole(&error)))?;
                self.objects.listed(item, self.events.batch());
                self.events.flush_full().await?;
            }
            self.events.flush().await?;
            if has_item {
                end = Instant::now() + waited;
            }
        }
        let Some(envelope) = splitter.list_envelope() else {
            return Err(ApiError::ConnectionLost { url: url.to_string(), cause: None }.into());
        };
        Ok(decode::list_meta(media_type, envelope).map_err(|error| invalid(Cause::whole(&error)))?)
    }
}

/// Returns the query of a list. `token` requests a further page.
fn parameters<'a>(list: &'a List, token: &'a str) -> Vec<(&'static str, &'a str)> {
    let mut parameters = Vec::new();
    if list.paging == Paging::Limited {
        parameters.push(("limit", PAGE));
    }
    match &list.version {
        _ if !token.is_empty() => parameters.push(("continue", token)),
        ListVersion::MostRecent => {}
        ListVersion::Any => parameters.push(("resourceVersion", "0")),
        ListVersion::NotOlderThan(version) => {
            parameters.extend([("resourceVersion", version.as_str()), ("resourceVersionMatch", "NotOlderThan")]);
        }
    }
    parameters
}

/// Reports whether the server no longer has the requested version (410) or does not have it yet (504), so that a
/// different list may help.
fn is_expired(status: Option<StatusCode>, list: &List, page: &ListMeta) -> bool {
    let is_continued = !page.r#continue.is_empty() && list.paging == Paging::Limited;
    match status {
        Some(StatusCode::GONE) => is_continued || list.version != ListVersion::MostRecent,
        Some(StatusCode::GATEWAY_TIMEOUT) => matches!(list.version, ListVersion::NotOlderThan(_)),
        _ => false,
    }
}

/// Reports whether servers respond in this way to unknown or disabled parameters.
fn means_unsupported(code: StatusCode) -> bool {
    let codes = [
        StatusCode::BAD_REQUEST,
        StatusCode::METHOD_NOT_ALLOWED,
        StatusCode::UNSUPPORTED_MEDIA_TYPE,
        StatusCode::UNPROCESSABLE_ENTITY,
    ];
    codes.contains(&code)
}

fn means_expired(code: StatusCode) -> bool {
    [StatusCode::GONE, StatusCode::GATEWAY_TIMEOUT].contains(&code)
}

/// Reports whether an error concerns this client's credentials or request rate, or occurs before the server reads the
/// request.
fn concerns_client(error: &RequestError) -> bool {
    let codes = [StatusCode::UNAUTHORIZED, StatusCode::FORBIDDEN, StatusCode::TOO_MANY_REQUESTS];
    error.error.may_be_configuration() || error.status.is_some_and(|code| codes.contains(&code))
}

/// Objects in a page, as in client-go.
const PAGE: &str = "500";
