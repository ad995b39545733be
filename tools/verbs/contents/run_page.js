// Draws the page of a run, from what run_page.cpp writes.
const all = data.checkpoints;
const last = (items) => items[items.length - 1];
const list = (parts) => parts.filter((part) => part !== "").join(", ");
const when = (checkpoint) => checkpoint.written === undefined || checkpoint.written === null ? "" :
  new Date(checkpoint.written).toISOString().replace("T", " ").slice(0, 16) + " UTC";
const nameOf = (checkpoint) => checkpoint.step !== null && data.series.length === 1 ? "step " + count(checkpoint.step) :
  checkpoint.path.startsWith(data.name + "/") ? checkpoint.path.slice(data.name.length + 1) : checkpoint.path;
const sum = (items) => items.reduce((a, b) => a + b, 0);

// The word for the soundness of a checkpoint, and its class.  Nothing is called sound that was not verified.
function soundness(checkpoint) {
  if (checkpoint.soundness && checkpoint.soundness[0] !== "") {
    const [verdict, , , partial] = checkpoint.soundness;
    return [verdict === "sound" && partial ? "sound as far as checked" : verdict, verdict];
  }
  if (checkpoint.error) return ["cannot be opened", "error"];
  if (checkpoint.missing) return [counted(checkpoint.missing, "file") + " missing", "damaged"];
  return ["not verified", "unverified"];
}
const BARS = {sound: "bar-sound", damaged: "bar-bad", unsafe: "bar-bad", error: "bar-bad", unknown: "bar-doubt"};
const barOf = (checkpoint) => BARS[soundness(checkpoint)[1]] || "bar-unverified";

function header() {
  const steps = all.filter((checkpoint) => checkpoint.step !== null).map((checkpoint) => checkpoint.step);
  const times = all.filter((checkpoint) => when(checkpoint) !== "").sort((a, b) => a.written - b.written);
  const facts = [["checkpoints", count(all.length)]];
  if (steps.length > 0) {
    const first = Math.min(...steps), most = Math.max(...steps);
    facts.push(["steps", first === most ? count(first) : count(first) + " – " + count(most)]);
  }
  facts.push(["on disk", bytes(sum(all.map((checkpoint) => checkpoint.bytes || 0)))]);
  if (times.length > 0) facts.push(["last written", when(last(times))]);
  if (data.verified) {
    const sound = all.filter((checkpoint) => soundness(checkpoint)[1] === "sound");
    facts.push(["sound", count(sound.length) + " of " + count(all.length)]);
    if (sound.length > 0) facts.push(["newest sound", nameOf(last(sound))]);
  } else {
    facts.push(["soundness", "not verified"]);
  }
  drawFacts(facts);
  $("footer").textContent = "Written by fsdp-ckpt " + data.tool + ". " + (data.verified
    ? "Soundness is what fsdp-ckpt verify found when it wrote this page."
    : "Metadata alone was read: fsdp-ckpt verify with --html writes this page with what it finds.") +
    " Whether elements of tensors changed, fsdp-ckpt diff tells.";
}

// ---- Charts ----

function shapeOf(tag, values, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(values)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}
const words = (x, y, text, anchor) => shapeOf("text", {x, y, "text-anchor": anchor || "start"}, text);

// A chart in the width of the page: a line at the top and at the bottom, and what `draw` adds between them.
const EDGE = 8;
function chart(id, height, label, top, draw) {
  const width = $(id).clientWidth;
  const svg = shapeOf("svg", {height, viewBox: "0 0 " + width + " " + height, role: "img", "aria-label": label});
  const floor = height - 24, ceiling = 20;
  for (const y of [ceiling, floor]) svg.append(shapeOf("line", {x1: 0, x2: width, y1: y, y2: y}));
  svg.append(words(0, ceiling - 6, top));
  draw(svg, width, floor, floor - ceiling - EDGE);
  fill($(id), svg);
}

