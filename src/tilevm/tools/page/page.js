"use strict";
// Draws the page from the data embedded in it. Text of users is only ever text, never markup.
const given = JSON.parse(document.getElementById("data").textContent);
let data; // what is shown: all of it, or one segment of a recording
const CHUNK = 200; // rows made at a time

function el(tag, attributes, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false)
      made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return made;
}

// Numbers -----------------------------------------------------------------------------------

function scaled(value, units, step) {
  let unit = 0;
  while (value >= step && unit < units.length - 1) [value, unit] = [value / step, unit + 1];
  return `${value >= 100 || unit === 0 && Number.isInteger(value) ? Math.round(value)
    : value.toPrecision(3)} ${units[unit]}`;
}
const time = (ns) => ns === null ? "-" : scaled(ns, ["ns", "us", "ms", "s"], 1000);
const bytes = (n) => n === null ? "-" : scaled(n, ["bytes", "KiB", "MiB", "GiB"], 1024);
const rate = (n) => scaled(n, ["", "K", "M", "G", "T"], 1000);
const percent = (part, whole) => whole ? `${Math.round(100 * part / whole)} %` : "-";
const hue = (kernel) => `--hue: ${Math.round(kernel * 137.508 + 210) % 360}`;
const count = (n, one, many) => `${n} ${n === 1 ? one : many || one + "s"}`;

// Kernels and their operators, everywhere on the page ------------------------------------------

function kernelChip(index) {
  const kernel = data.kernels[index];
  return el("a", { class: "chip kernel", style: hue(index), href: `#kernel-${index}`,
    "data-kernel": index, onclick: () => openKernel(index) }, `${index} ${kernel.name}`);
}

const isIdle = (kernel) => !kernel.operators.length && !kernel.variants.length;
// Copies come last, without those that the call did not make.
const shown = () => data.kernels.filter((kernel) => !isIdle(kernel))
  .sort((a, b) => !a.operators.length - !b.operators.length);
let kernelRows;

function openKernel(index) {
  kernelRows.reach(shown().findIndex((kernel) => kernel.index === index));
  const details = document.getElementById(`kernel-${index}`);
  details.open = true;
  details.querySelector("summary").focus({ preventScroll: true });
}

function operatorChip(index) {
  const operator = data.operators[index];
  return el("a", { class: "chip", href: `#operator-${index}`, "data-kernel": operator.kernel,
    title: operator.line, onclick: (event) => {
      event.preventDefault();
      graphRows.reach(index);
      const row = document.getElementById(`operator-${index}`);
      row.scrollIntoView({ block: "center" });
      row.focus({ preventScroll: true });
    } }, `%${operator.values[0]} ${operator.op}`);
}

function place(end) {
  if (!end) return ["the caller"];
  const line = end.line ? ` (${end.line})` : "";
  if (end.kernel >= 0) return [operatorChip(end.operator), " in kernel ", kernelChip(end.kernel), line];
  return [operatorChip(end.operator), end.step >= 0 ? ` at step ${end.step}` : "", line];
}

function mark(event) {
  const kernel = event.target.closest("[data-kernel]")?.dataset.kernel;
  for (const other of document.querySelectorAll(".same")) other.classList.remove("same");
  if (kernel === undefined || kernel === "-1") return;
  for (const other of document.querySelectorAll(`.operator[data-kernel="${kernel}"],
      summary[data-kernel="${kernel}"], tr[data-kernel="${kernel}"]`)) other.classList.add("same");
}
document.addEventListener("mouseover", mark);
document.addEventListener("focusin", mark);

// Rows in chunks, made when they come near ------------------------------------------------------

function chunked(box, rows, make) {
  let made = 0;
  const more = el("button", { class: "chip", type: "button", onclick: () => grow() });
  const tail = box.tagName === "TBODY" ? el("tr", {}, el("td", { colspan: 9 }, more)) : more;
  const grow = () => {
    const end = Math.min(made + CHUNK, rows.length);
    for (; made < end; ++made) tail.before(make(rows[made]));
    more.textContent = `${rows.length - made} more`;
    if (made === rows.length) tail.remove();
  };
  box.append(tail);
  grow();
  new IntersectionObserver((seen) => seen.some((s) => s.isIntersecting) && grow()).observe(more);
  return { reach: (index) => { while (made <= index && made < rows.length) grow(); } };
}

