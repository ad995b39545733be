// Draws the page of one checkpoint, from what inspect_html.cpp writes.
const PAGE_ROWS = 100;
const MODULE_ROWS = 60;
// Of the treemap, in pixels.
const MIN_TILE = 90;       // of area; smaller parts are gathered
const HEADER = 18;         // the height of a module's name
const LABEL_WIDTH = 36;    // a part from this size on has a label
const LABEL_HEIGHT = 20;
const OPEN_PART = 1600;    // a module shows its parts if those of this area have half of its bytes
const MAX_SCALE = 64;

// ---- What the data say ----

const tensors = data.tensors.map(([key, dtype, dims, size, chunks, runs], number) =>
  ({key, dtype, dims, size, chunks, runs, number, elements: dims.reduce((a, b) => a * b, 1)}));
const total = tensors.reduce((sum, t) => sum + t.size, 0);
const dtypes = data.dtypes.map((name, d) => ({name, d, size: 0, elements: 0}));
for (const tensor of tensors) {
  dtypes[tensor.dtype].size += tensor.size;
  dtypes[tensor.dtype].elements += tensor.elements;
}
dtypes.sort((a, b) => b.size - a.size);
const dtypeColour = (d) => COLOURS[dtypes.findIndex((dtype) => dtype.d === d) % COLOURS.length];
const columns = data.columns;

// "rank 0", "ranks 0 to 3": the columns that hold a tensor.
function where(tensor) {
  const spans = [];
  for (const [first, last] of tensor.runs) {
    if (spans.length > 0 && spans[spans.length - 1][1] + 1 === first) spans[spans.length - 1][1] = last;
    else spans.push([first, last]);
  }
  if (spans.length === 0) return "";
  const parts = spans.map(([first, last]) =>
    first === last ? columns[first] : columns[first].split(" – ")[0] + " – " + columns[last].split(" – ").pop());
  if (parts.length > 4) parts.splice(3, parts.length - 3, "…");
  const one = parts.length === 1 && !parts[0].includes("–");
  return (data.by_rank ? (one ? "rank " : "ranks ") : "") + parts.join(", ");
}

// Returns the place that all tensors share, or "".
function whereAll(members) {
  const place = where(members[0]);
  return members.every((tensor) => where(tensor) === place) ? place : "";
}

// "{0..11}", "{0..2,5}", "{0,2,4,6,...}", as inspect writes numbers.
function range(numbers) {
  const parts = [];
  for (let begin = 0, end = 0; begin < numbers.length; begin = end) {
    if (parts.length === 4) { parts.push("..."); break; }
    for (end = begin + 1; end < numbers.length && Number(numbers[end]) === Number(numbers[end - 1]) + 1;) ++end;
    parts.push(numbers[begin] + (end - begin === 1 ? "" : (end - begin === 2 ? "," : "..") + numbers[end - 1]));
  }
  return "{" + parts.join(",") + "}";
}

// A number for everything that looks like a node: names, dtypes and shapes below it.
const kinds = new Map();
function kind(node) {
  const leaf = node.tensor === null ? "" : node.tensor.dtype + shape(node.tensor.dims);
  const names = node.list.map((child) => JSON.stringify(child.name) + child.kind).sort();
  const text = leaf + "(" + names.join(",") + ")";
  if (!kinds.has(text)) kinds.set(text, kinds.size);
  return kinds.get(text);
}

// Numbered siblings that are alike become one node: `copies` are what it stands for, `list` and
// `sample` what the first of them has.
function folded(list, path) {
  const alike = new Map();
  for (const child of list) {
    const parts = /^([0-9]+)($|\..*)/s.exec(child.name);
    const key = parts === null ? child : child.kind + parts[2];
    if (!alike.has(key)) alike.set(key, []);
    alike.get(key).push(child);
  }
  return [...alike.values()].map((copies) => {
    if (copies.length === 1) return copies[0];
    copies.sort((a, b) => collator.compare(a.name, b.name));
    const rest = copies[0].name.replace(/^[0-9]+/, "");
    const name = range(copies.map((copy) => copy.name.slice(0, copy.name.length - rest.length))) + rest;
    return {name, path: (path === "" ? "" : path + ".") + name, copies, list: copies[0].list, tensor: null,
            sample: copies[0].tensor, dtype: copies[0].dtype, kind: copies[0].kind, size: copies[0].size * copies.length,
            count: copies[0].count * copies.length};
  });
}

