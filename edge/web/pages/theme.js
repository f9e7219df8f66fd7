// Theme: that of the machine, until the user chooses the other one. Loaded before the first paint of content.
const machine = matchMedia("(prefers-color-scheme: dark)");

function stored() {
  try { return localStorage.getItem("brim-theme"); } catch { return null; }
}

export function theme() {
  return stored() ?? (machine.matches ? "dark" : "light");
}

function apply() {
  document.documentElement.dataset.theme = theme();
  const button = document.getElementById("theme");
  if (button) {
    const other = theme() === "dark" ? "Light" : "Dark";
    button.textContent = other;
    button.setAttribute("aria-label", `${other} theme`);
  }
  dispatchEvent(new Event("themechange"));
}

export function toggle() {
  const other = theme() === "dark" ? "light" : "dark";
  try { localStorage.setItem("brim-theme", other); } catch { /* private mode: for this page only */ }
  apply();
}

machine.addEventListener("change", apply);
apply();
document.getElementById("theme").addEventListener("click", toggle);
