use ferroute_inspect::replay::{self, Options};
use ferroute_modes::REGISTRY;
use ferroute_proxy::recording::Bundle;

/// Reads the bundle of a flight recorder and replays it, with and without the text of the rules.
///
/// # Panics
///
/// A bundle that is written is read differently, or the output contains characters that control a terminal.
pub fn bundle(input: &[u8]) {
    let Ok(bundle) = Bundle::read(input) else { return };
    let mut text = Vec::new();
    bundle.write(&mut text).expect("writing to memory");
    assert_eq!(Bundle::read(&*text).expect("a bundle that was just written"), bundle);
    for (rules, manifests) in [(false, true), (true, false)] {
        let mut out = Vec::new();
        // An invalid configuration or object is an error.
        let _ = replay::replay(&REGISTRY, &bundle, &Options { until: None, rules, manifests }, &mut out);
        let out = String::from_utf8(out).expect("text");
        assert!(!out.contains(|c: char| c.is_control() && c != '\n'), "{out:?}");
    }
}