// The modules as a tree: keys split at their dots, chains without branches joined.
function grow(fold) {
  const root = {name: "", path: "", children: new Map(), size: 0, count: 0, tensor: null};
  for (const tensor of tensors) {
    let node = root;
    node.size += tensor.size;
    ++node.count;
    for (const part of tensor.key.split(".")) {
      let child = node.children.get(part);
      if (child === undefined) {
        child = {name: part, path: node === root ? part : node.path + "." + part,
                 children: new Map(), size: 0, count: 0, tensor: null};
        node.children.set(part, child);
      }
      child.size += tensor.size;
      ++child.count;
      node = child;
    }
    node.tensor = tensor;
  }
  const stack = [root];
  const all = [];
  while (stack.length > 0) {
    const node = stack.pop();
    all.push(node);
    stack.push(...node.children.values());
  }
  for (const node of all.reverse()) {
    const list = [];
    for (let child of node.children.values()) {
      while (child.tensor === null && child.list.length === 1)
        child = {...child.list[0], name: child.name + "." + child.list[0].name};
      list.push(child);
    }
    if (node.tensor !== null && list.length > 0) {  // "a" beside "a.b"
      const itself = {name: "(itself)", path: node.path + " (itself)", list: [], size: node.tensor.size,
                      count: 1, tensor: node.tensor, dtype: node.tensor.dtype};
      list.push({...itself, kind: kind(itself)});
      node.tensor = null;
    }
    node.list = (fold ? folded(list, node.path) : list).sort((a, b) => b.size - a.size);
    node.kind = kind(node);
    node.dtype = node.tensor !== null ? node.tensor.dtype : node.list.length > 0 ? node.list[0].dtype : 0;
    node.children = null;
  }
  return root;
}

// Returns the nodes that a node opens into.
const inside = (node) => node.copies || node.list;
const collator = new Intl.Collator("en", {numeric: true});
let root, byPath, parents, groups;
// Builds the tree, and the groups of tensors that a row of the table may stand for.
function plant(fold) {
  root = grow(fold);
  byPath = new Map();
  parents = new Map();
  const patterns = new Map();
  const stack = [[root, ""]];
  while (stack.length > 0) {
    const [node, pattern] = stack.pop();
    byPath.set(node.path, node);
    if (node.tensor !== null) {
      if (!patterns.has(pattern)) patterns.set(pattern, []);
      patterns.get(pattern).push(node.tensor);
    }
    for (const child of inside(node)) {
      parents.set(child, node);
      const name = node.copies ? "" : child.name === "(itself)" ? "" : child.name;
      stack.push([child, pattern === "" || name === "" ? pattern + name : pattern + "." + name]);
    }
  }
  groups = [];
  for (const tensor of tensors) tensor.group = null;
  for (const [key, members] of [...patterns].sort((a, b) => collator.compare(a[0], b[0]))) {
    if (members.length === 1) continue;
    members.sort((a, b) => collator.compare(a.key, b.key));
    const sum = (member) => members.reduce((all, tensor) => all + tensor[member], 0);
    const group = {key, members, dtype: members[0].dtype, dims: members[0].dims, elements: members[0].elements,
                   size: sum("size"), chunks: sum("chunks"), number: groups.length};
    groups.push(group);
    for (const tensor of members) tensor.group = group;
  }
  $("fold").parentElement.hidden = fold && groups.length === 0;
}
// Bytes in each column, of all tensors below a node.
function columnBytes(node) {
  const sums = new Array(columns.length).fill(0);
  const stack = [node];
  while (stack.length > 0) {
    const at = stack.pop();
    if (at.tensor !== null) {
      for (const [first, last, size] of at.tensor.runs)
        for (let c = first; c <= last; ++c) sums[c] += size;
    }
    for (const child of inside(at)) stack.push(child);
  }
  return sums;
}

// ---- State, kept in the address: #q=...&sort=...&zoom=... ----

const SORTS = {
  key: (a, b) => collator.compare(a.key, b.key),
  dtype: (a, b) => a.dtype - b.dtype,
  shape: (a, b) => a.elements - b.elements,
  bytes: (a, b) => a.size - b.size,
  chunks: (a, b) => a.chunks - b.chunks,
};
const state = {q: "", sort: "", down: false, page: 0, zoom: "", colour: "module", open: -1, rows: MODULE_ROWS,
               fold: null, unfolded: new Set()};
