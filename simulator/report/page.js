"use strict";
// Draws the timeline and the memory of the packed data. Times are nanoseconds; `view` is the span that both canvases show.

const data = JSON.parse(document.getElementById("data").textContent);
const LABEL_PX = 176, ROW_GAP_PX = 6, MOST_NAMED = 8, MEMORY_PX = 190, LEAST_NS = 200, LEAST_TEXT_PX = 34;
const SLOT_PX = data.ranks.length > 16 ? 14 : 24, LINE_PX = data.ranks.length > 16 ? 3 : 5;
const TRANSFER_COLOUR = "#7d8793";
const view = { from: 0, until: data.lastsNs };
const byId = (id) => document.getElementById(id);
const timeline = byId("timeline"), memory = byId("memory"), tip = byId("tip"), scroller = timeline.parentElement;
const styled = (name) => getComputedStyle(document.documentElement).getPropertyValue(name);  // a colour of the style sheet

// Every stream becomes columns in the order of time.
function unpack(rank) {
  for (const lane of rank.lanes) {
    const count = lane.runs.filter((_, at) => at % 3 === 0).reduce((sum, word) => sum + data.words[word].length, 0);
    const [start, end] = [0, 1].map(() => new Float64Array(count)), [label, step] = [0, 1].map(() => new Int32Array(count));
    Object.assign(lane, { start, end, label, step });
    let at = 0, now = 0;
    for (let run = 0; run < lane.runs.length; run += 3) {
      now += lane.runs[run + 1];
      for (const entry of data.words[lane.runs[run]]) {
        now += data.entries[4 * entry];
        lane.start[at] = now;
        now += data.entries[4 * entry + 1];
        lane.end[at] = now;
        lane.label[at] = data.entries[4 * entry + 2];
        const step = lane.runs[run + 2];
        lane.step[at] = data.entries[4 * entry + 3] ? rank.steps[step][7] : step;
        at += 1;
      }
    }
  }
  rank.memory = rank.memory.map((differences) => {
    let sum = 0;
    return differences.map((difference) => (sum += difference));
  });
  const [compute, ...others] = rank.lanes;
  rank.compute = compute && compute.name === "compute" ? compute : null;
  rank.others = rank.compute ? others : rank.lanes;
  const slots = rank.steps.map(([kind, stage, microbatch, chunk, half, start, end], at) => (
    { at, kind, stage, microbatch, chunk, half, start, end }));
  rank.slots = slots.filter((slot) => slot.end > slot.start).sort((one, other) => one.start - other.start);
}

function place() {
  let top = 24;
  for (const rank of data.ranks) {
    rank.top = top;
    top += SLOT_PX + LINE_PX * rank.others.length + ROW_GAP_PX;
  }
  return top;
}

function prepared(canvas, height) {
  const scale = window.devicePixelRatio || 1, width = canvas.clientWidth || 1000;
  canvas.width = Math.round(width * scale);
  canvas.height = Math.round(height * scale);
  canvas.style.height = `${height}px`;
  const pen = canvas.getContext("2d");
  pen.scale(scale, scale);
  pen.clearRect(0, 0, width, height);
  return [pen, width];
}

const shade = (kind, chunk) => {
  const colours = (data.kinds[kind] || { colours: [TRANSFER_COLOUR] }).colours;
  return colours[Math.min(chunk, colours.length - 1)];
};
const faint = (colour) => `${colour}73`;  // 45% of the colour
const dark = (colour) => {
  const [red, green, blue] = [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue < 130;
};

// The first place whose end is behind a time, in columns or slots that are in the order of time.
function firstBehind(count, endOf, ns) {
  let low = 0, high = count;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (endOf(middle) <= ns) low = middle + 1;
    else high = middle;
  }
  return low;
}

function show(ns) {
  if (ns <= 0) return "0 s";
  const [factor, unit] = ns >= 1e9 ? [1e9, "s"] : ns >= 1e6 ? [1e6, "ms"] : [1e3, "us"];
  return `${(ns / factor).toPrecision(5).replace(/(\.\d*?)0+$/, "$1").replace(/\.$/, "")} ${unit}`;
}
// An instant, in the unit of the axis and with as many digits as can be told apart on it.
const unitOf = (span) => span >= 2e9 ? [1e9, "s", 9] : span >= 2e6 ? [1e6, "ms", 6] : [1e3, "us", 3];
const grouped = (number, digits) =>
  number.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits });
function showAt(ns) {
  const span = view.until - view.from, [factor, unit, most] = unitOf(span);
  return `${grouped(ns / factor, Math.max(0, Math.min(most, Math.ceil(Math.log10((1e4 * factor) / span)))))} ${unit}`;
}
const showBytes = (bytes) => bytes >= 2 ** 30 ? `${(bytes / 2 ** 30).toFixed(1)} GiB` : `${(bytes / 2 ** 20).toFixed(1)} MiB`;

function roundStep(rough) {
  const power = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 5, 10].map((n) => n * power).find((n) => n >= rough);
}

// Lines at round times, from `top` on, with their labels above them unless `labels` is false.
function ticks(pen, width, x, top, bottom, labels) {
  const span = view.until - view.from, step = roundStep(span / Math.max(2, (width - LABEL_PX) / 110));
  const [factor, unit] = unitOf(span);
  const digits = Math.max(0, -Math.floor(Math.log10(step / factor) + 1e-9));
  pen.font = "11px system-ui, sans-serif";
  pen.textAlign = "center";
  for (let ns = Math.ceil(view.from / step) * step; ns <= view.until; ns += step) {
    pen.fillStyle = styled("--grid");
    pen.fillRect(x(ns), top + (labels ? 18 : 0), 1, bottom);
    pen.fillStyle = styled("--soft");
    if (labels && x(ns) < width - 20) pen.fillText(`${grouped(ns / factor, digits)} ${unit}`, x(ns), top + 13);
  }
}

function drawTimeline() {
  const height = place(), [pen, width] = prepared(timeline, height), scale = (width - LABEL_PX) / (view.until - view.from);
  const x = (ns) => LABEL_PX + (ns - view.from) * scale;
  ticks(pen, width, x, 0, height, true);
  for (const rank of data.ranks) {
    pen.save();
    pen.beginPath();
    pen.rect(LABEL_PX, 0, width, height);
    pen.clip();
    drawSlots(pen, rank, x, scale);
    if (rank.compute) drawKernels(pen, rank, x, scale);
    rank.others.forEach((lane, number) => drawLine(pen, lane, rank.top + SLOT_PX + 1 + number * LINE_PX, x, scale));
    pen.restore();
    pen.textAlign = "left";
    pen.fillStyle = styled("--ink");
    pen.font = `600 ${SLOT_PX > 20 ? 12 : 11}px system-ui, sans-serif`;
    pen.fillText(rank.name, 0, rank.top + 11, LABEL_PX - 8);
    if (SLOT_PX > 20) {
      pen.fillStyle = styled("--soft");
      pen.font = "11px system-ui, sans-serif";
      pen.fillText(rank.about, 0, rank.top + 25, LABEL_PX - 8);
    }
  }
  if (scroller.scrollTop > 0) {  // the labels of the axis stay in sight
    pen.fillStyle = styled("--paper");
    pen.fillRect(0, scroller.scrollTop, width, 18);
    ticks(pen, width, x, scroller.scrollTop, 0, true);
  }
  if (chosen) {
    pen.fillStyle = "rgba(110, 150, 200, 0.3)";
    pen.fillRect(Math.min(chosen.from, chosen.until), 18, Math.abs(chosen.until - chosen.from), height);
  }
  byId("span").textContent = `${showAt(view.from)} to ${showAt(view.until)} of ${show(data.lastsNs)}`;
}

const box = (rank, half) => half ? [rank.top + (half === 2 ? SLOT_PX / 2 : 0), SLOT_PX / 2] : [rank.top, SLOT_PX];

function drawSlots(pen, rank, x, scale) {
  for (const slot of rank.slots) {
    if (slot.end < view.from || slot.start > view.until) continue;
    const wide = Math.max(0.4, (slot.end - slot.start) * scale), [top, high] = box(rank, slot.half);
    pen.fillStyle = faint(shade(slot.kind, slot.chunk));
    pen.fillRect(x(slot.start), top, Math.max(0.4, wide - (wide > 3 ? 0.6 : 0)), high);
  }
}

