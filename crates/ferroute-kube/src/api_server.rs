use std::sync::Arc;

use ferroute_config::ClientConnectionConfiguration;
use ferroute_source::Event;
use tokio::sync::mpsc;

use crate::{
    AccessError, Timing, access::Access, complaints::Complaints, follower::Follower, kinds::Wanted, server::Server,
    throttle::Throttle,
};

/// A Kubernetes API server as a source of events.
#[derive(Debug)]
pub struct ApiServer {
    access: Access,
    node: String,
    qps: f32,
    burst: i32,
    timing: Timing,
}

impl ApiServer {
    /// The API server that the configuration's `clientConnection` and `--master` (which goes before the address in the
    /// kubeconfig) name; the pod's own service account where neither does. `node` is the name of this node's Node.
    ///
    /// Media types are not looked at: it is JSON that is spoken, always.
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
        Ok(Self {
            access,
            node: node.to_owned(),
            qps: connection.qps,
            burst: connection.burst,
            timing: Timing::default(),
        })
    }

    /// With other times to wait.
    #[must_use]
    pub fn with_timing(self, timing: Timing) -> Self {
        Self { timing, ..self }
    }

    /// Tells what there is, then every change, until nobody takes any more. Dropping the future ends it too.
    ///
    /// Nothing that happens on the way ends it: what goes wrong is told as a problem, and tried again. Each kind is
    /// told on its own, so a slice may come before its Service.
    pub async fn follow(self, batches: mpsc::Sender<Vec<Event>>) {
        let server = Arc::new(Server::new(self.access, Throttle::new(self.qps, self.burst), self.timing));
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