function readAddress() {
  const words = new URLSearchParams(location.hash.slice(1));
  const fold = words.get("fold") !== "0";
  if (fold !== state.fold) plant(fold);
  state.fold = fold;
  state.unfolded = new Set((words.get("unfolded") || "").split(",").filter((word) => /^[0-9]+$/.test(word)).map(Number));
  state.q = words.get("q") || "";
  state.sort = words.get("sort") in SORTS ? words.get("sort") : "";
  state.down = words.get("down") === "1";
  state.page = Math.max(0, parseInt(words.get("page") || "0", 10) || 0);
  state.zoom = byPath.has(words.get("zoom")) ? words.get("zoom") : "";
  state.colour = words.get("colour") === "dtype" ? "dtype" : "module";
  state.open = parseInt(words.get("open") || "-1", 10);
}
function writeAddress() {
  const words = new URLSearchParams();
  if (state.q !== "") words.set("q", state.q);
  if (state.sort !== "") words.set("sort", state.sort);
  if (state.down) words.set("down", "1");
  if (state.page > 0) words.set("page", state.page);
  if (state.zoom !== "") words.set("zoom", state.zoom);
  if (state.colour !== "module") words.set("colour", state.colour);
  if (state.open >= 0) words.set("open", state.open);
  if (!state.fold) words.set("fold", "0");
  if (state.unfolded.size > 0) words.set("unfolded", [...state.unfolded].join(","));
  const text = words.toString();
  // A page opened from a file may not write its history in every browser.
  try { history.replaceState(null, "", text === "" ? "#" : "#" + text); } catch (error) { /* as it is */ }
}

// ---- Header ----

function drawHeader() {
  const facts = [["tensors", count(tensors.length)],
                 ["elements", count(tensors.reduce((sum, t) => sum + t.elements, 0))],
                 ["of tensors", bytes(total)],
                 ["on disk", bytes(data.files.reduce((sum, f) => sum + (f[1] || 0), 0))],
                 ["files", count(data.files.length)]];
  if (data.ranks > 1 || data.by_rank) facts.push(["ranks", count(data.ranks)]);
  if (data.values_total > 0) facts.push(["values", count(data.values_total)]);
  if (data.version !== null) facts.push(["format version", data.version]);
  drawFacts(facts);
  const missing = data.files.filter((f) => f[1] === null).length;
  const findings = data.findings.map(([severity, code, text]) =>
    make("li", {}, make("b", {className: severity}, severity + " " + code), " " + text));
  if (missing > 0)
    findings.unshift(make("li", {}, make("b", {className: "damage"}, counted(missing, "file") + " missing")));
  $("findings").hidden = findings.length === 0;
  fill($("findings").querySelector("ul"), ...findings);
  $("footer").textContent = "Written by fsdp-ckpt " + data.tool + ". Metadata alone was read: fsdp-ckpt verify checks the data.";
}

function drawDtypes() {
  fill($("dtype-bar"), ...dtypes.map((s) => make("span", {
    title: s.name, style: {flexGrow: String(s.size), flexBasis: "0", background: dtypeColour(s.d)}})));
  fill($("dtypes"), ...dtypes.map((s) => make("li", {},
    make("span", {className: "swatch", style: {background: dtypeColour(s.d)}}),
    s.name + " " + bytes(s.size) + " (" + percent(s.size, total) + "), " + counted(s.elements, "element"))));
}

// ---- Treemap ----

// Lays sizes, largest first, into a rectangle in rows whose tiles are as square as they get
// (Bruls, Huizing, van Wijk: squarified treemaps).
function squarify(items, x, y, width, height, place) {
  const sum = items.reduce((a, item) => a + item.size, 0);
  if (sum <= 0 || width <= 0 || height <= 0) return;
  const scale = width * height / sum;
  let at = 0;
  while (at < items.length) {
    const side = Math.min(width, height);
    let end = at, area = 0, worst = Infinity;
    while (end < items.length) {
      const next = area + items[end].size * scale;
      const most = items[at].size * scale, least = items[end].size * scale;
      const ratio = Math.max(side * side * most / (next * next), next * next / (side * side * least));
      if (ratio > worst) break;
      worst = ratio;
      area = next;
      ++end;
    }
    const depth = area / side;
    let along = 0;
    for (; at < end; ++at) {
      const length = items[at].size * scale / depth;
      if (width >= height) place(items[at], x, y + along, depth, length);
      else place(items[at], x + along, y, length, depth);
      along += length;
    }
    if (width >= height) { x += depth; width -= depth; } else { y += depth; height -= depth; }
  }
}

// The name of a node, and how many it stands for.
const title = (node) => node.name + (node.copies ? " ×" + count(node.copies.length) : "");

// A colour for each module of the first level that has more than a few; what is below inherits it.
function branchColours(top) {
  let front = inside(top).length > 0 ? inside(top) : [top];
  while (front.length <= 3 && front.some((node) => node.list.length > 0))
    front = front.flatMap((node) => node.list.length > 0 ? node.list : [node]);
  return new Map(front.map((node, i) => [node.path, COLOURS[i % COLOURS.length]]));
}

// Whether a module holds nothing but one other, in whose place it is never drawn.
const passes = (node) => inside(node).length === 1 && !inside(node)[0].copies && inside(node)[0].list.length > 0;
// What is drawn: the module zoomed to.
function shown() {
  let node = byPath.get(state.zoom);
  while (passes(node)) node = inside(node)[0];
  return node;
}

