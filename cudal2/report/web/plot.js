// What every figure is made of: elements, scales, axes, and what shows under the pointer.

const COLOURS = ["var(--c0)", "var(--c1)", "var(--c2)", "var(--c3)", "var(--c4)"];

// An HTML or SVG element. Text goes in as text only: much of it was written by a model.
function make(name, attributes = {}, ...children) {
  const drawn = ["svg", "g", "rect", "circle", "path", "line", "text", "title"].includes(name);
  const node = drawn ? document.createElementNS("http://www.w3.org/2000/svg", name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "style") Object.assign(node.style, value);
    else if (typeof value === "function") node.addEventListener(key, value);
    else if (value !== undefined && value !== false) node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children);
  return node;
}

// From numbers to pixels; `log` is 2 for ticks at powers of two, true for those at 1, 2, 5, 10 and so on.
function scale(low, high, from, to, log) {
  const place = log ? Math.log : (value) => value;
  const at = (value) => from + ((place(value) - place(low)) / (place(high) - place(low))) * (to - from);
  at.low = low;
  at.high = high;
  at.ticks = log === 2 ? powers(low, high) : log ? decades(low, high) : steps(low, high);
  return at;
}

function steps(low, high, count = 5) {
  const rough = (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((factor) => factor * power >= rough);
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) found.push(+(i * step).toPrecision(12));
  return found;
}

function powers(low, high) {
  const found = [];
  for (let i = Math.ceil(Math.log2(low) - 1e-9); 2 ** i <= high * 1.000001; i++) found.push(2 ** i);
  return found;
}

function decades(low, high) {
  if (high / low < 4) return steps(low, high, 6).filter((value) => value > 0);
  const found = [];
  for (let i = Math.floor(Math.log10(low)); 10 ** i <= high; i++) found.push(...(high / low < 2000 ? [1, 2, 5] : [1]).map((factor) => +`${factor}e${i}`));
  return found.filter((value) => value >= low && value <= high);
}

function padded(values, log, share = 0.06) {
  let [low, high] = [Math.min(...values), Math.max(...values)];
  if (low === high) [low, high] = log ? [low / 1.1, high * 1.1] : [low - 0.1, high + 0.1];
  const by = log ? (high / low) ** share : (high - low) * share;
  return log ? [low / by, high * by] : [low - by, high + by];
}

const short = (value) => (Math.abs(value) >= 1e4 || (value && Math.abs(value) < 1e-3) ? value.toExponential(0) : String(+value.toPrecision(4)));

// 0.29 tera of something as "290 GFLOP/s".
const unit = (tera, name) => (tera < 1 ? `${+(tera * 1e3).toPrecision(3)} G${name}` : `${+tera.toPrecision(3)} T${name}`);

// A plot with both axes: x and y are {label, range: [low, high], log, format}.
function axes(label, x, y, width = innerWidth < 600 ? 380 : 520, height = 300) {
  const box = { left: 52, right: width - 8, top: 10, bottom: height - 40 };
  const root = make("svg", { viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": label });
  const [across, up] = [scale(...x.range, box.left, box.right, x.log), scale(...y.range, box.bottom, box.top, y.log)];
  for (const tick of up.ticks) {
    root.append(make("line", { class: "rule", x1: box.left, x2: box.right, y1: up(tick), y2: up(tick) }));
    root.append(make("text", { x: box.left - 7, y: up(tick) + 4, "text-anchor": "end" }, (y.format ?? short)(tick)));
  }
  for (const tick of across.ticks) {
    root.append(make("line", { class: "axis", x1: across(tick), x2: across(tick), y1: box.bottom, y2: box.bottom + 4 }));
    root.append(make("text", { x: across(tick), y: box.bottom + 17, "text-anchor": "middle" }, (x.format ?? short)(tick)));
  }
  root.append(make("line", { class: "axis", x1: box.left, x2: box.right, y1: box.bottom, y2: box.bottom }));
  root.append(make("text", { x: (box.left + box.right) / 2, y: height - 6, "text-anchor": "middle" }, x.label));
  const middle = (box.top + box.bottom) / 2;
  root.append(make("text", { transform: `translate(11 ${middle}) rotate(-90)`, "text-anchor": "middle" }, y.label));
  return { root, x: across, y: up, box };
}

function path(points) {
  return points.map(([x, y], i) => `${i ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");
}

function figure(title, caption, root, legend = []) {
  return make("figure", {}, make("h3", {}, title), ...(legend.length ? [key(legend)] : []), root, make("figcaption", {}, caption));
}

// What the colours mean: [[name, colour], …].
function key(colours) {
  return make("ul", { class: "legend" }, ...colours.map(([name, background]) => make("li", {}, make("i", { style: { background } }), name)));
}

function tip(text, x, y) {
  const node = document.getElementById("tip");
  node.textContent = text;
  node.hidden = false;
  const { width, height } = node.getBoundingClientRect();
  node.style.left = `${Math.max(4, Math.min(x + 14, innerWidth - width - 8))}px`;
  node.style.top = `${y - height - 12 > 0 ? y - height - 12 : y + 18}px`;
}

function untip() {
  document.getElementById("tip").hidden = true;
}

// Marks ({node, x, y, text, open}) are one stop of the tab key; arrows go from one to the nearest in their direction.
function reachable(marks) {
  marks.forEach(({ node, x, y, text, open }, i) => {
    const show = (event) => {
      const place = node.getBoundingClientRect();
      tip(text(), event.clientX ?? place.right, event.clientY ?? place.top);
    };
    const key = (event) => {
      if (event.key === "Enter" || event.key === " ") open();
      const [dx, dy] = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key] ?? [0, 0];
      if (event.key === "Escape") untip();
      if (!dx && !dy && event.key !== " ") return;
      event.preventDefault();
      const ahead = (mark) => (mark.x - x) * dx + (mark.y - y) * dy;
      const aside = (mark) => Math.abs((mark.x - x) * dy) + Math.abs((mark.y - y) * dx);
      const [next] = marks.filter((mark) => ahead(mark) > 0.01).sort((a, b) => ahead(a) + 3 * aside(a) - ahead(b) - 3 * aside(b));
      if (!next) return;
      node.setAttribute("tabindex", -1);
      next.node.setAttribute("tabindex", 0);
      next.node.focus();
    };
    node.setAttribute("tabindex", i ? -1 : 0);
    node.setAttribute("role", "button");
    node.setAttribute("aria-label", text().replaceAll("\n", ", "));
    for (const [name, act] of Object.entries({ pointermove: show, focus: show, pointerleave: untip, blur: untip, click: open, keydown: key })) node.addEventListener(name, act);
  });
}
