//! Source and destination of a packet: as flags, or by position.

use anyhow::bail;
use clap::Args;

/// The ends of a packet that is traced.
#[derive(Args, Clone, Debug)]
pub(crate) struct PacketEnds {
    /// Source and destination, as of --from and --to
    ///
    /// With one of the flags or --local, the other end alone.
    #[arg(value_names = ["SOURCE", "DESTINATION"], num_args = 0..=2)]
    ends: Vec<String>,
    /// Source of the packet: an address, or the name of a pod or node
    ///
    /// Names are NAME or NAMESPACE/NAME, also after pod/ or node/. Optional with --local.
    #[arg(long, value_name = "ADDRESS|NAME")]
    from: Option<String>,
    /// Destination: ADDRESS:PORT, or the name of a Service
    ///
    /// SERVICE:PORT selects the Service's cluster IP. SERVICE is NAME or NAMESPACE/NAME, also after svc/. The port defaults to
    /// the Service's only port. PORT is a number or a name.
    #[arg(long, value_name = "ADDRESS:PORT|SERVICE")]
    to: Option<String>,
}

impl PacketEnds {
    /// Returns source and destination.
    pub(crate) fn resolve(&self) -> anyhow::Result<(String, String)> {
        match self.resolve_local()? {
            (Some(from), to) => Ok((from, to)),
            (None, to) => {
                bail!("no source for a packet to {to}: name it with --from POD or --from ADDRESS, or use --local")
            }
        }
    }

    /// Returns source and destination of a packet of the node itself, which needs no source.
    pub(crate) fn resolve_local(&self) -> anyhow::Result<(Option<String>, String)> {
        let mut rest = self.ends.iter();
        let needed = usize::from(self.to.is_none());
        let from = match &self.from {
            None if rest.len() > needed => rest.next().cloned(),
            from => from.clone(),
        };
        let Some(to) = self.to.as_ref().or_else(|| rest.next()) else {
            bail!("no destination: name it with --to ADDRESS:PORT or --to SERVICE");
        };
        if let Some(extra) = rest.next() {
            bail!("unexpected argument {extra:?}: the packet already has a source and a destination");
        }
        Ok((from, to.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolve(ends: &[&str], from: Option<&str>, to: Option<&str>, local: bool) -> Option<(Option<String>, String)> {
        let text = |text: &str| text.to_owned();
        let ends = ends.iter().map(|end| text(end)).collect();
        let ends = PacketEnds { ends, from: from.map(text), to: to.map(text) };
        if local { ends.resolve_local().ok() } else { ends.resolve().ok().map(|(from, to)| (Some(from), to)) }
    }

    #[test]
    fn flags_and_positions_may_be_mixed() {
        let both = Some((Some("pod".to_owned()), "web:80".to_owned()));
        assert_eq!(resolve(&["pod", "web:80"], None, None, false), both);
        assert_eq!(resolve(&["web:80"], Some("pod"), None, false), both);
        assert_eq!(resolve(&["pod"], None, Some("web:80"), false), both);
        assert_eq!(resolve(&[], Some("pod"), Some("web:80"), false), both);
        assert_eq!(resolve(&["pod", "web:80"], None, None, true), both);
        assert_eq!(resolve(&["web:80"], None, None, true), Some((None, "web:80".to_owned())));
        assert_eq!(resolve(&[], None, Some("web:80"), true), Some((None, "web:80".to_owned())));
    }

    #[test]
    fn missing_and_further_ends_are_errors() {
        assert_eq!(resolve(&["web:80"], None, None, false), None);
        assert_eq!(resolve(&[], Some("pod"), None, false), None);
        assert_eq!(resolve(&["pod", "web:80"], Some("pod"), None, false), None);
        assert_eq!(resolve(&["web:80"], Some("pod"), Some("web:80"), false), None);
    }
}
