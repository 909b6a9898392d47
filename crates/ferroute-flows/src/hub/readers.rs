use std::time::{Duration, Instant};

use serde::Serialize;
use tokio::sync::mpsc::Sender;

use crate::{Flow, FlowRequest, FlowStart, FlowSummary, Losses, RecentEnd};

/// A reader, and the lines that it will get next.
#[derive(Debug)]
pub(super) struct Reader {
    pub(super) request: FlowRequest,
    chunks: Sender<Result<Vec<u8>, String>>,
    lines: Vec<u8>,
    missed: u64,
    reported: Losses,
    next_summary: Instant,
}

/// [`FlowEvent`](crate::FlowEvent) without a copy.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Line<'a> {
    Start(&'a FlowStart),
    Flow(&'a Flow),
    RecentEnd(&'a RecentEnd),
    Lost(&'a Losses),
    Summary(&'a FlowSummary),
}

impl Reader {
    pub(super) fn new(request: FlowRequest, chunks: Sender<Result<Vec<u8>, String>>) -> Self {
        let next_summary = Instant::now() + Duration::from_secs(request.summary_seconds.into());
        let (lines, reported) = (Vec::new(), Losses::default());
        Self { request, chunks, lines, missed: 0, reported, next_summary }
    }

    /// Reports whether the reader is gone.
    pub(super) fn is_gone(&self) -> bool {
        self.chunks.is_closed()
    }

    /// Sends the reason why there are no flows.
    pub(super) fn refuse(&self, reason: &str) {
        // A reader that is gone needs no reason.
        let _ = self.chunks.try_send(Err(reason.to_owned()));
    }

    /// Adds a flow if the reader wants it, and reports whether it does.
    pub(super) fn add(&mut self, flow: &Flow) -> bool {
        let is_wanted = self.request.wants(flow);
        if is_wanted {
            self.push(&Line::Flow(flow));
        }
        is_wanted
    }

    /// Like [`add`](Self::add), unless too many lines wait for the reader.
    pub(super) fn offer(&mut self, flow: &Flow, limit: usize) {
        if self.lines.len() < limit {
            self.add(flow);
        } else if self.request.wants(flow) {
            self.missed += 1;
        }
    }

    pub(super) fn push(&mut self, line: &Line<'_>) {
        write(&mut self.lines, line);
    }

    /// Reports whether a summary is due, and schedules the next one.
    pub(super) fn takes_summary(&mut self, now: Instant) -> bool {
        let is_due = self.request.summary_seconds > 0 && now >= self.next_summary;
        if is_due {
            self.next_summary = now + Duration::from_secs(self.request.summary_seconds.into());
        }
        is_due
    }

    /// Sends the waiting lines, unless too many earlier ones have not been taken.
    pub(super) fn flush(&mut self, losses: Losses) {
        let losses = Losses { missed: self.missed, ..losses };
        let Ok(place) = self.chunks.try_reserve() else { return };
        if losses != self.reported {
            self.reported = losses;
            write(&mut self.lines, &Line::Lost(&losses));
        }
        if !self.lines.is_empty() {
            place.send(Ok(std::mem::take(&mut self.lines)));
        }
    }
}

fn write(lines: &mut Vec<u8>, line: &Line<'_>) {
    serde_json::to_writer(&mut *lines, line).expect("text and numbers under text keys are always JSON");
    lines.push(b'\n');
}
