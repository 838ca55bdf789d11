"use strict";
// What the tables of AG Grid need: how each kind of column is shown and ordered, links, CSV. See grid.py.
(() => {
  const functions = window.dashAgGridFunctions = window.dashAgGridFunctions || {};
  const components = window.dashAgGridComponentFunctions = window.dashAgGridComponentFunctions || {};
  const MISSING = "n/a";
  const WHOLE = /^-?[0-9]+$/, NUMBER = /^-?([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?$/i;
  const gone = value => value === null || value === undefined || value === "";

  const number = (value, digits, signed) => {
    const text = Math.abs(value).toLocaleString("en-US", {minimumFractionDigits: digits, maximumFractionDigits: digits});
    const zero = !/[1-9]/.test(text);
    return (zero ? "" : value < 0 ? "−" : signed ? "+" : "") + text;
  };

  functions.whorlShown = (params, [kind, digits, unit, high]) => {
    const value = params.value;
    const after = unit ? ` ${unit}` : "";
    if (kind.startsWith("exact") && value === "") return "";
    if (gone(value)) return params.data ? MISSING : "…";  // without data its block is on the way
    if (kind === "percent") return `${number(value, digits, true)} %`;
    if (kind === "number") return typeof value === "number" ? number(value, digits, false) + after : String(value);
    if (kind === "time") return String(value).slice(0, 19);
    if (kind !== "interval") return String(value);
    const end = params.data ? params.data[high] : null;
    return gone(end) ? MISSING : `[${number(value, digits, false)}, ${number(end, digits, false)}]${after}`;
  };

  functions.whorlOrder = (one, other, _first, _second, down) => {
    if (gone(one) || gone(other)) return gone(one) && gone(other) ? 0 : (gone(one) ? 1 : -1) * (down ? -1 : 1);
    if (typeof one === "number" && typeof other === "number") return one - other;
    if (WHOLE.test(one) && WHOLE.test(other)) { const by = BigInt(one) - BigInt(other); return by < 0n ? -1 : by > 0n ? 1 : 0; }
    if (NUMBER.test(one) && NUMBER.test(other)) return Number(one) - Number(other);
    return String(one).localeCompare(String(other), "en", {numeric: true});
  };

  components.WhorlLink = props => {
    if (gone(props.value)) return props.data ? MISSING : "…";
    const asked = new URLSearchParams();
    Object.entries(props.asks).forEach(([name, column]) => {
      if (!gone(props.data[column])) asked.append(name, props.data[column]);
    });
    const shown = props.valueFormatted || String(props.value);
    if (gone(props.data[Object.values(props.asks)[0]])) return shown;  // it leads nowhere
    const href = `${props.path}?${asked}`;
    const go = event => {
      if (event.button || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
      event.preventDefault();
      history.pushState({}, "", href);
      dispatchEvent(new CustomEvent("_dashprivate_pushstate"));
      scrollTo(0, 0);
    };
    return React.createElement("a", {href, onClick: go, tabIndex: -1}, shown);
  };

  const api = name => { try { return window.dash_ag_grid && dash_ag_grid.getApi(name); } catch { return null; } };

  // A table asks for its rows again where what they depend on has changed in the address.
  const before = {};
  window.whorlAskAgain = (name, search, follows) => {
    const said = new URLSearchParams(search || "");
    const now = JSON.stringify(follows.map(one => said.getAll(one)));
    const found = name in before && before[name] !== now && api(name);
    before[name] = now;
    if (found && found.getGridOption("rowModelType") === "infinite") found.refreshInfiniteCache();  // others have all rows
  };

  // A text that a spreadsheet would take for a formula gets an apostrophe in front, as in grid.py.
  const formula = /^\s*[=+\-@]|^[\t\r]/, plain = /^\s*[+\-]?(\d+\.?\d*|\.\d+)([eE][+\-]?\d+)?\s*$/;
  const harmless = text => typeof text === "string" && formula.test(text) && !plain.test(text) ? `'${text}` : text;

  addEventListener("click", event => {
    const button = event.target.closest && event.target.closest("button.csv[data-grid]");
    const found = button && api(button.dataset.grid);
    if (found) found.exportDataAsCsv({allColumns: true, fileName: "whorl.csv",
      processCellCallback: shown => harmless(shown.value),
      processHeaderCallback: shown => shown.column.getColDef().field});
  });

  // The arrow keys move from cell to cell; Enter follows the link in one, or is a click on it.
  addEventListener("keydown", event => {
    const cell = event.key === "Enter" && event.target.classList && event.target.classList.contains("ag-cell");
    if (cell) (event.target.querySelector("a") || event.target).click();
  });
})();
