//! Lists in pages.

use http::StatusCode;
use http_body_util::BodyExt;
use tokio::time::timeout;

use super::{Follower, Setback};
use crate::{
    decode::{self, ListMeta},
    server::Answer,
    split::Splitter,
    trouble::{Cause, Trouble},
};

impl Follower {
    pub(super) async fn list_pages(&mut self) -> Result<(), Setback> {
        self.ledger.begin_listing();
        let mut page = ListMeta::default();
        let last = self.last.clone();
        loop {
            let parameters = parameters(last.as_deref(), self.newest, self.whole, &page.r#continue);
            let answer = match self.ask("list", &parameters).await {
                Ok(answer) => answer,
                Err(failure) if self.is_expired(failure.status, &page) => {
                    self.whole |= !page.r#continue.is_empty();
                    return Err(self.expired("the list is too old"));
                }
                Err(failure) => return Err(failure.into()),
            };
            page = self.page(answer).await?;
            if page.r#continue.is_empty() {
                self.listed(page.resource_version);
                return Ok(self.out.flush().await?);
            }
        }
    }

    /// The server does not keep what is asked for any more (410), or has not got so far yet (504).
    fn is_expired(&self, status: Option<StatusCode>, page: &ListMeta) -> bool {
        let of_pages = !page.r#continue.is_empty() && !self.whole;
        match status {
            Some(StatusCode::GONE) => of_pages || !self.newest,
            Some(StatusCode::GATEWAY_TIMEOUT) => self.last.is_some() && !self.newest,
            _ => false,
        }
    }

    async fn page(&mut self, answer: Answer) -> Result<ListMeta, Setback> {
        let Answer { mut body, url, media_type } = answer;
        let waited = self.server.timing.answer;
        let resource = self.wanted.resource;
        let senseless = |cause| Trouble::Senseless { url: url.to_string(), resource, cause };
        let mut splitter = Splitter::list(media_type);
        loop {
            let frame = match timeout(waited, body.frame()).await {
                Ok(Some(Ok(frame))) => frame,
                Ok(Some(Err(error))) => {
                    let cause = Some(Cause::innermost(&error));
                    return Err(Trouble::Broken { url: url.to_string(), cause }.into());
                }
                Ok(None) => break,
                Err(_) => return Err(Trouble::Silent { url: url.to_string(), waited }.into()),
            };
            let mut bytes = frame.data_ref().map_or(&[][..], |data| data);
            while let Some(item) = splitter.next(&mut bytes).map_err(|error| senseless(Cause::whole(&error)))? {
                let item = decode::item(media_type, item).map_err(|error| senseless(Cause::whole(&error)))?;
                self.ledger.applied(item, self.out.batch());
                self.out.relieve().await?;
            }
            self.out.flush().await?;
        }
        let Some(shell) = splitter.shell() else {
            return Err(Trouble::Broken { url: url.to_string(), cause: None }.into());
        };
        Ok(decode::list_meta(media_type, shell).map_err(|error| senseless(Cause::whole(&error)))?)
    }
}

/// What to ask for: `token` asks for a further page; otherwise it is the `newest` state, one that is no older than
/// `last`, or any. `whole` asks for no pages.
fn parameters<'a>(last: Option<&'a str>, newest: bool, whole: bool, token: &'a str) -> Vec<(&'static str, &'a str)> {
    let mut parameters = Vec::new();
    if !whole {
        parameters.push(("limit", PAGE));
    }
    match last {
        _ if !token.is_empty() => parameters.push(("continue", token)),
        _ if newest => {}
        // Any version will do for a start, which the server has at hand without asking etcd; the watch catches up.
        None => parameters.push(("resourceVersion", "0")),
        // Not to go back in time when another server answers.
        Some(last) => parameters.extend([("resourceVersion", last), ("resourceVersionMatch", "NotOlderThan")]),
    }
    parameters
}

/// Objects in a page, as in client-go.
const PAGE: &str = "500";
