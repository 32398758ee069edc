// Drawings, and the page as a whole.
const SVG = "http://www.w3.org/2000/svg";

function shape(tag, attributes, ...children) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}
const label = (x, y, text, anchor = "start") => shape("text", { x, y, "text-anchor": anchor }, text);
const line = (x1, y1, x2, y2, kind) => shape("line", { x1, y1, x2, y2, class: kind });

// Limits: operations a second over operations a byte, both logarithmic ----------------------------

function roofline() {
  const machine = data.machine;
  const points = data.steps.filter((s) => s.limit_ns && s.ns && s.flops + s.vector_ops).map((step) => {
    const work = step.limited_by === "products" ? step.flops : step.limited_by === "arithmetic" ? step.vector_ops
      : Math.max(step.flops, step.vector_ops);
    return { step, x: work / (step.read_bytes + step.written_bytes), y: work / step.ns };
  });
  if (!machine || !points.length)
    return el("p", {}, machine ? "No step had work that is counted." : "The limits of this machine were not measured.");
  const product = Math.max(...Object.values(machine.product_gflop_s));
  const peaks = [["products", product], ["arithmetic", machine.arithmetic_gop_s]];
  const sizes = Object.entries(machine.bandwidth_gb_s).sort((a, b) => a[0] - b[0]);
  const [fast, slow] = [Math.max(...sizes.map((s) => s[1])), sizes.at(-1)[1]];
  const low = Math.floor(Math.log10(Math.min(...points.map((p) => p.x), 0.1)));
  const high = Math.ceil(Math.log10(Math.max(...points.map((p) => p.x), 100)));
  const bottom = Math.floor(Math.log10(Math.min(...points.map((p) => p.y), 1)));
  const top = Math.ceil(Math.log10(Math.max(product, ...points.map((p) => p.y))));
  const W = 860, H = 380, L = 60, R = 20, T = 20, B = 44;
  const x = (v) => L + (Math.log10(v) - low) / (high - low) * (W - L - R);
  const y = (v) => H - B - (Math.log10(v) - bottom) / (top - bottom) * (H - T - B);
  const svg = shape("svg", { viewBox: `0 0 ${W} ${H}`, role: "group",
    "aria-label": "Roofline: what each step reaches against what the machine could" });
  for (let i = low; i <= high; ++i)
    svg.append(line(x(10 ** i), T, x(10 ** i), H - B, "axis"), label(x(10 ** i), H - B + 16, String(+(10 ** i).toPrecision(1)), "middle"));
  for (let i = bottom; i <= top; ++i)
    svg.append(line(L, y(10 ** i), W - R, y(10 ** i), "axis"), label(L - 6, y(10 ** i) + 4, String(+(10 ** i).toPrecision(1)), "end"));
  svg.append(label(W - R, H - 8, "operations a byte", "end"), label(6, 13, "Gop/s"));
  const radius = (p) => 4 + 9 * Math.sqrt(p.step.ns / data.timing.call_ns);
  const clip = (v) => Math.max(v, 10 ** low);
  for (const [bandwidth, where] of fast > 1.3 * slow ? [[fast, "cache"], [slow, "memory"]] : [[slow, "memory"]]) {
    const from = clip(10 ** bottom / bandwidth), to = Math.min(10 ** high, product / bandwidth);
    svg.append(line(x(from), y(from * bandwidth), x(to), y(to * bandwidth), "roof"));
    const at = Math.sqrt(from * to);
    const [dx, dy, anchor] = where === "cache" ? [-8, -6, "end"] : [8, 16, "start"];
    svg.append(label(x(at) + dx, y(at * bandwidth) + dy, `${where} ${Math.round(bandwidth)} GB/s`, anchor));
  }
  for (const [name, peak] of peaks) {
    const from = clip(peak / fast);
    svg.append(line(x(from), y(peak), W - R, y(peak), "roof"), label(W - R - 4, y(peak) + (peak < product ? 15 : -5), `${name} ${Math.round(peak)} Gop/s`, "end"));
  }
  // The numbers of those that take most time; a number that would cover another is left to pointing.
  const named = [];
  for (const p of [...points].sort((a, b) => b.step.ns - a.step.ns)) {
    if (named.length === 12 || named.some((o) => Math.abs(x(o.x) - x(p.x)) < 30 && Math.abs(y(o.y) - y(p.y)) < 14)) continue;
    named.push(p);
  }
  for (const p of points) {
    const name = p.step.kernels.length ? data.kernels[p.step.kernels.at(-1)].name : p.step.name || p.step.kind;
    const text = `step ${p.step.index} ${name}: ${time(p.step.ns)}, ${limitWords(p.step)}`;
    svg.append(shape("a", { href: `#step-${p.step.index}`, "aria-label": text },
      shape("circle", { class: "point", cx: x(p.x), cy: y(p.y), r: radius(p) }, shape("title", {}, text))));
  }
  for (const p of named)
    svg.append(shape("text", { class: "number", x: x(p.x), y: y(p.y) - radius(p) - 3, "text-anchor": "middle" }, String(p.step.index)));
  return el("div", {}, el("div", { class: "scroll" }, svg), el("p", { class: "soft" }, "A point is a step, with its number, as large as its share of the time. " +
    "Below a slope it waits for memory, below a level for arithmetic; the nearer, the closer to its limit. " +
    "The upper level is for steps of matrix products, the lower one for others: a multiply-add counts as two in a product, as one elsewhere. " +
    "Operations are those that limit a step: of products, or its others. Where bytes are few, the rate of memory is lower than the slopes: " +
    "the table below has it, and the limits of steps are by that."),
    rates(machine));
}