function grouped(rows, key) {
  const groups = new Map();
  for (const row of rows) groups.set(key(row), [...groups.get(key(row)) || [], row]);
  return groups;
}

function filled(details, make) {
  details.addEventListener("toggle", () => {
    if (details.open && details.children.length === 1) details.append(el("div", {}, make()));
  });
  return details;
}

function table(names, attributes) {
  const body = el("tbody");
  const head = el("tr", {}, names.map((name) => el("th", { scope: "col" }, name)));
  return [el("div", { class: "scroll" }, el("table", attributes, el("thead", {}, head), body)), body];
}

// What to look at first ----------------------------------------------------------------------

function limitWords(step) {
  if (!step.limit_ns) return "";
  if (step.kind === "call")
    return `its bytes alone take ${time(step.limit_ns)}; what it computes is not known`;
  const by = { memory: "memory bandwidth", products: "the rate of matrix products",
    arithmetic: "arithmetic" }[step.limited_by];
  return `the limit is ${time(step.limit_ns)}, by ${by}`;
}

const total = (steps, key) => steps.reduce((sum, s) => sum + (s[key] || 0), 0);

// Steps that do the same, as in the layers of a model: the three that take most time, and others that lose much.
function dearest() {
  const key = (s) => [s.kind, s.name, ...s.ways, ...s.kernels.map((k) => data.kernels[k].name)].join();
  const loss = (steps) => steps[0].limit_ns ? total(steps, "ns") - total(steps, "limit_ns") : 0;
  const groups = [...grouped(data.steps.filter((s) => s.ns), key).values()].sort((a, b) => total(b, "ns") - total(a, "ns"));
  const call = data.timing.call_ns;
  return groups.filter((steps, i) => (i < 3 && total(steps, "ns") >= call / 20) || loss(steps) >= call / 40);
}

function findings() {
  const found = [], { timing, summary, memory } = data;
  const add = (bad, ...words) => found.push(el("li", { class: bad ? "bad" : null }, ...words));
  for (const [reason, times] of Object.entries(data.reasons || {}))
    add(false, `This segment ran ${count(times, "time")} because of: `, el("b", {}, reason), ".");
  if (timing.call_ns !== null && summary.limit_ns)
    add(false, `The call takes ${time(timing.call_ns)}. These steps, one after the other, could take ` +
      `${time(summary.limit_ns)} at best on this machine: ${percent(summary.limit_ns, timing.call_ns)} of that is reached. ` +
      `(${timing.runs > 1 ? "Medians of " : "Of "}${count(timing.runs, "run")}, ${count(data.machine.threads, "thread")}.)`);
  if (timing.untimed) add(true, `Not timed more often: ${timing.untimed}.`);
  for (const steps of dearest()) {
    const [ns, limit] = [total(steps, "ns"), total(steps, "limit_ns")];
    const many = steps.length > 1, first = steps[0];
    add(false, many ? `${steps.length} steps like ${first.index}, ` : `Step ${first.index}, `, stepName(first),
      first.module ? ` in ${first.module}` : "", `, take${many ? "" : "s"} ${time(ns)}, ${percent(ns, timing.call_ns)} of the call`,
      limit && first.kind !== "call" ? `, ${time(ns - limit)} more than ${many ? "their limits" : "its limit"} (${percent(limit, ns)} reached)` : "",
      limit ? `${many ? ". Of step " + first.index + "," : ";"} ${limitWords(first)}.` : ".");
  }
  for (const [name, calls] of [...grouped(given.call_outs, (c) => c.name)].slice(0, 8))
    add(true, `Fell back to the framework: `, el("code", {}, name),
      ` (${count(calls.length, "call")}), because ${calls[0].reason}. `,
      [...new Set(calls.map((c) => c.line).filter(Boolean))].slice(0, 3).join(", "));
  const stored = data.decisions.filter((d) => d.reader);
  const reasons = [...grouped(stored, (d) => d.reason)].sort((a, b) => b[1].length - a[1].length);
  if (stored.length)
    add(false, `${count(new Set(stored.map((d) => d.value)).size, "value is", "values are")} stored between kernels, ` +
      `for ${count(stored.length, "reader")}. What keeps most readers out of the kernel that makes theirs: `,
      reasons.slice(0, 3).map(([reason, rows], i) => `${i ? "; " : ""}${reason} (${rows.length})`), ". ",
      el("a", { href: "#decisions" }, "All of them"), ".");
  if (!given.call_outs.length) add(false, given.segments
    ? "Nothing fell back: every operator on tensors was recorded." : "Nothing fell back: there are no call-outs.");
  if (summary.interpreted)
    add(true, `${count(summary.interpreted, "variant")} of kernels ` +
      "run in the interpreter; see what is not machine code under Kernels.");
  if (memory.arena_bytes)
    add(false, `Buffers between steps take ${bytes(memory.arena_bytes)}; each by itself, they would take ` +
      `${bytes(memory.without_reuse_bytes)}, and no plan can use less than ${bytes(memory.most_live_bytes)}, which step ${memory.most_live_step} needs. ` +
      "Inputs, results, a module's own tensors and kernels' scratch are not among them.");
  return el("ul", { class: "findings" }, found);
}

