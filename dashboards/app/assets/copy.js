"use strict";
// A button with data-copy copies the text of the element of that id.
addEventListener("click", event => {
  const button = event.target.closest && event.target.closest("button.copy[data-copy]");
  const source = button && document.getElementById(button.dataset.copy);
  if (!source) return;
  whorlCopy(source.textContent).then(done => {
    button.textContent = done ? "Copied" : "Select it and copy";
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  });
});
// Copies text. Browsers lend the clipboard only to https and localhost; elsewhere an old way still works.
window.whorlCopy = async text => {
  try { await navigator.clipboard.writeText(text); return true; } catch { /* the old way */ }
  const area = document.createElement("textarea");
  area.value = text;
  area.style.position = "fixed";
  area.style.opacity = "0";
  document.body.append(area);
  area.select();
  let done = false;
  try { done = document.execCommand("copy"); } catch { /* it says so */ }
  area.remove();
  return done;
};
