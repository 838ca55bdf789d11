"use strict";
// What every page of the dashboard does in the browser: it says where the server does not answer, copies, sorts short
// tables, saves figures, and has a theme, a zone of times, and keys.
(() => {
  const root = document.documentElement;
  const near = (event, selector) => event.target.closest && event.target.closest(selector);
  const remembered = name => { try { return localStorage.getItem(name); } catch { return null; } };
  const remember = (name, value) => { try { localStorage.setItem(name, value); } catch { /* it is forgotten */ } };
  const made = (tag, properties, ...inside) => {
    const element = Object.assign(document.createElement(tag), properties);
    element.append(...inside);
    return element;
  };

  // ---- a server that does not answer: nothing on the page would change, and nobody knew why
  const ask = window.fetch;
  const AWAY = "The dashboard does not answer, so that this page does not change. Is whorl dashboard still running, and "
    + "the network there? Load the page again when it is.";
  const tell = text => {
    const box = document.getElementById("unanswered");
    if (box && box.textContent !== text) box.textContent = text;
    if (box) box.hidden = !text;
  };
  window.fetch = async (...question) => {
    if (!String((question[0] && question[0].url) || question[0]).includes("_dash-update-component")) return ask(...question);
    try {
      const answer = await ask(...question);
      const away = [502, 503, 504].includes(answer.status);  // a proxy says so of what is behind it
      tell(answer.status === 401 ? "The dashboard asks for its token again: load the page, and give it." : away ? AWAY : "");
      return answer;
    } catch (error) {
      tell(AWAY);
      throw error;
    }
  };

  // ---- a page that takes long: for how long, and how long it took before
  let since = 0, title = "";
  setInterval(() => {
    const box = document.querySelector(".reading span");
    if (box && !since) {
      const link = [...document.querySelectorAll(".top nav a")].find(a => a.pathname === location.pathname);
      since = Date.now() - 400;  // it comes so late
      title = link ? link.textContent : "the page";
    }
    if (box) {
      const before = remembered(`whorl-took-${title}`);
      box.textContent = `Reading the store for ${title}: ${Math.round((Date.now() - since) / 1000)} s`
        + (before ? ` (last time ${before} s)` : "");
    } else if (since) {
      remember(`whorl-took-${title}`, Math.max(1, Math.round((Date.now() - since) / 1000)));
      since = 0;
    }
  }, 250);

  // ---- copies: browsers lend the clipboard only to https and localhost; elsewhere an old way still works
  window.whorlCopy = async text => {
    try { await navigator.clipboard.writeText(text); return true; } catch { /* the old way */ }
    const area = made("textarea", {value: text, style: "position: fixed; opacity: 0"});
    document.body.append(area);
    area.select();
    let done = false;
    try { done = document.execCommand("copy"); } catch { /* it says so */ }
    area.remove();
    return done;
  };
  const copy = (button, text) => whorlCopy(text).then(done => {
    button.textContent = done ? "Copied" : "Select it and copy";
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  });
  addEventListener("click", event => {  // a button with data-copy copies the text of the element of that id
    const button = near(event, "button.copy[data-copy]"), source = button && document.getElementById(button.dataset.copy);
    if (source) copy(button, source.textContent);
  });

  // ---- the menu of a table
  // A text that a spreadsheet would take for a formula gets an apostrophe in front, as in grid.py.
  const formula = /^\s*[=+\-@]|^[\t\r]/, plain = /^\s*[+\-]?(\d+\.?\d*|\.\d+)([eE][+\-]?\d+)?\s*$/;
  window.whorlHarmless = text => typeof text === "string" && formula.test(text) && !plain.test(text) ? `'${text}` : text;
  const quoted = text => /[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  const value = cell => cell.dataset.sort ?? (cell.innerText === "n/a" ? "" : cell.innerText.replace(/^−/, "-"));
  const rowsAsCsv = table => [...table.rows].map(row => [...row.cells].map(cell => quoted(whorlHarmless(value(cell))))
    .join(",")).join("\n") + "\n";
  const save = text => {
    const link = made("a", {href: URL.createObjectURL(new Blob([text], {type: "text/csv"})), download: "whorl.csv"});
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  };
  let opened = null;
  const close = () => { if (opened) opened.remove(); opened = null; };
  const same = async () => {
    const page = location.pathname.split("/").pop(), search = location.search.slice(1);
    try { return await (await ask(new URL(`copies?page=${page}&${search}`, location.href))).json(); } catch { return {}; }
  };
  const choices = async button => {
    const page = await same(), grid = button.dataset.grid, table = button.parentElement.querySelector("table");
    const api = grid && window.whorlGrid(grid);
    const csv = () => api ? window.whorlGridCsv(api) : rowsAsCsv(table);
    return [
      ["Copy as command", button.dataset.command || page.command, text => copy(button, text)],
      ["Copy as SQL", button.dataset.query || page.query, text => copy(button, text)],
      ["Copy as CSV", true, () => copy(button, csv())],
      ["Save as CSV", true, () => save(csv())],
    ].filter(([, has]) => has);
  };
  const open = async button => {
    close();
    const menu = made("div", {className: "menu", role: "menu"});
    menu.setAttribute("aria-label", button.getAttribute("aria-label"));
    for (const [label, text, act] of await choices(button)) {
      const item = made("button", {type: "button", role: "menuitem", title: text === true ? "" : text}, label);
      item.addEventListener("click", () => { close(); button.focus(); act(text); });
      menu.append(item);
    }
    const box = button.getBoundingClientRect();
    document.body.append(menu);
    menu.style.left = `${Math.max(4, Math.min(box.left, innerWidth - menu.offsetWidth - 4)) + scrollX}px`;
    menu.style.top = `${box.bottom + scrollY + 2}px`;
    menu.addEventListener("keydown", event => {
      const items = [...menu.children], step = {ArrowDown: 1, ArrowUp: -1}[event.key];
      if (step) items[(items.indexOf(document.activeElement) + step + items.length) % items.length].focus();
      if (event.key === "Escape" || event.key === "Tab") { close(); button.focus(); }
      if (step || event.key === "Escape") event.preventDefault();
    });
    opened = menu;
    menu.firstChild.focus();
  };
  addEventListener("click", event => {
    const button = near(event, "button.copies");
    if (button) open(button); else if (!near(event, ".menu")) close();
  });

  // ---- a short table is sorted by a click on a head; missing values come last
  addEventListener("click", event => {
    const head = near(event, ".wide th button") && near(event, "th");
    if (!head) return;
    const down = head.getAttribute("aria-sort") === "ascending", place = head.cellIndex;
    head.closest("tr").querySelectorAll("th").forEach(other => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const body = head.closest("table").tBodies[0], rows = [...body.rows].map(row => [value(row.cells[place]), row]);
    const order = ([one], [other]) => {
      if (!one || !other) return (one ? 0 : 1) - (other ? 0 : 1);
      const numbers = plain.test(one) && plain.test(other);
      return (down ? -1 : 1) * (numbers ? one - other : one.localeCompare(other, "en", {numeric: true}));
    };
    body.append(...rows.sort(order).map(([, row]) => row));
  });

  // ---- figures: the button saves one as SVG, Plotly's own saves PNG. Paper is narrower than a window
  addEventListener("click", event => {
    const button = near(event, ".figure .svg"), figure = button && button.parentElement.querySelector(".js-plotly-plot");
    if (!figure || !window.Plotly) return;
    const {width, height} = figure.getBoundingClientRect();
    Plotly.downloadImage(figure, {format: "svg", width, height, filename: "whorl"});
  });
  const figures = () => document.querySelectorAll(".js-plotly-plot .main-svg");
  addEventListener("beforeprint", () => figures().forEach(svg =>
    svg.setAttribute("viewBox", `0 0 ${svg.getAttribute("width")} ${svg.getAttribute("height")}`)));
  addEventListener("afterprint", () => figures().forEach(svg => svg.removeAttribute("viewBox")));

  // ---- light, dark, or as the system says
  const system = matchMedia("(prefers-color-scheme: dark)"), address = new URLSearchParams(location.search);
  const themes = {system: "Theme: auto", light: "Theme: light", dark: "Theme: dark"}, order = Object.keys(themes);
  let theme = [address.get("theme"), remembered("whorl-theme")].find(name => order.includes(name)) || "system";
  const label = (id, text) => {
    const button = document.getElementById(id);
    if (button && button.textContent !== text) button.textContent = text;
  };
  const dress = () => {
    const name = theme === "system" ? (system.matches ? "dark" : "light") : theme;
    root.dataset.theme = name;
    root.dataset.agThemeMode = name;  // the mode of AG Grid's tables
    label("theme", themes[theme]);
  };
  system.addEventListener("change", dress);
  dress();

  // ---- times in UTC, or as this computer has them
  let local = (address.get("times") || remembered("whorl-times")) === "local";
  const zone = new Intl.DateTimeFormat("en", {timeZoneName: "short"}).formatToParts().find(part => part.type === "timeZoneName").value;
  window.whorlTime = text => {
    const at = local && new Date(`${text.slice(0, 10)}T${text.slice(11, 19)}Z`);
    return at && !isNaN(at) ? at.toLocaleString("sv-SE").slice(0, text.length) : text;
  };
  const write = (node, text) => { if (node && node.nodeValue !== text) node.nodeValue = text; };
  const tellTimes = () => {
    label("zone", local ? `Times: ${zone}` : "Times: UTC");
    document.querySelectorAll("time[datetime]").forEach(element => {
      const utc = element.dataset.utc ??= element.textContent, bare = utc.replace(/ UTC$/, "");
      write(element.firstChild, local ? whorlTime(bare) + (bare === utc ? "" : ` ${zone}`) : utc);
      element.title = local && bare !== utc ? utc : local ? `${utc} UTC` : "";
    });
    document.querySelectorAll("th button, .ag-header-cell-text").forEach(head => {
      const text = head.textContent;
      if (text.endsWith("(UTC)") || head.dataset.utc) {
        head.dataset.utc ??= text;
        write(head.firstChild, local ? head.dataset.utc.replace("(UTC)", `(${zone})`) : head.dataset.utc);
      }
    });
  };
  let waits = false;  // what comes later is told once more, as soon as the browser draws it
  new MutationObserver(() => {
    if (waits) return;
    waits = true;
    requestAnimationFrame(() => { waits = false; dress(); tellTimes(); });
  }).observe(root, {childList: true, subtree: true});

  addEventListener("click", event => {
    if (near(event, "#theme")) {
      theme = order[(order.indexOf(theme) + 1) % order.length];
      remember("whorl-theme", theme);
      dress();
    }
    if (near(event, "#zone")) {
      local = !local;
      remember("whorl-times", local ? "local" : "UTC");
      tellTimes();
      document.querySelectorAll(".grid button.copies").forEach(button => {
        const api = window.whorlGrid(button.dataset.grid);
        if (api) api.refreshCells({force: true});
      });
    }
    if (near(event, "#keys")) help();
  });

  // ---- keys
  const KEYS = [["/", "go to the first search or filter of the page"], ["1 to 7", "open a page of the navigation"],
    ["Tab, Shift+Tab", "go from part to part"], ["arrows", "go from cell to cell of a table, from item to item of a menu"],
    ["Enter", "follow the link of a cell, sort by a head, open a menu"], ["Ctrl+Enter", "run the query of the page SQL"],
    ["Esc", "close a menu or this list"], ["?", "this list"]];
  const help = () => {
    const list = made("dl", {}, ...KEYS.flatMap(([key, text]) => [made("dt", {}, made("kbd", {}, key)), made("dd", {}, text)]));
    const button = made("button", {type: "button"}, "Close");
    const dialog = made("dialog", {className: "keys"}, made("h2", {}, "Keys"), list, button);
    dialog.setAttribute("aria-label", "Keys");
    button.addEventListener("click", () => dialog.close());
    dialog.addEventListener("close", () => dialog.remove());
    document.body.append(dialog);
    dialog.showModal();
  };
  addEventListener("keydown", event => {
    if (event.ctrlKey || event.metaKey || event.altKey || near(event, "input, textarea, select, [contenteditable], dialog")) return;
    if (event.key === "?") help();
    if (event.key === "/") {
      const search = [...document.querySelectorAll("main :is(input[type=search], .ag-floating-filter-input input, input[type=text])")]
        .find(input => input.offsetParent && !input.disabled);
      if (search) { search.focus(); search.scrollIntoView({block: "center"}); event.preventDefault(); }
    }
    const link = /^[1-9]$/.test(event.key) && document.querySelectorAll(".top nav a")[event.key - 1];
    if (link) link.click();
  });
})();
