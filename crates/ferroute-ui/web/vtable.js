// A table that renders only its visible rows, so that it is as fast with ten thousand rows as with ten.

import { el, icon, replace } from "./dom.js";

/** Rows above and below the visible ones, so that quick scrolling shows no gaps. */
const MARGIN = 6;

/**
 * A virtual table. All rows together are one stop of the Tab key; arrow keys move within it.
 *
 * `columns`: id, title, `cell(row)` with the content, and `sortable`. `key(row)` identifies a row, `link(row)` is the address
 * to which it leads, `height` is the height of all rows in pixels.
 */
export class VirtualTable {
  constructor({ label, columns, key, link, height, onSort }) {
    Object.assign(this, { columns, key, link, height, onSort });
    this.rows = [];
    this.selected = null;
    /** The row that the Tab key focuses. */
    this.active = null;
    this.rendered = new Map();
    this.head = el("div", { role: "row", class: "vrow vhead" });
    this.space = el("div", { class: "vspace", role: "rowgroup" });
    this.body = el("div", { class: "vbody", role: "presentation", on: {
      scroll: () => this.render(), keydown: (event) => this.move(event), focusin: (event) => this.activate(event),
    } }, this.space);
    this.element = el("div", { class: "vtable", role: "grid", "aria-label": label },
      el("div", { role: "rowgroup" }, this.head), this.body);
    this.observer = new ResizeObserver(() => this.render());
    this.observer.observe(this.body);
  }

  /** Draws the header with the current order. */
  setSort(column, descending) {
    replace(this.head, this.columns.map(({ id, title, sortable }) => {
      const sorted = id === column;
      const order = sorted ? (descending ? "descending" : "ascending") : null;
      return el("div", { role: "columnheader", class: `vcell col-${id}`, "aria-sort": order },
        sortable ? el("button", { type: "button", data: { sort: id }, on: { click: () => this.onSort(id) } }, title,
          sorted && el("span", { class: descending ? "sort" : "sort sort-up" }, icon("down"))) : title);
    }));
  }

  /** Shows other rows. */
  setRows(rows) {
    this.rows = rows;
    this.element.setAttribute("aria-rowcount", String(rows.length + 1));
    this.element.style.setProperty("--rows", `${rows.length * this.height}px`);
    this.space.style.height = "var(--rows)";
    this.refresh();
  }

  /** Marks a row as selected, and scrolls to it unless it is visible. */
  select(key) {
    this.selected = key;
    const index = this.rows.findIndex((row) => this.key(row) === key);
    const top = index * this.height;
    const { scrollTop, clientHeight } = this.body;
    if (index >= 0 && (top < scrollTop || top + this.height > scrollTop + clientHeight)) {
      this.body.scrollTop = Math.max(0, top - clientHeight / 3);
    }
    this.refresh();
  }

  /** Renders the visible rows again, with new content. The focus stays on its row. */
  refresh() {
    const focused = document.activeElement?.closest?.(".vrow")?.dataset.key;
    this.rendered.clear();
    this.space.replaceChildren();
    this.render();
    if (focused !== undefined) this.rendered.get(focused)?.querySelector("a")?.focus({ preventScroll: true });
  }

  /** Renders the rows that have become visible, and removes the others. */
  render() {
    const { scrollTop, clientHeight } = this.body;
    const first = Math.max(0, Math.floor(scrollTop / this.height) - MARGIN);
    const last = Math.min(this.rows.length, Math.ceil((scrollTop + clientHeight) / this.height) + MARGIN);
    // The header has no scroll bar, but the same columns.
    this.head.style.marginRight = `${this.body.offsetWidth - this.body.clientWidth}px`;
    const wanted = new Set();
    for (let index = first; index < last; index += 1) {
      const key = this.key(this.rows[index]);
      wanted.add(key);
      if (!this.rendered.has(key)) this.rendered.set(key, this.space.appendChild(this.draw(index, key)));
    }
    for (const [key, node] of this.rendered) {
      if (wanted.has(key)) continue;
      node.remove();
      this.rendered.delete(key);
    }
    this.markStop();
  }

  /** Makes the active row the stop of the Tab key: otherwise the selected row, or the first visible one. */
  markStop() {
    const visible = Math.ceil(this.body.scrollTop / this.height);
    const first = this.rows[Math.min(visible, this.rows.length - 1)];
    const keys = [this.active, this.selected, first && this.key(first)];
    const stop = keys.find((key) => this.rendered.has(key));
    for (const [key, node] of this.rendered) node.querySelector("a").tabIndex = key === stop ? 0 : -1;
  }

  activate(event) {
    this.active = event.target.closest(".vrow")?.dataset.key ?? this.active;
    this.markStop();
  }

  draw(index, key) {
    const row = this.rows[index];
    const node = el("div", {
      role: "row", class: "vrow", "aria-rowindex": index + 2, data: { key },
      "aria-selected": key === this.selected ? "true" : null,
      on: { click: (event) => event.target.closest("a") ?? node.querySelector("a").click() },
    }, this.columns.map(({ id, cell }) => el("div", { role: "gridcell", class: `vcell col-${id}` }, cell(row))));
    node.style.transform = `translateY(${index * this.height}px)`;
    node.style.height = `${this.height}px`;
    return node;
  }

  /** Moves the focus with the arrow keys, including to rows that are not rendered yet. */
  move(event) {
    const moves = { ArrowDown: 1, ArrowUp: -1, PageDown: 10, PageUp: -10, Home: -Infinity, End: Infinity };
    if (!(event.key in moves)) return;
    event.preventDefault();
    const focused = document.activeElement?.closest(".vrow")?.dataset.key;
    const from = this.rows.findIndex((row) => this.key(row) === focused);
    this.focusRow(from + moves[event.key]);
  }

  /** Moves the focus to a row with this key. Reports whether there is one. */
  focusKey(key) {
    const index = this.rows.findIndex((row) => this.key(row) === key);
    if (index >= 0) this.focusRow(index);
    return index >= 0;
  }

  /** Moves the focus to a row, or to the nearest existing row. */
  focusRow(index) {
    if (this.rows.length === 0) return;
    const target = Math.max(0, Math.min(this.rows.length - 1, index));
    this.active = this.key(this.rows[target]);
    const top = target * this.height;
    const { scrollTop, clientHeight } = this.body;
    if (top < scrollTop) this.body.scrollTop = top;
    else if (top + this.height > scrollTop + clientHeight) this.body.scrollTop = top + this.height - clientHeight;
    this.render();
    this.rendered.get(this.key(this.rows[target]))?.querySelector("a")?.focus({ preventScroll: true });
  }

  /** Ends the observation of the table's size. */
  close() {
    this.observer.disconnect();
  }
}