function drawTime() {
  const timed = all.filter((checkpoint) => when(checkpoint) !== "" && checkpoint.step !== null);
  const times = timed.map((checkpoint) => checkpoint.written);
  const from = Math.min(...times), to = Math.max(...times);
  $("time").hidden = timed.length < 2 || from === to;
  if ($("time").hidden) return;
  const most = Math.max(1, ...timed.map((checkpoint) => checkpoint.step));
  const label = "Steps over time: " + timed.map((checkpoint) => nameOf(checkpoint) + " at " + when(checkpoint)).slice(0, 20).join("; ");
  chart("time-chart", 180, label, "step " + count(most), (svg, width, floor, high) => {
    const at = (checkpoint) => [EDGE + (width - 2 * EDGE) * (checkpoint.written - from) / (to - from), floor - high * checkpoint.step / most];
    const colour = (series) => series === 0 ? "var(--accent)" : COLOURS[series % COLOURS.length];
    data.series.forEach((name, series) => {
      const points = timed.filter((checkpoint) => checkpoint.series === series).sort((a, b) => a.written - b.written);
      svg.append(shapeOf("path", {d: "M" + points.map((checkpoint) => at(checkpoint).map((n) => n.toFixed(1)).join(" ")).join("L"),
                                  stroke: colour(series)}));
      for (const checkpoint of points) {
        const [cx, cy] = at(checkpoint);
        svg.append(shapeOf("circle", {cx, cy, r: 4, fill: colour(series)},
                           shapeOf("title", {}, nameOf(checkpoint) + "\n" + when(checkpoint))));
      }
    });
    svg.append(words(0, floor + 18, when(timed.find((checkpoint) => checkpoint.written === from))),
               words(width, floor + 18, when(timed.find((checkpoint) => checkpoint.written === to)), "end"));
  });
}

function drawSizes() {
  const most = Math.max(1, ...all.map((checkpoint) => checkpoint.bytes || 0));
  const label = "Bytes of each checkpoint; the table below has the same numbers";
  chart("size-chart", 180, label, bytes(most), (svg, width, floor, high) => {
    const slot = width / all.length;
    const every = Math.ceil(all.length / Math.max(1, Math.floor(width / 76)));
    all.forEach((checkpoint, i) => {
      const h = Math.max(2, high * (checkpoint.bytes || 0) / most), w = Math.min(56, Math.max(1, slot * 0.8));
      svg.append(shapeOf("rect", {x: slot * (i + 0.5) - w / 2, y: floor - h, width: w, height: h, class: barOf(checkpoint)},
        shapeOf("title", {}, nameOf(checkpoint) + ", " + bytes(checkpoint.bytes || 0) + ", " + soundness(checkpoint)[0])));
      if (checkpoint.step !== null && i % every === 0) svg.append(words(slot * (i + 0.5), floor + 18, count(checkpoint.step), "middle"));
    });
  });
  const seen = new Map(all.map((checkpoint) => [soundness(checkpoint)[0], barOf(checkpoint)]));
  fill($("legend"), ...[...seen].map(([name, bar]) => make("li", {}, make("span", {className: "swatch " + bar}), name)));
}

// ---- Table ----

// "2 added, 1 removed, 3 changed tensors"; "" if nothing changed.
function amounts(changes, noun) {
  const [added, removed, changed] = [changes.added[0], changes.removed[0], changes.changed[0]];
  const parts = list([added ? count(added) + " added" : "", removed ? count(removed) + " removed" : "", changed ? count(changed) + " changed" : ""]);
  return parts === "" ? "" : noun + ": " + parts;
}

function changeText(checkpoint) {
  if (checkpoint.error) return checkpoint.error[0];
  if (checkpoint.before === undefined) return "nothing before it";
  const parts = [amounts(checkpoint.tensor_changes, "tensors"), checkpoint.value_changes ? amounts(checkpoint.value_changes, "values") : ""];
  return parts.filter((part) => part !== "").join("; ") || "the same names, dtypes and shapes";
}

function changeList(changes, noun) {
  const items = [];
  for (const [kind, sign] of [["added", "+"], ["removed", "−"], ["changed", "~"]]) {
    const [number, named] = changes[kind];
    for (const [key, before, after] of named)
      items.push(make("li", {className: "mono"}, sign + " " + key + "  " + (kind === "changed" ? before + " → " + after : before + after)));
    if (number > named.length) items.push(make("li", {}, "and " + count(number - named.length) + " more " + kind));
  }
  return items.length === 0 ? [] : [make("p", {}, noun), make("ul", {}, ...items)];
}

