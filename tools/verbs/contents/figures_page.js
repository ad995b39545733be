// The page of an answer of diff or stats: `data` is {tool, answer}, and the answer is what --json prints.

const PAGE_ROWS = 100;
const answer = data.answer;
// Characters that a browser would not show, or that change the direction of what follows.
const HIDDEN = /[\u0000-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g;
const plain = (text) => text.replace(HIDDEN, (c) => "\\u" + c.charCodeAt(0).toString(16).padStart(4, "0"));
const rounded = (n) => Math.abs(n) < 1e-4 ? n.toExponential() : String(n);
const figure = (n) => n === null || n === undefined ? "" : Number.isInteger(n) && Math.abs(n) < 1e15 ? count(n) : rounded(Number(n.toPrecision(4)));
const collator = new Intl.Collator("en", {numeric: true});

// Columns are [name, class, the text of a row, what it is sorted by].
const VIEWS = {
  "fsdp-ckpt/diff/1": () => {
    const rows = answer.differences;
    const changed = rows.filter((row) => row.what === "tensor");
    const WORDS = {only_a: "only in A", only_b: "only in B"};
    const differing = Object.entries(answer.counts).filter(([, n]) => n > 0);
    const facts = [["tensors compared", count(answer.tensors)], ["values compared", count(answer.values)],
                   ["of tensors", bytes(answer.bytes)],
                   ["tolerance", answer.tolerance.exact ? "none: bit by bit" : "given"]];
    for (const [what, n] of differing) facts.push([WORDS[what] || what + (n === 1 ? "" : "s") + " that differ", count(n)]);
    return {
      kind: answer.same ? ["good", "A and B are the same"] : ["bad", "A and B differ"],
      name: "A: " + plain(answer.a) + "\nB: " + plain(answer.b),
      facts,
      lines: ["Through", answer.through === null ? [] : wayLines(answer.through)],
      groups: ["Change by layer", "‖B − A‖ / ‖A‖ over the tensors that differ", layers(changed)],
      title: rows.length === 0 ? "No differences" : "Differences",
      noun: "difference",
      rows,
      columns: [
        ["key", "key", (row) => row.key, (row) => row.key],
        ["what", "", (row) => WORDS[row.what] || row.what, (row) => row.what],
        ["A", "mono", (row) => row.a || "", (row) => row.a || ""],
        ["B", "mono", (row) => row.b || "", (row) => row.b || ""],
        ["change", "number", (row) => figure(row.relative), (row) => size(row.relative, row)],
        ["max abs", "number", (row) => figure(row.max_abs), (row) => size(row.max_abs, row)],
        ["elements", "number", (row) => row.what !== "tensor" ? "" : row.different === row.elements ? "all " + count(row.elements)
                                        : count(row.different) + " of " + count(row.elements), (row) => row.different || 0],
      ],
    };
  },
  "fsdp-ckpt/quantization/1": () => {
    const totals = answer.totals;
    const share = (row, name) => row[name] === null ? "" : percent(row[name], row.elements);
    const part = (row, name) => row[name] === null ? -1 : row[name] / row.elements;
    return {
      kind: ["", answer.quantize === null ? "What quantization lost" : "What " + answer.quantize + " would lose"],
      name: plain(answer.path) + (answer.original === null ? "" : "\nbefore: " + plain(answer.original)),
      facts: [["weights", count(answer.tensors.length)], ["elements", count(totals.elements)], ["error", figure(totals.relative)],
              ["SNR dB", figure(totals.snr_db)], ["saturated", share(totals, "saturated")], ["zeros", share(totals, "zeros")]],
      lines: ["Not compared", answer.not_compared.map((one) => ["", plain(one.key), plain(one.why)])],
      groups: ["", "", []],
      title: "Weights",
      noun: "weight",
      rows: answer.tensors,
      columns: [
        ["key", "key", (row) => row.key, (row) => row.key],
        ["scheme", "", (row) => row.scheme, (row) => row.scheme],
        ["shape", "mono", (row) => shape(row.shape), (row) => row.shape.reduce((a, b) => a * b, 1)],
        ...["relative", "max_abs", "snr_db"].map((name) =>
          [name, "number", (row) => figure(row[name]), (row) => row[name] === null ? -Infinity : row[name]]),
        ...["saturated", "zeros"].map((name) => [name, "number", (row) => share(row, name), (row) => part(row, name)]),
      ],
    };
  },
  "fsdp-ckpt/stats/1": () => {
    const totals = answer.totals;
    const gated = answer.fail_on.length > 0;
    return {
      kind: !gated ? ["", "Figures of every tensor"] : answer.passed ? ["good", "The gate passed: " + answer.fail_on.join(", ")]
                                                                     : ["bad", "The gate failed: " + answer.fail_on.join(", ")],
      name: plain(answer.path),
      facts: [["tensors", count(totals.tensors)], ["elements", count(totals.parameters)], ["of tensors", bytes(totals.bytes)],
              ["zeros", percent(totals.zeros, totals.parameters)], ["NaN", count(totals.nan)], ["infinite", count(totals.inf)]],
      lines: ["What tripped the gate", answer.failures.map((failure) =>
        ["damage", failure.what, plain(failure.key) + ": " + count(failure.count) + (failure.what === "zero" ? " zeros and nothing else" : ""), failure.key])],
      groups: ["By dtype", "", answer.dtypes.map((dtype) =>
        [dtype.dtype, dtype.bytes, bytes(dtype.bytes) + ", " + counted(dtype.tensors, "tensor") + ", " + count(dtype.nan) + " NaN, " + count(dtype.inf) + " infinite"])],
      title: "Tensors",
      noun: "tensor",
      rows: answer.tensors,
      columns: [
        ["key", "key", (row) => row.key, (row) => row.key],
        ["dtype", "", (row) => row.dtype, (row) => row.dtype],
        ["shape", "mono", (row) => shape(row.shape), (row) => row.shape.reduce((a, b) => a * b, 1)],
        ...["min", "max", "mean", "std", "rms", "zeros", "nan", "inf"].map((name) =>
          [name, "number", (row) => figure(row[name]), (row) => row[name] === null ? -Infinity : row[name]]),
      ],
    };
  },
};

// Returns what a change is sorted by: NaN and infinities first, then numbers, then what has none.
function size(number, row) {
  if (row.what !== "tensor") return -2;
  if (row.unbounded > 0) return Infinity;
  return number === null ? -1 : number;
}

const others = (n) => n === 1 ? "1 other entry" : count(n) + " other entries";

function wayLines(way) {
  const letter = (side) => side.toUpperCase();
  const lines = [];
  for (const side of ["a", "b"]) {
    const model = way["model_" + side], prefixes = way["prefixes_" + side];
    lines.push(["", letter(side), (model === "" ? "the model" : "the model " + plain(model)) +
                (prefixes.length === 0 ? "" : ", names without " + prefixes.map(plain).join(", ")) +
                (way["beside_" + side] === 0 ? "" : "; not compared: " + others(way["beside_" + side]))]);
  }
  if (way.map !== null)
    lines.push(["", "map", plain(way.map) + (way.keys_of === way.origin ? ", undone" : "") + ": keys are those of " + letter(way.keys_of)]);
  for (const one of way.rounded)
    lines.push(["", "rounded", counted(one.tensors, "tensor") + " of " + letter(way.origin) + ", " + one.from + " to " + one.to]);
  if (way.tied !== null)
    lines.push(["", "left out", way.tied + " of " + letter(way.origin) + ": it equals the embedding that config.json ties it to"]);
  return lines;
}

// Changes of tensors added up by layer: the part of their keys up to the first number.
function layers(changed) {
  const sums = new Map();
  for (const row of changed) {
    if (row.norm_a === null || row.norm_change === null) continue;
    const layer = /^(?:.*?\.)?[0-9]+(?=\.)/s.exec(row.key);
    const name = layer !== null ? layer[0] : row.key.includes(".") ? row.key.slice(0, row.key.lastIndexOf(".")) : row.key;
    const sum = sums.get(name) || {name, a: 0, change: 0, tensors: 0};
    sum.a += row.norm_a * row.norm_a;
    sum.change += row.norm_change * row.norm_change;
    ++sum.tensors;
    sums.set(name, sum);
  }
  return [...sums.values()].map((sum) => [sum.name, sum.a === 0 ? 0 : Math.sqrt(sum.change / sum.a),
    (sum.a === 0 ? "from 0" : figure(Math.sqrt(sum.change / sum.a))) + ", " + counted(sum.tensors, "tensor")])
    .sort((a, b) => collator.compare(a[0], b[0]));
}

const view = VIEWS[answer.schema]();
view.rows.forEach((row, number) => { row.number = number; });

// ---- State, kept in the address: #q=...&sort=...&open=... ----

const state = {q: "", sort: "", down: false, page: 0, open: -1};
function readAddress() {
  const words = new URLSearchParams(location.hash.slice(1));
  state.q = words.get("q") || "";
  state.sort = view.columns.some(([name]) => name === words.get("sort")) ? words.get("sort") : "";
  state.down = words.get("down") === "1";
  state.page = Math.max(0, parseInt(words.get("page") || "0", 10) || 0);
  state.open = parseInt(words.get("open") || "-1", 10);
}
function writeAddress() {
  const words = new URLSearchParams();
  if (state.q !== "") words.set("q", state.q);
  if (state.sort !== "") words.set("sort", state.sort);
  if (state.down) words.set("down", "1");
  if (state.page > 0) words.set("page", state.page);
  if (state.open >= 0) words.set("open", state.open);
  const text = words.toString();
  // A page opened from a file may not write its history in every browser.
  try { history.replaceState(null, "", text === "" ? "#" : "#" + text); } catch (error) { /* as it is */ }
}

// ---- Header, lines, groups ----

function drawHead() {
  drawFacts(view.facts);
  fill($("kind"), make("b", {className: view.kind[0]}, view.kind[1]));
  fill($("name"), ...view.name.split("\n").flatMap((line, i) => i === 0 ? [line] : [make("br"), line]));
  const [title, lines] = view.lines;
  $("findings").hidden = lines.length === 0;
  $("findings-title").textContent = title;
  fill($("findings").querySelector("ul"), ...lines.map(([className, head, text]) =>
    make("li", {}, make("b", {className}, head), " " + text)));
  const [name, hint, groups] = view.groups;
  $("groups").hidden = groups.length === 0;
  $("groups-title").textContent = name;
  $("groups-hint").textContent = hint;
  const most = Math.max(...groups.map(([, value]) => value), 0);
  fill($("groups").querySelector("table"), make("tbody", {}, ...groups.map(([group, value, text]) => make("tr", {},
    make("td", {className: "key"}, make("button", {type: "button", className: "link mono", onclick: () => find(group)}, plain(group))),
    make("td", {className: "share"}, make("i", {style: {width: (most === 0 ? 0 : 100 * value / most) + "%"}})),
    cell(text, "number")))));
  $("rows-title").textContent = view.title;
  $("footer").textContent = "Written by fsdp-ckpt " + data.tool + ".";
}

// ---- Table ----

let found = view.rows;
function search() {
  const words = state.q.toLowerCase().split(/\s+/).filter((word) => word !== "");
  found = view.rows.filter((row) => {
    if (words.length === 0) return true;
    const text = (view.columns.slice(0, 4).map(([, , shown]) => shown(row)).join(" ") + " " + (row.names || []).join(" ")).toLowerCase();
    return words.every((word) => text.includes(word));
  });
  const column = view.columns.find(([name]) => name === state.sort);
  if (column === undefined) return;
  const by = column[3];
  found.sort((a, b) => typeof by(a) === "string" ? collator.compare(by(a), by(b)) : by(a) < by(b) ? -1 : by(a) > by(b) ? 1 : 0);
  if (state.down) found.reverse();
}

// All members of a row, as --json names them.
function detail(row) {
  const list = make("dl", {});
  for (const [name, value] of Object.entries(row)) {
    if (name === "number" || value === null) continue;
    const text = typeof value === "string" ? plain(value) : typeof value === "number" ? String(value)
                 : name === "names" ? value.map(plain).join("\n") : shape(value);
    list.append(make("dt", {}, name), make("dd", {style: {whiteSpace: "pre-wrap"}}, text));
  }
  return list;
}

function drawTable() {
  const head = make("tr", {});
  for (const [name, className] of view.columns) {
    const first = className === "number" || name === "shape";  // the largest first
    const th = make("th", {scope: "col", className: className === "number" ? "number" : ""},
                    make("button", {type: "button", className: "link", onclick: () => {
      if (state.sort !== name) { state.sort = name; state.down = first; }
      else if (state.down === first) state.down = !first;
      else { state.sort = ""; state.down = false; }
      state.page = 0;
      update();
    }}, name + (state.sort === name ? (state.down ? " ↓" : " ↑") : "")));
    if (state.sort === name) th.setAttribute("aria-sort", state.down ? "descending" : "ascending");
    head.append(th);
  }
  const pages = Math.max(1, Math.ceil(found.length / PAGE_ROWS));
  state.page = Math.min(state.page, pages - 1);
  const begin = state.page * PAGE_ROWS;
  const lines = [];
  for (const row of found.slice(begin, begin + PAGE_ROWS)) {
    const open = state.open === row.number;
    lines.push(make("tr", {}, ...view.columns.map(([, className, shown], i) => i > 0 ? cell(plain(shown(row)), className)
      : make("td", {className}, make("button", {type: "button", className: "link mono", "aria-expanded": String(open), onclick: () => {
        state.open = open ? -1 : row.number;
        writeAddress();
        drawTable();
      }}, plain(shown(row)))))));
    if (open) lines.push(make("tr", {className: "detail"}, make("td", {colSpan: view.columns.length}, detail(row))));
  }
  fill($("table"), make("thead", {}, head), make("tbody", {}, ...lines));
  $("count").textContent = found.length === 0 ? (view.rows.length === 0 ? "" : "No " + view.noun + " matches") :
    count(begin + 1) + " to " + count(Math.min(begin + PAGE_ROWS, found.length)) + " of " + counted(found.length, view.noun);
  $("previous").disabled = state.page === 0;
  $("next").disabled = state.page + 1 >= pages;
}

function update() {
  search();
  drawTable();
  writeAddress();
}

// Shows the rows of a group.
function find(text) {
  state.q = text;
  state.page = 0;
  $("search").value = text;
  update();
  $("rows").scrollIntoView();
}

// ---- Start ----

$("search").addEventListener("input", () => {
  state.q = $("search").value;
  state.page = 0;
  update();
});
$("previous").addEventListener("click", () => { --state.page; update(); });
$("next").addEventListener("click", () => { ++state.page; update(); });
function start() {
  readAddress();
  $("search").value = state.q;
  search();
  drawTable();
}
window.addEventListener("hashchange", () => { if (location.hash !== "#table") start(); });
drawHead();
start();
document.documentElement.dataset.ready = String(view.rows.length);
