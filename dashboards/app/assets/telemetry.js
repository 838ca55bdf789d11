"use strict";
// What a person did to a figure of the page Telemetry. A figure also tells that it fitted itself to the page.
(() => {
  const before = [];  // the addresses before each zoom
  window.dash_clientside = Object.assign({}, window.dash_clientside, {
    telemetry: {
      moved(drawn, lanes) {
        const none = window.dash_clientside.no_update, [by] = window.dash_clientside.callback_context.triggered;
        const event = by && (by.prop_id.startsWith("telemetry-lanes") ? lanes : drawn);
        if (!event) return [none, none];
        if (event["xaxis.autorange"]) return [none, before.length ? before.pop() : none];
        const range = event["xaxis.range"] || [event["xaxis.range[0]"], event["xaxis.range[1]"]];
        if (range[0] === undefined || range[1] === undefined) return [none, none];
        before.push(location.search);
        return [range, none];
      },
    },
  });
})();
