"use strict";
// The SQL page: keys, names that are written into the query, queries that this browser keeps.
(() => {
  const none = () => window.dash_clientside.no_update;
  const text = () => document.getElementById("sql-text");

  const options = kept => Object.keys(kept || {}).sort().map(name => ({label: name, value: name}));

  // React hears of a text only where its own setter is passed by.
  const write = (area, value) => {
    Object.getOwnPropertyDescriptor(HTMLTextAreaElement.prototype, "value").set.call(area, value);
    area.dispatchEvent(new Event("input", {bubbles: true}));
  };

  const made = (tag, properties, ...inside) => {
    const element = Object.assign(document.createElement(tag), properties);
    element.append(...inside);
    return element;
  };

  addEventListener("keydown", event => {
    if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey) || event.target !== text()) return;
    event.preventDefault();
    text().dispatchEvent(new Event("change", {bubbles: true}));
    setTimeout(() => document.getElementById("sql-run").click());
  });

  addEventListener("click", event => {
    const button = event.target.closest && event.target.closest("button");
    const area = text();
    if (!button || !area) return;
    if (button.matches(".tables .insert")) {
      const {selectionStart: from, selectionEnd: to, value} = area, name = button.textContent;
      const gap = from && !/[\s(,.]$/.test(value.slice(0, from)) ? " " : "";
      write(area, value.slice(0, from) + gap + name + value.slice(to));
      area.focus();
      area.selectionStart = area.selectionEnd = from + gap.length + name.length;
    }
    if (button.matches(".copy-query")) {
      const link = new URL(location.href);
      link.searchParams.delete("token");
      link.searchParams.set("query", area.value);
      whorlCopy(link.href).then(done => {
        document.getElementById("sql-copied").textContent = done ? "Copied." : "Copy it from the address bar.";
      });
    }
  });

  window.dash_clientside = window.dash_clientside || {};
  window.dash_clientside.sql = {
    example: (place, examples) => {
      if (place === null || place === undefined) return [none(), none()];
      const {query, ...drawn} = examples[place];
      return [query, {...drawn, chart: drawn.chart || "table"}];
    },
    own: (name, kept) => name && kept && kept[name] !== undefined ? [kept[name], name] : [none(), none()],
    names: kept => options(kept),
    keep: (_keep, _drop, name, query, chosen, kept) => {
      const by = window.dash_clientside.callback_context.triggered_id, now = {...(kept || {})};
      if (by === "sql-drop") {
        if (!chosen) return [none(), none(), none()];
        delete now[chosen];
        return [now, options(now), null];
      }
      const called = (name || "").trim() || (query || "").trim().slice(0, 40);
      if (!called) return [none(), none(), none()];
      Object.defineProperty(now, called, {value: query || "", enumerable: true, configurable: true, writable: true});
      return [now, options(now), called];
    },
    // What went back or forward in the browser's history is shown; it is not run.
    follow: (search, answer, query, view, x, y, colour) => {
      const said = new URLSearchParams(search || ""), or = (value, now) => value === now ? none() : value;
      const asked = said.get("query");
      const drawn = answer ? [or(said.get("chart") || "table", view), said.has("x") ? or(said.get("x"), x) : none(),
        said.has("y") ? or(said.get("y"), y) : none(), said.has("colour") ? or(said.get("colour"), colour) : none()]
        : [none(), none(), none(), none()];
      return [asked === null ? none() : or(asked, query), ...drawn];
    },
    // The tables beside the query; a word that is looked for leaves those that have it, open.
    tables: (tables, find) => {
      const list = document.getElementById("sql-tables"), word = (find || "").trim().toLowerCase();
      if (!tables || !list) return;
      const has = (...texts) => texts.some(one => one.toLowerCase().includes(word));
      list.replaceChildren(...tables.flatMap(table => {
        const own = !word || has(table.name, table.row);
        const columns = own ? table.columns : table.columns.filter(one => has(one.name, one.meaning));
        if (!own && !columns.length) return [];
        const details = made("details", {open: Boolean(word) && !(own && !columns.some(one => has(one.name)))},
          made("summary", {}, made("code", {}, table.name), made("span", {className: "soft"}, table.view ? " view" : "")));
        const fill = () => {
          if (!details.open || details.children.length > 1) return;
          details.append(made("p", {className: "soft"}, `One row is ${table.row}.`),
            made("button", {type: "button", className: "insert"}, `from ${table.name}`),
            made("dl", {}, ...columns.map(one => made("div", {},
              made("dt", {}, made("button", {type: "button", className: "insert"}, one.name),
                made("span", {}, one.type + (one.unit ? `, ${one.unit}` : ""))),
              made("dd", {}, one.meaning)))));
        };
        details.addEventListener("toggle", fill);
        fill();
        return [details];
      }));
    },
    // A query that this tab has run itself runs again where the page is loaded again; a link of others never does.
    again: (_at, ran, query, clicks) => !clicks && ran && ran === query ? 1 : none(),
  };
})();