// Kernels lie over the slot that they are part of: where none runs, the slot is faint. Those too small to see are drawn as one.
function drawKernels(pen, rank, x, scale) {
  const lane = rank.compute, least = 0.7 / scale, named = new Set();
  let at = firstBehind(lane.end.length, (i) => lane.end[i], view.from);
  while (at < lane.end.length && lane.start[at] < view.until) {
    const step = rank.steps[lane.step[at]], from = lane.start[at], first = at;
    let until = lane.end[at];
    const goesOn = (next) => next < lane.end.length && lane.step[next] === lane.step[first] && lane.start[next] - until < least
      && lane.end[next] - lane.start[next] < 4 * least;
    while (goesOn(at + 1)) {
      at += 1;
      until = lane.end[at];
    }
    const colour = shade(step[0], step[3]), [top, high] = box(rank, step[4]), wide = (until - from) * scale;
    pen.fillStyle = colour;
    pen.fillRect(x(from), top, Math.max(0.4, wide - (wide > 4 ? 0.6 : 0)), high);
    if (at === first && wide > 2.4 * LEAST_TEXT_PX && high > 12) {
      named.add(lane.step[at]);
      write(pen, data.labels[lane.label[at]].replace(/ \([^()]*\)$/, ""), colour, x(from), wide, top + high / 2 + 4);
    }
    at += 1;
  }
  for (const slot of rank.slots) {
    const wide = (slot.end - slot.start) * scale, [top, high] = box(rank, slot.half);
    if (slot.microbatch < 0 || wide < 9 || high < 11 || named.has(slot.at)) continue;
    if (slot.end < view.from || slot.start > view.until) continue;
    write(pen, `${slot.microbatch}`, shade(slot.kind, slot.chunk), x(slot.start), wide, top + high / 2 + 4);
  }
}

// Writes a text in a box, if it has to be without its layer or cut off.
function write(pen, whole, behind, left, wide, y) {
  pen.font = "10.5px system-ui, sans-serif";
  const from = Math.max(left, LABEL_PX), until = Math.min(left + wide, timeline.clientWidth), room = until - from - 2;
  if (room < 6) return;
  const text = pen.measureText(whole).width > room ? whole.replace(/^layer \d+ /, "") : whole;
  const fits = Math.floor(text.length * Math.min(1, room / pen.measureText(text).width));
  if (fits < Math.min(text.length, 4)) return;
  pen.fillStyle = dark(behind) ? "#ffffff" : "#1d2430";
  pen.textAlign = "center";
  pen.fillText(fits < text.length ? `${text.slice(0, fits - 1)}…` : text, (from + until) / 2, y);
}

function drawLine(pen, lane, top, x, scale) {
  pen.fillStyle = shade(lane.axis, 0);
  let at = firstBehind(lane.end.length, (i) => lane.end[i], view.from);
  while (at < lane.end.length && lane.start[at] < view.until) {
    const from = lane.start[at];
    let until = lane.end[at];
    while (at + 1 < lane.end.length && (lane.start[at + 1] - until) * scale < 0.5) {
      at += 1;
      until = Math.max(until, lane.end[at]);
    }
    pen.fillRect(x(from), top, Math.max(0.5, (until - from) * scale), LINE_PX - 1);
    at += 1;
  }
}

// Ranks of one place in the pipeline hold the same, and have one curve. The legend names all curves, or the first, the last and
// some between, evenly spaced.
const texts = data.ranks.map((rank) => JSON.stringify(rank.memory));
const curves = data.ranks.filter((_, at) => texts.indexOf(texts[at]) === at), lines = Math.min(curves.length, MOST_NAMED);
const namedCurves = Array.from({ length: lines }, (_, line) => Math.round((line * (curves.length - 1)) / Math.max(1, lines - 1)));
const colourOfCurve = (number) => `hsl(${Math.round(220 - (200 * number) / Math.max(1, curves.length - 1))} 65% 45%)`;