let scale = 1;      // of the sheet that the treemap shows a part of
let parts = [];     // of the module shown: {x, y, w, h, label, path or tensor or neither (gathered)}
let current = 0;    // the part that the keyboard is at; the DOM's focus stays on the treemap
const sheetSize = () => {
  const width = Math.floor($("treemap").getBoundingClientRect().width);
  return [width, Math.round(Math.max(260, Math.min(width * 0.5, 560)))];
};

function drawTreemap() {
  const map = $("treemap"), sheet = $("sheet");
  const [width, height] = sheetSize();
  map.style.height = height + "px";
  map.style.overflow = scale === 1 ? "hidden" : "auto";
  sheet.style.width = width * scale + "px";
  sheet.style.height = height * scale + "px";
  const top = shown();
  const colours = branchColours(top);
  const view = {left: map.scrollLeft, top: map.scrollTop, right: map.scrollLeft + width, bottom: map.scrollTop + height};
  const elements = [];
  parts = [];

  // Makes the element of a part, if it is in view.  Those inside a module are there to be seen, not to be reached.
  function box(className, x, y, w, h, outer, label) {
    if (x > view.right || y > view.bottom || x + w < view.left || y + h < view.top) return null;
    const element = make("div", {className, title: label, style: {
      left: x + "px", top: y + "px", width: Math.max(0, w - 1) + "px", height: Math.max(0, h - 1) + "px"}});
    if (outer) {
      const number = parts.length;
      for (const [name, value] of Object.entries({role: "treeitem", id: "part-" + number, "aria-label": label, "aria-level": 1}))
        element.setAttribute(name, value);
      element.dataset.part = number;
    } else {
      element.setAttribute("aria-hidden", "true");
    }
    elements.push(element);
    return element;
  }
  function labels(element, w, h, ...lines) {
    lines.forEach((line, i) => {
      if (w >= LABEL_WIDTH && h >= LABEL_HEIGHT * (i + 1)) element.append(make("div", {className: i === 0 ? "label" : "label size"}, line));
    });
  }

  // A fold is drawn as its first copy, with the bytes of all (`copies`); it opens into them.
  function place({node, rest, size, copies, fold}, x, y, w, h, inherited, outer) {
    if (rest > 0) {
      const label = counted(rest, "smaller one") + ", " + bytes(size);
      const element = box("rest", x, y, w, h, outer, label);
      if (outer) parts.push({x, y, w, h, label});
      if (element !== null) labels(element, w, h, count(rest) + " more");
      return;
    }
    let colour = colours.get(node.path) || inherited;
    const leaf = node.list.length === 0;
    const sample = node.tensor || node.sample;
    const what = (leaf ? data.dtypes[sample.dtype] + " " + shape(sample.dims) + ", " : "") + counted(node.count * copies, "tensor");
    const opens = fold || (node.copies ? node : null);
    const label = node.path + "\n" + what + ", " + bytes(size) + ", " + percent(size, total);
    const whole = node.size / (node.copies ? node.copies.length : 1);
    const least = OPEN_PART * whole / Math.max(1, (w - 5) * (h - HEADER - 3));
    const large = node.list.reduce((sum, child) => sum + (child.size >= least ? child.size : 0), 0);
    const open = !leaf && h > 2 * HEADER && large >= whole / 2;
    const element = box(open ? "module" : "tile", x, y, w, h, outer, label);
    const target = leaf && opens === null ? {tensor: sample.number} : {path: opens === null ? node.path : opens.path};
    if (outer) parts.push({x, y, w, h, label, ...target});
    if (element === null) return;
    Object.assign(element.dataset, target);
    if (!open) {
      if (!leaf) {
        element.classList.add("closed");
        let largest = node;
        while (!colours.has(largest.path) && largest.list.length > 0) largest = largest.list[0];
        colour = colours.get(largest.path) || inherited;
      }
      element.style.background = state.colour === "dtype" ? dtypeColour(leaf ? sample.dtype : node.dtype) : colour;
      labels(element, w, h, title(node), bytes(size));
      return;
    }
    labels(element, w, h, title(node) + (w > 150 ? "  " + bytes(size) : ""));
    const each = copies * (node.copies ? node.copies.length : 1);
    layout(node.list.map((child) => ({node: child, size: child.size * each, copies: each, fold: opens})),
           size, x + 2, y + HEADER, w - 5, h - HEADER - 3, colour, false);
  }

  function layout(all, sum, x, y, w, h, colour, outer) {
    if (w <= 0 || h <= 0 || sum === 0) return;
    const items = [];
    let rest = 0, size = 0;
    for (const item of all) {
      if (item.size / sum * w * h >= MIN_TILE) items.push(item);
      else if (item.size > 0) { ++rest; size += item.size; }
    }
    if (rest > 0) items.push({rest, size});
    items.sort((a, b) => b.size - a.size);
    squarify(items, x, y, w, h, (item, cx, cy, cw, ch) => place(item, cx, cy, cw, ch, colour, outer));
  }

  const item = (node) => ({node, size: node.size, copies: 1, fold: null});
  if (inside(top).length === 0 && top.tensor !== null) place(item(top), 0, 0, width * scale, height * scale, COLOURS[0], true);
  else layout(inside(top).map(item), top.size, 0, 0, width * scale, height * scale, COLOURS[0], true);
  fill(sheet, ...elements);
  map.setAttribute("aria-label", "Treemap of " + (top.path || "the checkpoint") + ", " + bytes(top.size) +
                   "; the table below has the same numbers");
  $("smaller").disabled = scale === 1;
  $("larger").disabled = scale === MAX_SCALE;
  mark(Math.max(0, Math.min(current, parts.length - 1)));
}

