use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

use ferroute_source::{Event, Problem};

/// Which troubles have been told and last. Several followers have the same one when the server is away; people are told
/// once.
#[derive(Debug, Default)]
pub(crate) struct Complaints(Mutex<HashMap<String, Standing>>);

#[derive(Debug)]
struct Standing {
    problem: Arc<Problem>,
    /// How many have it.
    holders: usize,
}

/// One follower's part in a complaint, to be given back when it is over.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Complaint {
    text: String,
    until_answered: bool,
}

impl Complaint {
    /// Whether it is about this problem.
    pub(crate) fn is(&self, problem: &Problem) -> bool {
        self.text == problem.text()
    }

    /// Whether it is over as soon as the server answers.
    pub(crate) fn ends_with_an_answer(&self) -> bool {
        self.until_answered
    }
}

impl Complaints {
    /// A follower has a problem; the event tells of it, if it is new. `until_answered`: any good answer ends it.
    pub(crate) fn raise(&self, problem: Problem, until_answered: bool) -> (Complaint, Option<Event>) {
        let text = problem.text();
        let mut standing = self.0.lock().expect("no code that holds it panics");
        let mut event = None;
        let entry = standing.entry(text.clone()).or_insert_with(|| {
            let problem = Arc::new(problem);
            event = Some(Event::Problem(Arc::clone(&problem)));
            Standing { problem, holders: 0 }
        });
        entry.holders += 1;
        (Complaint { text, until_answered }, event)
    }

    /// A follower's problem is over; the event tells so, if no other has it.
    #[expect(clippy::needless_pass_by_value, reason = "a complaint is settled once")]
    pub(crate) fn settle(&self, complaint: Complaint) -> Option<Event> {
        let mut standing = self.0.lock().expect("no code that holds it panics");
        let entry = standing.get_mut(&complaint.text)?;
        entry.holders -= 1;
        if entry.holders > 0 {
            return None;
        }
        standing.remove(&complaint.text).map(|entry| Event::Solved(entry.problem))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(text: &str) -> Problem {
        Problem::Other(text.into())
    }

    #[test]
    fn a_problem_of_several_is_told_once_and_is_over_when_it_is_for_all() {
        let complaints = Complaints::default();
        let (first, told) = complaints.raise(problem("away"), true);
        assert!(matches!(told, Some(Event::Problem(_))));
        let (second, told) = complaints.raise(problem("away"), true);
        assert!(told.is_none());
        let (_, other) = complaints.raise(problem("forbidden"), true);
        assert!(other.is_some());
        assert!(complaints.settle(first).is_none());
        let Some(Event::Solved(solved)) = complaints.settle(second) else { panic!("it is over") };
        assert_eq!(solved.to_string(), "away");
        assert!(complaints.raise(problem("away"), true).1.is_some());
    }
}