function drawMemory() {
  const [pen, width] = prepared(memory, MEMORY_PX), scale = (width - LABEL_PX) / (view.until - view.from);
  const x = (ns) => LABEL_PX + (ns - view.from) * scale;
  const peak = (rank) => rank.memory[1].reduce((one, other) => Math.max(one, other), 0);
  const most = Math.max(data.capacityBytes, ...curves.map(peak));
  const y = (bytes) => MEMORY_PX - 6 - (bytes / most) * (MEMORY_PX - 18), capacityY = y(data.capacityBytes);
  ticks(pen, width, x, 0, MEMORY_PX, false);
  [pen.textAlign, pen.font] = ["right", "11px system-ui, sans-serif"];
  const step = roundStep(most / 2 ** 30 / 4);
  for (let line = 0; line * step * 2 ** 30 <= most; line += 1) {
    const at = y(line * step * 2 ** 30);
    pen.fillStyle = styled("--grid");
    pen.fillRect(LABEL_PX, at, width, 1);
    pen.fillStyle = styled("--soft");
    if (Math.abs(at - capacityY) > 12) pen.fillText(`${+(line * step).toPrecision(6)} GiB`, LABEL_PX - 6, at + 4);
  }
  pen.fillText(`one GPU, ${showBytes(data.capacityBytes)}`, LABEL_PX - 6, capacityY + 4);
  pen.save();
  pen.beginPath();
  pen.rect(LABEL_PX, 0, width, MEMORY_PX);
  pen.clip();
  pen.strokeStyle = styled("--bad");
  pen.setLineDash([5, 4]);
  pen.beginPath();
  pen.moveTo(LABEL_PX, capacityY);
  pen.lineTo(width, capacityY);
  pen.stroke();
  pen.setLineDash([]);
  curves.forEach((rank, number) => {
    const [times, held] = rank.memory;
    pen.strokeStyle = colourOfCurve(number);
    pen.lineWidth = 1.2;
    pen.beginPath();
    let at = Math.max(0, firstBehind(times.length, (i) => times[i], view.from) - 1);
    pen.moveTo(x(times[at]), y(held[at]));
    for (; at < times.length && (at === 0 || times[at - 1] <= view.until); at += 1) {
      pen.lineTo(x(times[at]), y(held[Math.max(0, at - 1)]));
      pen.lineTo(x(times[at]), y(held[at]));
    }
    pen.lineTo(x(data.lastsNs), y(held[at - 1]));
    pen.stroke();
  });
  pen.restore();
}

const draw = () => { drawTimeline(); drawMemory(); };

// What lies below the pointer: a kernel, a slot, or an operation of another stream.
function found(px, py) {
  const ns = nsAt(px);
  const rank = data.ranks.find((one) => py >= one.top && py < one.top + SLOT_PX + LINE_PX * one.others.length + ROW_GAP_PX);
  if (!rank || px < LABEL_PX) return null;
  const number = Math.floor((py - rank.top - SLOT_PX) / LINE_PX);
  const lane = number < 0 ? rank.compute : rank.others[Math.min(number, rank.others.length - 1)];
  const slot = number < 0 ? rank.slots.filter((one) => one.start <= ns && ns < one.end)
    .find((one) => !one.half || (one.half === 2) === (py - rank.top > SLOT_PX / 2)) : null;
  if (!lane) return null;
  const at = firstBehind(lane.end.length, (i) => lane.end[i], ns);
  const here = at < lane.end.length && lane.start[at] <= ns;
  return { ns, rank, lane, slot, at: here ? at : -1 };
}

function described(what) {
  const { rank, lane, slot, at } = what, lines = [`${rank.name}, ${rank.about}`];
  if (at >= 0) {
    lines.push(`${data.labels[lane.label[at]]}`);
    lines.push(`${lane.name}: ${show(lane.end[at] - lane.start[at])} from ${showAt(lane.start[at])}`);
  }
  const step = slot ? [slot.kind, slot.stage, slot.microbatch] : at >= 0 ? rank.steps[lane.step[at]] : null;
  if (step) {
    const [kind, stage, microbatch] = step, name = (data.kinds[kind] || { name: kind }).name;
    lines.push(`${name}${microbatch >= 0 ? `, microbatch ${microbatch}` : ""}${stage >= 0 ? `, stage ${stage}` : ""}`);
  }
  if (slot) lines.push(`the slot: ${show(slot.end - slot.start)} from ${showAt(slot.start)}`);
  if (!slot && at < 0) lines.push(`${lane.name === "compute" ? "idle" : `${lane.name}: nothing`} at ${showAt(what.ns)}`);
  return lines.join("\n");
}

function tell(event, text) {
  tip.textContent = text;
  tip.style.display = text ? "block" : "none";
  tip.style.left = `${Math.min(event.clientX + 14, window.innerWidth - tip.offsetWidth - 8)}px`;
  tip.style.top = `${Math.min(event.clientY + 16, window.innerHeight - tip.offsetHeight - 8)}px`;
}

function look(from, until) {
  const span = Math.min(data.lastsNs, Math.max(Math.min(LEAST_NS, data.lastsNs), until - from));
  view.from = Math.min(Math.max(0, from), data.lastsNs - span);
  view.until = view.from + span;
  draw();
}
const zoom = (factor, about = (view.from + view.until) / 2) =>
  look(about - (about - view.from) * factor, about + (view.until - about) * factor);
