"use strict";
// The button under a figure saves it as SVG; Plotly's own button saves PNG.
addEventListener("click", event => {
  const button = event.target.closest && event.target.closest(".figure .svg");
  const drawn = button && button.parentElement.querySelector(".js-plotly-plot");
  if (!drawn || !window.Plotly) return;
  const {width, height} = drawn.getBoundingClientRect();
  Plotly.downloadImage(drawn, {format: "svg", width, height, filename: "whorl"});
});
// Paper is narrower than a window: a figure is made smaller for it, so that nothing is cut off.
const figures = () => document.querySelectorAll(".js-plotly-plot .main-svg");
addEventListener("beforeprint", () => figures().forEach(one =>
  one.setAttribute("viewBox", `0 0 ${one.getAttribute("width")} ${one.getAttribute("height")}`)));
addEventListener("afterprint", () => figures().forEach(one => one.removeAttribute("viewBox")));