// Sections ------------------------------------------------------------------------------------

function stepName(step) {
  const chips = step.kernels.filter((k) => step.kind !== "reshape").map((k, i) => [i ? " " : null, kernelChip(k)]);
  const products = step.ways.length ? `${count(step.ways.length, "product")}: ${step.ways.join("; ")} ` : "";
  if (step.kind === "kernel") return el("span", {}, chips);
  if (step.kind === "chain") return el("span", {}, products || "product ", chips.length ? "with " : "", chips);
  if (step.kind === "reshape") return el("span", {}, step.read_bytes ? "reshape, a copy" : "reshape, a view");
  return el("span", {}, step.kind, " ", step.name);
}

function stepsSection() {
  const whole = data.timing.call_ns;
  const most = Math.max(...data.steps.map((s) => s.ns || 0), 1);
  const quiet = (s) => (["alloc", "view", "slice"].includes(s.kind) || (s.kind === "reshape" && s.read_bytes === 0)) &&
    !(s.ns > whole / 100);
  const [box, body] = table(["step", "what", "time", "", "limit", "bytes; flops of products + other operations"], { class: "steps" });
  const row = (step) => el("tr", { id: `step-${step.index}`, "data-kernel": step.kernels[0] },
    el("td", { class: "number" }, String(step.index)),
    el("td", { class: "fill" }, stepName(step), step.module ? el("span", { class: "soft" }, ` ${step.module} `) : null,
      filled(el("details", {}, el("summary", { class: "soft" }, step.kind)),
        () => el("pre", {}, step.text))),
    el("td", { class: "number" }, time(step.ns), el("br"),
      el("span", { class: "soft" }, whole ? percent(step.ns, whole) : "")),
    el("td", {}, step.ns ? el("div", { class: "bar", title: limitWords(step) },
      el("i", { style: `width: ${100 * step.ns / most}%` }),
      step.limit_ns ? el("b", { style: `left: ${Math.min(100, 100 * step.limit_ns / most)}%` }) : null) : ""),
    el("td", { class: "limit" }, step.limit_ns ? `${time(step.limit_ns)}, ${step.limited_by}` : "", el("br"),
      el("span", { class: "soft" }, step.limit_ns ? `${percent(step.limit_ns, step.ns)} reached` : "")),
    el("td", { class: "number" }, step.read_bytes + step.written_bytes
      ? bytes(step.read_bytes + step.written_bytes) : "", el("br"),
      el("span", { class: "soft" }, [step.flops ? `${rate(step.flops)}flop` : null, step.vector_ops ? `${rate(step.vector_ops)}op` : null]
        .filter(Boolean).join(" + "))));
  const show = (all) => {
    body.replaceChildren();
    chunked(body, all ? data.steps : data.steps.filter((s) => !quiet(s)), row);
  };
  show(false);
  const [hidden, seen] = [data.steps.filter(quiet), data.steps.filter((s) => !quiet(s))];
  const all = el("input", { type: "checkbox", onchange: (e) => show(e.target.checked) });
  return [
    el("p", {}, "What the host does in one call, in this order. ", el("span", { class: "key" }),
      " time, beside the slowest step's, ", el("span", { class: "key limit" }), " what it could take at best: the largest of its bytes over the " +
      "bandwidth, its products' operations over the rate of products, and its other operations over the rate of arithmetic (a function, " +
      "as exp, counts as the operations that computing it takes)."),
    el("label", {}, all, ` also ${count(hidden.length, "step")} that only allocate or rename`), box,
    whole ? el("p", { class: "soft" }, `These steps take ${time(total(seen, "ns"))}, those that only allocate or rename ${time(total(hidden, "ns"))}, ` +
      `reading inputs and sizes before the first step ${time(data.timing.begin_ns)}, outputs after the last one ${time(data.timing.end_ns)}: ` +
      `${time(whole)} in all${data.timing.runs > 1 ? `, each the median of ${data.timing.runs} runs` : ""}.`) : null];
}

