// Speedups over shapes: maps over M and N, intervals of a few, dots over arithmetic intensity.

const LISTED = 30; // Up to so many shapes are drawn one by one.
const MAPPED = 4; // Sizes of fewer shapes have no row, column or map of their own.
const WIDEST = 24; // Rows and columns of a map.

// One line of the table as marks: what has no such timing is left out.
function measured(data, line) {
  const column = data.lines[line];
  return data.shapes.flatMap(([problem, , kernel, flop, bytes], i) => {
    if (column.speedup[i] === null) return [];
    const [m, n, k, ...kind] = problem;
    const [speedup, low, high, us] = ["speedup", "low", "high", "candidate_us"].map((name) => column[name][i]);
    const rate = flop / us / 1e6;
    const shape = { name: `${m} × ${n} × ${k}`, kind: kind.join(", "), problem, m, n, k, kernel, speedup, low, high, us, intensity: flop / bytes, rate };
    shape.text = () => `${shape.name} ${shape.kind}\n${speedup.toFixed(3)} × [${low.toFixed(3)}, ${high.toFixed(3)}]\n${us.toFixed(1)} µs, ${unit(rate, "FLOP/s")}`;
    return [shape];
  });
}

// The ends of the colours: the first of these that 95 of 100 shapes keep to.
function limitOf(shapes) {
  const far = shapes.map(({ speedup }) => Math.abs(Math.log(speedup))).sort((a, b) => a - b);
  const most = far[Math.floor(0.95 * (far.length - 1))];
  return [1.1, 1.2, 1.5, 2, 3, 4].find((limit) => Math.log(limit) >= most) ?? 8;
}

function shade(speedup, limit) {
  const share = Math.max(-1, Math.min(1, Math.log(speedup) / Math.log(limit)));
  const strong = Math.abs(share) > 0.65;
  return { strong, fill: `color-mix(in oklab, var(--${share > 0 ? "fast" : "slow"}) ${(100 * Math.abs(share)).toFixed(0)}%, var(--mid))` };
}

function legendOf(limit) {
  const marks = [1 / limit, limit ** -0.5, 1, limit ** 0.5, limit];
  return marks.map((value, i) => [`${i === 0 ? "≤ " : i === 4 ? "≥ " : ""}${value.toFixed(2)} ×`, shade(value, limit).fill]);
}

// Maps of the sizes that recur; what is on none of them, or few, is drawn one by one.
function maps(shapes, called, open) {
  const limit = limitOf(shapes);
  const found = [];
  const mapped = new Set();
  for (const [kind, alike] of grouped(shapes, (shape) => shape.kind)) {
    const [rows, columns] = ["m", "n"].map((name) => often(alike, (shape) => shape[name]));
    const regular = alike.filter(({ m, n }) => rows.includes(m) && columns.includes(n));
    if (rows.length > WIDEST || columns.length > WIDEST) continue;
    for (const k of often(regular, (shape) => shape.k)) {
      const some = regular.filter((shape) => shape.k === k);
      some.forEach((shape) => mapped.add(shape));
      found.push(map(`K = ${k}, ${kind}`, some, rows, columns, limit, open));
    }
  }
  const listed = shapes.length <= LISTED ? shapes : shapes.filter((shape) => !mapped.has(shape));
  if (listed.length) found.splice(listed === shapes ? 0 : found.length, 0, intervals(listed, called, open));
  if (mapped.size) found.unshift(key(legendOf(limit)));
  return found;
}

// The sizes of at least MAPPED shapes, in order.
function often(shapes, size) {
  return [...grouped(shapes, size)].filter(([, some]) => some.length >= MAPPED).map(([value]) => value).sort((a, b) => a - b);
}

function grouped(values, key) {
  const found = new Map();
  for (const value of values) found.has(key(value)) ? found.get(key(value)).push(value) : found.set(key(value), [value]);
  return found;
}

