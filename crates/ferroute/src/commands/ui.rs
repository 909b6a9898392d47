//! `ferroute ui`: shows the node in a browser.

use std::{
    fs::File,
    io::{BufReader, Write},
    net::SocketAddr,
    path::PathBuf,
    sync::Arc,
};

use anyhow::Context;
use clap::Args;
use ferroute_config::{LogFormat, flags::DesiredArgs};
use ferroute_demo::{DEFAULT_LISTEN, cluster::Cluster};
use ferroute_proxy::recording::Bundle;
use ferroute_ui::Source;

/// Arguments of `ferroute ui`.
#[derive(Args, Clone, Debug)]
pub(crate) struct UiArgs {
    /// The desired state. Without a source, that of the running proxy.
    #[command(flatten)]
    desired: DesiredArgs,
    /// File written by `ferroute bundle`, instead of a source of objects
    #[arg(long, value_name = "FILE", conflicts_with_all = ["manifests", "kubeconfig", "master", "config", "proxy_mode", "hostname_override"])]
    bundle: Option<PathBuf>,
    /// Address and port of the page
    #[arg(long, value_name = "ADDRESS:PORT", default_value = DEFAULT_LISTEN)]
    listen: SocketAddr,
    /// Answer the page of `kubectl ferroute ui` on standard output
    ///
    /// Requests are lines of JSON on standard input, at whose end the command exits.
    #[arg(long, conflicts_with = "listen")]
    stdio: bool,
}

/// Serves the page until the process ends.
pub(crate) fn run(args: &UiArgs, verbosity: Option<u32>) -> anyhow::Result<()> {
    ferroute_logging::start_for_command(verbosity, LogFormat::Text);
    let source = match &args.bundle {
        Some(path) => {
            let file = File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
            let bundle = Bundle::read(BufReader::new(file)).with_context(|| path.display().to_string())?;
            Source::Bundle { bundle: Arc::new(bundle), origin: path.display().to_string() }
        }
        None => Source::new(args.desired.clone()),
    };
    if args.stdio { ferroute_ui::serve_stdio(source) } else { ferroute_ui::serve(source, args.listen, announce) }
}

/// Serves the page of a demo until the process ends.
pub(crate) fn serve_demo(cluster: Cluster, listen: SocketAddr) -> anyhow::Result<()> {
    ferroute_ui::serve(Source::Demo(Box::new(cluster)), listen, announce)
}

/// Prints the URL of the page.
pub(crate) fn announce(url: &str) {
    // The page is served even if standard output is closed.
    let _ = writeln!(std::io::stdout(), "open {url}\nend with Ctrl-C");
}
