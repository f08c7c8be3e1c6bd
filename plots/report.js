// Sorts tables by the head that is clicked, and shows one series of a chart at a time.
"use strict";
function value(row, column) {
  const cell = row.cells[column];
  if (cell.classList.contains("none")) return null;
  return cell.dataset.v === undefined ? cell.textContent.trim() : Number(cell.dataset.v);
}
function order(x, y) { // what is not there stands last in both directions
  return typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y));
}
function sortBy(table, head) {
  const descending = head.getAttribute("aria-sort") !== "descending" && head.cellIndex > 0 ||
    head.getAttribute("aria-sort") === "ascending";
  const rows = [...table.tBodies[0].rows];
  rows.sort((a, b) => {
    const x = value(a, head.cellIndex), y = value(b, head.cellIndex);
    if (x === null || y === null) return (x === null) - (y === null);
    return descending ? order(y, x) : order(x, y);
  });
  for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", descending ? "descending" : "ascending");
  table.tBodies[0].append(...rows);
}
for (const table of document.querySelectorAll("table.sort"))
  for (const head of table.tHead.rows[0].cells)
    head.querySelector("button").addEventListener("click", () => sortBy(table, head));
for (const chart of document.querySelectorAll("figure.chart")) {
  const show = serie => {
    for (const g of chart.querySelectorAll("g.serie"))
      g.classList.toggle("dim", serie !== null && g.dataset.serie !== serie);
  };
  for (const item of chart.querySelectorAll(".legend li")) {
    item.addEventListener("mouseenter", () => show(item.dataset.serie));
    item.addEventListener("mouseleave", () => show(null));
  }
}
// A card, or the cells of a task, open when they are named.
for (const link of document.querySelectorAll("a[href^='#method-'], a[href^='#'][href$='-cells']"))
  link.addEventListener("click", () => {
    const card = document.getElementById(link.getAttribute("href").slice(1));
    if (card) card.open = true;
  });
