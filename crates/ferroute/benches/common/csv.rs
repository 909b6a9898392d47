//! Figures for the plots of docs/performance.md: a file for each benchmark, in the directory that `BENCH_CSV` names.

use std::{fmt, fs::OpenOptions, io::Write, path::PathBuf, time::Duration};

use super::cluster::Size;

/// A row of figures in base units. Without `BENCH_CSV`, nothing is written.
pub(crate) struct Row {
    names: Vec<&'static str>,
    values: Vec<String>,
}

impl Row {
    /// Creates a row for a mode and a cluster.
    pub(crate) fn new(mode: impl fmt::Display, size: Size) -> Self {
        let values = vec![mode.to_string(), size.services.to_string(), size.endpoints.to_string()];
        Self { names: vec!["mode", "services", "endpoints"], values }
    }

    /// Adds a name or a number.
    pub(crate) fn with(mut self, name: &'static str, value: &impl ToString) -> Self {
        self.names.push(name);
        self.values.push(value.to_string());
        self
    }

    /// Adds a time in seconds.
    pub(crate) fn time(self, name: &'static str, time: Duration) -> Self {
        self.with(name, &time.as_secs_f64())
    }

    /// Appends the row to the file of a benchmark, which begins with the names of the columns.
    pub(crate) fn append(self, benchmark: &str) {
        let Some(directory) = std::env::var_os("BENCH_CSV").map(PathBuf::from) else { return };
        std::fs::create_dir_all(&directory).unwrap();
        let path = directory.join(format!("{benchmark}.csv"));
        let is_new = !path.exists();
        let mut file = OpenOptions::new().create(true).append(true).open(path).unwrap();
        if is_new {
            writeln!(file, "{}", self.names.join(",")).unwrap();
        }
        writeln!(file, "{}", self.values.join(",")).unwrap();
    }
}
