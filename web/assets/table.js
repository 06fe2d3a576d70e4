// Tables that change in place: rows keep their elements, so focus, selection and scroll position stay.

import { h, put } from "./dom.js";

/**
 * columns: { title, cell(row), key?(row), number?, wide?, help? }. A cell gets a new element if its `key` changes. A
 * cell without `key` is a text. `id(row)` identifies a row. With `options.onPick` each row has a box to tick, and
 * `picked` has the ids of the ticked rows.
 */
export class Table {
  constructor(label, columns, id, options = {}) {
    this.columns = columns;
    this.id = id;
    this.rows = new Map();
    this.picked = new Set();
    this.onPick = options.onPick;
    this.all = this.onPick ? h("input", { type: "checkbox", "aria-label": "Select all that are shown",
        onchange: () => this.pick([...this.rows.keys()], this.all.checked) }) : null;
    this.body = h("tbody", { role: "rowgroup" });
    this.empty = options.empty ?? "Nothing.";
    this.foot = h("p", { class: "empty looking" }, "Looking …");
    // If rows are shown as cards, browsers do not imply the roles.
    this.table = h("table", { class: options.kind ?? "", role: "table" },
      h("caption", { class: "hidden" }, label),
      h("thead", { role: "rowgroup" }, h("tr", { role: "row" },
        this.all ? h("td", { class: "pick", role: "cell" }, this.all) : null, columns.map((column) =>
        h("th", { scope: "col", role: "columnheader", class: classOf(column), title: column.help }, column.title)))),
      this.body);
    this.table.hidden = true;
    this.element = h("div", { class: "table" }, this.table, this.foot);
  }

  show(rows) {
    const seen = new Set();
    let before = null;
    for (const row of rows) {
      const id = String(this.id(row));
      seen.add(id);
      let kept = this.rows.get(id);
      if (!kept) {
        kept = { element: h("tr", { "data-id": id, role: "row" }), said: [],
            cells: this.columns.map((column, n) =>
                h(n === 0 ? "th" : "td", { class: classOf(column), scope: n === 0 ? "row" : null,
                    role: n === 0 ? "rowheader" : "cell", "data-title": n === 0 ? null : column.title || null })) };
        if (this.onPick) {
          kept.box = h("input", { type: "checkbox", "aria-label": `Select ${id}`,
              onchange: () => this.pick([id], kept.box.checked) });
          kept.element.append(h("td", { class: "pick", role: "cell" }, kept.box));
        }
        kept.element.append(...kept.cells);
        this.rows.set(id, kept);
      }
      this.columns.forEach((column, n) => {
        const value = column.cell(row);
        const said = column.key ? String(column.key(row)) : value instanceof Node ? null : String(value ?? "");
        if (said === null || kept.said[n] !== said) {
          put(kept.cells[n], value ?? "");
          kept.said[n] = said;
        }
      });
      const next = before ? before.nextSibling : this.body.firstChild;
      if (next !== kept.element) this.body.insertBefore(kept.element, next);
      before = kept.element;
    }
    for (const [id, kept] of this.rows) {
      if (!seen.has(id)) {
        kept.element.remove();
        this.rows.delete(id);
      }
    }
    // A row that is not shown any more is not changed with the others.
    if (this.onPick) this.pick([...this.picked].filter((id) => !seen.has(id)), false);
    this.table.hidden = rows.length === 0;
    this.foot.hidden = rows.length > 0;
    this.foot.textContent = this.empty;
    this.foot.classList.remove("looking");
  }

  /** Ticks rows, or removes their ticks. */
  pick(ids, isPicked) {
    for (const id of ids) {
      if (isPicked) this.picked.add(id); else this.picked.delete(id);
      const box = this.rows.get(id)?.box;
      if (box) box.checked = isPicked;
    }
    this.all.checked = this.rows.size > 0 && this.picked.size === this.rows.size;
    this.onPick(this.picked);
  }
}

const classOf = (column) => [column.number ? "number" : "", column.wide ? "wide" : "", column.kind ?? ""].join(" ")
    .trim() || null;
