//! Every extension in every direction. All extensions in the table are tested, and a variant that is not in it does not
//! compile.

use super::*;
use crate::{
    ChainName, Rule, SaveItem, SaveParser, TableName,
    native::testing::{decode_rule, encode_rule},
};

/// Parses the text of one rule.
fn parse(family: IpFamily, text: &str) -> Rule {
    let mut parser = SaveParser::new(family);
    parser.line("*filter").unwrap();
    match parser.line(&format!("-A INPUT {text}")).unwrap() {
        Some(SaveItem::Rule(_, rule)) => rule,
        other => panic!("{text} is parsed as {other:?}"),
    }
}

/// Checks that a sample is parsed as one extension and printed unchanged.
#[track_caller]
fn assert_same_text(family: IpFamily, sample: &str) -> Rule {
    let rule = parse(family, sample);
    match (&*rule.matches, &rule.target) {
        ([module], None) => assert!(!matches!(module, Match::Other(_)), "{sample} is unsupported"),
        ([], Some(target)) => assert!(!matches!(target, Target::Other(_) | Target::Jump(_)), "{sample} is unsupported"),
        _ => panic!("{sample} is parsed as {rule:?}"),
    }
    assert_eq!(rule.to_string(), sample);
    rule
}

fn assert_all_directions<Part: 'static>(table: &[&Entry<Part>]) {
    for entry in table {
        for name in entry.names {
            assert!(entry.samples.iter().any(|text| text.split(' ').nth(1) == Some(name)), "no sample of {name}");
            assert_eq!(table.iter().filter(|other| other.names.contains(name)).count(), 1, "{name} is ambiguous");
        }
        for sample in entry.samples {
            let rules = IpFamily::BOTH.map(|family| (family, assert_same_text(family, sample)));
            if let (Some(start), Some(end)) = (sample.find('"'), sample.rfind('"')) {
                // Text without blanks and quotes is printed without quotes.
                let option = sample[..start].split_whitespace().next_back().unwrap();
                assert!(entry.takes_text(option), "{option} takes any word");
                assert_same_text(IpFamily::V4, &format!("{}-m{}", &sample[..start], &sample[end + 1..]));
            }
            let encoded = rules.iter().filter(|(family, rule)| {
                let encoded = encode_rule(*family, TableName::Filter, ChainName::INPUT, rule);
                let decoded = encoded.as_ref().and_then(|encoded| decode_rule(*family, encoded));
                assert_eq!(decoded.as_ref(), encoded.is_some().then_some(rule), "{sample} is decoded to another rule");
                encoded.is_some()
            });
            let encoded = encoded.count();
            assert_eq!(encoded > 0, !entry.structures.is_empty(), "{sample} is encoded for {encoded} families");
        }
    }
}

#[test]
fn every_match_is_the_same_after_each_direction() {
    assert_all_directions(MATCHES);
}

#[test]
fn every_target_is_the_same_after_each_direction() {
    assert_all_directions(TARGETS);
}

/// `iptables` accepts options of all modules that were loaded before.
#[test]
fn options_of_a_match_may_follow_another_module() {
    for sample in Match::samples() {
        let (module, options) = sample.match_indices(' ').nth(1).map_or((sample, ""), |(at, _)| sample.split_at(at));
        let rule = parse(IpFamily::V4, &format!("{module} -m other{options}"));
        assert_eq!(rule.matches[0], parse(IpFamily::V4, sample).matches[0], "{sample} without an option of its module");
    }
}
