use std::fmt;

/// A chance as the kernel keeps it: a fixed-point number, 2^31 for certainty.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Probability(u32);

impl Probability {
    /// What stands for certainty in the kernel.
    const ONE: u32 = 1 << 31;

    /// One in `n`, with kube-proxy's rounding: it writes ten decimals, and `iptables` rounds these to 31 bits.
    pub fn one_in(n: usize) -> Self {
        // Ten decimals of a number below 1 are whole numbers below 2^53, so that this is exact where it needs to be.
        #[expect(clippy::cast_precision_loss, reason = "no Service has 2^53 endpoints")]
        let decimals = (1e10 / n.max(1) as f64).round_ties_even();
        Self::from_fraction(decimals / 1e10)
    }

    /// Reads a decimal number from 0 to 1, as `iptables` does.
    pub fn parse(text: &str) -> Option<Self> {
        let fraction = text.parse().ok().filter(|value| (0.0..=1.0).contains(value))?;
        Some(Self::from_fraction(fraction))
    }

    /// Of 2^31.
    pub fn bits(self) -> u32 {
        self.0
    }

    /// As a number from 0 to 1.
    pub fn as_f64(self) -> f64 {
        f64::from(self.0) / f64::from(Self::ONE)
    }

    /// Rounds a number from 0 to 1.
    fn from_fraction(fraction: f64) -> Self {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 to 2^31, and whole")]
        Self((fraction * f64::from(Self::ONE)).round() as u32)
    }
}

impl fmt::Display for Probability {
    /// Eleven decimals, as `iptables-save` prints it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // 10^11 / 2^31 = 5^11 / 2^20, and 5^11 · 2^31 fits into 64 bits. Halves go to the even neighbour, as in C.
        let scaled = u64::from(self.0) * 5_u64.pow(11);
        let (floor, rest, half) = (scaled >> 20, scaled & ((1 << 20) - 1), 1 << 19);
        let up = rest > half || (rest == half && floor & 1 == 1);
        let decimals = floor + u64::from(up);
        write!(f, "{}.{:011}", decimals / 10_u64.pow(11), decimals % 10_u64.pow(11))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_in_n_prints_as_iptables_save_shows_kube_proxys_numbers() {
        let shown = [1, 2, 3, 4, 7].map(|n| Probability::one_in(n).to_string());
        assert_eq!(shown, ["1.00000000000", "0.50000000000", "0.33333333349", "0.25000000000", "0.14285714272"]);
    }

    #[test]
    fn printing_agrees_with_exact_float_formatting() {
        for n in 1..5000 {
            let probability = Probability::one_in(n);
            assert_eq!(probability.to_string(), format!("{:.11}", probability.as_f64()));
            assert_eq!(Probability::parse(&probability.to_string()), Some(probability));
            assert_eq!(Probability::parse(&format!("{:.10}", 1.0 / n as f64)), Some(probability), "1/{n}");
        }
    }

    #[test]
    fn numbers_outside_of_0_to_1_are_no_probability() {
        for text in ["", "-0.1", "1.1", "NaN", "inf", "half"] {
            assert_eq!(Probability::parse(text), None, "{text}");
        }
    }
}
