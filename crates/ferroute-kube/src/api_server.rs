use std::sync::Arc;

use ferroute_config::ClientConnectionConfiguration;
use ferroute_source::Event;
use tokio::sync::mpsc;

use crate::{
    AccessError, RequestCounter, Timing, access::Access, complaints::Complaints, follower::Follower, kinds::Wanted,
    requests::Uncounted, server::Server, throttle::Throttle, writer::ApiWriter,
};

/// A Kubernetes API server as a source of events.
#[derive(Debug)]
pub struct ApiServer {
    server: Arc<Server>,
    node: String,
}

impl ApiServer {
    /// The API server that the configuration's `clientConnection` and `--master` (which goes before the address in the
    /// kubeconfig) name; the pod's own service account where neither does. `node` is the name of this node's Node.
    ///
    /// What is listed and watched comes in the form that the configuration asks for, if the server has it, or in JSON. What
    /// is written is JSON, always.
    ///
    /// # Errors
    ///
    /// The kubeconfig or the service account cannot be read. Nothing is sent yet.
    pub async fn new(
        connection: &ClientConnectionConfiguration,
        master: Option<&str>,
        node: &str,
    ) -> Result<Self, AccessError> {
        let access = Access::new(connection, master);
        // Only to tell mistakes at once: the files are read again when the first request is made.
        access.load().await?;
        let throttle = Throttle::new(connection.qps, connection.burst);
        let server = Server::new(access, throttle, connection.accepted(), Timing::default(), Arc::new(Uncounted));
        Ok(Self { server: Arc::new(server), node: node.to_owned() })
    }

    /// With other times to wait.
    #[must_use]
    pub fn with_timing(self, timing: Timing) -> Self {
        Self { server: Arc::new(self.server.with_timing(timing)), ..self }
    }

    /// Writes to the same server.
    pub fn writer(&self) -> ApiWriter {
        ApiWriter::new(Arc::clone(&self.server), &self.node)
    }

    /// With somebody who counts requests.
    #[must_use]
    pub fn with_counter(self, counter: Arc<dyn RequestCounter>) -> Self {
        Self { server: Arc::new(self.server.with_counter(counter)), ..self }
    }

    /// The server as something to send requests to.
    pub(crate) fn server(&self) -> &Server {
        &self.server
    }

    /// Tells what there is, then every change, until nobody takes any more. Dropping the future ends it too.
    ///
    /// Nothing that happens on the way ends it: what goes wrong is told as a problem, and tried again. Each kind is
    /// told on its own, so a slice may come before its Service.
    pub async fn follow(self, batches: mpsc::Sender<Vec<Event>>) {
        let server = self.server;
        let complaints = Arc::new(Complaints::default());
        let run = |wanted| Follower::new(wanted, Arc::clone(&server), Arc::clone(&complaints), batches.clone()).run();
        let all = async {
            tokio::join!(
                run(Wanted::services()),
                run(Wanted::slices()),
                run(Wanted::node(&self.node)),
                run(Wanted::service_cidrs())
            );
        };
        tokio::select! {
            () = all => {}
            () = batches.closed() => {}
        }
    }
}
