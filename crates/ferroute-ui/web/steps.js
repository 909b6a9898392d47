// The steps of a packet as a list, and its header at the current step.

import { card, el, icon } from "./dom.js";
import { mark, percent } from "./format.js";
import { t } from "./i18n.js";
import { translate } from "./texts.js";
import { owned, sentence, verdictOf } from "./words.js";
import { isEffect } from "./walk.js";

/** Maximum number of consecutive rules that do not match and are shown; chains with many Services have thousands. */
const MAX_MISMATCHES = 4;

/** One field of the header; a change shows both values. */
function headerField(trace, key, before, after, format) {
  const changed = before !== after;
  return el("div", { class: `header-field ${changed ? "changed" : ""}`, data: { field: key } }, el("dt", {}, t(`header.${key}`)),
    el("dd", { class: "mono" }, changed && el("del", {}, format(before)), el(changed ? "ins" : "span", {}, format(after))));
}

/** The header before and after a step. Without a step: at the beginning and at the end. */
export function headerCard(trace, { before, after }, step) {
  const address = (text) => owned(trace, text);
  return card(step ? t("header.title") : t("header.both"), { class: "header-card" },
    step && el("p", { class: "step-sentence" }, sentence(trace, step)),
    el("dl", {}, headerField(trace, "source", before.source, after.source, address),
      headerField(trace, "destination", before.destination, after.destination, address),
      headerField(trace, "mark", before.mark, after.mark, mark)));
}

function choices(trace, item) {
  return item.choices && el("ul", { class: "choices-list" }, item.choices.map(({ share, to, chain }) =>
    el("li", { title: chain }, shareBar(share), el("b", {}, percent(share)), el("span", { class: "mono" }, owned(trace, to)))));
}

function shareBar(share) {
  const bar = el("span", { class: "share", "aria-hidden": "true" }, el("span", {}));
  bar.firstChild.style.width = `${Math.round(share * 100)}%`;
  return bar;
}

function ruleItem(trace, item, attributes, open) {
  const missed = item.mismatch !== null;
  const result = missed ? translate(item.mismatch)
    : item.chance !== null ? t("rule.chance", { chance: percent(item.chance) }) : t("rule.matches");
  const rule = el("details", { class: "rule", open },
    el("summary", {}, el("span", { class: "rule-mark" }, icon(missed ? "minus" : "check")),
      el("span", { class: "rule-place" }, `${item.chain} ${item.number}`),
      el("span", { class: "rule-text mono" }, item.text),
      el("span", { class: "rule-result" }, result)),
    el("pre", {}, item.text));
  const node = el("li", { ...attributes, class: `step step-rule ${missed ? "missed" : "matched"}` }, rule);
  node.style.setProperty("--depth", Math.min(item.depth, 5));
  return node;
}

function plainItem(trace, item, attributes) {
  const kind = isEffect(item) ? "step-effect" : item.event === "end" ? `step-end step-${verdictOf(trace, item.way).kind}` : `step-${item.event}`;
  const symbol = { start: "arrow", routed: "right", end: "arrow", policy: "check" }[item.event];
  return el("li", { ...attributes, class: `step ${kind}` },
    el("div", { class: "plain" }, isEffect(item) ? icon(item.effect === "drop" || item.effect === "reject" ? "cross" : "bolt") : symbol && icon(symbol),
      el("span", {}, sentence(trace, item))),
    choices(trace, item));
}

function itemNode(trace, item, current, go) {
  const attributes = item.step === null ? {} : {
    data: { step: item.step }, "aria-current": item.step === current ? "step" : null,
    on: { click: (event) => {
      // A click on the current step opens and closes its rule; the end of a selection of text is not a click.
      if (item.step === current || !getSelection().isCollapsed) return;
      event.preventDefault();
      go(item.step);
    } },
  };
  return item.event === "rule" ? ruleItem(trace, item, attributes, item.step !== null && item.step === current)
    : plainItem(trace, item, attributes);
}

/** Hides long series of rules that do not match behind a button. */
function withFolds(trace, items, current, go) {
  const nodes = [];
  let missed = [];
  const flush = () => {
    if (missed.length <= MAX_MISMATCHES) nodes.push(...missed);
    else {
      const hidden = missed.slice(1, -1);
      const fold = el("li", { class: "step fold" }, el("button", { class: "button quiet", type: "button",
        on: { click: () => fold.replaceWith(...hidden) } }, t("steps.fold", { count: hidden.length })));
      nodes.push(missed[0], fold, missed.at(-1));
    }
    missed = [];
  };
  for (const item of items) {
    const node = itemNode(trace, item, current, go);
    if (item.step === null) missed.push(node);
    else {
      flush();
      nodes.push(node);
    }
  }
  flush();
  return nodes;
}

/** All steps, by stage. */
export function stepList({ trace, walked, current, go }) {
  return el("ol", { class: "stages", "aria-label": t("steps.label") }, walked.stages.filter(({ items }) => items.length > 0).map((stage) =>
    el("li", { class: `stage-box ${stage.items.some(({ step }) => step !== null && step === current) ? "stage-box-current" : ""}` },
      el("h3", {}, t(`place.${stage.place}`), stage.proxy && el("span", { class: "chip" }, stage.proxy),
        el("small", {}, t(`placeNote.${stage.place}`))),
      el("ol", { class: "steps" }, withFolds(trace, stage.items, current, go)))));
}
