"use strict";
// What a person does to a figure of the page Telemetry is written into the address. Plotly itself is listened to: Dash
// keeps only the last event of a figure, and one that fits itself to the page right after a drag would hide the drag.
(() => {
  const before = [];  // the addresses before each zoom
  const write = search => window.dash_clientside.set_props("url", {search});
  const moved = event => {
    if (event["xaxis.autorange"] && before.length) write(before.pop());
    const [since, until] = event["xaxis.range"] || [event["xaxis.range[0]"], event["xaxis.range[1]"]];
    if (since === undefined || until === undefined) return;
    before.push(location.search);
    const asked = new URLSearchParams(location.search);
    asked.delete("live");
    for (const [name, at] of Object.entries({since, until}))
      asked.set(name, typeof at === "number" ? new Date(at).toISOString() : at.replace(" ", "T"));
    write(`?${asked}`.replaceAll("%3A", ":"));
  };
  const listened = new WeakSet();
  new MutationObserver(() => {
    for (const figure of document.querySelectorAll(":is(#telemetry-graph, #telemetry-lanes) .js-plotly-plot"))
      if (figure.on && !listened.has(figure)) {
        listened.add(figure);
        figure.on("plotly_relayout", moved);
      }
  }).observe(document.documentElement, {childList: true, subtree: true});
})();