function rates(machine) {
  const [box, body] = table(["what", "at best"]);
  const row = (what, best) => body.append(el("tr", {}, el("td", {}, what), el("td", { class: "number" }, best)));
  for (const [dtype, peak] of Object.entries(machine.product_gflop_s)) row(`matrix products of ${dtype}`, `${Math.round(peak)} Gop/s`);
  row("other arithmetic on float32: half of that, as a multiply-add is two operations of a product, one here", `${Math.round(machine.arithmetic_gop_s)} Gop/s`);
  for (const [n, bandwidth] of Object.entries(machine.bandwidth_gb_s).sort((a, b) => a[0] - b[0]))
    row(`memory, up to ${bytes(+n)} read and written`, `${Math.round(bandwidth)} GB/s`);
  return [el("h3", {}, "What the machine does at best"), el("p", {}, `Measured on this machine (${machine.processor}, ${count(machine.cores, "core")}) with ${count(machine.threads, "thread")}, ` +
    "when a limit was first asked for: the quickest of PyTorch's copies and dot products of as many bytes, and of PyTorch's, oneDNN's and " +
    "tilevm's product of two matrices of 1024 x 1024. They are measurements: what else ran then makes them " +
    "lower, and where bytes are few, what calling PyTorch takes is part of them. A step that was quicker than its limit is shown as 100 %. " +
    "What starting a step takes is in its time, and in no limit."), box];
}

// Memory: where each buffer lies, and when --------------------------------------------------------

function memorySection() {
  const memory = data.memory;
  if (!memory.buffers.length) return el("p", {}, "No buffers between steps: what is not a result stays in kernels.");
  const rows = memory.buffers;
  const [box, body] = table(["buffer", "size", "steps", "where"]);
  const where = (b) => b.over !== null ? `where %${b.over} was, which is read last for it` : b.below.length
    ? `above what lives as well: ${b.below.slice(0, 3).map((o) => `%${o.value} until step ${o.until}`).join(", ")}${b.below.length > 3 ? ` and ${b.below.length - 3} more` : ""}`
    : "at the bottom";
  const details = filled(el("details", { class: "plain" }, el("summary", {}, count(rows.length, "buffer"))), () => {
    chunked(body, rows, (b) => el("tr", {}, el("td", {}, el("code", {}, `%${b.value}: ${b.type}`)),
      el("td", {}, el("code", {}, b.size), b.bytes === null ? "" : `: ${bytes(b.bytes)}`),
      el("td", {}, `${b.first} to ${b.last}`), el("td", {}, where(b))));
    return box;
  });
  if (!memory.arena_bytes) return [el("p", {}, "The sizes of a call are not known here; the plan:"), details];
  const [totals, sums] = table(["", "", ""]);
  for (const [name, n] of [["every buffer by itself", memory.without_reuse_bytes],
    ["the arena", memory.arena_bytes], [`alive at step ${memory.most_live_step}, where it is most: no plan can use less`, memory.most_live_bytes]])
    sums.append(el("tr", {}, el("td", {}, name), el("td", { class: "number" }, bytes(n)), el("td", {},
      el("div", { class: "bar" }, el("i", { style: `width: ${100 * n / memory.without_reuse_bytes}%` })))));
  return [totals, el("div", { class: "scroll" }, memoryChart(memory)), el("p", { class: "soft" }, "Each box is a buffer: as high as its bytes, " +
    "as long as its life, in the colour of the kernel that fills it. The line is what is alive; it is highest at step " +
    `${memory.most_live_step}, with ${atPeak(memory)}.`), details];
}

// The largest buffers that are alive where most is.
function atPeak(memory) {
  const alive = memory.buffers.filter((b) => b.first <= memory.most_live_step && b.last >= memory.most_live_step).sort((a, b) => b.bytes - a.bytes);
  return alive.slice(0, 5).map((b) => `%${b.value} of ${bytes(b.bytes)}`).join(", ") + (alive.length > 5 ? ` and ${alive.length - 5} more` : "");
}

