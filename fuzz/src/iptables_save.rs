use ferroute_core::IpFamily;
use ferroute_iptables::{RuleSet, SavedRulesReader};

/// Parses the output of `iptables-save`. The first byte selects the IP family.
///
/// # Panics
///
/// Printed rules parse to other rules or print differently, or the reader that tolerates invalid lines reads other rules
/// from a text without any.
pub fn iptables_save(input: &[u8]) {
    let [selector, text @ ..] = input else { return };
    let family = if selector & 1 == 0 { IpFamily::V4 } else { IpFamily::V6 };
    let Ok(text) = str::from_utf8(text) else { return };

    let mut reader = SavedRulesReader::new(family);
    text.split_terminator('\n').for_each(|line| reader.line(line));
    let saved = reader.finish();

    let Ok(rules) = RuleSet::parse_save(family, text) else { return };
    if let Ok(saved) = saved {
        assert_eq!(saved.unread, []);
        assert_eq!(saved.rules, rules);
    }
    let printed = rules.to_string();
    let again = RuleSet::parse_save(family, &printed).expect("printed rules");
    assert_eq!(again, rules, "{printed}");
    assert_eq!(again.to_string(), printed);
}