function findingList([number, named]) {
  const items = named.map(([severity, code, text]) => make("li", {}, make("b", {className: severity}, severity + " " + code), " " + text));
  if (number > named.length) items.push(make("li", {}, "and " + count(number - named.length) + " more"));
  return items.length === 0 ? [] : [make("ul", {}, ...items)];
}

function detail(checkpoint) {
  const parts = [make("p", {className: "mono"}, checkpoint.path)];
  if (checkpoint.error) {
    parts.push(make("p", {}, make("b", {className: "error"}, checkpoint.error[0]), " " + checkpoint.error[1]));
  } else {
    parts.push(make("p", {}, list([checkpoint.format, counted(checkpoint.ranks, "rank"), counted(checkpoint.files, "file"),
      checkpoint.missing ? count(checkpoint.missing) + " missing" : "", counted(checkpoint.elements, "element"), counted(checkpoint.values, "value"),
      ...checkpoint.dtypes.map(([name, size]) => name + " " + bytes(size)), checkpoint.version === null ? "" : "format version " + checkpoint.version])));
  }
  if (checkpoint.soundness) {
    parts.push(make("p", {}, soundness(checkpoint)[0] + ": " + checkpoint.soundness[1]), ...findingList(checkpoint.soundness[2]));
  } else {
    if (checkpoint.findings) parts.push(...findingList(checkpoint.findings));
    parts.push(make("p", {className: "hint"}, "Not verified: ", make("code", {}, "fsdp-ckpt verify " + word(checkpoint.path))));
  }
  if (checkpoint.before !== undefined) {
    parts.push(make("p", {}, "Compared with " + checkpoint.before + ": " + changeText(checkpoint) + "."),
               ...changeList(checkpoint.tensor_changes, "Tensors"));
    if (checkpoint.value_changes) parts.push(...changeList(checkpoint.value_changes, "Values"));
    if (checkpoint.unread !== null) parts.push(make("p", {}, "Values were not compared: " + checkpoint.unread));
    if (checkpoint.incomparable > 0) parts.push(make("p", {}, counted(checkpoint.incomparable, "value") + " too long to compare"));
    parts.push(make("p", {className: "hint"}, "Elements were not compared: ",
                    make("code", {}, "fsdp-ckpt diff " + word(checkpoint.before) + " " + word(checkpoint.path))));
  }
  return parts;
}

const open = new Set();
function drawTable() {
  const head = ["checkpoint", "soundness", "written", "bytes", "tensors", "what changed"];
  const numbers = new Set(["bytes", "tensors"]);
  const lines = [];
  all.map((checkpoint, i) => [checkpoint, i]).reverse().forEach(([checkpoint, i]) => {
    const [text, className] = soundness(checkpoint);
    const toggle = () => { if (!open.delete(i)) open.add(i); drawTable(); };
    const button = make("button", {type: "button", className: "link mono", "data-id": String(i), "aria-expanded": String(open.has(i)), title: checkpoint.path,
                                   onclick: toggle}, nameOf(checkpoint));
    const opened = checkpoint.error === undefined;
    lines.push(make("tr", {className: "group"}, make("td", {className: "key"}, button), make("td", {}, make("b", {className}, text)),
      cell(when(checkpoint), "when"), cell(opened ? bytes(checkpoint.bytes) : "", "number"), cell(opened ? count(checkpoint.tensors) : "", "number"),
      cell(changeText(checkpoint))));
    if (open.has(i)) lines.push(make("tr", {className: "detail"}, make("td", {colSpan: head.length}, ...detail(checkpoint))));
  });
  fill($("table"), make("thead", {}, make("tr", {}, ...head.map((name) =>
    make("th", {scope: "col", className: numbers.has(name) ? "number" : ""}, name)))), make("tbody", {}, ...lines));
}

header();
drawTable();
onWidth($("size-chart"), () => { drawTime(); drawSizes(); });
document.documentElement.dataset.ready = String(all.length);
