// Publish: a message by hand.
import { may, post } from "./api.js";
import { failed, toast } from "./dialogs.js";
import { card, h, notice } from "./dom.js";

export function page() {
  const topic = h("input", { class: "mono", required: true, maxlength: 1024, placeholder: "plant/1/setpoint", autocomplete: "off" });
  const payload = h("textarea", { class: "mono", spellcheck: "false", maxlength: 49152 });
  const encoding = h("select", null, [["text", "text"], ["base64", "base64"]].map(([value, name]) => h("option", { value }, name)));
  const qos = h("select", null, [0, 1, 2].map((value) => h("option", { value }, String(value))));
  const retain = h("input", { type: "checkbox" });
  const button = h("button", { class: "main" }, "Publish");
  const form = h("form", { class: "form" },
    h("label", null, "Topic", topic), h("label", null, "Payload", payload),
    h("div", { class: "row" }, h("label", null, "Payload form", encoding), h("label", null, "QoS", qos),
      h("label", { class: "check" }, retain, "Retain")),
    h("div", null, button));
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    button.disabled = true;
    try {
      await post("publish", { topic: topic.value, payload: payload.value, encoding: encoding.value,
        qos: Number(qos.value), retain: retain.checked });
      toast(`published to ${topic.value}`);
    } catch (error) {
      failed(error);
    }
    button.disabled = false;
  });
  const refused = may("operator") ? null : notice("Publishing needs the role operator.");
  if (refused) for (const field of form.elements) field.disabled = true;
  return { element: h("div", null, refused, card("Message", null, h("div", { class: "body" }, form))), refresh: async () => {} };
}
