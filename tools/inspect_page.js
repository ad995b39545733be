// Draws the page from the JSON in #data (written by inspect_html.cpp, which says what its members
// are).  Text reaches the page as text nodes alone, never as markup.
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const PAGE_ROWS = 100;
  const MODULE_ROWS = 60;
  const MIN_TILE = 90;    // square pixels; smaller ones are gathered
  const HEADER = 18;      // pixels, of a module's name in the treemap
  // Dark enough for white text (contrast 4.5 and more), apart enough to be told from each other.
  const COLOURS = ["#2368b4", "#8a4b08", "#1b7757", "#8a3a9b", "#b3324c", "#4d6a1a", "#4b55b8",
                   "#0f7286", "#8c4a62", "#6b5a20"];

  const $ = (id) => document.getElementById(id);
  const COUNTS = new Intl.NumberFormat("en-US");
  const count = (n) => COUNTS.format(n);
  const counted = (n, noun) => count(n) + " " + noun + (n === 1 ? "" : "s");
  const shape = (dims) => "[" + dims.join(", ") + "]";
  const percent = (part, whole) => whole === 0 ? "0 %" : (100 * part / whole).toFixed(1) + " %";
  function bytes(n) {
    const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let unit = 0;
    while (n >= 1024 && unit + 1 < units.length) { n /= 1024; ++unit; }
    return (unit === 0 ? n : n.toFixed(1)) + " " + units[unit];
  }

  function make(tag, properties, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(properties || {})) {
      if (name === "style") Object.assign(element.style, value);
      else if (name in element) element[name] = value;
      else element.setAttribute(name, value);
    }
    element.append(...children);
    return element;
  }
  const cell = (text, className) => make("td", {className: className || ""}, text);
  function fill(element, ...children) { element.replaceChildren(...children); }

  // ---- What the data say ----

  const tensors = data.tensors.map(([key, dtype, dims, size, chunks, runs], number) =>
    ({key, dtype, dims, size, chunks, runs, number, elements: dims.reduce((a, b) => a * b, 1)}));
  const total = tensors.reduce((sum, t) => sum + t.size, 0);
  const columns = data.columns;

  // "rank 0", "ranks 0 to 3": the columns that hold a tensor.
  function where(tensor) {
    const parts = tensor.runs.map(([first, last]) =>
      first === last ? columns[first] : columns[first] + " – " + columns[last]);
    if (parts.length > 4) parts.splice(3, parts.length - 3, "…");
    if (parts.length === 0) return "";
    return (data.by_rank ? (parts.length > 1 || parts[0].includes("–") ? "ranks " : "rank ") : "") +
           parts.join(", ");
  }

  // The modules as a tree: keys split at their dots, chains without branches joined.
  function grow() {
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
      node.list = list.sort((a, b) => b.size - a.size);
      node.children = null;
    }
    return root;
  }
  const root = grow();
  const byPath = new Map();
  (function index() {
    const stack = [root];
    while (stack.length > 0) {
      const node = stack.pop();
      byPath.set(node.path, node);
      stack.push(...node.list);
    }
  })();
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
      stack.push(...at.list);
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
  const collator = new Intl.Collator("en", {numeric: true});
  const state = {q: "", sort: "", down: false, page: 0, zoom: "", colour: "module", open: -1, rows: MODULE_ROWS};
  function readAddress() {
    const words = new URLSearchParams(location.hash.slice(1));
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
    const text = words.toString();
    // A page opened from a file may not write its history in every browser.
    try { history.replaceState(null, "", text === "" ? "#" : "#" + text); } catch (error) { /* as it is */ }
  }

  // ---- Header ----

  function drawHeader() {
    $("kind").textContent = data.kind;
    $("name").textContent = data.name;
    const facts = [["tensors", count(tensors.length)],
                   ["elements", count(tensors.reduce((sum, t) => sum + t.elements, 0))],
                   ["of tensors", bytes(total)],
                   ["on disk", bytes(data.files.reduce((sum, f) => sum + (f[1] || 0), 0))],
                   ["files", count(data.files.length)]];
    if (data.ranks > 1 || data.by_rank) facts.push(["ranks", count(data.ranks)]);
    if (data.values_total > 0) facts.push(["values", count(data.values_total)]);
    if (data.version !== null) facts.push(["format version", data.version]);
    fill($("facts"), ...facts.map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, value))));
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
    const sums = data.dtypes.map((name, d) => ({name, d, size: 0, elements: 0}));
    for (const tensor of tensors) {
      sums[tensor.dtype].size += tensor.size;
      sums[tensor.dtype].elements += tensor.elements;
    }
    sums.sort((a, b) => b.size - a.size);
    fill($("dtype-bar"), ...sums.map((s) => make("span", {
      title: s.name, style: {flexGrow: String(s.size), flexBasis: "0", background: dtypeColour(s.d)}})));
    fill($("dtypes"), ...sums.map((s) => make("li", {},
      make("span", {className: "swatch", style: {background: dtypeColour(s.d)}}),
      s.name + " " + bytes(s.size) + " (" + percent(s.size, total) + "), " + counted(s.elements, "element"))));
  }
  const dtypeColour = (d) => COLOURS[d % COLOURS.length];

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

  const box = (className, x, y, w, h) => make("div", {className, style: {
    left: x + "px", top: y + "px", width: Math.max(0, w) + "px", height: Math.max(0, h) + "px"}});

  function tileColour(node, branch) {
    return state.colour === "dtype" ? dtypeColour(node.tensor.dtype) : COLOURS[branch % COLOURS.length];
  }

  function drawTreemap() {
    const map = $("treemap");
    const width = map.clientWidth;
    const height = Math.round(Math.max(260, Math.min(width * 0.5, 560)));
    map.style.height = height + "px";
    const top = byPath.get(state.zoom);
    const parts = [];
    function place(node, x, y, w, h, branch, depth) {
      if (node.rest > 0) {
        const rest = box("rest", x, y, w - 1, h - 1);
        rest.title = counted(node.rest, "smaller one") + ", " + bytes(node.size);
        if (w > 60 && h > 18) rest.append(make("div", {className: "label"}, node.rest + " more"));
        parts.push(rest);
        return;
      }
      const title = node.path + "\n" + (node.tensor === null || node.list.length > 0
        ? counted(node.count, "tensor")
        : data.dtypes[node.tensor.dtype] + " " + shape(node.tensor.dims)) +
        ", " + bytes(node.size) + ", " + percent(node.size, total);
      if (node.list.length > 0) {
        const frame = box("module", x, y, w - 1, h - 1);
        frame.title = title;
        frame.dataset.zoom = node.path;
        const head = h > 2.5 * HEADER && w > 44 ? HEADER : 0;
        if (head > 0) {
          frame.append(make("div", {className: "label"},
            node.name + (w > 150 ? "  " + bytes(node.size) : "")));
        }
        parts.push(frame);
        layout(node, x + 2, y + head + (head > 0 ? 0 : 2), w - 5, h - head - (head > 0 ? 3 : 5), branch, depth + 1);
        return;
      }
      const tile = box("tile", x, y, w - 1, h - 1);
      tile.title = title;
      tile.dataset.tensor = node.tensor.number;
      tile.style.background = tileColour(node, branch);
      if (w > 34 && h > 18) {
        tile.append(make("div", {className: "label"}, node.name));
        if (h > 36) tile.append(make("div", {className: "label size"}, bytes(node.size)));
      }
      parts.push(tile);
    }
    function layout(node, x, y, w, h, branch, depth) {
      const area = w * h;
      if (area <= 0 || node.size === 0) return;
      const shown = [];
      let rest = 0, restSize = 0;
      for (const child of node.list) {
        if (child.size === 0) continue;
        if (child.size / node.size * area >= MIN_TILE) shown.push(child);
        else { ++rest; restSize += child.size; }
      }
      if (rest > 0) shown.push({rest, size: restSize});
      const branching = depth === 0;
      const numbers = new Map(shown.map((child, i) => [child, i]));
      squarify(shown.sort((a, b) => b.size - a.size), x, y, w, h, (child, cx, cy, cw, ch) =>
        place(child, cx, cy, cw, ch, branching ? numbers.get(child) : branch, depth));
    }
    // The colours part the first modules that branch: a chain of one is stepped over.
    let first = top;
    while (first.list.length === 1 && first.list[0].list.length > 0) first = first.list[0];
    if (top.list.length === 0 && top.tensor !== null) place(top, 0, 0, width, height, 0, 0);
    else if (first.list.length <= 3 && first.list.some((child) => child.list.length > 0)) {
      // Few big ones: each of their children has a colour of its own.
      let next = 0;
      const colour = new Map();
      for (const child of first.list)
        for (const grandchild of child.list.length > 0 ? child.list : [child]) colour.set(grandchild, next++);
      squarify(first.list.filter((c) => c.size > 0), 0, 0, width, height, (child, x, y, w, h) => {
        if (child.list.length === 0) { place(child, x, y, w, h, colour.get(child), 1); return; }
        const before = parts.length;
        place({...child, list: []  , tensor: child.list[0].tensor || tensors[0]}, x, y, w, h, 0, 1);
        parts.length = before;
        const frame = box("module", x, y, w - 1, h - 1);
        frame.title = child.path + "\n" + counted(child.count, "tensor") + ", " + bytes(child.size);
        frame.dataset.zoom = child.path;
        frame.append(make("div", {className: "label"}, child.name + "  " + bytes(child.size)));
        parts.push(frame);
        layoutEach(child, x + 2, y + HEADER, w - 5, h - HEADER - 3, colour);
      });
    } else layout(first, 0, 0, width, height, 0, 0);
    function layoutEach(node, x, y, w, h, colour) {
      const area = w * h;
      const shown = node.list.filter((c) => c.size > 0 && c.size / node.size * area >= MIN_TILE);
      const small = node.list.filter((c) => c.size > 0 && c.size / node.size * area < MIN_TILE);
      if (small.length > 0) shown.push({rest: small.length, size: small.reduce((a, c) => a + c.size, 0)});
      squarify(shown.sort((a, b) => b.size - a.size), x, y, w, h, (child, cx, cy, cw, ch) =>
        place(child, cx, cy, cw, ch, colour.get(child) || 0, 2));
    }
    fill(map, ...parts);
    map.setAttribute("aria-label", "Treemap of " + (top.path || "the checkpoint") + ": " + bytes(top.size) +
      "; the table below has the same numbers");
  }
})();
