// Shared by all pages: embed_page.cmake puts it in front of each page's own script.  Reads the JSON in #data (written by
// C++, which says what its members are).  Text reaches a page as text nodes alone, never as markup.
const data = JSON.parse(document.getElementById("data").textContent);
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
// Puts new children into an element.  The focus stays on the button that has the same data-id as before, else on the first.
function fill(element, ...children) {
  const focused = element.contains(document.activeElement) ? document.activeElement.dataset.id : undefined;
  element.replaceChildren(...children);
  if (focused === undefined) return;
  const buttons = [...element.querySelectorAll("button")];
  (buttons.find((button) => button.dataset.id === focused) || buttons[0] || element).focus({preventScroll: true});
}

// Returns a word of a command line for a POSIX shell.
const word = (text) => /^[\w./:=@%+-]+$/.test(text) ? text : "'" + text.replaceAll("'", "'\\''") + "'";

// The header that every page has: [[name, value], ...].
function drawFacts(facts) {
  $("kind").textContent = data.kind;
  $("name").textContent = data.name;
  fill($("facts"), ...facts.map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, value))));
}

// Calls `draw` now, and again whenever the width of `element` changes: a window's size, or a scrollbar that appears once
// the page is long.
function onWidth(element, draw) {
  let width;
  const look = () => {
    if (element.clientWidth === width) return;
    width = element.clientWidth;
    draw();
  };
  look();
  new ResizeObserver(look).observe(element);
}
