"use strict";
// What the tables of AG Grid need: how cells are shown and ordered, links, CSV. See grid.py.
(() => {
  const functions = window.dashAgGridFunctions = window.dashAgGridFunctions || {};
  const components = window.dashAgGridComponentFunctions = window.dashAgGridComponentFunctions || {};
  const WHOLE = /^-?[0-9]+$/, NUMBER = /^-?([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?$/i;
  const gone = value => value === null || value === undefined || value === "";

  functions.whorlText = (params, kind) => {
    const {value, data, colDef} = params;
    if (value === "" && data && data[`${colDef.field}:text`] === "") return "";
    if (gone(value)) return "n/a";
    if (kind === "time") return whorlTime(String(value).slice(0, 19));
    return String((data && data[`${colDef.field}:text`]) ?? value);
  };

  functions.whorlOrder = (one, other, _first, _second, down) => {
    if (gone(one) || gone(other)) return gone(one) && gone(other) ? 0 : (gone(one) ? 1 : -1) * (down ? -1 : 1);
    if (typeof one === "number" && typeof other === "number") return one - other;
    if (WHOLE.test(one) && WHOLE.test(other)) { const by = BigInt(one) - BigInt(other); return by < 0n ? -1 : by > 0n ? 1 : 0; }
    if (NUMBER.test(one) && NUMBER.test(other)) return Number(one) - Number(other);
    return String(one).localeCompare(String(other), "en", {numeric: true});
  };

  components.WhorlLink = props => {
    if (gone(props.value)) return "n/a";
    const text = props.valueFormatted || String(props.value), href = props.data[`${props.colDef.field}:href`];
    if (!href) return text;  // it leads nowhere
    const go = event => {
      if (event.button || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
      event.preventDefault();
      history.pushState({}, "", href);
      dispatchEvent(new CustomEvent("_dashprivate_pushstate"));
      scrollTo(0, 0);
    };
    return React.createElement("a", {href, onClick: go, tabIndex: -1}, text);
  };

  window.whorlGrid = name => { try { return window.dash_ag_grid && dash_ag_grid.getApi(name); } catch { return null; } };
  window.whorlGridCsv = grid => grid.getDataAsCsv({allColumns: true, processCellCallback: cell => whorlHarmless(cell.value),
    processHeaderCallback: head => {
      const {field, headerName, hide} = head.column.getColDef();
      return hide || /^c[0-9]+$/.test(field) ? headerName : field;
    }});

  // The arrow keys move from cell to cell; Enter follows the link in one, or is a click on it.
  addEventListener("keydown", event => {
    const cell = event.key === "Enter" && event.target.classList && event.target.classList.contains("ag-cell");
    if (cell) (event.target.querySelector("a") || event.target).click();
  });
})();