// Makes a part the current one, and shows what it is.
function mark(number) {
  current = number;
  const before = $("sheet").querySelector(".current"), now = $("part-" + number);
  if (before !== null) before.classList.remove("current");
  if (now !== null) now.classList.add("current");
  $("treemap").setAttribute("aria-activedescendant", now === null ? "" : now.id);
  $("part").textContent = parts.length === 0 ? "" : parts[number].label.replace("\n", ": ");
}

// Moves to a part, and scrolls there.
function reach(number) {
  const map = $("treemap"), part = parts[number];
  const [width, height] = sheetSize();
  const into = (at, from, size, length) => Math.min(Math.max(at, from + size - length), from);
  map.scrollTo(into(map.scrollLeft, part.x, part.w, width), into(map.scrollTop, part.y, part.h, height));
  current = number;
  drawTreemap();
}

// Returns the part that is nearest in a direction, dx or dy being 1 or -1; the current one if there is none.
function neighbour(dx, dy) {
  const from = parts[current];
  let best = current, least = Infinity;
  parts.forEach((part, number) => {
    const gapX = Math.max(part.x - (from.x + from.w), from.x - (part.x + part.w));
    const gapY = Math.max(part.y - (from.y + from.h), from.y - (part.y + part.h));
    const offX = part.x + part.w / 2 - from.x - from.w / 2, offY = part.y + part.h / 2 - from.y - from.h / 2;
    const [ahead, along, across, aside] = dx !== 0 ? [dx * offX, gapX, gapY, offY] : [dy * offY, gapY, gapX, offX];
    if (number === current || ahead <= 0 || along < -1) return;
    // One that lies beside the current part comes before one that only touches its corner.
    const distance = along + 4 * Math.max(0, across + 1) + 0.01 * Math.abs(aside);
    if (distance < least) [best, least] = [number, distance];
  });
  return best;
}

// Makes the sheet larger or smaller; what is at (x, y) of the treemap stays there.
function magnify(factor, x, y) {
  const map = $("treemap"), sheet = $("sheet");
  const [width, height] = sheetSize();
  const next = Math.min(MAX_SCALE, Math.max(1, scale * factor));
  const left = (map.scrollLeft + x) * next / scale - x, top = (map.scrollTop + y) * next / scale - y;
  scale = next;
  map.style.overflow = "auto";
  sheet.style.width = width * scale + "px";
  sheet.style.height = height * scale + "px";
  map.scrollTo(left, top);
  drawTreemap();
}
// Does so around the current part.
function magnifyCurrent(factor) {
  const map = $("treemap"), part = parts[current];
  if (part !== undefined) magnify(factor, part.x + part.w / 2 - map.scrollLeft, part.y + part.h / 2 - map.scrollTop);
}

// What a click or Enter does: a module is shown alone, a tensor is found in the table, gathered parts become larger.
function enter({path, tensor}) {
  if (path !== undefined) zoom(path);
  else if (tensor !== undefined) find(tensors[Number(tensor)]);
  else magnifyCurrent(2);
}

// Shows the module around the one shown, at that one.
function leave() {
  const from = shown().path;
  let up = parents.get(byPath.get(state.zoom));
  while (parents.has(up) && passes(up)) up = parents.get(up);
  zoom(up.path);
  const at = parts.findIndex((part) => part.path === from || (part.path !== undefined && from.startsWith(part.path + ".")));
  if (at >= 0) reach(at);
}

function drawCrumbs() {
  const parts = [];
  const step = (node, name) => make("button", {
    type: "button", className: "link mono", "data-id": node, onclick: () => zoom(node)}, name);
  for (let node = shown(); node !== root; node = parents.get(node))
    parts.unshift(make("span", {}, " › "), step(node.path, title(node)));
  fill($("crumbs"), step("", "everything"), ...parts);
}

