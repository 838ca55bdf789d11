// The long tables of an offline page; see listing.py. Text is set as text, never as HTML.
function drawListings(data, places) {
  const ROW = 29, gone = value => value === null || value === undefined || value === "";
  const made = (tag, text, more) => Object.assign(document.createElement(tag), text === undefined ? {} : {textContent: text}, more);
  const number = (value, digits, signed) => gone(value) ? "n/a" : (signed && value > 0 ? "+" : "") +
    value.toLocaleString("en-US", {minimumFractionDigits: digits, maximumFractionDigits: digits}).replace("-", "\u2212");
  const order = (one, other, down) => gone(one) || gone(other) ? gone(one) - gone(other) : (down ? -1 : 1) *
    (typeof one === "number" ? one - other : String(one).localeCompare(String(other), "en", {numeric: true}));
  places.forEach(place => {
    const {texts, numbers, values} = data[place.dataset.listing], many = texts[0][1].length;
    let choice = 0, by = values.length ? texts.length : 0, down = true, seen = [];
    const heads = [...texts.map(([name]) => name), ...numbers.map(([name]) => name)];
    const columns = () => [...texts.map(([, column]) => column), ...(values.length ? values[choice][1] : [])];
    const shown = (at, column, row) => at < texts.length ? (gone(column[row]) ? "n/a" : column[row]) :
      number(column[row], ...numbers[at - texts.length].slice(1));
    const controls = made("div", undefined, {className: "controls"});
    const labelled = (text, input) => { const label = made("label", text + " "); label.append(input); controls.append(label); };
    if (values.length > 1) {
      const select = made("select");
      values.forEach(([name], at) => select.append(made("option", name, {value: at})));
      select.addEventListener("change", () => { choice = +select.value; sift(); });
      labelled(place.dataset.chosen, select);
    }
    const words = made("input", undefined, {type: "search"}), least = made("input", undefined, {type: "number", step: "any"});
    labelled("with the words", words);
    if (values.length) labelled(heads[texts.length] + " at least", least);
    const told = made("span", undefined, {className: "soft"});
    told.setAttribute("role", "status");
    controls.append(told);
    const table = made("table"), head = made("tr"), body = made("tbody"), rows = made("div", undefined, {className: "rows", tabIndex: 0});
    rows.setAttribute("role", "region");
    rows.setAttribute("aria-label", place.parentElement.firstElementChild.textContent);
    const opened = made("div", undefined, {className: "opened", hidden: true});
    opened.setAttribute("role", "status");
    heads.forEach((name, at) => {
      const cell = made("th", undefined, {className: at < texts.length ? "" : "r"}), button = made("button", name, {type: "button"});
      button.addEventListener("click", () => { down = by === at ? !down : at >= texts.length; by = at; sift(); });
      cell.append(button);
      head.append(cell);
    });
    const top = made("thead");
    top.append(head);
    table.append(top, body);
    rows.append(table);
    place.append(controls, rows, opened);
    const open = row => {
      opened.replaceChildren(made("b", shown(0, texts[0][1], row)));
      const inside = made("table"), line = made("tr");
      [place.dataset.chosen, ...numbers.map(([name]) => name)].forEach((name, at) => line.append(made("th", name, {className: at ? "r" : ""})));
      inside.append(line);
      values.forEach(([name, own]) => {
        const each = made("tr");
        each.append(made("td", name));
        own.forEach((column, at) => each.append(made("td", number(column[row], ...numbers[at].slice(1)), {className: "r"})));
        inside.append(each);
      });
      opened.append(inside);
      opened.hidden = false;
      const select = [...document.querySelectorAll("figure select")].find(one => one.dataset.opens !== undefined);
      const named = texts[0][1][row], option = select && [...select.options].find(one => one.textContent.startsWith(named + ":"));
      if (option) { select.value = option.value; select.dispatchEvent(new Event("change")); }
    };
    const gap = height => { const line = made("tr", undefined, {className: "gap"}), cell = made("td", "", {colSpan: heads.length});
      cell.style.height = height + "px"; line.append(cell); return line; };
    const draw = () => {
      const first = Math.max(0, Math.floor(rows.scrollTop / ROW) - 5), last = Math.min(seen.length, first + Math.ceil(rows.clientHeight / ROW) + 12);
      const every = columns(), lines = [gap(first * ROW)];
      for (const row of seen.slice(first, last)) {
        const line = made("tr");
        every.forEach((column, at) => {
          const cell = made("td", undefined, {className: at < texts.length ? "" : "r"});
          if (at) cell.textContent = shown(at, column, row);
          else { const button = made("button", shown(at, column, row), {type: "button"}); button.addEventListener("click", () => open(row)); cell.append(button); }
          line.append(cell);
        });
        lines.push(line);
      }
      body.replaceChildren(...lines, gap((seen.length - last) * ROW));
    };
    const sift = () => {
      const every = columns(), wanted = words.value.toLowerCase().split(/\s+/).filter(Boolean), from = least.value === "" ? null : +least.value;
      seen = [];
      for (let row = 0; row < many; row++) {
        const text = texts.map(([, column]) => column[row] || "").join(" ").toLowerCase();
        const value = every[texts.length] && every[texts.length][row];
        if (wanted.every(word => text.includes(word)) && (from === null || (!gone(value) && value >= from))) seen.push(row);
      }
      seen.sort((one, other) => order(every[by][one], every[by][other], down));
      head.querySelectorAll("th").forEach((cell, at) => cell.setAttribute("aria-sort", at !== by ? "none" : down ? "descending" : "ascending"));
      head.querySelectorAll("button").forEach((button, at) => { button.textContent = heads[at] + (at === by ? (down ? " \u2193" : " \u2191") : ""); });
      told.textContent = `${seen.length.toLocaleString("en-US")} of ${many.toLocaleString("en-US")}`;
      rows.scrollTop = 0;
      draw();
    };
    [words, least].forEach(input => input.addEventListener("input", sift));
    rows.addEventListener("scroll", draw);
    sift();
  });
}
