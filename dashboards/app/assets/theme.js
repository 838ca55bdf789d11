"use strict";
// Light, dark, or as the system says: the button in the head changes it, and the browser remembers it.
(() => {
  const root = document.documentElement, system = matchMedia("(prefers-color-scheme: dark)");
  const order = ["system", "light", "dark"];
  const names = {system: "Theme: as the system", light: "Theme: light", dark: "Theme: dark"};
  const asked = new URLSearchParams(location.search).get("theme");
  const kept = () => { try { return localStorage.getItem("whorl-theme"); } catch { return null; } };
  let theme = [asked, kept()].find(one => order.includes(one)) || "system";
  const apply = () => {
    const now = theme === "system" ? (system.matches ? "dark" : "light") : theme;
    root.dataset.theme = now;
    root.dataset.agThemeMode = now;  // the mode of AG Grid's tables
    const button = document.getElementById("theme");
    if (button && button.textContent !== names[theme]) button.textContent = names[theme];
  };
  addEventListener("click", event => {
    if (!event.target.closest || !event.target.closest("#theme")) return;
    theme = order[(order.indexOf(theme) + 1) % order.length];
    try { localStorage.setItem("whorl-theme", theme); } catch { /* it is not remembered */ }
    apply();
  });
  system.addEventListener("change", apply);
  apply();
  // The button comes later than this script: name it once it is there.
  const waiting = new MutationObserver(() => { if (document.getElementById("theme")) { waiting.disconnect(); apply(); } });
  waiting.observe(root, {childList: true, subtree: true});
})();