function zoom(path) {
  state.zoom = path;
  state.rows = MODULE_ROWS;
  scale = 1;
  current = 0;
  writeAddress();
  drawModules();
}

// ---- Modules and the ranks or files that hold them ----

function drawShards() {
  const top = shown();
  const nodes = inside(top).length > 0 ? [...inside(top)].sort((a, b) => collator.compare(a.name, b.name)) : [top];
  const many = columns.length > 1;
  const noun = data.by_rank ? "rank" : "file";
  $("shards-hint").textContent = many
    ? "Each column is " + (data.grouped > 1 ? "a group of " + data.grouped + " " + noun + "s" : "one " + noun) +
      "; the stronger a cell, the more of the row's bytes lie there. A name opens its module."
    : "One " + noun + " holds everything. A name opens its module.";
  const head = make("tr", {}, make("th", {scope: "col"}, "module"), make("th", {scope: "col", className: "number"}, "tensors"),
                    make("th", {scope: "col", className: "number"}, "bytes"), make("th", {scope: "col"}, "share"));
  if (many) {
    // Of many columns some are named, by the first they hold; the names take no width.
    const every = Math.ceil(columns.length / 16);
    columns.forEach((name, c) => {
      const label = c % every !== 0 ? "" : data.by_rank ? name.split(" – ")[0] : String(c * data.grouped);
      const full = (data.by_rank ? "rank " : "") + name;
      head.append(make("th", {scope: "col", className: "column", title: full, "aria-label": full},
                       every === 1 ? label : make("span", {}, label)));
    });
  }
  const row = (node, name, className) => {
    const share = make("td", {className: "share", title: percent(node.size, total)}, make("i", {
      style: {width: (total === 0 ? 0 : 100 * node.size / total) + "%"}}));
    const line = make("tr", {className}, name, cell(count(node.count), "number"), cell(bytes(node.size), "number"), share);
    if (many) {
      const sums = columnBytes(node);
      const most = Math.max(1, ...sums);
      sums.forEach((size, c) => {
        const label = (data.by_rank ? "rank " : "") + columns[c] + ": " + bytes(size);
        line.append(make("td", {className: "cell", title: node.path + "\n" + label, "aria-label": label, style: {
          background: size === 0 ? "transparent" : "rgba(var(--heat), " + (0.15 + 0.8 * size / most) + ")"}}));
      });
    }
    return line;
  };
  const body = nodes.slice(0, state.rows).map((node) => row(node, make("td", {className: "key"},
    inside(node).length > 0
      ? make("button", {type: "button", className: "link mono", onclick: () => zoom(node.path)}, title(node))
      : make("button", {type: "button", className: "link mono", onclick: () => find(node.tensor)}, node.name)), ""));
  if (nodes.length > 1) body.push(row(top, cell(top.path || "everything", "key"), "total"));
  fill($("shards"), make("thead", {}, head), make("tbody", {}, ...body));
  $("more").hidden = nodes.length <= state.rows;
  $("more").textContent = "Show " + Math.min(nodes.length - state.rows, 500) + " more of " + count(nodes.length);
}

function drawModules() {
  drawCrumbs();
  drawTreemap();
  drawShards();
}

// ---- Table of tensors ----

let found = tensors;  // tensors that match
let rows = [];        // of the table: tensors and groups
function search() {
  const words = state.q.toLowerCase().split(/\s+/).filter((word) => word !== "");
  found = words.length === 0 ? [...tensors] : tensors.filter((t) => {
    const text = (t.key + " " + data.dtypes[t.dtype] + " " + shape(t.dims)).toLowerCase();
    return words.every((word) => text.includes(word));
  });
  arrange();
}

// A group of which every tensor matches is one row; opened, its tensors follow.
function arrange() {
  const matches = new Map();
  for (const tensor of found) matches.set(tensor.group, (matches.get(tensor.group) || 0) + 1);
  const folds = (group) => group !== null && matches.get(group) === group.members.length;
  const some = found.filter((tensor) => !folds(tensor.group));
  for (const group of matches.keys()) if (folds(group)) some.push(group);
  if (state.sort !== "" || groups.length > 0) some.sort(SORTS[state.sort || "key"]);
  if (state.down) some.reverse();
  rows = some.flatMap((row) => row.members && state.unfolded.has(row.number) ? [row, ...row.members] : [row]);
}

