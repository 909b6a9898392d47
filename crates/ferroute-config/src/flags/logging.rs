use clap::Args;
use crate::{FlushFrequency, GoDuration, LoggingConfiguration, Quantity};

use crate::flags::{
    typed::FlagValues,
    values::{Switch, VModule},
};

/// What is logged, and how.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Logging")]
pub struct LoggingFlags {
    /// How lines look: text or json
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    logging_format: String,
    // The same argument as `ferroute -v`, which stands before any subcommand.
    /// How much to log: 2 adds every sync, 4 every event
    #[arg(short = 'v', long = "v", visible_alias = "verbosity", value_name = "LEVEL", default_value = "0")]
    verbosity: u32,
    /// Other levels for single source files; there are none of that name here
    #[arg(long, value_name = "PATTERN=LEVEL")]
    vmodule: Vec<VModule>,
    /// Longest time that a line may wait in a buffer; there is no buffer
    #[arg(long, value_name = "DURATION", default_value = "5s")]
    log_flush_frequency: GoDuration,
    /// In text, write errors to standard error and the rest to standard output; all goes to standard error
    #[arg(long, default_value = "false")]
    log_text_split_stream: Switch,
    /// In text, buffer for lines that are not errors; there is none
    #[arg(long, value_name = "SIZE", default_value = "0")]
    log_text_info_buffer_size: Quantity,
    /// In JSON, write errors to standard error and the rest to standard output; all goes to standard error
    #[arg(long, default_value = "false")]
    log_json_split_stream: Switch,
    /// In JSON, buffer for lines that are not errors; there is none
    #[arg(long, value_name = "SIZE", default_value = "0")]
    log_json_info_buffer_size: Quantity,
}

impl LoggingFlags {
    pub(super) fn lay_over(&self, config: &mut LoggingConfiguration) {
        self.lay_over_where(|_| true, config);
    }

    /// Writes only what was given over what a file says. This is how kube-proxy treats these flags, and no others.
    pub fn lay_given_over(&self, given: &FlagValues, config: &mut LoggingConfiguration) {
        self.lay_over_where(|flag| given.is_given(flag), config);
    }

    fn lay_over_where(&self, counts: impl Fn(&str) -> bool, config: &mut LoggingConfiguration) {
        if counts("logging-format") {
            config.format.clone_from(&self.logging_format);
        }
        if counts("v") {
            config.verbosity = self.verbosity;
        }
        // Those of the command line come first, because the first that fits counts.
        let items = self.vmodule.iter().flat_map(|VModule(items)| items.clone());
        config.vmodule = items.chain(std::mem::take(&mut config.vmodule)).collect();
        if counts("log-flush-frequency") {
            config.flush_frequency = FlushFrequency::Text(self.log_flush_frequency);
        }
        let options = &mut config.options;
        if counts("log-text-split-stream") {
            options.text.split_stream = self.log_text_split_stream.0;
        }
        if counts("log-text-info-buffer-size") {
            options.text.info_buffer_size.clone_from(&self.log_text_info_buffer_size);
        }
        if counts("log-json-split-stream") {
            options.json.split_stream = self.log_json_split_stream.0;
        }
        if counts("log-json-info-buffer-size") {
            options.json.info_buffer_size.clone_from(&self.log_json_info_buffer_size);
        }
    }
}
