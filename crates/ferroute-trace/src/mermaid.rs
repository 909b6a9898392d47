//! Traces as [Mermaid](https://mermaid.js.org) flowcharts: a node for each chain that the packet passes, an edge for
//! each step, endpoints side by side with their probabilities.

use std::fmt;

use ferroute_core::Escaped;

use crate::{
    Branch, Effect, Event, Packet, Trace, Verdict,
    render::{Names, Phrases, Via, shown_choices},
};

/// Writes a flowchart of a trace of `packet`.
///
/// # Errors
/// Errors of `out`.
pub fn write_into(out: &mut impl fmt::Write, trace: &Trace, packet: &Packet, names: Names<'_>) -> fmt::Result {
    let mut chart = Chart { out, nodes: 0, phrases: Phrases(names) };
    writeln!(chart.out, "flowchart TD")?;
    let (from, to) = (chart.phrases.socket(packet.source), chart.phrases.socket(packet.destination));
    let start = chart.node(&format!("{} {from} to {to}", packet.protocol), Shape::Stadium)?;
    for branch in &trace.branches {
        let share = (trace.branches.len() > 1).then(|| percent(branch.share));
        chart.branch(start, branch, share)?;
    }
    Ok(())
}

struct Chart<'a, W> {
    out: &'a mut W,
    /// The number of nodes so far.
    nodes: usize,
    phrases: Phrases<'a>,
}

#[derive(Clone, Copy)]
enum Shape {
    Rectangle,
    Stadium,
}

/// The start of the next edge.
struct Tail {
    /// The last nodes; several after a choice among endpoints.
    nodes: Vec<usize>,
    /// The label of the next edge.
    label: Option<String>,
}

impl Tail {
    fn add_label(&mut self, text: String) {
        self.label = Some(match self.label.take() {
            Some(label) => format!("{label}, {text}"),
            None => text,
        });
    }
}

impl<W: fmt::Write> Chart<'_, W> {
    fn branch(&mut self, start: usize, branch: &Branch, share: Option<String>) -> fmt::Result {
        let mut tail = Tail { nodes: vec![start], label: share };
        let (mut table, mut chain) = ("", "");
        let choices = &branch.choices;
        for event in &branch.events {
            match event {
                Event::Hook { table: name, .. } => (table, chain) = (name, ""),
                // The chain of the first endpoint is drawn beside those of the others.
                Event::Rule { chain: name, .. } if choices.len() > 1 && choices.iter().any(|it| it.chain == *name) => {}
                Event::Rule { chain: name, mismatch: None, .. } if name != chain => {
                    chain = name;
                    self.step(&mut tail, &format!("{table} {name}"), Shape::Rectangle)?;
                }
                Event::Effect { effect: Effect::Dnat { before, after }, .. }
                    if choices.len() > 1 && choices.iter().any(|choice| choice.to == *after) =>
                {
                    self.endpoints(&mut tail, &format!("DNAT {before}"), branch)?;
                }
                Event::Effect { effect: Effect::Connect { before, .. }, .. } if choices.len() > 1 => {
                    self.endpoints(&mut tail, &format!("accept at {before}"), branch)?;
                }
                Event::Effect { effect, .. } => tail.add_label(self.phrases.effect(effect)),
                Event::Routed { interface } => {
                    self.step(&mut tail, &format!("routed {}", Via(interface.as_deref())), Shape::Rectangle)?;
                }
                Event::Discarded { reason } => tail.add_label(reason.to_string()),
                Event::Rule { .. } | Event::Policy { .. } => {}
            }
        }
        let end = match &branch.verdict {
            Verdict::Delivered { .. } if choices.len() > 1 => "delivered".to_owned(),
            verdict => self.phrases.verdict(verdict),
        };
        self.step(&mut tail, &end, Shape::Stadium)
    }

    fn endpoints(&mut self, tail: &mut Tail, dnat: &str, branch: &Branch) -> fmt::Result {
        let (shown, rest) = branch.choices.split_at(shown_choices(&branch.choices));
        let from = std::mem::take(&mut tail.nodes);
        for choice in shown {
            let to = self.phrases.socket(choice.to);
            let node = self.node(&format!("{}: {dnat} to {to}", choice.chain), Shape::Rectangle)?;
            self.edges(&from, node, Some(&percent(choice.share)))?;
            tail.nodes.push(node);
        }
        if !rest.is_empty() {
            let share: f64 = rest.iter().map(|choice| choice.share).sum();
            let node = self.node(&format!("{} more endpoints", rest.len()), Shape::Rectangle)?;
            self.edges(&from, node, Some(&percent(share)))?;
            tail.nodes.push(node);
        }
        tail.label = None;
        Ok(())
    }

    fn step(&mut self, tail: &mut Tail, text: &str, shape: Shape) -> fmt::Result {
        let node = self.node(text, shape)?;
        self.edges(&tail.nodes, node, tail.label.as_deref())?;
        *tail = Tail { nodes: vec![node], label: None };
        Ok(())
    }

    fn node(&mut self, text: &str, shape: Shape) -> Result<usize, fmt::Error> {
        self.nodes += 1;
        let (open, close) = match shape {
            Shape::Rectangle => ("[", "]"),
            Shape::Stadium => ("([", "])"),
        };
        writeln!(self.out, "    n{}{open}\"{}\"{close}", self.nodes, escaped(text))?;
        Ok(self.nodes)
    }

    fn edges(&mut self, from: &[usize], to: usize, label: Option<&str>) -> fmt::Result {
        for from in from {
            match label {
                Some(label) => writeln!(self.out, "    n{from} -->|\"{}\"| n{to}", escaped(label))?,
                None => writeln!(self.out, "    n{from} --> n{to}")?,
            }
        }
        Ok(())
    }
}

fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

/// Escapes text for a quoted string: `"` and `#` are special to Mermaid, `<`, `>` and `&` to the browser. Line breaks and
/// characters that control a terminal are escaped first.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in Escaped(text).to_string().chars() {
        match letter {
            '"' | '#' | '&' | '<' | '>' => {
                escaped.push('#');
                escaped.push_str(&u32::from(letter).to_string());
                escaped.push(';');
            }
            letter => escaped.push(letter),
        }
    }
    escaped
}

#[cfg(test)]
mod tests;