function map(title, shapes, rows, columns, limit, open) {
  const [wide, tall, left, bottom] = [31, 22, 46, 32];
  const [width, height] = [left + columns.length * wide, rows.length * tall + bottom];
  const caption = `${shapes.length} shapes, ${worstToBest(shapes)}.`;
  const root = make("svg", { viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": `${title}: speedup by M and N. ${caption}`, style: { maxWidth: `${width * 1.3}px` } });
  rows.forEach((m, i) => root.append(make("text", { x: left - 6, y: i * tall + tall / 2 + 4, "text-anchor": "end", style: { fontSize: "9px" } }, m)));
  columns.forEach((n, i) => root.append(make("text", { x: left + i * wide + wide / 2, y: rows.length * tall + 12, "text-anchor": "middle", style: { fontSize: "9px" } }, n)));
  root.append(make("text", { x: left + (columns.length * wide) / 2, y: height - 4, "text-anchor": "middle" }, "N"));
  root.append(make("text", { transform: `translate(9 ${(rows.length * tall) / 2}) rotate(-90)`, "text-anchor": "middle" }, "M"));
  root.append(make("rect", { class: "empty", x: left, y: 0, width: columns.length * wide, height: rows.length * tall }));
  reachable(shapes.map((shape) => {
    const [x, y] = [left + columns.indexOf(shape.n) * wide, rows.indexOf(shape.m) * tall];
    const { strong, fill } = shade(shape.speedup, limit);
    const square = make("rect", { x: x + 0.5, y: y + 0.5, width: wide - 1, height: tall - 1, rx: 1.5, style: { fill } });
    const text = make("text", { x: x + wide / 2, y: y + tall / 2 + 3.4, "text-anchor": "middle" }, shape.speedup.toFixed(2));
    const node = make("g", { class: strong ? "cell strong" : "cell" }, square, text);
    root.append(node);
    return { node, x, y, text: shape.text, open: () => open(shape) };
  }));
  return figure(title, caption, root);
}

const worstToBest = (shapes) => `from ${Math.min(...shapes.map((s) => s.speedup)).toFixed(2)} × to ${Math.max(...shapes.map((s) => s.speedup)).toFixed(2)} ×`;

function intervals(shapes, called, open) {
  const ordered = [...shapes].sort((a, b) => a.m * a.n * a.k - b.m * b.n * b.k);
  const [width, left, tall] = [640, 190, 20];
  const bottom = ordered.length * tall + 6;
  const caption = `${ordered.length} shapes, least work on top; bars are ${called}. Dashed: the baseline.`;
  const root = make("svg", { viewBox: `0 0 ${width} ${bottom + 40}`, role: "group", "aria-label": `Speedup shape by shape. ${caption}` });
  const x = scale(...padded([1, ...ordered.flatMap(({ low, high }) => [low, high])], true), left, width - 10, true);
  for (const tick of x.ticks) {
    root.append(make("line", { class: "rule", x1: x(tick), x2: x(tick), y1: 0, y2: bottom }));
    root.append(make("text", { x: x(tick), y: bottom + 16, "text-anchor": "middle" }, short(tick)));
  }
  root.append(make("text", { x: (left + width) / 2, y: bottom + 33, "text-anchor": "middle" }, "speedup, ×"));
  root.append(make("line", { class: "one", x1: x(1), x2: x(1), y1: 0, y2: bottom }));
  reachable(ordered.map((shape, i) => {
    const y = i * tall + tall / 2 + 2;
    const fill = `var(--${shape.speedup > 1 ? "fast" : "slow"})`;
    root.append(make("text", { x: left - 12, y: y + 4, "text-anchor": "end" }, `${shape.name} ${shape.kind}`));
    root.append(make("rect", { x: x(shape.low), width: Math.max(x(shape.high) - x(shape.low), 1), y: y - 3, height: 6, rx: 3, opacity: 0.35, style: { fill } }));
    const node = make("circle", { class: "dot", cx: x(shape.speedup), cy: y, r: 4.5, style: { fill } });
    root.append(node);
    return { node, x: x(shape.speedup), y, text: shape.text, open: () => open(shape) };
  }));
  const found = figure("Shape by shape", caption, make("div", { class: "tall" }, root));
  found.classList.add("wide");
  return found;
}

// Speedups, and rates under the roof, over FLOP for each byte.
function roofline(shapes, roof, open) {
  const limit = limitOf(shapes);
  const x = { label: "arithmetic intensity, FLOP/byte", range: padded(shapes.map((s) => s.intensity), true), log: true };
  const [flops, bandwidth, by, named] = [roof.flops / 1e12, roof.bandwidth / 1e12, ...(roof.flops < 1e12 ? [1e3, "GFLOP/s"] : [1, "TFLOP/s"])];
  const reach = (intensity) => Math.min(flops, intensity * bandwidth);
  const known = roof.stated ? "the device's data sheet" : "the most that anything on this page reached";
  const summits = `${unit(flops, "FLOP/s")} and ${unit(bandwidth, "B/s")}`;
  const dots = (plot, height) => reachable(shapes.map((shape) => {
    const [cx, cy] = [plot.x(shape.intensity), plot.y(height(shape))];
    const node = make("circle", { class: "dot", cx: cx.toFixed(1), cy: cy.toFixed(1), r: 3.6, style: { fill: shade(shape.speedup, limit).fill, stroke: "var(--faint)", strokeWidth: 0.5 } });
    plot.root.append(node);
    const text = () => `${shape.text()}\n${shape.intensity.toPrecision(3)} FLOP/byte, ${Math.round((100 * shape.rate) / reach(shape.intensity))}% of the roof`;
    return { node, x: cx, y: cy, text, open: () => open(shape) };
  }));

  const first = "Dashed: the baseline, and the ridge to whose right arithmetic is the limit.";
  const speed = axes(`Speedup by arithmetic intensity. ${first}`, x, { label: "speedup, ×", range: padded([1, ...shapes.map((s) => s.speedup)], true), log: true });
  speed.root.append(make("line", { class: "one", x1: speed.box.left, x2: speed.box.right, y1: speed.y(1), y2: speed.y(1) }));
  const ridge = flops / bandwidth;
  if (ridge > x.range[0] && ridge < x.range[1]) speed.root.append(make("line", { class: "one", x1: speed.x(ridge), x2: speed.x(ridge), y1: speed.box.top, y2: speed.box.bottom }));
  dots(speed, (shape) => shape.speedup);

  const second = `The roof is ${known}: ${summits}.`;
  const corners = [x.range[0], ...(ridge > x.range[0] && ridge < x.range[1] ? [ridge] : []), x.range[1]];
  const rates = [...shapes.map((s) => s.rate), ...corners.map(reach)].map((rate) => by * rate);
  const under = axes(`Rate under the roof. ${second}`, x, { label: named, range: padded(rates, true), log: true });
  under.root.append(make("path", { class: "roof", d: path(corners.map((at) => [under.x(at), under.y(by * reach(at))])) }));
  dots(under, (shape) => by * shape.rate);
  return [figure("Speedup", first, speed.root, legendOf(limit)), figure("Rate and roofline", second, under.root, legendOf(limit))];
}
