"use strict";

function drawPlots() {
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const buttons = [["toImage", "zoom2d", "pan2d", "resetScale2d"]];
  const settings = { responsive: true, displaylogo: false, modeBarButtons: buttons };
  for (const [name, figure] of Object.entries(figures)) {
    Plotly.newPlot(document.getElementById("plot-" + name), figure.data, figure.layout, settings);
  }
}

function sortBy(header) {
  const table = header.closest("table");
  const column = header.cellIndex;
  const ascending = header.getAttribute("aria-sort") !== "ascending";
  const sign = ascending ? 1 : -1;
  const isNumber = header.classList.contains("number");
  const key = (row) => row.cells[column].dataset.key;
  const rows = Array.from(table.tBodies[0].rows);
  rows.sort((a, b) => sign * (isNumber ? key(a) - key(b) : key(a).localeCompare(key(b), undefined, { numeric: true })));
  for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
  header.setAttribute("aria-sort", ascending ? "ascending" : "descending");
  table.tBodies[0].append(...rows);
}

for (const button of document.querySelectorAll("th button")) {
  button.addEventListener("click", () => sortBy(button.closest("th")));
}
drawPlots();