// Where the chunks of a tensor lie, as a list and, in its first two dimensions, as a drawing.
function detail(tensor) {
  const parts = [];
  const chunks = data.chunks === null ? null : data.chunks[tensor.number];
  if (chunks === null) {
    return [make("p", {className: "hint"}, "This checkpoint has too many chunks to list here: fsdp-ckpt inspect " +
                 word(data.name) + " --chunks -k " + word(tensor.key) + " shows them.")];
  }
  const rank = tensor.dims.length;
  const boxes = chunks.map((numbers) => ({
    file: numbers[0], offset: numbers.slice(1, 1 + rank), size: numbers.slice(1 + rank)}));
  const colourOf = (file) => COLOURS[file % COLOURS.length];
  if (boxes.length > 1 && tensor.elements > 0) {
    const NS = "http://www.w3.org/2000/svg";
    const wide = rank === 1 ? tensor.dims[0] : tensor.dims[1], high = rank === 1 ? 1 : tensor.dims[0];
    const W = 420, H = rank === 1 ? 28 : Math.max(40, Math.min(220, W * high / wide));
    const svg = document.createElementNS(NS, "svg");
    const set = (element, values) => Object.entries(values).forEach(([name, value]) => element.setAttribute(name, value));
    set(svg, {width: W, height: H, viewBox: "0 0 " + W + " " + H, role: "img", "aria-label": "chunks of " + tensor.key});
    for (const b of boxes) {
      const [y, x] = rank === 1 ? [0, b.offset[0]] : [b.offset[0], b.offset[1]];
      const [h, w] = rank === 1 ? [1, b.size[0]] : [b.size[0], b.size[1]];
      if (h === 0 || w === 0) continue;
      const rect = document.createElementNS(NS, "rect");
      set(rect, {x: W * x / wide + 0.5, y: H * y / high + 0.5, width: Math.max(1, W * w / wide - 1),
                 height: Math.max(1, H * h / high - 1), rx: 2, fill: colourOf(b.file)});
      svg.append(rect);
      if (W * w / wide > 60 && H * h / high > 16) {
        const text = document.createElementNS(NS, "text");
        set(text, {x: W * x / wide + 6, y: H * y / high + 14});
        const file = data.files[b.file];
        text.textContent = file[2] === null ? file[0].slice(0, 24) : "rank " + file[2];
        svg.append(text);
      }
    }
    parts.push(svg);
  }
  for (const b of boxes) {
    const range = b.offset.map((o, d) => o + ":" + (o + b.size[d]));
    parts.push(make("div", {className: "mono"}, make("span", {className: "swatch", style: {background: colourOf(b.file)}}),
                    "[" + range.join(", ") + "]  " + data.files[b.file][0]));
  }
  return parts;
}

function drawTable() {
  const COLUMNS = [["key", ""], ["dtype", ""], ["shape", ""], ["bytes", "number"], ["chunks", "number"]];
  const head = make("tr", {});
  for (const [name, className] of COLUMNS) {
    const th = make("th", {scope: "col", className}, make("button", {type: "button", className: "link", "data-id": name, onclick: () => {
      if (state.sort !== name) { state.sort = name; state.down = name !== "key" && name !== "dtype"; }
      else if (state.down === (name !== "key" && name !== "dtype")) state.down = !state.down;
      else { state.sort = ""; state.down = false; }
      state.page = 0;
      update();
    }}, name + (state.sort === name ? (state.down ? " ↓" : " ↑") : "")));
    if (state.sort === name) th.setAttribute("aria-sort", state.down ? "descending" : "ascending");
    head.append(th);
  }
  head.append(make("th", {scope: "col"}, data.by_rank ? "ranks" : "file"));
  const pages = Math.max(1, Math.ceil(rows.length / PAGE_ROWS));
  state.page = Math.min(state.page, pages - 1);
  const begin = state.page * PAGE_ROWS;
  const lines = [];
  const line = (row, button, place, className) => make("tr", {className},
    make("td", {className: "key"}, button), cell(data.dtypes[row.dtype]), cell(shape(row.dims), "mono"),
    cell(bytes(row.size), "number"), cell(count(row.chunks), "number"), cell(place));
  for (const row of rows.slice(begin, begin + PAGE_ROWS)) {
    const group = row.members !== undefined;
    const open = group ? state.unfolded.has(row.number) : state.open === row.number;
    const button = make("button", {type: "button", className: "link mono", "data-id": (group ? "group " : "tensor ") + row.number,
      "aria-expanded": String(open), onclick: () => {
      if (!group) state.open = open ? -1 : row.number;
      else if (!state.unfolded.delete(row.number)) state.unfolded.add(row.number);
      writeAddress();
      arrange();
      drawTable();
    }}, group ? row.key + " ×" + count(row.members.length) : row.key);
    lines.push(line(row, button, group ? whereAll(row.members) : where(row), group ? "group" : rows.includes(row.group) ? "member" : ""));
    if (open && !group) lines.push(make("tr", {className: "detail"}, make("td", {colSpan: 6}, ...detail(row))));
  }
  fill($("table"), make("thead", {}, head), make("tbody", {}, ...lines));
  $("count").textContent = found.length === 0 ? "No tensor matches" :
    count(begin + 1) + " to " + count(Math.min(begin + PAGE_ROWS, rows.length)) + " of " +
    (rows.length === found.length ? "" : counted(rows.length, "row") + ", ") + counted(found.length, "tensor");
  $("previous").disabled = state.page === 0;
  $("next").disabled = state.page + 1 >= pages;
}

