// Dialogs: questions before an action, and forms.

import { button, h, put, say, trouble } from "./dom.js";

/**
 * Shows a form, and calls `submit(values)` when it is sent. If that fails, the dialog stays, with the server's words.
 * `fields`: { name, label, type?, value?, options?, hint?, rows?, required? }.
 */
export function form(title, { text, fields = [], label = "OK", kind = "primary", submit }) {
  const inputs = fields.map((field) => [field, input(field)]);
  const problem = h("div");
  const send = h("button", { class: kind }, label);
  const dialog = h("dialog", { "aria-label": title },
    h("form", { method: "dialog", onsubmit: sent },
      h("h2", null, title), text ? h("p", null, text) : null,
      inputs.map(([field, control]) => h("label", { class: `field ${field.type ?? "text"}` },
        h("span", null, field.label), control, field.hint ? h("small", null, field.hint) : null)),
      problem,
      h("footer", null, button("Cancel", () => dialog.close(), "quiet"), send)));
  async function sent(event) {
    event.preventDefault();
    put(problem);
    send.disabled = true;
    try {
      const values = Object.fromEntries(inputs.map(([field, control]) =>
          [field.name, field.type === "checkbox" ? control.checked : control.value]));
      const told = await submit(values);
      dialog.close();
      if (told) say(told);
    } catch (error) {
      put(problem, trouble(error));
    }
    send.disabled = false;
  }
  return open(dialog);
}

function input(field) {
  const common = { name: field.name, required: field.required };
  if (field.options) {
    return h("select", common, field.options.map((option) =>
        h("option", { value: option, selected: option === field.value }, option)));
  }
  if (field.type === "textarea") return h("textarea",
      { ...common, rows: field.rows ?? 6, spellcheck: "false", value: field.value ?? "" });
  if (field.type === "checkbox") return h("input", { ...common, type: "checkbox", checked: field.value });
  return h("input", { ...common, type: field.type ?? "text", value: field.value ?? "",
      autocomplete: field.autocomplete ?? "off", spellcheck: "false" });
}

/** Shows a dialog, and removes it when it is closed. Then the focus returns to the element that had it. */
export function open(dialog) {
  const before = document.activeElement;
  dialog.addEventListener("close", () => {
    dialog.remove();
    before?.focus?.();
  });
  document.body.append(dialog);
  dialog.showModal();
  return dialog;
}

/** Asks, and runs the action if the viewer agrees. */
export const ask = (title, text, label, kind, submit) => form(title, { text, label, kind, submit });
