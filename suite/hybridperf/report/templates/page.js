"use strict";

const key = (row, column) => row.cells[column].dataset.key ?? "";

function compare(kind, one, other) {
  if (one === "" || other === "") return (one === "") - (other === "");
  return kind === "number" ? one - other : one.localeCompare(other, "en", { numeric: true });
}

function sort(table, head) {
  const column = head.cellIndex, kind = head.dataset.sort, body = table.tBodies[0];
  const down = head.getAttribute("aria-sort") === "ascending";
  const rows = [...body.rows].sort((one, other) => {
    const [first, second] = [key(one, column), key(other, column)];
    const unknown = first === "" || second === "";
    return compare(kind, first, second) * (down && !unknown ? -1 : 1);
  });
  for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", down ? "descending" : "ascending");
  body.append(...rows);
}

for (const table of document.querySelectorAll("table.sortable")) {
  for (const head of table.querySelectorAll("th[data-sort]")) {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    button.addEventListener("click", () => sort(table, head));
    head.append(button);
  }
}

const filter = document.querySelector(".filter");
if (filter) {
  const results = [...document.querySelectorAll("[data-words]")];
  filter.hidden = false;
  filter.querySelector("input").addEventListener("input", (event) => {
    const wanted = event.target.value.toLowerCase().split(/\s+/);
    let shown = 0;
    for (const result of results) {
      const words = result.dataset.words.toLowerCase();
      result.hidden = !wanted.every((word) => words.includes(word));
      shown += result.matches("details") && !result.hidden;
    }
    filter.querySelector("output").textContent = `${shown} shown`;
  });
}