function border(row, who) {
  const words = row.does === "stores" ? ["stores ", "for "] : ["reads ", "from "];
  if (who) words[0] = row.does === "stores" ? "store " : "read ";
  return el("li", {}, who, words[0], el("code", {}, `%${row.value}: ${row.type}`), ", ", words[1], place(row.other),
    ": ", el("b", {}, row.reason), row.fact ? [" - ", el("code", {}, row.fact)] : null, ".");
}

function variant(made) {
  const title = `${made.layout}: ${made.tier}, ran ${count(made.launches, "time")} since it was made, ` +
    `compiled in ${time(made.compile_us * 1000)}`;
  return filled(el("details", {}, el("summary", {}, title, made.why_interp
    ? el("span", { class: "warn" }, ` not machine code: ${made.why_interp}`) : null)), () => {
    const body = el("tbody");
    const code = el("div", { class: "scroll" }, el("table", { class: "code" }, body));
    chunked(body, made.bytecode, (line) => el("tr", {}, el("td", {}, line.text),
      el("td", {}, line.meaning), el("td", {}, line.line)));
    const machine = made.assembly.length ? filled(el("details", {},
      el("summary", {}, `machine code, ${count(made.assembly.length, "line")}`)),
      () => el("pre", {}, made.assembly.join("\n"))) : null;
    return [code, machine];
  });
}

// "s21 = 59", of a size that is a symbol.
function valued(size) {
  const known = data.symbols.find((s) => s.name === size.split(" ")[0]);
  return known && known.value !== null ? size.replace(known.name, `${known.name} = ${known.value}`) : size;
}

function kernelDetails(kernel) {
  const step = kernel.step === null ? null : data.steps[kernel.step];
  const ran = kernel.variants.length > 0;
  const products = step && step.ways.length ? ` with its ${count(step.ways.length, "product")}` : "";
  const part = step && step.kind === "chain" ? "part of step" : "step";
  const cost = ran && step && step.ns !== null ? `, ${part} ${step.index}, which takes ${time(step.ns)}${products}` : "";
  const summary = el("summary", { "data-kernel": kernel.index }, el("span", { class: "chip kernel",
    style: hue(kernel.index) }, `${kernel.index} ${kernel.name}`),
    ` ${kernel.operators.length ? count(kernel.operators.length, "operator") : "a copy"} over [${kernel.axes.map(valued).join(", ")}]${cost}`,
    step && step.module ? el("span", { class: "soft" }, ` in ${step.module}`) : null);
  const details = el("details", { class: "kernel", id: `kernel-${kernel.index}`, style: hue(kernel.index) }, summary);
  return filled(details, () => [
    el("p", { class: "soft" }, kernel.lines.join(", ")),
    el("p", {}, kernel.operators.map((n) => [operatorChip(n), " "])),
    step && step.kind === "chain" && step.ways.length ? [el("h3", {}, "What it runs with"), el("p", {}, `${count(step.ways.length, "matrix product")} ` +
      `in step ${step.index}, as many rows at a time as fit in the cache, so that what passes between them stays there.`)] : null,
    el("h3", {}, "Why it is separate from other steps"),
    kernel.products.length ? el("ul", { class: "why" }, kernel.products.map((row) => border(row, "its products "))) : null,
    kernel.why_separate.length ? el("ul", { class: "why" }, kernel.why_separate.map((row) => border(row, "")))
      : kernel.products.length ? null : el("p", {}, kernel.operators.length ? "No stored value passes between this kernel and another one."
        : "It makes a copy, for a step of the host or where a layout asks for it."),
    ran && step && step.limit_ns ? [el("h3", {}, "What it costs"), el("p", {}, `Step ${step.index}${step.ways.length ? ", its products and this," : ""} takes ` +
      `${time(step.ns)}; ${limitWords(step)}. It reads ${bytes(step.read_bytes)} and writes ` +
      `${bytes(step.written_bytes)}.${step.ways.length ? " How much of that time is the products' was not measured." : ""}`)] : null,
    el("h3", {}, "Code"),
    step && step.ways.length ? el("p", { class: "soft" }, "Of this kernel; products run by code of the library, which is not shown.") : null,
    filled(el("details", {}, el("summary", {}, count(kernel.nodes.length, "node"))),
      () => el("pre", {}, kernel.nodes.join("\n"))),
    kernel.variants.length ? kernel.variants.map(variant)
      : el("p", { class: "soft" }, "Nothing is encoded: it has not run.")]);
}

