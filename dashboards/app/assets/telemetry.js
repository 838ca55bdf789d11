"use strict";
// What a person did to a figure of the page Telemetry. A figure also tells that it fitted itself to the page.
(() => {
  const before = [];  // the addresses before each zoom
  window.dash_clientside = Object.assign({}, window.dash_clientside, {
    telemetry: {
      moved(drawn, lanes) {
        const none = window.dash_clientside.no_update, [by] = window.dash_clientside.callback_context.triggered;
        const event = by && (by.prop_id.startsWith("telemetry-lanes") ? lanes : drawn);
        if (!event) return none;
        if (event["xaxis.autorange"]) return before.length ? before.pop() : none;
        const [since, until] = event["xaxis.range"] || [event["xaxis.range[0]"], event["xaxis.range[1]"]];
        if (since === undefined || until === undefined) return none;
        before.push(location.search);
        const asked = new URLSearchParams(location.search);
        asked.delete("live");
        for (const [name, at] of Object.entries({since, until}))
          asked.set(name, typeof at === "number" ? new Date(at).toISOString() : at.replace(" ", "T"));
        return `?${asked}`.replaceAll("%3A", ":");
      },
    },
  });
})();
