// The walk of a packet: turns the events of one branch of a trace into stages, steps and headers, without drawing anything.

import { socket } from "./format.js";

/** The connections between stages in the kernel. */
export const LINKS = [
  ["sender", "prerouting"], ["prerouting", "routing"], ["routing", "forward"], ["forward", "postrouting"],
  ["postrouting", "receiver"], ["routing", "input"], ["input", "process"], ["process", "output"], ["output", "routing2"],
  ["routing2", "postrouting"],
];

/** Returns the port of `ADDRESS:PORT`. */
function portOf(text) {
  return text.slice(text.lastIndexOf(":") + 1);
}

/** Returns the header after an effect. */
function apply(header, event, way) {
  switch (event.effect) {
    case "dnat": return { ...header, destination: event.after };
    case "masquerade": return { ...header, source: socket(event.after, portOf(header.source)) };
    case "mark": return { ...header, mark: event.after };
    // A process opens another connection, from an address of the host.
    case "connect": return { source: way.from ?? header.source, destination: event.after, mark: 0 };
    default: return header;
  }
}

/** The stage at which a packet begins: the node's own packets begin in a process. */
function origin(packet) {
  return packet.origin === "local" ? "process" : "sender";
}

/** The stage at which a packet ends. */
function end(way) {
  if (way.verdict !== "delivered") return null;
  return way.interface === null ? "process" : "receiver";
}

/**
 * Walks one branch (`way`) of a trace.
 *
 * Returns `stages` in the order of the walk, each with a `place` (a hook, `routing`, `process`) and its `items`; and
 * `steps`: the items with an effect, each with the header `before` and `after`. Rules that do not match are
 * items, but no steps.
 */
export function walk(trace, way) {
  let header = { source: trace.packet.source, destination: trace.packet.destination, mark: trace.packet.mark ?? 0 };
  const stages = [];
  const steps = [];

  const stage = (place, extra) => {
    const last = stages.at(-1);
    if (last?.place === place && !extra) return last;
    stages.push({ place, items: [], effects: [], ...extra });
    return stages.at(-1);
  };
  const add = (current, item, isStep = true) => {
    const before = header;
    if (item.effect) header = apply(header, item, way);
    const entry = { ...item, place: current.place, before, after: header, step: isStep ? steps.length : null };
    current.items.push(entry);
    if (isStep) steps.push(entry);
    return entry;
  };

  add(stage(origin(trace.packet)), { event: "start", packet: trace.packet });
  for (const event of way.events) {
    switch (event.event) {
      case "hook":
        add(stage(event.hook), event);
        break;
      case "rule":
        add(stages.at(-1), event, event.mismatch === null);
        break;
      case "effect": {
        const isProcess = event.effect === "connect" || event.table === "ipvs";
        const current = isProcess ? stage("process", { proxy: event.table }) : stages.at(-1);
        const choices = event.effect === "dnat" || event.effect === "connect" ? way.choices ?? [] : [];
        const isChoice = choices.length > 1 && choices.some(({ to }) => to === event.after);
        current.effects.push(add(current, { ...event, choices: isChoice ? choices : null }));
        break;
      }
      case "routed":
        // A process of the node has its route before its packet reaches a hook.
        if (stages.at(-1).place === "process") add(stages.at(-1), event);
        else add(stage(stages.some(({ place }) => place === "process") ? "routing2" : "routing", {}), event);
        break;
      default:
        if (stages.length > 0) add(stages.at(-1), event);
    }
  }
  const last = end(way);
  add(last ? stage(last, {}) : stages.at(-1), { event: "end", way });
  return { stages: complete(stages), steps };
}

/** The shortest path between two stages, both included; only the two if there is none. */
function between(from, to) {
  const paths = [[from]];
  const seen = new Set([from]);
  for (const path of paths) {
    if (path.at(-1) === to) return path;
    for (const [start, stop] of LINKS) {
      if (start !== path.at(-1) || seen.has(stop)) continue;
      seen.add(stop);
      paths.push([...path, stop]);
    }
  }
  return [from, to];
}

/** Adds the stages that a packet passes without a rule: the trace has no event for hooks without chains. */
function complete(stages) {
  return stages.flatMap((stage, index) => {
    if (index === 0 || stages[index - 1].place === stage.place) return [stage];
    const passed = between(stages[index - 1].place, stage.place).slice(1, -1);
    return [...passed.map((place) => ({ place, items: [], effects: [] })), stage];
  });
}

/** Whether an event changes the packet or ends its path. */
export function isEffect({ event }) {
  return event === "effect" || event === "discarded";
}
