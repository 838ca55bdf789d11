"use strict";
(async () => {
  const unpack = async id => {
    const text = document.getElementById(id).textContent.trim();
    const bytes = Uint8Array.from(atob(text), c => c.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Response(stream).text();
  };
  const places = [...document.querySelectorAll(".plot")];
  const lists = [...document.querySelectorAll(".listing")];
  if (!places.length && !lists.length) return;
  // Unpacking and drawing take a moment. The page counts as loading meanwhile, so that what waits for it to be loaded,
  // as a program that prints it or takes a picture, finds the figures drawn: a document that is open within holds it.
  const held = document.createElement("iframe");
  held.hidden = true;
  document.body.append(held);
  held.contentDocument.open();
  const loaded = () => { if (held.isConnected) { held.contentDocument.close(); held.remove(); } };
  try {
    if (lists.length) drawListings(JSON.parse(await unpack("listings")), lists);
  } catch (error) {
    for (const place of lists) place.textContent = "This browser cannot show the table: " + error;
  }
  if (!places.length) { loaded(); return; }
  let figures;
  try {
    figures = JSON.parse(await unpack("figures"));
    const script = document.createElement("script");
    script.textContent = await unpack("bundle");
    document.head.append(script);
  } catch (error) {
    for (const place of places) place.textContent = "This browser cannot show the figures: " + error;
    loaded();
    return;
  }
  const narrow = () => innerWidth < 560;
  const printed = () => document.documentElement.classList.contains("printed");
  const colours = () => {
    const style = getComputedStyle(document.documentElement);
    return name => style.getPropertyValue(name).trim();
  };
  const themed = layout => {
    const colour = colours(), made = structuredClone(layout);
    const axes = Object.keys(made).filter(key => /^[xy]axis/.test(key));
    made.paper_bgcolor = colour("--paper");  // a saved picture has it, too
    made.plot_bgcolor = "rgba(0,0,0,0)";
    made.font = {...made.font, color: colour("--text"), family: "inherit", size: narrow() ? 11 : 13};
    made.hoverlabel = {bgcolor: colour("--band"), bordercolor: colour("--line"), font: {color: colour("--text")}};
    made.modebar = {bgcolor: "rgba(0,0,0,0)", color: colour("--soft"), activecolor: colour("--text")};
    made.autosize = true;
    if (printed()) made.width = 700;  // of the paper: a figure as wide as the window would be cut
    for (const key of axes) made[key] = {gridcolor: colour("--line"), linecolor: colour("--line"),
      zerolinecolor: colour("--soft"), automargin: true, ...made[key],
      title: {font: {size: made.font.size}, ...made[key].title}};
    if (narrow()) {
      made.margin = {...made.margin, l: 44, r: 4};
      // What has no room on a narrow screen is named "wide".
      if (made.annotations && made.annotations.some(one => one.name === "wide")) {
        made.annotations = made.annotations.filter(one => one.name !== "wide");
        made.margin.t = Math.min(made.margin.t, 24);
      }
      made.height = (made.height || 400) + (made.legend && made.showlegend !== false ? 60 : 0);
    }
    return made;
  };
  const draw = place => {
    const figure = figures[place.dataset.figure], layout = themed(figure.layout);
    place.style.height = layout.height + "px";
    place.dataset.drawn = "1";
    return Plotly.react(place, figure.data, layout, {responsive: true, displaylogo: false,
      displayModeBar: narrow() ? false : "hover", modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"],
      toImageButtonOptions: {scale: 2, filename: "whorl"}});
  };
  const again = () => places.filter(place => place.dataset.drawn).forEach(draw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
  // Paper is white: also what was drawn for a dark window is drawn again.
  const folds = [...document.querySelectorAll("details")];
  for (const fold of folds) fold.addEventListener("toggle", () => {
    if (fold.open) fold.querySelectorAll(".plot:not([data-drawn])").forEach(draw);
  });
  addEventListener("beforeprint", () => {
    document.documentElement.classList.add("printed");
    for (const fold of folds) fold.open = true;
    places.forEach(draw);
  });
  addEventListener("afterprint", () => { document.documentElement.classList.remove("printed"); places.forEach(draw); });
  for (const choice of document.querySelectorAll("figure select")) choice.addEventListener("change", () => {
    const place = choice.closest("figure").querySelector(".plot");
    place.dataset.figure = choice.value;
    draw(place);
  });
  try {
    for (const place of places) {
      if (place.closest("details:not([open])")) continue;  // drawn when a reader opens it: now it has no width
      await draw(place);
      await new Promise(next => setTimeout(next));  // between two figures the reader may scroll
    }
  } finally {
    loaded();
  }
})();