// Which size it is: of the first input that has it by itself.
function ofInput(symbol) {
  for (const input of data.inputs) {
    const at = input.type.slice(input.type.indexOf("[") + 1, -1).split(", ").indexOf(symbol);
    if (at >= 0) return `, dim ${at} of ${input.name || `%${input.value}`},`;
  }
  return "";
}

let graphRows;

function graphSection() {
  const box = el("div", { class: "list operators", tabindex: 0, "aria-label": "Operators" });
  const place = (row) => row.kernel >= 0 ? kernelChip(row.kernel)
    : el("span", { class: "soft" }, row.step >= 0 ? `step ${row.step}, ${data.steps[row.step].kind}` : "made where it is used");
  graphRows = chunked(box, data.operators, (row) => el("div", { class: "operator", tabindex: -1,
    id: `operator-${row.index}`, "data-kernel": row.kernel },
    el("span", { class: "mono soft" }, row.values.map((v) => `%${v}`).join(" ")), place(row),
    el("code", {}, row.text.replaceAll(/\bv(\d+)\b/g, "%$1"), el("span", { class: "soft" }, `  ${row.types.join(", ")}`)),
    el("span", { class: "soft line" }, row.line)));
  const known = data.symbols.map((s) => el("li", {}, el("code", {}, s.name), ofInput(s.name),
    s.value === null ? "" : ` is ${s.value} in this call;`,
    ` at least ${s.min}${s.max === null ? "" : `, at most ${s.max}`}`,
    s.multiple_of > 1 ? `, a multiple of ${s.multiple_of}` : ""));
  const typed = (row) => [row.name ? `${row.name} ` : null, el("code", {}, `%${row.value}: ${row.type}`), " "];
  const many = data.inputs.length > 16;
  return [
    many ? filled(el("details", { class: "plain" }, el("summary", {}, `Takes ${count(data.inputs.length, "input")}, the module's own tensors among them`)),
      () => el("ul", { class: "why" }, data.inputs.map((row) => el("li", {}, typed(row))))) : el("p", {}, "Takes ", data.inputs.map(typed)),
    el("p", {}, "returns ", data.outputs.map(typed)),
    el("h3", {}, "What is known of the sizes"), el("ul", { class: "why" }, known,
      data.guards.map((g) => el("li", {}, "this program runs where ", el("code", {}, g))),
      data.checks.map((c) => el("li", {}, "each call checks ", el("code", {}, c)))),
    el("h3", {}, "Operators"), el("p", { class: "soft" }, "The colour is the kernel; point at one to see the others."), box];
}