function update() {
  search();
  drawTable();
  writeAddress();
}

// Shows a tensor in the table, and goes there.
function find(tensor) {
  state.q = tensor.key;
  state.page = 0;
  state.open = tensor.number;
  $("search").value = state.q;
  update();
  $("table").querySelector("tbody button").focus({preventScroll: true});
  $("tensors").scrollIntoView();
}

// ---- Values and files ----

function drawLists() {
  const list = (id, title, head, rows) => {
    $(id + "-title").textContent = title;
    $(id).hidden = rows.length === 0;
    fill($(id).querySelector("table"),
         make("thead", {}, make("tr", {}, ...head.map(([name, className]) => make("th", {scope: "col", className}, name)))),
         make("tbody", {}, ...rows));
  };
  list("values", counted(data.values_total, "value") + (data.values.length < data.values_total ? ", not read" : ""),
       [["key", ""], ["type", ""], ["value", ""]],
       data.values.map(([key, type, text]) => make("tr", {}, cell(key, "key"), cell(type), cell(text, "mono"))));
  list("files", counted(data.files.length, "file"), [["name", ""], ["rank", "number"], ["bytes", "number"]],
       data.files.map(([name, size, rank]) => make("tr", {}, cell(name, "key"), cell(rank === null ? "" : String(rank), "number"),
                                                   cell(size === null ? "missing" : bytes(size), "number"))));
}

// ---- Start ----

$("search").addEventListener("input", () => {
  state.q = $("search").value;
  state.page = 0;
  update();
});
$("previous").addEventListener("click", () => { --state.page; update(); });
$("next").addEventListener("click", () => { ++state.page; update(); });
$("more").addEventListener("click", () => { state.rows += 500; drawShards(); });
$("fold").addEventListener("change", () => {
  state.fold = $("fold").checked;
  state.zoom = "";
  state.unfolded = new Set();
  state.page = 0;
  plant(state.fold);
  drawModules();
  update();
});
$("colour").addEventListener("change", () => { state.colour = $("colour").value; writeAddress(); drawTreemap(); });
$("treemap").addEventListener("click", (event) => {
  const part = event.target.closest(".module, .tile, .rest");
  if (part === null) return;
  if (part.dataset.part !== undefined) mark(Number(part.dataset.part));
  if (part.dataset.path !== undefined || part.dataset.tensor !== undefined) enter(part.dataset);
  else magnifyAt(2, event);
});
// Magnifies where the pointer is.
function magnifyAt(factor, event) {
  const corner = $("treemap").getBoundingClientRect();
  magnify(factor, event.clientX - corner.left, event.clientY - corner.top);
}
$("treemap").addEventListener("wheel", (event) => {
  if (!event.ctrlKey) return;
  event.preventDefault();
  magnifyAt(event.deltaY < 0 ? 1.25 : 0.8, event);
}, {passive: false});
let scrolling = 0;
$("treemap").addEventListener("scroll", () => {
  cancelAnimationFrame(scrolling);
  scrolling = requestAnimationFrame(drawTreemap);
});
$("larger").addEventListener("click", () => magnifyCurrent(2));
$("smaller").addEventListener("click", () => magnifyCurrent(0.5));
const KEYS = {
  ArrowLeft: () => reach(neighbour(-1, 0)), ArrowRight: () => reach(neighbour(1, 0)),
  ArrowUp: () => reach(neighbour(0, -1)), ArrowDown: () => reach(neighbour(0, 1)),
  Home: () => reach(0), End: () => reach(parts.length - 1),
  Enter: () => enter(parts[current]), " ": () => enter(parts[current]),
  "+": () => magnifyCurrent(2), "=": () => magnifyCurrent(2), "-": () => magnifyCurrent(0.5),
};
$("treemap").addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.altKey || event.metaKey || parts.length === 0 || !Object.hasOwn(KEYS, event.key)) return;
  event.preventDefault();
  KEYS[event.key]();
});
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || event.target === $("search")) return;
  if (scale > 1) magnifyCurrent(1 / scale);
  else if (state.zoom !== "") leave();
});
function start() {
  readAddress();
  $("search").value = state.q;
  $("colour").value = state.colour;
  $("fold").checked = state.fold;
  drawModules();
  search();
  drawTable();
}
window.addEventListener("hashchange", () => { if (location.hash !== "#table") start(); });
drawHeader();
drawDtypes();
drawLists();
start();
onWidth($("modules"), drawTreemap);
document.documentElement.dataset.ready = String(tensors.length);
