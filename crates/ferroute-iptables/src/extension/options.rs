use ferroute_core::IpFamily;

use crate::{Sense, text::Word};

/// A module or target in a rule's text.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Options<'a> {
    /// The family of the rule.
    pub(crate) family: IpFamily,
    /// The name of the module or target.
    pub(crate) name: &'a str,
    /// Options, in order.
    pub(crate) list: &'a [Opt<'a>],
}

/// An option of a module or target, with its arguments.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Opt<'a> {
    /// Preceded by `!`.
    pub(crate) negated: bool,
    /// The name, with its dashes.
    pub(crate) name: &'a str,
    /// The arguments.
    pub(crate) args: &'a [Word<'a>],
}

impl<'a> Options<'a> {
    /// Returns the only option if this is its name.
    pub(super) fn only(&self, name: &str) -> Option<&Opt<'a>> {
        self.exactly([name]).map(|[option]| option)
    }

    /// Returns the options with these names, in any order, if there are no others.
    pub(super) fn exactly<const N: usize>(&self, names: [&str; N]) -> Option<[&Opt<'a>; N]> {
        let mut found = [self.list.first()?; N];
        for (option, name) in found.iter_mut().zip(names) {
            *option = self.list.iter().find(|option| option.name == name)?;
        }
        (self.list.len() == N).then_some(found)
    }

    /// Parses options for the source and the destination, which have these names; `None` if there are other options, or
    /// two for the same side.
    pub(super) fn sides<T>(
        &self,
        names: [&[&str]; 2],
        parse: impl Fn(&str) -> Option<T>,
    ) -> Option<[Option<Sense<T>>; 2]> {
        let mut sides = [None, None];
        for option in self.list {
            let side = names.iter().position(|names| names.contains(&option.name))?;
            if sides[side].replace(option.sense(&parse)?).is_some() {
                return None;
            }
        }
        Some(sides)
    }
}

impl<'a> Opt<'a> {
    /// Returns the only argument if it is printed without quotes.
    pub(super) fn arg(&self) -> Option<&'a str> {
        match self.args {
            [word] => word.plain(),
            _ => None,
        }
    }

    /// Returns the only argument, quoted or not, of an option that is not negated.
    pub(super) fn text(&self) -> Option<&'a str> {
        match self.args {
            [word] if !self.negated => Some(&word.text),
            _ => None,
        }
    }

    /// Returns the only argument of an option that is not negated, if it is printed without quotes.
    pub(super) fn plain_arg(&self) -> Option<&'a str> {
        if self.negated { None } else { self.arg() }
    }

    /// Parses the only argument, with the option's negation.
    pub(super) fn sense<T>(&self, parse: impl FnOnce(&str) -> Option<T>) -> Option<Sense<T>> {
        Some(Sense::new(self.negated, parse(self.arg()?)?))
    }

    /// Reports whether the option has neither arguments nor a negation.
    pub(super) fn is_flag(&self) -> bool {
        !self.negated && self.args.is_empty()
    }
}
