//! The API server's clock, as its answers tell it.

use std::time::SystemTime;

use http::{Request, header};
use kube_client::client::Body;
use tokio::time::timeout;

use crate::{ApiServer, trouble::Trouble};

/// Why the API server's clock is not known.
#[derive(Debug, thiserror::Error)]
pub enum ClockError {
    /// It gave no answer.
    #[error(transparent)]
    Unanswered(#[from] Trouble),
    /// Its answer tells no time; the API server's own do.
    #[error("the answer of {url} has no usable Date")]
    NoDate {
        /// Who answered.
        url: String,
    },
}

impl ApiServer {
    /// Asks for the time. It is told in whole seconds, and is as old as the answer's way here.
    ///
    /// # Errors
    /// When there is no answer, or none that tells the time. One that refuses us does.
    pub async fn clock(&self) -> Result<SystemTime, ClockError> {
        let server = self.server();
        let link = server.link().await?.0;
        let request = Request::get("/version")
            .header(header::USER_AGENT, crate::server::USER_AGENT)
            .body(Body::empty())
            .expect("the target is a known path");
        let waited = server.timing.answer;
        let answer = match timeout(waited, link.client.send(request)).await {
            Ok(answer) => answer.map_err(|error| crate::server::unsent(&link.url, &error))?,
            Err(_) => return Err(Trouble::Silent { url: link.url.to_string(), waited }.into()),
        };
        let date = answer.headers().get(header::DATE).and_then(|date| date.to_str().ok());
        let time = date.and_then(|date| httpdate::parse_http_date(date).ok());
        time.ok_or_else(|| ClockError::NoDate { url: link.url.to_string() })
    }
}
