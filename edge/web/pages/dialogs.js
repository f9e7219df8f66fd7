// Dialogs: confirmation of a change, log-in, details; and short messages.
import { h } from "./dom.js";
import { logIn } from "./api.js";

export function toast(text, kind) {
  const element = h("div", { class: kind ? `toast ${kind}` : "toast" }, text);
  document.getElementById("toasts").append(element);
  setTimeout(() => element.remove(), kind === "bad" ? 10000 : 5000);
}

// The error and its remedy.
export function textOf(error) {
  return error.hint ? `${error.message}; ${error.hint}` : error.message;
}

export function failed(error) {
  toast(textOf(error), "bad");
}

export function open(element, kind) {
  const dialog = h("dialog", { class: kind, "aria-labelledby": "dialog-title" }, element);
  document.body.append(dialog);
  dialog.addEventListener("close", () => dialog.remove());
  dialog.showModal();
  return dialog;
}

// Asks before a change. `work` makes it; the dialog stays open with the reason if it fails.
export function confirm(title, text, action, work, danger) {
  const error = h("p", { class: "bad-text", role: "alert" });
  const button = h("button", { class: danger ? "danger" : "main", "data-key": "confirm" }, action);
  const form = h("form", { method: "dialog" },
    h("h2", { id: "dialog-title" }, title), h("p", null, text), error,
    h("div", { class: "row end" }, h("button", { type: "button", onclick: () => dialog.close() }, "Cancel"), button));
  const dialog = open(form, "small");
  onSubmit(form, button, error, async () => {
    await work();
    dialog.close();
  });
}

function onSubmit(form, button, error, work) {
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    button.disabled = true;
    try {
      await work();
    } catch (problem) {
      error.textContent = textOf(problem);
    }
    button.disabled = false;
  });
}

export function signIn(done) {
  const user = h("input", { name: "user", autocomplete: "username", required: true, maxlength: 256 });
  const password = h("input", { name: "password", type: "password", autocomplete: "current-password", required: true });
  const error = h("p", { class: "bad-text", role: "alert" });
  const button = h("button", { class: "main" }, "Sign in");
  const form = h("form", { class: "form", method: "dialog" },
    h("h2", { id: "dialog-title" }, "Sign in"),
    h("label", null, "User", user), h("label", null, "Password", password), error,
    h("div", { class: "row end" }, h("button", { type: "button", onclick: () => dialog.close() }, "Cancel"), button));
  const dialog = open(form, "small");
  onSubmit(form, button, error, async () => {
    try {
      await logIn(user.value, password.value);
    } catch (problem) {
      password.value = "";
      password.focus();
      throw problem;
    }
    dialog.close();
    done();
  });
}
