// Curves over steps and over kernels judged.

// Series are {name, colour, y, low, high}, columns as long as x, null where there is nothing.
function curves(title, caption, x, series, { xlabel, ylabel, log = false, one = false, format }) {
  const values = series.flatMap(({ y, low = [], high = [] }) => [...y, ...low, ...high]).filter((value) => value !== null);
  if (one) values.push(1);
  const range = [Math.min(...x), Math.max(...x, Math.min(...x) * (log ? 2 : 1) + (log ? 0 : 1))];
  const plot = axes(`${title}. ${caption}`, { label: xlabel, range, log }, { label: ylabel, range: padded(values), format });
  const points = (column, among = x) => among.map((at, i) => [at, column[i]]).filter(([, value]) => value !== null && value !== undefined).map(([at, value]) => [plot.x(at), plot.y(value)]);
  if (one) plot.root.append(make("line", { class: "one", x1: plot.box.left, x2: plot.box.right, y1: plot.y(1), y2: plot.y(1) }));
  for (const { colour, y, low, high } of series) {
    if (low && points(low).length) plot.root.append(make("path", { class: "band", d: `${path([...points(high), ...points(low).reverse()])}Z`, style: { fill: colour } }));
    plot.root.append(make("path", { class: "line", d: path(points(y)), style: { stroke: colour } }));
    if (x.length < 3) for (const [cx, cy] of points(y)) plot.root.append(make("circle", { cx, cy, r: 3.5, style: { fill: colour } }));
  }
  follow(plot, x, (i) => [`${xlabel} ${x[i]}`, ...series.map(({ name, y }) => `${name}: ${y[i]?.toFixed(3) ?? "none"}`)].join("\n"));
  return figure(title, caption, plot.root, series.map(({ name, colour }) => [name, colour]));
}

// A bar for each step, of the shares of each name: {name: [share of each step]}.
function shares(title, caption, x, columns, { xlabel, ylabel }) {
  const percent = (value) => `${Math.round(100 * value)}%`;
  const plot = axes(`${title}. ${caption}`, { label: xlabel, range: [x[0] - 0.5, x.at(-1) + 0.5] }, { label: ylabel, range: [0, 1], format: percent });
  const names = Object.keys(columns);
  const colour = (i) => (names[i] === "ok" ? "color-mix(in oklab, var(--c2) 65%, var(--page))" : i < 4 ? COLOURS[[1, 3, 0, 4][i]] : `color-mix(in oklab, var(--c4) ${100 - 22 * (i - 3)}%, var(--page))`);
  const width = (plot.box.right - plot.box.left) / (x.at(-1) - x[0] + 1);
  x.forEach((step, i) => {
    let below = 0;
    names.forEach((name, j) => {
      const share = columns[name][i];
      const [bottom, top] = [plot.y(below), plot.y((below += share))];
      if (share) plot.root.append(make("rect", { x: plot.x(step) - width / 2, width: width + 0.3, y: top, height: bottom - top, style: { fill: colour(j) } }));
    });
  });
  follow(plot, x, (i) => [`${xlabel} ${x[i]}`, ...names.filter((name) => columns[name][i]).map((name) => `${words(name)}: ${percent(columns[name][i])}`)].join("\n"));
  return figure(title, caption, plot.root, names.map((name, i) => [words(name), colour(i)]));
}

const words = (name) => name.replaceAll("_", " ");

// What stands nearest to the pointer, read off.
function follow(plot, x, text) {
  const mark = make("line", { class: "one", y1: plot.box.top, y2: plot.box.bottom, visibility: "hidden" });
  plot.root.append(mark);
  plot.root.addEventListener("pointermove", (event) => {
    const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(plot.root.getScreenCTM().inverse()).x;
    const i = x.reduce((best, value, i) => (Math.abs(plot.x(value) - at) < Math.abs(plot.x(x[best]) - at) ? i : best), 0);
    mark.setAttribute("x1", plot.x(x[i]));
    mark.setAttribute("x2", plot.x(x[i]));
    mark.setAttribute("visibility", "visible");
    tip(text(i), event.clientX, event.clientY);
  });
  plot.root.addEventListener("pointerleave", () => {
    mark.setAttribute("visibility", "hidden");
    untip();
  });
}

function learning({ step, rewards, working, all, best, statuses }) {
  const found = [
    curves("Speedup", "Over the fastest baseline; failures count as 0 among all samples. The band holds 10% to 90% of the correct kernels.", step, [
      { name: "best so far", colour: COLOURS[1], y: best },
      { name: "correct kernels, mean", colour: COLOURS[2], y: working.mean, low: working.low, high: working.high },
      { name: "all samples, mean", colour: COLOURS[0], y: all },
    ], { xlabel: "step", ylabel: "speedup, ×", one: true }),
  ];
  if (rewards.mean.some((value) => value !== null)) {
    const series = [{ name: "mean", colour: COLOURS[0], y: rewards.mean, low: rewards.low, high: rewards.high }];
    found.push(curves("Reward", "Mean over a step's samples; the band holds 10% to 90% of them.", step, series, { xlabel: "step", ylabel: "reward" }));
  }
  found.push(shares("What became of the samples", "Verdicts by step.", step, statuses, { xlabel: "step", ylabel: "share of samples" }));
  return found;
}

function budgets(searches) {
  const names = Object.keys(searches);
  const longest = Math.max(...names.map((name) => searches[name].curve.length));
  const x = Array.from({ length: longest }, (_, i) => i + 1);
  const series = names.map((name, i) => {
    const column = (place) => x.map((_, j) => searches[name].curve[j]?.[place] ?? null);
    return { name: `${name} (${searches[name].shapes} shapes)`, colour: COLOURS[i % COLOURS.length], y: column(0), low: column(1), high: column(2) };
  });
  const caption = "As far as all shapes went.";
  return [curves("Best so far", caption, x, series, { xlabel: "kernels judged for each shape", ylabel: "best speedup so far, ×", log: longest > 4 && 2 })];
}
