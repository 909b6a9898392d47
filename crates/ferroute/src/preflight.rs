//! What will behave differently when this host goes from one mode to another: as a command beforehand, and in the log
//! when it happens.
//!
//! ```text
//!   configuration, once per mode ──┐
//!   Services ──────────────────────┼──► differences (pure) ──► text, JSON, log
//!   rules of others in the kernel ─┘
//! ```
//!
//! What is *not* here: faults of the new mode. Everything listed is as it should be there, and as kube-proxy has it.

mod difference;
mod found;
mod notice;
mod print;

use std::io::Write;

use anyhow::Context;
use ferroute_config::{KubeProxyConfiguration, Resolved};
use ferroute_core::IpFamily;
use ferroute_host::{HostAddresses, KernelAddresses};

pub(crate) use self::{difference::ModeName as Mode, notice::SwitchNotice};
use self::{
    difference::{Difference, ModeName, Side, Switch, differences},
    found::Found,
    print::Report,
};
use crate::{
    cli::{Output, PreflightArgs},
    desired::Desired,
    settings,
};

/// Does what `ferroute preflight` was asked for.
pub(crate) fn run(args: &PreflightArgs, verbosity: Option<u32>, out: &mut impl Write) -> anyhow::Result<()> {
    let desired = Desired::load(&args.desired, verbosity)?;
    let config = settings::load(&args.desired.settings)?.config;
    let found = found::read();
    if let Some(trouble) = &found.trouble {
        tracing::warn!("rules in the kernel are not looked at, so rules of others are not told: {trouble}");
    }
    let from = match args.from {
        Some(mode) => mode,
        None => found.mode.context("no rules of a proxy are here to go from: give their mode with --from")?,
    };
    let to = ModeName::of(&desired.resolved.mode);
    let from_settings = resolve_for(&config, from)?;
    let host_addresses = KernelAddresses::open()?.list()?;
    let of_family = |family| {
        differences(&Switch {
            from: Side { mode: from, settings: &from_settings.settings },
            to: Side { mode: to, settings: &desired.resolved.settings },
            table: desired.table(family),
            host_addresses: &host_addresses,
            found: &found,
        })
    };
    let differences: Vec<Difference> = IpFamily::BOTH.into_iter().flat_map(of_family).collect();
    let report = Report { node: &desired.node().name, from, to, differences: &differences };
    match args.output {
        Output::Text => {
            let mut text = String::new();
            print::write_report_into(&mut text, &report)?;
            out.write_all(text.as_bytes())?;
        }
        Output::Json => {
            serde_json::to_writer_pretty(&mut *out, &report)?;
            writeln!(out)?;
        }
    }
    Ok(())
}

/// The configuration as it would be with another mode: defaults differ.
fn resolve_for(config: &KubeProxyConfiguration, mode: ModeName) -> anyhow::Result<Resolved> {
    let config = KubeProxyConfiguration { mode: mode.as_str().to_owned(), ..config.clone() };
    config.resolve().with_context(|| format!("the configuration is invalid in mode {mode}"))
}
