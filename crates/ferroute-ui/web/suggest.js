// A text field with suggestions: the combobox pattern of ARIA, with a list that contains only as many options as fit on a screen.

import { el, replace } from "./dom.js";

const SHOWN = 12;
let serial = 0;

/** Returns the first options that contain all words of the text: those that begin with it first. */
function matching(options, text) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  const found = [];
  for (const option of options) {
    const whole = `${option[0]} ${option[1]}`.toLowerCase();
    if (words.every((word) => whole.includes(word))) found.push(option);
    if (found.length >= SHOWN) break;
  }
  return found;
}

/** Wraps a field. `options()` returns pairs of value and note when the field is opened. */
export function suggest(input, options) {
  const id = `suggestions-${(serial += 1)}`;
  const list = el("ul", { class: "suggestions", role: "listbox", id, hidden: true });
  let active = -1;

  function close() {
    list.hidden = true;
    active = -1;
    input.setAttribute("aria-expanded", "false");
    input.removeAttribute("aria-activedescendant");
  }

  function pick(value) {
    input.value = value;
    close();
  }

  function open(text) {
    const found = matching(options(), text);
    active = -1;
    input.removeAttribute("aria-activedescendant");
    replace(list, found.map(([value, note], index) => el("li", {
      role: "option", id: `${id}-${index}`, data: { value },
      // Otherwise the field would lose the focus, and the list its position, before a click.
      on: { mousedown: (event) => { event.preventDefault(); pick(value); } },
    }, el("span", {}, value), el("small", {}, note))));
    list.hidden = found.length === 0;
    input.setAttribute("aria-expanded", String(!list.hidden));
  }

  function move(change) {
    if (list.hidden) return open("");
    const items = [...list.children];
    active = (active + change + items.length) % items.length;
    items.forEach((item, index) => item.setAttribute("aria-selected", String(index === active)));
    items[active].scrollIntoView({ block: "nearest" });
    return input.setAttribute("aria-activedescendant", items[active].id);
  }

  function key(event) {
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      move(event.key === "ArrowDown" ? 1 : -1);
    } else if (event.key === "Escape" && !list.hidden) {
      event.stopPropagation();
      close();
    } else if (event.key === "Enter" && active >= 0) {
      event.preventDefault();
      pick(list.children[active].dataset.value);
    }
  }

  for (const [name, value] of Object.entries({ role: "combobox", "aria-autocomplete": "list", "aria-expanded": "false", "aria-controls": id })) {
    input.setAttribute(name, value);
  }
  input.addEventListener("input", () => open(input.value));
  input.addEventListener("click", () => open(""));
  input.addEventListener("keydown", key);
  input.addEventListener("blur", close);
  return el("div", { class: "suggest" }, input, list);
}
