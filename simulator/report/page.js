"use strict";
// Draws the timeline and the memory of the packed data. Times are nanoseconds; `view` is the span that both canvases show.

const data = JSON.parse(document.getElementById("data").textContent);
const LABEL_PX = 176, ROW_GAP_PX = 6, MOST_NAMED = 8, MEMORY_PX = 190, LEAST_NS = 200, LEAST_TEXT_PX = 34;
const SLOT_PX = data.ranks.length > 16 ? 14 : 24, LINE_PX = data.ranks.length > 16 ? 3 : 5;
const TRANSFER_COLOUR = "#7d8793";
const view = { from: 0, until: data.lastsNs };
const byId = (id) => document.getElementById(id);
const timeline = byId("timeline"), memory = byId("memory"), tip = byId("tip");

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
const showBytes = (bytes) => bytes >= 2 ** 30 ? `${(bytes / 2 ** 30).toFixed(1)} GiB` : `${(bytes / 2 ** 20).toFixed(1)} MiB`;

function ticks(pen, width, x, bottom, labels) {
  const span = view.until - view.from, rough = span / Math.max(2, (width - LABEL_PX) / 110);
  const power = 10 ** Math.floor(Math.log10(rough)), step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= rough);
  const [factor, unit] = span >= 2e9 ? [1e9, "s"] : span >= 2e6 ? [1e6, "ms"] : [1e3, "us"];
  const digits = Math.max(0, -Math.floor(Math.log10(step / factor) + 1e-9));
  pen.font = "11px system-ui, sans-serif";
  pen.textAlign = "center";
  for (let ns = Math.ceil(view.from / step) * step; ns <= view.until; ns += step) {
    pen.fillStyle = "#e8ebef";
    pen.fillRect(x(ns), labels ? 18 : 0, 1, bottom);
    pen.fillStyle = "#5c6675";
    if (labels && x(ns) < width - 20) pen.fillText(`${(ns / factor).toFixed(digits)} ${unit}`, x(ns), 13);
  }
}

function drawTimeline() {
  const height = place(), [pen, width] = prepared(timeline, height), scale = (width - LABEL_PX) / (view.until - view.from);
  const x = (ns) => LABEL_PX + (ns - view.from) * scale;
  ticks(pen, width, x, height, true);
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
    pen.fillStyle = "#1d2430";
    pen.font = `600 ${SLOT_PX > 20 ? 12 : 11}px system-ui, sans-serif`;
    pen.fillText(rank.name, 0, rank.top + 11, LABEL_PX - 8);
    if (SLOT_PX > 20) {
      pen.fillStyle = "#5c6675";
      pen.font = "11px system-ui, sans-serif";
      pen.fillText(rank.about, 0, rank.top + 25, LABEL_PX - 8);
    }
  }
  if (chosen) {
    pen.fillStyle = "rgba(49, 85, 127, 0.18)";
    pen.fillRect(Math.min(chosen.from, chosen.until), 18, Math.abs(chosen.until - chosen.from), height);
  }
  byId("span").textContent = `${show(view.from)} to ${show(view.until)} of ${show(data.lastsNs)}`;
}

const box = (rank, half) => half ? [rank.top + (half === 2 ? SLOT_PX / 2 : 0), SLOT_PX / 2] : [rank.top, SLOT_PX];

function drawSlots(pen, rank, x, scale) {
  pen.textAlign = "center";
  pen.font = `${SLOT_PX > 20 ? 11 : 9}px system-ui, sans-serif`;
  for (const slot of rank.slots) {
    if (slot.end < view.from || slot.start > view.until) continue;
    const colour = shade(slot.kind, slot.chunk), left = x(slot.start), wide = Math.max(0.4, (slot.end - slot.start) * scale);
    const [top, high] = box(rank, slot.half);
    pen.globalAlpha = 0.45;
    pen.fillStyle = colour;
    pen.fillRect(left, top, Math.max(0.4, wide - (wide > 3 ? 0.6 : 0)), high);
    pen.globalAlpha = 1;
  }
}

// Kernels lie over the slot that they are part of: where none runs, the slot is pale. Those too small to see are drawn as one.
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

