//! Which line of its input `iptables-restore` complains about.

/// The number (from 1) of the first line that a complaint names. The wordings differ between versions and backends, but
/// all of them say `line 3` or `line: 3` somewhere:
///
/// ```text
///   iptables-restore: line 3 failed                                        legacy, the kernel or a name
///   iptables-restore v1.8.9 (legacy): unknown option "--x"                 either, an option
///   Error occurred at line: 3
///   iptables-nft-restore: line 3 failed: No chain/target/match by that name.
///   line 4: RULE_APPEND failed (Invalid argument): rule in chain A         nf_tables, the kernel
///   iptables-restore: COMMIT expected at line 4
/// ```
pub(super) fn line_at_fault(complaint: &str) -> Option<usize> {
    let mut words = complaint.split_whitespace().peekable();
    while let Some(word) = words.next() {
        let Some(next) = words.peek() else { break };
        let digits = next.find(|c: char| !c.is_ascii_digit()).unwrap_or(next.len());
        if matches!(word, "line" | "line:")
            && let Ok(line) = next[..digits].parse()
        {
            return Some(line);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::line_at_fault;

    #[test]
    fn the_line_is_found_in_the_words_of_every_version_and_backend() {
        let complaints = [
            ("iptables-restore: line 51 failed", 51),
            ("iptables-restore v1.6.1: iptables-restore: unable to initialize table 'x'\nError occurred at line: 7", 7),
            (
                "iptables-restore v1.8.9 (legacy): unknown option \"--nonsense\"\nError occurred at line: 3\nTry `iptables-restore -h' or 'iptables-restore --help' for more information.",
                3,
            ),
            (
                "Bad argument `bogus'\nError occurred at line: 12\nTry `iptables-nft-restore -h' for more information.",
                12,
            ),
            ("iptables-nft-restore: line 5 failed: No chain/target/match by that name.", 5),
            (
                "iptables-nft-restore v1.8.9 (nf_tables): \nline 4: RULE_APPEND failed (Invalid argument): rule in chain A\nline 6: RULE_APPEND failed (Invalid argument): rule in chain B",
                4,
            ),
            ("iptables-nft-restore: COMMIT expected at line 40", 40),
        ];
        for (complaint, line) in complaints {
            assert_eq!(line_at_fault(complaint), Some(line), "{complaint}");
        }
    }

    #[test]
    fn a_complaint_without_a_line_names_none() {
        let complaints = [
            "",
            "line",
            "iptables-restore v1.8.9 (legacy): can't initialize iptables table `nat': Permission denied (you must be root)",
            "Another app is currently holding the xtables lock; still 4s 0us time ahead to have a chance to grab the lock...",
            "iptables-restore: command line argument expected",
        ];
        for complaint in complaints {
            assert_eq!(line_at_fault(complaint), None, "{complaint}");
        }
    }
}
