// Draws each chart from the JSON in front of it. Colours of text and lines come from page.css.
"use strict";
const touch = matchMedia("(pointer: coarse)").matches;
const config = {
  responsive: true,
  displaylogo: false,
  displayModeBar: touch ? false : "hover",
  modeBarButtons: [["toImage", "zoom2d", "pan2d", "zoomIn2d", "zoomOut2d", "resetScale2d"]],
};
const charts = [...document.querySelectorAll("figure")].map((figure) => {
  const { data, layout } = JSON.parse(figure.querySelector("script").textContent);
  const place = figure.querySelector("div");
  // A finger scrolls the page.
  Plotly.newPlot(place, data, { ...layout, dragmode: touch ? false : "zoom" }, config);
  return place;
});
addEventListener("beforeprint", () => charts.forEach((place) => Plotly.relayout(place, { width: 680 })));
addEventListener("afterprint", () => charts.forEach((place) => Plotly.relayout(place, { width: null, autosize: true })));