function memoryChart(memory) {
  const W = 860, H = 300, L = 66, R = 12, T = 12, B = 34, n = Math.max(data.steps.length, 1);
  const x = (step) => L + step / n * (W - L - R);
  const y = (b) => H - B - b / memory.arena_bytes * (H - T - B);
  const svg = shape("svg", { viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": "The arena over the steps of the call" });
  for (const part of [0, .5, 1])
    svg.append(line(L, y(part * memory.arena_bytes), W - R, y(part * memory.arena_bytes), "axis"),
      label(L - 5, y(part * memory.arena_bytes) + 4, bytes(part * memory.arena_bytes), "end"));
  const apart = Math.max(1, 10 ** Math.floor(Math.log10(n)) / (n < 3 * 10 ** Math.floor(Math.log10(n)) ? 5 : 1));
  for (let step = 0; step < n; step += apart) svg.append(label(x(step), H - B + 16, String(step), "middle"));
  svg.append(label(W - R, H - 4, "step", "end"));
  const fills = new Map(data.operators.flatMap((row) => row.values.map((value) => [value, row.kernel])));
  for (const b of memory.buffers) {
    const base = b.offset, kernel = fills.get(b.value) ?? -1;
    svg.append(shape("rect", { class: kernel < 0 ? "buffer other" : "buffer", style: hue(kernel), x: x(b.first), width: Math.max(1, x(b.last + 1) - x(b.first)),
      y: y(base + b.bytes), height: Math.max(.5, y(base) - y(base + b.bytes)) },
      shape("title", {}, `%${b.value}: ${b.type}, ${b.size} = ${bytes(b.bytes)}, steps ${b.first} to ${b.last}`)));
  }
  const path = memory.live_bytes.map((b, i) => `${i ? "L" : "M"}${x(i)} ${y(b)}L${x(i + 1)} ${y(b)}`).join("");
  svg.append(shape("path", { class: "live", d: path }));
  return svg;
}

// The page ------------------------------------------------------------------------------------------

// PyTorch's capture is most of what a model's first call takes.
function compileTiles() {
  const capture = data.compiling.filter((row) => row.phase.startsWith("capture")).reduce((sum, row) => sum + row.us, 0);
  const rest = ["compile time", time((data.summary.compile_us - capture) * 1000)];
  return capture ? [["capture", time(capture * 1000)], rest] : [rest];
}

function tiles() {
  const s = data.summary;
  return [["time of a call", time(s.call_ns)], ["at best", s.limit_ns ? time(s.limit_ns) : "-"],
    ["launches", s.launches], ["operators", s.operators],
    given.segments ? ["not recorded", given.call_outs.length] : ["call-outs", s.call_outs],
    ...compileTiles()]
    .map(([name, value]) => el("li", {}, el("b", {}, String(value)), el("span", {}, name)));
}

function draw(part) {
  data = part;
  document.querySelector("h1").textContent = data.title;
  document.getElementById("summary").replaceChildren(...tiles());
  const graph = graphSection(); // first: others point into it
  const list = el("div");
  const idle = data.kernels.filter(isIdle);
  kernelRows = chunked(list, shown(), kernelDetails);
  const sections = [
    ["look", "Look at this first", findings()],
    ["steps", "Steps", stepsSection()],
    ["kernels", "Kernels", [el("p", {}, "Operators over the same elements, in one loop. Open one to see " +
      "why it is separate, what it costs, and its code."), list, idle.length ? el("p", { class: "soft" },
      `${count(idle.length, "kernel")} more would make a copy, where a reshape is no view; this call did not need ${idle.length === 1 ? "it" : "them"}.`) : null]],
    ["limits", "Limits", roofline()],
    ["graph", "Graph", graph],
    ["decisions", "Decisions", decisionsSection()],
    ["memory", "Memory", memorySection()],
    ["callouts", "Call-outs", calloutsSection()],
    ["compiling", "Compile time", compilingSection()],
    ["words", "Words", wordsSection()],
  ];
  document.querySelector("nav").replaceChildren(el("ul", {}, sections.map(([id, title]) =>
    el("li", {}, el("a", { href: `#${id}` }, title)))));
  document.getElementById("main").replaceChildren(...sections.map(([id, title, content]) =>
    el("section", { id, "aria-labelledby": `${id}-title` }, el("h2", { id: `${id}-title` }, title), content)));
}

const parts = given.segments || [given];
if (given.segments)
  document.querySelector(".tool").after(el("label", { class: "soft" }, `${given.title}: `,
    el("select", { onchange: (event) => draw(parts[event.target.value]) }, parts.map((part, i) => el("option", { value: i },
      `segment ${i}: ${count(part.operators.length, "operator")}, ${Object.entries(part.reasons).map(([r, n]) => `${r} (${n})`).join(", ")}`)))));
if (parts.length) draw(parts[0]);
else document.querySelector("h1").textContent = `${given.title}: nothing was recorded`;
