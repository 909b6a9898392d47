//! Command lines in the syntax of Go's flag library, with the text of each flag.

use std::{any::TypeId, collections::BTreeMap};

use clap::{Arg, ArgMatches, Args, Command, FromArgMatches, parser::ValueSource};

use super::values::Switch;

/// Parsed arguments, with the text of each flag.
///
/// The syntax is kube-proxy's: the last occurrence of a flag applies, lists are concatenated, values may start with a dash,
/// booleans need no value and accept one after `=` only, and underscores in names are equivalent to dashes.
#[derive(Clone, Debug)]
pub struct RawArgs<A> {
    /// The parsed values.
    pub args: A,
    /// The texts.
    pub flags: FlagValues,
}

/// The texts of all flags by name, without leading dashes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FlagValues(BTreeMap<String, FlagValue>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct FlagValue {
    text: String,
    given: bool,
}

impl FlagValues {
    fn from_matches<A: Args>(matches: &ArgMatches) -> Self {
        let command = A::augment_args(Command::new("flags"));
        let flags = command.get_arguments().filter_map(|arg| {
            let (name, id) = (arg.get_long()?.to_owned(), arg.get_id().as_str());
            let texts = matches.get_raw(id).into_iter().flatten().map(|text| text.to_string_lossy());
            let text = texts.collect::<Vec<_>>().join(",");
            let given = matches.value_source(id) == Some(ValueSource::CommandLine);
            Some((name, FlagValue { text, given }))
        });
        Self(flags.collect())
    }

    /// Reports whether a flag is on the command line.
    pub fn is_given(&self, name: &str) -> bool {
        self.0.get(name).is_some_and(|flag| flag.given)
    }

    /// Returns the names of the flags on the command line.
    pub fn given(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter(|(_, flag)| flag.given).map(|(name, _)| name.as_str())
    }

    /// Returns all flags with their values, including defaults, sorted by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, flag)| (name.as_str(), flag.text.as_str()))
    }
}

impl<A: Args> FromArgMatches for RawArgs<A> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        Ok(Self { args: A::from_arg_matches(matches)?, flags: FlagValues::from_matches::<A>(matches) })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        self.flags = FlagValues::from_matches::<A>(matches);
        self.args.update_from_arg_matches(matches)
    }
}

impl<A: Args> Args for RawArgs<A> {
    fn augment_args(command: Command) -> Command {
        A::augment_args(command).args_override_self(true).mut_args(with_go_syntax)
    }

    fn augment_args_for_update(command: Command) -> Command {
        A::augment_args_for_update(command).args_override_self(true).mut_args(with_go_syntax)
    }
}

fn with_go_syntax(mut arg: Arg) -> Arg {
    if let Some(name) = arg.get_long().filter(|name| name.contains('-')) {
        let underscored = name.replace('-', "_");
        arg = arg.alias(underscored);
    }
    let is_switch = arg.get_value_parser().type_id() == TypeId::of::<Switch>();
    let is_empty = matches!(arg.get_default_values(), [only] if only.is_empty() || only == "false");
    arg = arg.hide_default_value(is_empty);
    if is_switch {
        arg.value_name("BOOL").num_args(0..=1).require_equals(true).default_missing_value("true")
    } else if arg.is_require_equals_set() {
        arg
    } else {
        arg.allow_hyphen_values(true)
    }
}
