//! Arguments in the way of Go's flag library, and the text of each.

use std::{any::TypeId, collections::BTreeMap};

use clap::{Arg, ArgMatches, Args, Command, FromArgMatches, parser::ValueSource};

use super::values::Switch;

/// Arguments, with the text of each flag beside its value.
///
/// They are read as kube-proxy reads its own: a flag that stands twice counts as it stood last, lists are gathered, a
/// value may start with a dash, a boolean needs no value and takes one by `=` only, and underscores in names are dashes.
#[derive(Clone, Debug)]
pub struct Typed<A> {
    /// The values.
    pub args: A,
    /// The texts.
    pub flags: FlagValues,
}

/// All flags by name, without the dashes before it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FlagValues(BTreeMap<String, FlagValue>);

/// One flag.
#[derive(Clone, Debug, PartialEq, Eq)]
struct FlagValue {
    text: String,
    given: bool,
}

impl FlagValues {
    fn of<A: Args>(matches: &ArgMatches) -> Self {
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

    /// The flag stands on the command line.
    pub fn is_given(&self, name: &str) -> bool {
        self.0.get(name).is_some_and(|flag| flag.given)
    }

    /// Names of the flags that stand on the command line.
    pub fn given(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter(|(_, flag)| flag.given).map(|(name, _)| name.as_str())
    }

    /// Every flag with its value, given or default, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, flag)| (name.as_str(), flag.text.as_str()))
    }
}

impl<A: Args> FromArgMatches for Typed<A> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        Ok(Self { args: A::from_arg_matches(matches)?, flags: FlagValues::of::<A>(matches) })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        self.flags = FlagValues::of::<A>(matches);
        self.args.update_from_arg_matches(matches)
    }
}

impl<A: Args> Args for Typed<A> {
    fn augment_args(command: Command) -> Command {
        A::augment_args(command).args_override_self(true).mut_args(as_go_reads_it)
    }

    fn augment_args_for_update(command: Command) -> Command {
        A::augment_args_for_update(command).args_override_self(true).mut_args(as_go_reads_it)
    }
}

fn as_go_reads_it(mut arg: Arg) -> Arg {
    if let Some(name) = arg.get_long().filter(|name| name.contains('-')) {
        let underscored = name.replace('-', "_");
        arg = arg.alias(underscored);
    }
    let is_switch = arg.get_value_parser().type_id() == TypeId::of::<Switch>();
    let says_nothing = matches!(arg.get_default_values(), [only] if only.is_empty() || only == "false");
    arg = arg.hide_default_value(says_nothing);
    if is_switch {
        arg.value_name("BOOL").num_args(0..=1).require_equals(true).default_missing_value("true")
    } else if arg.is_require_equals_set() {
        arg
    } else {
        arg.allow_hyphen_values(true)
    }
}
