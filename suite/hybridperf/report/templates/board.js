
// The state of the board: its filter, sorted columns and ticked results. It stands in the fragment, after the anchor:
// #resnet-laptop-closed?filter=dp&tick=result-... Pages that are files may change no other part of their address.
const input = document.querySelector(".filter input");
const dock = document.querySelector(".ticked");
const sorted = new Map(), ticked = new Set();

const anchorOf = () => decodeURIComponent(location.hash.slice(1).split("?")[0]);
const nameOf = (head) => [...head.firstChild.childNodes].map((node) => node.textContent.trim()).join(" ");

function save() {
  const state = new URLSearchParams();
  if (input.value) state.set("filter", input.value);
  for (const [table, [name, down]] of sorted) state.append("sort", [table, name, ...(down ? ["down"] : [])].join("."));
  for (const anchor of ticked) state.append("tick", anchor);
  const text = state.toString();
  history.replaceState(null, "", `#${anchorOf()}${text ? `?${text}` : ""}`);
}

function restore() {
  const state = new URLSearchParams(location.hash.split("?")[1] ?? "");
  input.value = state.get("filter") ?? "";
  input.dispatchEvent(new Event("input"));
  for (const text of state.getAll("sort")) {
    const [table, name, down] = text.split(".");
    const heads = document.getElementById(table)?.querySelectorAll("th[data-sort]") ?? [];
    const head = [...heads].find((each) => nameOf(each) === name);
    if (!head) continue;
    head.removeAttribute("aria-sort");
    for (let clicks = down ? 2 : 1; clicks; clicks -= 1) head.firstChild.click();
  }
  ticked.clear();
  for (const anchor of state.getAll("tick")) if (boxOf(anchor)) ticked.add(anchor);
  show();
  save();
}

function reveal() {
  const target = document.getElementById(anchorOf());
  if (target?.matches("details")) target.open = true;
  if (location.hash.includes("?")) target?.scrollIntoView();
}

// Boards, their links and parts of them without a result that the filter shows

function hideEmpty() {
  const empty = (part) => {
    const results = [...part.querySelectorAll("[data-words]")];
    return results.length > 0 && results.every((result) => result.hidden);
  };
  for (const part of document.querySelectorAll(".group")) part.hidden = empty(part);
  for (const fold of document.querySelectorAll("details.missed")) if (input.value) fold.open = !fold.hidden;
  for (const board of document.querySelectorAll("section.board")) {
    board.hidden = empty(board);
    document.querySelector(`.headline [data-board="${board.id}"]`).hidden = board.hidden;
    document.querySelector(`nav a[href="#${board.id}"]`).hidden = board.hidden;
  }
  for (const task of document.querySelectorAll("nav li"))
    task.hidden = [...task.querySelectorAll("a")].every((link) => link.hidden);
}

// Ticked results: the comparison of two, the learning curves of those of one board

const comparisons = JSON.parse(document.getElementById("comparisons")?.textContent ?? "{}");
const kinds = ["one", "two", "three", "four", "five", "six"];
const boxOf = (anchor) => document.querySelector(`.tick input[value="${CSS.escape(anchor)}"]`);
const rowOf = (anchor) => boxOf(anchor).closest("tr");
const boardOf = (anchor) => rowOf(anchor).closest("section.board").id;
const systemOf = (anchor) => rowOf(anchor).querySelector("th a").textContent;
const either = (table, one, other) => table[one]?.[other] ?? table[other]?.[one];

function drawn(name, attributes) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  return element;
}

function show() {
  const all = [...ticked], axes = new Set(all.map((anchor) => rowOf(anchor).dataset.axes));
  for (const box of document.querySelectorAll(".tick input")) box.checked = ticked.has(box.value);
  dock.hidden = !all.length;
  if (dock.hidden) return;
  const [pre, figure, head] = ["pre", "figure", ".head b"].map((name) => dock.querySelector(name));
  const pair = all.length === 2;
  head.textContent = `${all.length} ticked: ${all.map(systemOf).join(", ")}${pair ? "" : ". Tick two to compare them."}`;
  pre.hidden = !pair;
  if (pair)
    pre.textContent = either(comparisons.results, ...all) ?? either(comparisons.boards, ...all.map(boardOf))
      ?? comparisons.otherwise;
  figure.hidden = axes.size > 1;
  if (figure.hidden) return;
  const chosen = all.slice(0, kinds.length);
  const series = chosen.map((anchor, nth) => drawn("use", { href: `#curves-${anchor}`, class: `series ${kinds[nth]}` }));
  figure.querySelector("svg").replaceChildren(drawn("use", { href: `#${[...axes][0]}` }), ...series);
  figure.querySelector("figcaption").replaceChildren(...chosen.map((anchor, nth) => {
    const entry = document.createElement("span"), sample = drawn("svg", { class: "sample", width: 28, height: 8 });
    sample.setAttribute("aria-hidden", "true");
    sample.append(drawn("line", { class: kinds[nth], x1: 0, x2: 28, y1: 4, y2: 4 }));
    entry.append(sample, ` ${systemOf(anchor)}`);
    return entry;
  }), ...(all.length > chosen.length ? [`and ${all.length - chosen.length} without a curve here`] : []));
}

if (dock) {
  for (const cell of document.querySelectorAll(".tick")) cell.hidden = false;
  addEventListener("change", ({ target }) => {
    if (!target.matches(".tick input")) return;
    if (target.checked) ticked.add(target.value);
    else ticked.delete(target.value);
    show();
    save();
  });
  dock.querySelector("button").addEventListener("click", () => {
    ticked.clear();
    show();
    save();
  });
  for (const table of document.querySelectorAll("table.sortable"))
    for (const head of table.querySelectorAll("th[data-sort]"))
      head.firstChild.addEventListener("click", () => {
        sorted.set(table.id, [nameOf(head), head.getAttribute("aria-sort") === "descending"]);
        save();
      });
  input.addEventListener("input", () => {
    hideEmpty();
    save();
  });
  addEventListener("hashchange", () => {
    if (location.hash.includes("?")) restore();
    else save();
    reveal();
  });
  if (location.hash.includes("?")) restore();
  reveal();
}