function decisionsSection() {
  const [box, body] = table(["value", "why it is stored", "the fact or the unknown", "from", "for"]);
  chunked(body, data.decisions, (row) => el("tr", { "data-kernel": row.maker ? row.maker.kernel : -1 },
    el("td", {}, el("code", {}, `%${row.value}`), el("br"), el("code", { class: "soft" }, row.type)),
    el("td", {}, row.reason), el("td", {}, el("code", {}, row.fact)),
    el("td", {}, place(row.maker)), el("td", {}, place(row.reader))));
  return [el("p", {}, "Where one kernel ends and another begins: values that are stored between them."),
    data.decisions.length ? box : el("p", {}, "None: nothing is stored.")];
}

function calloutsSection() {
  const [box, body] = table(["operator", "why", "line"]);
  chunked(body, given.call_outs, (c) => el("tr", {}, el("td", {}, el("code", {}, c.name)),
    el("td", {}, c.reason), el("td", {}, c.line)));
  return given.call_outs.length ? box : el("p", {}, "None: every operator is a kernel, a product or a view.");
}

const PHASES = {
  "capture by torch.export, and import": "PyTorch runs the function once, on tensors without elements, and writes down its operators",
  lower: "operators become simpler ones, with sizes that are computed from each other",
  fuse: "what becomes one kernel, what is stored between kernels",
  "host program": "the steps of a call, and where buffers lie",
  "encode and emit": "bytecode and machine code of the variants of kernels",
};

function compilingSection() {
  const [box, body] = table(["phase", "what it does", "time"]);
  for (const row of [...data.compiling, { phase: "all", us: data.summary.compile_us }])
    body.append(el("tr", {}, el("td", {}, row.phase), el("td", {}, PHASES[row.phase] || ""),
      el("td", { class: "number" }, time(row.us * 1000))));
  return [el("p", {}, "What was paid once, for all calls of this kind: by the first one, and where a later one has another layout."), box];
}

const WORDS = [
  ["%12: float32[S, 384]", "A value, its dtype and its sizes, the outermost dim first. Letters are sizes that calls bring."],
  ["factor", "What a matrix product multiplies: the left one has the result's rows, the right one its columns."],
  ["fold, reduced", "A sum, maximum or the like over an axis."],
  ["arena", "The memory that values between steps share, each for its life."],
  ["call-out", "An operator that the framework (PyTorch) runs."],
  ["kernel, axes", "A loop, or loops in one another, over the same elements; axes in brackets are its sizes, outermost first."],
  ["step", "What the host does at one place of a call: run a kernel or a chain, allocate, rename, call the framework."],
  ["launch", "A step that is a kernel or a chain. A chain may run its kernels several times, some rows each."],
  ["view", "A value that is another one's memory with other sizes or strides: nothing is copied."],
  ["made where it is used", "Computed anew by each kernel that reads it, because that is cheaper than memory: constants, copies along a dim."],
  ["node", "An operation of a kernel over its axes; what bytecode is made of."],
  ["chain", "Matrix products with the kernels before and behind them, some rows at a time, so that what passes between stays in the cache."],
  ["[59, 384] x [384, 1536] by dots", "A product of matrices of these sizes, for each batch, and the way it is computed. Sizes, and how the right matrix " +
    "lies in memory, decide; crossings were measured."],
  ["sweep", "A way for few rows: the right matrix is read once, from front to back."],
  ["dots", "A way for rows up to 128 where columns of the right matrix lie together, as a Linear's weights do: rows times columns, some of each at a time."],
  ["tiles", "A way where rows of the right matrix lie together: blocks of the result stay in registers, and the right matrix is read where it lies."],
  ["packed", "The right matrix is copied into panels that blocks of registers read in order; ahead: once, for weights that do not change. " +
    "In pairs or pieces: of bfloat16, for instructions that multiply two at a time. `freeze=True` lets weights be packed ahead."],
  ["by library", "PyTorch's own product, which was measured to be quicker here."],
  ["variant", "A kernel's code for one kind of layout: which operands are rows, columns, single elements. It is made when a call first has it; " +
    "sizes are its arguments."],
];

function wordsSection() {
  return el("dl", {}, WORDS.map(([word, meaning]) => [el("dt", {}, el("b", {}, word)), el("dd", {}, meaning)]));
}
