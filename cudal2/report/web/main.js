// Unpacks the page's data, draws every section, follows what is chosen.

async function unpack(text) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate-raw"))).json();
}

function themes() {
  const [root, button] = [document.documentElement, document.getElementById("theme")];
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const now = () => root.dataset.theme ?? (dark.matches ? "dark" : "light");
  const name = () => (button.textContent = now() === "dark" ? "Light" : "Dark");
  try {
    if (["dark", "light"].includes(localStorage.theme)) root.dataset.theme = localStorage.theme;
  } catch {} // A browser may keep files from storing anything.
  button.addEventListener("click", () => {
    root.dataset.theme = now() === "dark" ? "light" : "dark";
    try {
      localStorage.theme = root.dataset.theme;
    } catch {}
    name();
  });
  dark.addEventListener("change", name);
  name();
}

function draw(data) {
  const into = (id, figures) => document.querySelector(`#${id} .figures`)?.replaceChildren(...figures);
  const open = browse(data);
  const show = (line) => {
    const { baseline, protocol } = data.lines[line];
    for (const node of document.querySelectorAll(".chosen")) node.textContent = `${baseline === "fastest baseline" ? baseline : `baseline ${baseline}`}, protocol ${protocol}`;
    document.querySelectorAll("#decades tbody").forEach((body, i) => (body.hidden = i !== line));
    const shapes = measured(data, line);
    into("shapes", maps(shapes, data.intervals, open));
    into("roofline", roofline(shapes, data.roof, open));
  };
  for (const input of document.querySelectorAll("#lines input")) input.addEventListener("change", () => show(+input.value));
  if (data.lines.length) show(+(document.querySelector("#lines input:checked")?.value ?? 0));
  if (Object.keys(data.searches).length) into("searches", budgets(data.searches));
  if (data.steps) into("learning", learning(data.steps));
}

themes();
try {
  draw(await unpack(document.getElementById("data").textContent));
  document.documentElement.dataset.drawn = "";
} catch (error) {
  const note = document.getElementById("unreadable");
  note.hidden = false;
  note.textContent = `The figures of this page could not be drawn: ${error}. They need a browser of 2024 or later.`;
  throw error;
}
