use proptest::prelude::*;

use super::*;

#[test]
fn durations_are_parsed_like_go() {
    for (text, nanoseconds) in [
        ("0", 0),
        ("+0", 0),
        ("-0", 0),
        ("0s", 0),
        ("5s", 5_000_000_000),
        ("+5s", 5_000_000_000),
        ("-5s", -5_000_000_000),
        ("1h30m", 5_400_000_000_000),
        ("1h0m0s", 3_600_000_000_000),
        ("1.5h", 5_400_000_000_000),
        (".5s", 500_000_000),
        ("5.s", 5_000_000_000),
        ("10ns", 10),
        ("11us", 11_000),
        ("12\u{b5}s", 12_000),
        ("12\u{3bc}s", 12_000),
        ("13ms", 13_000_000),
        ("0.3333333333333333333h", 1_200_000_000_000 - 1),
        ("0.100000000000000000000h", 360_000_000_000),
        ("9223372036854775807ns", i64::MAX),
        ("-9223372036854775808ns", i64::MIN),
        ("2562047h47m16.854775807s", i64::MAX),
    ] {
        assert_eq!(text.parse(), Ok(GoDuration::from_nanos(nanoseconds)), "{text:?}");
    }
}

#[test]
fn parse_errors_name_the_text() {
    for (text, message) in [
        ("", "invalid duration \"\" (want a form such as 1h30m or 500ms)"),
        ("-", "invalid duration \"-\" (want a form such as 1h30m or 500ms)"),
        (".", "invalid duration \".\" (want a form such as 1h30m or 500ms)"),
        ("s", "invalid duration \"s\" (want a form such as 1h30m or 500ms)"),
        ("5", "missing unit in duration \"5\""),
        ("1h5", "missing unit in duration \"1h5\""),
        ("1d", "unknown unit \"d\" in duration \"1d\""),
        ("1 s", "unknown unit \" s\" in duration \"1 s\""),
        ("1S", "unknown unit \"S\" in duration \"1S\""),
        ("2562048h", "invalid duration \"2562048h\" (want a form such as 1h30m or 500ms)"),
        ("99999999999999999999s", "invalid duration \"99999999999999999999s\" (want a form such as 1h30m or 500ms)"),
        ("9223372036854775808ns", "invalid duration \"9223372036854775808ns\" (want a form such as 1h30m or 500ms)"),
    ] {
        let error = text.parse::<GoDuration>().expect_err(text);
        assert_eq!(error.to_string(), message);
    }
}

#[test]
fn durations_are_formatted_like_go() {
    for (nanoseconds, text) in [
        (0, "0s"),
        (1, "1ns"),
        (7_250, "7.25\u{b5}s"),
        (90_400_000, "90.4ms"),
        (999_999_999, "999.999999ms"),
        (1_000_000_000, "1s"),
        (12_750_000_000, "12.75s"),
        (60_000_000_000, "1m0s"),
        (125_000_000_001, "2m5.000000001s"),
        (900_000_000_000, "15m0s"),
        (3_600_000_000_000, "1h0m0s"),
        (86_400_000_000_000, "24h0m0s"),
        (-5_400_000_000_000, "-1h30m0s"),
        (i64::MAX, "2562047h47m16.854775807s"),
        (i64::MIN, "-2562047h47m16.854775808s"),
    ] {
        assert_eq!(GoDuration::from_nanos(nanoseconds).to_string(), text);
    }
}

#[test]
fn plain_number_is_rejected_and_null_is_zero() {
    assert!(serde_json::from_str::<GoDuration>("5000").is_err());
    assert_eq!(serde_json::from_str::<GoDuration>("null").ok(), Some(GoDuration::ZERO));
    assert_eq!(serde_json::from_str::<GoDuration>("\"1m\"").ok(), Some(GoDuration::from_secs(60)));
}

#[test]
fn negative_duration_has_no_standard_duration() {
    assert_eq!(GoDuration::from_secs(2).to_std(), Some(Duration::from_secs(2)));
    assert_eq!(GoDuration::from_nanos(-1).to_std(), None);
}

proptest! {
    #[test]
    fn formatted_duration_is_parsed_again(nanoseconds: i64) {
        let duration = GoDuration::from_nanos(nanoseconds);
        prop_assert_eq!(duration.to_string().parse(), Ok(duration));
    }

    #[test]
    fn parsing_never_panics(text in "[-+0-9.a-zµ ]{0,24}") {
        let _ = text.parse::<GoDuration>();
    }
}
