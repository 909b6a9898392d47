use super::*;

/// A probability as the kernel stores it: a fixed-point number with 31 fractional bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Probability(u32);

impl Probability {
    /// The kernel's representation of 1.
    const ONE: u32 = 1 << 31;

    /// The probability 1/`n` with kube-proxy's rounding: it writes ten decimals, which `iptables` rounds to 31 bits.
    pub fn one_in(n: usize) -> Self {
        // Ten decimals of a number below 1 are an integer below 2^53, so the conversion is exact where this matters.
        #[expect(clippy::cast_precision_loss, reason = "no Service has 2^53 endpoints")]
        let decimals = (1e10 / n.max(1) as f64).round_ties_even();
        Self::from_fraction(decimals / 1e10)
    }

    /// Parses a decimal number from 0 to 1, as `iptables` does.
    pub fn parse(text: &str) -> Option<Self> {
        let fraction = text.parse().ok().filter(|value| (0.0..=1.0).contains(value))?;
        Some(Self::from_fraction(fraction))
    }

    /// The probability as a number from 0 to 1.
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
        // 10^11 / 2^31 = 5^11 / 2^20, and 5^11 · 2^31 fits into 64 bits. Rounds half to even, as in C.
        let scaled = u64::from(self.0) * 5_u64.pow(11);
        let (floor, rest, half) = (scaled >> 20, scaled & ((1 << 20) - 1), 1 << 19);
        let up = rest > half || (rest == half && floor & 1 == 1);
        let decimals = floor + u64::from(up);
        write!(f, "{}.{:011}", decimals / 10_u64.pow(11), decimals % 10_u64.pow(11))
    }
}

/// `-m statistic`.
pub(super) static STATISTIC: Entry<Match> = Entry {
    names: &["statistic"],
    options: &["--mode", "--probability", "--every", "--packet"],
    structures: &[("statistic", 0)],
    samples: &[
        "-m statistic --mode random --probability 0.33333333349",
        "-m statistic --mode random ! --probability 1.00000000000",
    ],
    parse: |options| {
        let [mode, chance] = options.exactly(["--mode", "--probability"])?;
        (mode.plain_arg()? == "random").then(|| chance.sense(Probability::parse).map(Match::Statistic))?
    },
    print: |module, out| {
        let Match::Statistic(chance) = module else { return Err(fmt::Error) };
        out.write_str(" -m statistic --mode random")?;
        write_sense(out, " --probability ", Some(chance))
    },
    encode: |module, _, _| {
        let Match::Statistic(chance) = module else { return None };
        let new = Structure::new("statistic", 0, 24).put_u16(2, chance.is_negated().into());
        // `iptables` also sets the counter of the other mode, which the kernel does not use in this one.
        Some(new.put_u32(4, chance.value().0).put_u32(12, chance.value().0))
    },
    decode: |structure, _| {
        let (mode, bits) = (structure.u16(0)?, structure.u32(4)?);
        (mode == 0 && bits <= Probability::ONE).then_some(())?;
        Some(Match::Statistic(Sense::new(structure.u16(2)? != 0, Probability(bits))))
    },
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_in_n_prints_as_iptables_save_prints_kube_proxys_rules() {
        let printed = [1, 2, 3, 4, 7].map(|n| Probability::one_in(n).to_string());
        assert_eq!(printed, ["1.00000000000", "0.50000000000", "0.33333333349", "0.25000000000", "0.14285714272"]);
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
    fn numbers_outside_of_0_to_1_are_rejected() {
        for text in ["", "-0.1", "1.1", "NaN", "inf", "half"] {
            assert_eq!(Probability::parse(text), None, "{text}");
        }
    }
}
