"use strict";
// The button under a figure saves it as SVG; Plotly's own button saves PNG.
addEventListener("click", event => {
  const button = event.target.closest && event.target.closest(".figure .svg");
  const drawn = button && button.parentElement.querySelector(".js-plotly-plot");
  if (!drawn || !window.Plotly) return;
  const {width, height} = drawn.getBoundingClientRect();
  Plotly.downloadImage(drawn, {format: "svg", width, height, filename: "whorl"});
});
