// Elements. A text stays a text: no function here parses it as markup.

const SVG = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "value") node.value = value;
    else if (name === "href" && !/^(#|api\/)/.test(value)) throw new Error("a link leads out of the page");
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat(3).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

/** Returns an element of HTML. Attributes that are null or false are left out. `onclick` and the like are functions. */
export function h(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** Returns an element of SVG. */
export function s(tag, attributes, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

/** Replaces the children of an element. */
export function put(node, ...children) {
  node.replaceChildren(...children.flat(3).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

/** Sets a text if it has changed, so that a selection of the viewer stays. */
export function text(node, value) {
  const next = String(value);
  if (node.textContent !== next) node.textContent = next;
  return node;
}

/** Announces a message to screen readers, and shows it for a while. */
export function say(message) {
  const box = document.getElementById("said");
  text(box, message);
  clearTimeout(say.timer);
  say.timer = setTimeout(() => text(box, ""), 6000);
}

export function button(label, onclick, kind = "", attributes = {}) {
  return h("button", { type: "button", class: kind, onclick, ...attributes }, label);
}

/** Returns an error in the server's words. */
export function trouble(error) {
  const parts = [h("strong", null, error.message || String(error))];
  if (error.detail) parts.push(h("p", null, error.detail));
  if (error.hint) parts.push(h("p", null, error.hint));
  if (error.code) parts.push(h("code", { class: "code" }, error.code));
  return h("div", { class: "trouble", role: "alert" }, parts);
}

export function empty(message) {
  return h("p", { class: "empty" }, message);
}

/** Returns a section with a title, and with elements at the right of the title. */
export function panel(title, body, ...aside) {
  return h("section", { class: "panel" },
    h("header", null, h("h2", null, title), h("div", { class: "aside" }, aside)), body);
}
