"use strict";

const charts = JSON.parse(document.getElementById("charts").textContent);
const root = document.documentElement;
const systemIsDark = window.matchMedia("(prefers-color-scheme: dark)");

function colour(name) {
  return getComputedStyle(root).getPropertyValue("--" + name).trim();
}

// A chart's parts name slots; what colour a slot has depends on the theme.
function themed(chart) {
  const slot = (each) => colour("slot-" + each.slot);
  const axis = { gridcolor: colour("line"), linecolor: colour("line"), zerolinecolor: colour("line") };
  const layout = structuredClone(chart.layout);
  layout.xaxis = { ...axis, ...layout.xaxis };
  layout.yaxis = { ...axis, ...layout.yaxis };
  layout.shapes = (layout.shapes || []).map((each) => ({ ...each, line: { color: slot(each), width: 1, dash: "dot" } }));
  return {
    traces: chart.traces.map((each) => ({
      ...each,
      marker: { line: { width: 0 }, ...each.marker, color: slot(each) },
      line: { ...each.line, color: slot(each) },
    })),
    layout: {
      height: 340,
      margin: { l: 70, r: 20, t: 10, b: 45 },
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { color: colour("text"), family: getComputedStyle(document.body).fontFamily, size: 13 },
      hoverlabel: { bgcolor: colour("page"), bordercolor: colour("line"), font: { color: colour("text") } },
      legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom", traceorder: "normal" },
      ...layout,
    },
  };
}

function draw() {
  for (const chart of charts) {
    const { traces, layout } = themed(chart);
    Plotly.react(chart.id, traces, layout, { responsive: true, displaylogo: false });
  }
}

function chooseTheme(choice) {
  if (choice === "system") root.removeAttribute("data-theme");
  else root.setAttribute("data-theme", choice);
  const words = { system: "as the system", light: "light", dark: "dark" };
  const button = document.getElementById("theme");
  button.textContent = "Colours: " + words[choice];
  button.dataset.choice = choice;
  draw();
}

// A click on a heading sorts by it: numbers the largest first, then the other way.
function sortBy(header) {
  const body = header.closest("table").tBodies[0];
  const column = header.cellIndex;
  const key = (row) => {
    const cell = row.cells[column];
    return cell.dataset.value === undefined ? cell.textContent.trim() : Number(cell.dataset.value);
  };
  const isNumber = header.classList.contains("number");
  const before = header.getAttribute("aria-sort");
  const isDescending = before === null ? isNumber : before === "ascending";
  const rows = [...body.rows].sort((a, b) => {
    const [left, right] = [key(a), key(b)];
    const order = isNumber ? left - right : String(left).localeCompare(String(right));
    return isDescending ? -order : order;
  });
  for (const other of header.parentElement.cells) other.removeAttribute("aria-sort");
  header.setAttribute("aria-sort", isDescending ? "descending" : "ascending");
  body.append(...rows);
}

for (const header of document.querySelectorAll("table.sortable thead th")) {
  header.querySelector("button").addEventListener("click", () => sortBy(header));
}
document.getElementById("theme").addEventListener("click", (event) => {
  const choices = ["system", "light", "dark"];
  const next = choices[(choices.indexOf(event.target.dataset.choice || "system") + 1) % choices.length];
  chooseTheme(next);
});
systemIsDark.addEventListener("change", draw);
draw();
