"use strict";
window.dash_clientside = Object.assign({}, window.dash_clientside, {
  telemetry: {
    // What a person did to a figure: only a zoom is sent on. A figure also tells that it fitted itself to the page, and
    // a later event of the same kind would make Dash forget what the person did just before.
    moved(drawn, lanes) {
      const [by] = window.dash_clientside.callback_context.triggered;
      const event = by && (by.prop_id.startsWith("telemetry-lanes") ? lanes : drawn);
      if (!event) return window.dash_clientside.no_update;
      if (event["xaxis.autorange"]) return {back: true, at: Date.now()};
      const range = event["xaxis.range"] || [event["xaxis.range[0]"], event["xaxis.range[1]"]];
      if (range[0] === undefined || range[1] === undefined) return window.dash_clientside.no_update;
      return {range, at: Date.now()};
    },
    // Adds what came since to the lines of a figure: newer points take the place of older ones from a time on, and what
    // has left the window is forgotten, so that a page that stays open for days does not grow.
    follow(fresh, figure) {
      if (!fresh || !figure || !figure.data.length) return window.dash_clientside.no_update;
      const left = fresh.until - fresh.window, data = figure.data.slice();
      for (const line of fresh.lines) {
        const old = data[line.place];
        if (!old || !Array.isArray(old.x)) return window.dash_clientside.no_update;  // another figure has come
        const x = [], y = [];
        let first = 0;
        while (first + 1 < old.x.length && old.x[first + 1] < left) first++;  // one before, so that the line enters
        for (let at = first; at < old.x.length && old.x[at] < fresh.since; at++) { x.push(old.x[at]); y.push(old.y[at]); }
        data[line.place] = {...old, x: x.concat(line.x), y: y.concat(line.y)};
      }
      const xaxis = {...figure.layout.xaxis, range: [left, fresh.until], autorange: false, uirevision: fresh.until};
      return {...figure, data, layout: {...figure.layout, xaxis}};
    },
  },
});
