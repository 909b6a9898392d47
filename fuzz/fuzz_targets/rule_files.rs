#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| ferroute_fuzz::rule_files(input));