function write(pen, text, behind, left, wide, y) {
  pen.font = "10.5px system-ui, sans-serif";
  const from = Math.max(left, LABEL_PX), until = Math.min(left + wide, timeline.clientWidth), room = until - from - 2;
  if (room < 6) return;
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

// Ranks of one place in the pipeline hold the same, and have one curve. The curves with a name beside them are all, or the first,
// the last and some between, evenly spaced.
const texts = data.ranks.map((rank) => JSON.stringify(rank.memory));
const curves = data.ranks.filter((_, at) => texts.indexOf(texts[at]) === at);
const lines = Math.min(curves.length, MOST_NAMED);
const namedCurves = Array.from({ length: lines }, (_, line) => Math.round((line * (curves.length - 1)) / Math.max(1, lines - 1)));
const colourOfCurve = (number) => `hsl(${Math.round(220 - (200 * number) / Math.max(1, curves.length - 1))} 65% 45%)`;

function drawMemory() {
  const [pen, width] = prepared(memory, MEMORY_PX), scale = (width - LABEL_PX) / (view.until - view.from);
  const x = (ns) => LABEL_PX + (ns - view.from) * scale;
  const peak = (rank) => rank.memory[1].reduce((one, other) => Math.max(one, other), 0);
  const most = Math.max(data.capacityBytes, ...curves.map(peak));
  const y = (bytes) => MEMORY_PX - 4 - (bytes / most) * (MEMORY_PX - 16);
  ticks(pen, width, x, MEMORY_PX, false);
  pen.textAlign = "right";
  pen.fillStyle = "#5c6675";
  pen.font = "11px system-ui, sans-serif";
  pen.fillText("0", LABEL_PX - 6, y(0));
  pen.fillText(`${showBytes(data.capacityBytes)}, one GPU`, LABEL_PX - 6, y(data.capacityBytes) + 4);
  pen.save();
  pen.beginPath();
  pen.rect(LABEL_PX, 0, width, MEMORY_PX);
  pen.clip();
  pen.strokeStyle = "#b3261e";
  pen.setLineDash([5, 4]);
  pen.beginPath();
  pen.moveTo(LABEL_PX, y(data.capacityBytes));
  pen.lineTo(width, y(data.capacityBytes));
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
  pen.textAlign = "left";
  pen.font = "11px system-ui, sans-serif";
  namedCurves.forEach((number, line) => {
    pen.fillStyle = colourOfCurve(number);
    pen.fillText(curves[number].name, 0, 40 + 16 * line, LABEL_PX - 8);
  });
}

function draw() {
  drawTimeline();
  drawMemory();
}

// What lies below the pointer: a kernel, a slot, or an operation of another stream.
function found(px, py) {
  const ns = view.from + ((px - LABEL_PX) * (view.until - view.from)) / (timeline.clientWidth - LABEL_PX);
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
    lines.push(`${lane.name}: ${show(lane.end[at] - lane.start[at])} from ${show(lane.start[at])}`);
  }
  const step = slot ? [slot.kind, slot.stage, slot.microbatch] : at >= 0 ? rank.steps[lane.step[at]] : null;
  if (step) {
    const [kind, stage, microbatch] = step, name = (data.kinds[kind] || { name: kind }).name;
    lines.push(`${name}${microbatch >= 0 ? `, microbatch ${microbatch}` : ""}${stage >= 0 ? `, stage ${stage}` : ""}`);
  }
  if (slot) lines.push(`the slot: ${show(slot.end - slot.start)} from ${show(slot.start)}`);
  if (!slot && at < 0) lines.push(`${lane.name === "compute" ? "idle" : `${lane.name}: nothing`} at ${show(what.ns)}`);
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
function zoom(factor, at) {
  const about = at === undefined ? (view.from + view.until) / 2 : at;
  look(about - (about - view.from) * factor, about + (view.until - about) * factor);
}
const move = (share) => look(view.from + share * (view.until - view.from), view.until + share * (view.until - view.from));
const nsAt = (px) => {
  const share = (Math.max(px, LABEL_PX) - LABEL_PX) / (timeline.clientWidth - LABEL_PX);
  return view.from + share * (view.until - view.from);
};

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
  const [from, until] = [chosen.from, chosen.until].sort((one, other) => one - other);
  chosen = null;
  if (until - from > 4) look(nsAt(from), nsAt(until));
  else drawTimeline();
});
timeline.addEventListener("mouseleave", (event) => tell(event, ""));
timeline.addEventListener("dblclick", () => look(0, data.lastsNs));
timeline.addEventListener("wheel", (event) => {
  if (event.ctrlKey || event.metaKey) zoom(event.deltaY > 0 ? 1.25 : 0.8, nsAt(event.offsetX));
  else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) move((event.deltaX || event.deltaY) / 1500);
  else return;
  event.preventDefault();
}, { passive: false });
timeline.addEventListener("keydown", (event) => {
  const does = {
    ArrowLeft: () => move(-0.2), ArrowRight: () => move(0.2),
    "+": () => zoom(0.6), "=": () => zoom(0.6), "-": () => zoom(1 / 0.6),
    0: () => look(0, data.lastsNs),
  }[event.key];
  if (!does) return;
  does();
  event.preventDefault();
});
memory.addEventListener("mousemove", (event) => {
  const ns = nsAt(event.offsetX);
  const said = namedCurves.map((number) => {
    const rank = curves[number], [times, held] = rank.memory, at = firstBehind(times.length, (i) => times[i], ns) - 1;
    return `${rank.name}: ${showBytes(held[Math.max(0, at)])}`;
  });
  tell(event, event.offsetX >= LABEL_PX ? [`at ${show(ns)}`, ...said].join("\n") : "");
});
memory.addEventListener("mouseleave", (event) => tell(event, ""));
byId("in").addEventListener("click", () => zoom(0.5));
byId("out").addEventListener("click", () => zoom(2));
byId("all").addEventListener("click", () => look(0, data.lastsNs));
window.addEventListener("resize", draw);

data.ranks.forEach(unpack);
const kindsOf = (rank) => [...rank.slots.map((slot) => slot.kind), ...rank.others.map((lane) => lane.axis)];
const used = new Set(data.ranks.flatMap(kindsOf));
for (const kind of [...Object.keys(data.kinds), ""].filter((key) => used.has(key))) {
  const entry = document.createElement("span"), swatch = document.createElement("i");
  swatch.style.background = shade(kind, 0);
  entry.append(swatch, (data.kinds[kind] || { name: "waits of all ranks for each other" }).name);
  byId("kinds").append(entry);
}
const asked = /^#(\d+(?:\.\d+)?)-(\d+(?:\.\d+)?)$/.exec(window.location.hash);  // report.html#1200-1300 shows these milliseconds
if (asked) look(1e6 * asked[1], 1e6 * asked[2]);
else draw();
const lanes = data.ranks.flatMap((rank) => rank.lanes);
document.body.dataset.bars = lanes.reduce((sum, lane) => sum + lane.end.length, 0);
document.body.dataset.ends = lanes.map((lane) => lane.end[lane.end.length - 1]).join(" ");
document.body.dataset.curves = namedCurves.map((number) => curves[number].name).join("; ");
document.body.dataset.state = "ready";
document.title = `${data.title} (ready)`;
