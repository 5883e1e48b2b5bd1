// The browser of kernels: a list to search and filter, the chosen one's source, or in what it differs from another.

const PAGE = 100; // Kernels listed at a time.
const AROUND = 3; // Lines shown around those that differ.

function browse(data) {
  const kernels = data.kernels.map((kernel, place) => ({ ...kernel, place, name: kernel.problem.slice(0, 3).join(" × "), kind: kernel.problem.slice(3).join(", "), word: kernel.problem.join("_"), work: kernel.problem[0] * kernel.problem[1] * kernel.problem[2] }));
  const texts = data.sources.map((source) => source.toLowerCase());
  const [form, list, article, count] = ["filters", "list", "kernel", "count"].map((id) => document.getElementById(id));
  const { text, family, status, least, order, best } = form.elements;
  let found = [];
  let chosen = null;
  let pinned = null;
  let shown = PAGE;

  const options = (select, values) => [...new Set(values)].filter(Boolean).sort().forEach((value) => select.append(make("option", { value }, words(value))));
  options(family, kernels.map((kernel) => kernel.family));
  options(status, kernels.map((kernel) => kernel.status));
  const orders = {
    speedup: (a, b) => (b.speedup ?? 0) - (a.speedup ?? 0),
    shape: (a, b) => a.problem[0] - b.problem[0] || a.problem[1] - b.problem[1] || a.problem[2] - b.problem[2] || orders.speedup(a, b),
    work: (a, b) => a.work - b.work || orders.speedup(a, b),
  };

  function filter() {
    const asked = text.value.toLowerCase().replaceAll(/(\d)\s*[x×]\s*(?=\d)/g, "$1_").split(/\s+/).filter(Boolean);
    const says = ({ word, hash, family = "", how = "", edit = "", source }, asked) => `${word} ${hash} ${family} ${how} ${edit}`.toLowerCase().includes(asked) || texts[source].includes(asked);
    found = kernels.filter((kernel) => (!best.checked || kernel.best) && (!family.value || kernel.family === family.value) && (!status.value || kernel.status === status.value)
      && (!least.value || (kernel.speedup ?? 0) >= +least.value) && asked.every((word) => says(kernel, word))).sort(orders[order.value]);
    shown = PAGE;
    draw();
  }

  function draw() {
    count.textContent = `${found.length.toLocaleString("en")} of ${kernels.length.toLocaleString("en")} kernels`;
    list.replaceChildren(...found.slice(0, shown).map(entry));
    if (found.length > shown) list.append(make("li", {}, make("button", { type: "button", class: "more", click: () => ((shown += PAGE), draw()) }, `${found.length - shown} more`)));
  }

  function entry(kernel) {
    const result = kernel.speedup === undefined ? words(kernel.status) : `${kernel.speedup.toFixed(3)} ×`;
    const detail = kernel.candidate_us === undefined ? "" : `${kernel.candidate_us.toFixed(1)} µs`;
    const lines = [["b", kernel.name], ["span", result], ["small", [kernel.kind, kernel.family, kernel.edit && "edited"].filter(Boolean).join(" · ")], ["small", detail]];
    return make("li", {}, make("button", { type: "button", "aria-current": kernel === chosen && "true", click: () => open(kernel, true) }, ...lines.map(([tag, said]) => make(tag, {}, said))));
  }

  function open(kernel, focus = false) {
    chosen = kernel;
    for (const [i, button] of list.querySelectorAll("button:not(.more)").entries()) {
      if (found[i] === kernel) button.setAttribute("aria-current", "true");
      else button.removeAttribute("aria-current");
    }
    article.replaceChildren(...about(kernel));
    if (focus && innerWidth <= 820) article.scrollIntoView();
  }

  function about(kernel) {
    const rate = kernel.candidate_us && `${kernel.candidate_us.toFixed(2)} µs, ${unit((2 * kernel.work) / kernel.candidate_us / 1e6, "FLOP/s")}`;
    const facts = {
      status: words(kernel.status) + (kernel.reason ? `: ${kernel.reason}` : ""),
      speedup: kernel.speedup !== undefined && `${kernel.speedup.toFixed(3)} × [${kernel.low.toFixed(3)}, ${kernel.high.toFixed(3)}] over the fastest baseline`,
      time: rate,
      family: kernel.family,
      "made by": kernel.how,
      edit: kernel.edit,
      kernel: kernel.hash,
      machine: kernel.machine,
    };
    const others = rivals(kernel);
    const code = make("div", {});
    const choice = make("select", { change: () => code.replaceChildren(...against(kernel, others[choice.value]?.[1])) },
      make("option", { value: "" }, "nothing: the whole source"), ...others.map(([said], value) => make("option", { value }, said)));
    const pin = make("button", { type: "button", click: () => ((pinned = kernel), (pin.textContent = "Pinned: choose another kernel")) }, pinned === kernel ? "Pinned: choose another kernel" : "Pin to compare others with it");
    const copy = make("button", { type: "button", click: () => navigator.clipboard?.writeText(data.sources[kernel.source]).then(() => (copy.textContent = "Copied")) }, "Copy source");
    if (pinned && pinned !== kernel) choice.value = others.findIndex(([, other]) => other === pinned);
    code.append(...against(kernel, others[choice.value]?.[1]));
    const pairs = Object.entries(facts).filter(([, value]) => value).flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, value)]);
    return [make("h3", {}, `${kernel.name}, ${kernel.kind}`), make("dl", { class: "plain" }, ...pairs), make("div", { class: "tools" }, make("label", {}, "Differences to ", choice), pin, copy), code];
  }

  // What a kernel may be compared with: its parent, the pinned one, those of the same shape.
  function rivals(kernel) {
    const parent = kernel.parent && kernels.find(({ hash, problem }) => hash === kernel.parent && String(problem) === String(kernel.problem)) || kernels.find(({ hash }) => hash === kernel.parent);
    const same = kernels.filter((other) => other.name === kernel.name && other.source !== kernel.source && other !== parent).sort(orders.speedup).slice(0, 20);
    const said = (other) => `${other.name}, ${other.hash}${other.family ? ` (${other.family})` : ""}, ${other.speedup === undefined ? words(other.status) : `${other.speedup.toFixed(3)} ×`}`;
    return [...(parent ? [[`its parent: ${said(parent)}`, parent]] : []), ...(pinned && pinned !== kernel ? [[`pinned: ${said(pinned)}`, pinned]] : []), ...same.map((other) => [said(other), other])];
  }

  function against(kernel, other) {
    const source = data.sources[kernel.source];
    const block = (...rows) => make("pre", { tabindex: 0 }, make("code", {}, ...rows));
    const row = (line, number, kind = "") => make("span", { class: `row ${kind}`, "data-number": number }, `${line}\n`);
    const listing = kernel.listing ? [make("p", {}, "What this source compiles to was changed before it was judged: as compiled, left, and as judged, right. Before each instruction stand the barriers that it waits for, those that it sets for reads and for its result, a Y where it invites another warp, and its stall; between the two how far it has moved down."), block(kernel.listing)] : [];
    if (!other) return [...listing, block(...source.split("\n").map((line, i) => row(line, i + 1)))];
    const lines = diff(data.sources[other.source], source);
    const changed = lines.flatMap(([move], i) => (move === "same" ? [] : [i]));
    if (!changed.length) return [...listing, make("p", {}, "Both have the same source.")];
    const near = new Uint8Array(lines.length);
    for (const i of changed) near.fill(1, Math.max(0, i - AROUND), i + AROUND + 1);
    const rows = lines.flatMap(([move, line, number], i) => (near[i] ? [row(`${{ same: " ", added: "+", removed: "−" }[move]} ${line}`, number, move)] : near[i - 1] || i === 0 ? [row("⋯", "", "skipped")] : []));
    const [removed, added] = ["removed", "added"].map((kind) => lines.filter(([move]) => move === kind).length);
    return [make("p", { class: "faint" }, `${removed} lines of ${other.hash} gone, ${added} lines new.`), block(...rows), ...listing];
  }

  form.addEventListener("input", filter);
  form.addEventListener("submit", (event) => event.preventDefault());
  list.addEventListener("keydown", (event) => {
    const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    const buttons = [...list.querySelectorAll("button")];
    const next = by && buttons[buttons.indexOf(document.activeElement) + by];
    if (next) {
      event.preventDefault();
      next.focus();
    }
  });
  if (!kernels.some((kernel) => kernel.best)) best.checked = false;
  filter();
  if (found.length) open(found[0]);

  // From a figure: the kernel of that shape.
  return (shape) => {
    const kernel = kernels.find(({ hash, problem }) => hash === shape.kernel && String(problem) === String(shape.problem));
    if (!kernel) return;
    untip();
    text.value = kernel.word;
    family.value = status.value = least.value = "";
    filter();
    open(kernel);
    document.getElementById("kernels").scrollIntoView();
    article.focus({ preventScroll: true });
  };
}