const move = (share) => look(view.from + share * (view.until - view.from), view.until + share * (view.until - view.from));
const nsAt = (px) =>
  view.from + ((Math.max(px, LABEL_PX) - LABEL_PX) / (timeline.clientWidth - LABEL_PX)) * (view.until - view.from);

let chosen = null;
timeline.addEventListener("mousedown", (event) => { chosen = { from: event.offsetX, until: event.offsetX }; });
timeline.addEventListener("mousemove", (event) => {
  if (chosen) {
    chosen.until = Math.max(event.offsetX, LABEL_PX);
    drawTimeline();
  }
  const what = found(event.offsetX, event.offsetY);
  tell(event, what && !chosen ? described(what) : "");
});
window.addEventListener("mouseup", () => {
  if (!chosen) return;
  const from = Math.min(chosen.from, chosen.until), until = Math.max(chosen.from, chosen.until);
  chosen = null;
  if (until - from > 4) look(nsAt(from), nsAt(until));
  else drawTimeline();
});
for (const canvas of [timeline, memory]) canvas.addEventListener("mouseleave", (event) => tell(event, ""));
timeline.addEventListener("dblclick", () => look(0, data.lastsNs));
timeline.addEventListener("wheel", (event) => {
  if (event.ctrlKey || event.metaKey) zoom(event.deltaY > 0 ? 1.25 : 0.8, nsAt(event.offsetX));
  else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) move((event.deltaX || event.deltaY) / 1500);
  else return;
  event.preventDefault();
}, { passive: false });
timeline.addEventListener("keydown", (event) => {
  const left = () => move(-0.2), right = () => move(0.2), closer = () => zoom(0.6), farther = () => zoom(1 / 0.6);
  const does = { ArrowLeft: left, a: left, ArrowRight: right, d: right, "+": closer, "=": closer, w: closer, "-": farther,
    s: farther, 0: () => look(0, data.lastsNs) }[event.key];
  if (!does || event.ctrlKey || event.metaKey || event.altKey) return;
  does();
  event.preventDefault();
});
memory.addEventListener("mousemove", (event) => {
  const ns = nsAt(event.offsetX);
  const said = namedCurves.map((number) => {
    const rank = curves[number], [times, held] = rank.memory, at = firstBehind(times.length, (i) => times[i], ns) - 1;
    return `${rank.name}: ${showBytes(held[Math.max(0, at)])}`;
  });
  tell(event, event.offsetX >= LABEL_PX ? [`at ${showAt(ns)}`, ...said].join("\n") : "");
});
byId("in").addEventListener("click", () => zoom(0.5));
byId("out").addEventListener("click", () => zoom(2));
byId("all").addEventListener("click", () => look(0, data.lastsNs));
window.addEventListener("resize", draw);
scroller.addEventListener("scroll", drawTimeline);
for (const query of ["print", "(prefers-color-scheme: dark)"]) window.matchMedia(query).addEventListener("change", draw);

data.ranks.forEach(unpack);
const kindsOf = (rank) => [...rank.slots.map((slot) => slot.kind), ...rank.others.map((lane) => lane.axis)];
const used = new Set(data.ranks.flatMap(kindsOf));
function explain(legend, colour, name) {
  const entry = document.createElement("span"), swatch = document.createElement("i");
  swatch.style.background = colour;
  entry.append(swatch, name);
  byId(legend).append(entry);
}
for (const kind of [...Object.keys(data.kinds), ""].filter((key) => used.has(key))) {
  explain("kinds", shade(kind, 0), (data.kinds[kind] || { name: "waits of all ranks for each other" }).name);
}
const inSlots = ["B", "I", "F"].find((kind) => used.has(kind));
if (inSlots) explain("kinds", faint(shade(inSlots, 0)), "faint: no kernel of the slot runs");
namedCurves.forEach((number) => explain("curves", colourOfCurve(number), curves[number].name));
const asked = /^#(\d+(?:\.\d+)?)-(\d+(?:\.\d+)?)$/.exec(window.location.hash);  // report.html#1200-1300 shows these milliseconds
if (asked) look(1e6 * asked[1], 1e6 * asked[2]);
else draw();
const lanes = data.ranks.flatMap((rank) => rank.lanes);
document.body.dataset.bars = lanes.reduce((sum, lane) => sum + lane.end.length, 0);
document.body.dataset.ends = lanes.map((lane) => lane.end[lane.end.length - 1]).join(" ");
document.body.dataset.curves = namedCurves.map((number) => curves[number].name).join("; ");
document.body.dataset.state = "ready";
