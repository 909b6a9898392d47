//! A packet's way as a [Mermaid](https://mermaid.js.org) flowchart: a box for each chain that the packet goes through, an
//! edge for each step, the endpoints side by side with their shares.

use std::fmt;

use crate::{
    Account, Effect, Event, Packet, Told, Verdict,
    print::{MOST_CHOICES, Names, Through, Words},
};

/// Draws all that can become of `packet`.
///
/// # Errors
/// Only those of `out`.
pub fn write_into(out: &mut impl fmt::Write, account: &Account, packet: &Packet, names: Names<'_>) -> fmt::Result {
    let mut chart = Chart { out, nodes: 0, names };
    writeln!(chart.out, "flowchart TD")?;
    let words = Words(names);
    let (from, to) = (words.socket(packet.source), words.socket(packet.destination));
    let start = chart.node(&format!("{} {from} to {to}", packet.protocol), Shape::Round)?;
    for way in &account.ways {
        let share = (account.ways.len() > 1).then(|| percent(way.group.share));
        chart.way(start, way, share)?;
    }
    Ok(())
}

struct Chart<'a, W> {
    out: &'a mut W,
    nodes: usize,
    names: Names<'a>,
}

#[derive(Clone, Copy)]
enum Shape {
    Box,
    Round,
}

/// What has been drawn last.
struct Last {
    /// Where the next edge begins; several after a choice among endpoints.
    nodes: Vec<usize>,
    /// What the next edge says.
    label: Option<String>,
}

impl Last {
    fn say(&mut self, more: String) {
        self.label = Some(match self.label.take() {
            Some(label) => format!("{label}, {more}"),
            None => more,
        });
    }
}

impl<W: fmt::Write> Chart<'_, W> {
    fn way(&mut self, start: usize, way: &Told, share: Option<String>) -> fmt::Result {
        let mut last = Last { nodes: vec![start], label: share };
        let (mut table, mut chain) = ("", "");
        let choices = &way.group.choices;
        for event in &way.events {
            match event {
                Event::Hook { table: name, .. } => (table, chain) = (name, ""),
                // The first endpoint's own chain is drawn beside those of the others.
                Event::Rule { chain: name, .. } if choices.len() > 1 && choices.iter().any(|it| it.chain == *name) => {}
                Event::Rule { chain: name, mismatch: None, .. } if name != chain => {
                    chain = name;
                    self.step(&mut last, &format!("{table} {name}"), Shape::Box)?;
                }
                Event::Effect { effect: Effect::Dnat { before, .. }, .. } if choices.len() > 1 => {
                    self.endpoints(&mut last, &format!("DNAT {before}"), way)?;
                }
                Event::Effect { effect, .. } => last.say(Words(self.names).effect(effect)),
                Event::Routed { to } => {
                    self.step(&mut last, &format!("routed {}", Through(to.as_deref())), Shape::Box)?;
                }
                Event::Discarded { why } => last.say((*why).to_owned()),
                Event::Rule { .. } | Event::Policy { .. } => {}
            }
        }
        let end = match &way.group.verdict {
            Verdict::Delivered { .. } if choices.len() > 1 => "delivered".to_owned(),
            verdict => Words(self.names).verdict(verdict),
        };
        self.step(&mut last, &end, Shape::Round)
    }

    fn endpoints(&mut self, last: &mut Last, what: &str, way: &Told) -> fmt::Result {
        let choices = &way.group.choices;
        let shown = if choices.len() > MOST_CHOICES { MOST_CHOICES - 1 } else { choices.len() };
        let from = std::mem::take(&mut last.nodes);
        for choice in &choices[..shown] {
            let to = Words(self.names).socket(choice.to);
            let node = self.node(&format!("{}: {what} to {to}", choice.chain), Shape::Box)?;
            self.edges(&from, node, Some(&percent(choice.share)))?;
            last.nodes.push(node);
        }
        if shown < choices.len() {
            let share: f64 = choices[shown..].iter().map(|choice| choice.share).sum();
            let node = self.node(&format!("{} more endpoints", choices.len() - shown), Shape::Box)?;
            self.edges(&from, node, Some(&percent(share)))?;
            last.nodes.push(node);
        }
        last.label = None;
        Ok(())
    }

    fn step(&mut self, last: &mut Last, text: &str, shape: Shape) -> fmt::Result {
        let node = self.node(text, shape)?;
        self.edges(&last.nodes, node, last.label.as_deref())?;
        *last = Last { nodes: vec![node], label: None };
        Ok(())
    }

    fn node(&mut self, text: &str, shape: Shape) -> Result<usize, fmt::Error> {
        self.nodes += 1;
        let (open, close) = match shape {
            Shape::Box => ("[", "]"),
            Shape::Round => ("([", "])"),
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

/// Text between quotes, where Mermaid reads `#` and a quote as its own and the browser reads `<` and `&`.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
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
