"use strict";
// The timeline and the counters of the page: bars and steps on canvases, joined where they cannot be told apart.
window.drawTimelines = async function () {
  const { data, inflate, time, style, clean, ticks, redraws } = window.report, line = data.timeline;
  const COLORS = { compute: "#2a9d8f", forward: "#2a9d8f", backward: "#e07b39", update: "#35b779", weights: "#7c5cbf", gradients: "#c0508a", spill: "#a8481c",
    input: "#e9a23b", sync: "#71717a", stall: "#e76f51" };
  const SERIES = ["#3b82f6", "#e07b39", "#2a9d8f", "#c0508a", "#7c5cbf", "#a3a322"];
  // Half rows for the two directions of training: where slices are joined, one would hide the other.
  const HALF = { forward: [-0.4, 0.4], backward: [0, 0.4] };
  const MOST_BARS = 2500;
  const node = document.getElementById("timeline-plot"), hint = document.getElementById("timeline-hint");
  if (!line.count) { hint.textContent = "This run kept no timeline."; return; }
  const slices = new Float64Array((await inflate(line.data)).buffer);
  const canvas = document.createElement("canvas"), tip = document.createElement("div"), legend = document.createElement("div");
  tip.className = "tip"; tip.hidden = true; legend.className = "legend";
  node.append(legend, canvas, tip);
  const left = () => (canvas.clientWidth < 600 ? 96 : 210), span = [0, line.end_s], BOTTOM = 36, TOP = 4;
  canvas.style.height = `${Math.max(160, Math.min(1040, 44 + 15 * line.tracks.length))}px`;
  canvas.tabIndex = 0; canvas.setAttribute("role", "img"); canvas.setAttribute("aria-label", "Timeline: drag to move, turn the wheel to zoom");
  for (const kind of line.kinds) {
    const entry = document.createElement("span"), mark = document.createElement("i");
    mark.style.background = COLORS[kind] || "#888"; entry.append(mark, kind); legend.append(entry);
  }

  // Level of detail: slices of one row and kind closer than the resolution are one bar.
  function bars(from, to) {
    for (let resolution = 0; ; resolution = resolution ? resolution * 2 : (to - from) / 4000) {
      const found = [], open = new Map();
      for (let n = 0; n < 5 * line.count && found.length <= MOST_BARS; n += 5) {
        const start = slices[n], length = slices[n + 1], end = start + length;
        if (start > to) break; // in order of their start
        if (end < from) continue;
        const track = slices[n + 2], kind = slices[n + 3], key = track * 64 + kind, last = open.get(key);
        if (last && resolution && start - last.end <= resolution) { last.end = Math.max(last.end, end); last.busy += length; last.count++; continue; }
        const bar = { track, kind, name: slices[n + 4], start, end, busy: length, count: 1 };
        found.push(bar); open.set(key, bar);
      }
      if (found.length <= MOST_BARS || resolution > to - from) return { found, resolution };
    }
  }
  let shown = [];
  const px = (s, l, width) => l + ((s - span[0]) / (span[1] - span[0])) * width;
  function axis(g, l, width, base) {
    g.fillStyle = style("--soft"); g.strokeStyle = style("--line"); g.font = "11px system-ui, sans-serif"; g.textAlign = "center"; g.textBaseline = "top";
    for (const ms of ticks(span[0] * 1e3, span[1] * 1e3, width / ((span[1] - span[0]) * 1e3), 80, 0)) {
      const x = px(ms / 1e3, l, width);
      g.beginPath(); g.moveTo(x, TOP); g.lineTo(x, base); g.stroke();
      g.fillText(Number(ms.toPrecision(10)), x, base + 4);
    }
    g.fillText("simulated time (ms)", l + width / 2, base + 19);
  }
  function draw() {
    const g = clean(canvas), l = left(), width = canvas.clientWidth - l - 10, base = canvas.clientHeight - BOTTOM, step = (base - TOP) / line.tracks.length;
    const { found, resolution } = bars(...span);
    axis(g, l, width, base);
    g.textAlign = "right"; g.textBaseline = "middle"; g.fillStyle = style("--soft"); g.font = "10px system-ui, sans-serif";
    const every = Math.max(1, Math.ceil(12 / step)), letters = l < 120 ? 14 : 32;
    line.tracks.forEach((name, i) => {
      if (i % every === 0) g.fillText(name.length > letters ? "…" + name.slice(1 - letters) : name, l - 6, TOP + (i + 0.5) * step);
    });
    g.save(); g.beginPath(); g.rect(l, TOP, width, base - TOP); g.clip();
    shown = found.map((bar) => {
      const [offset, part] = HALF[line.kinds[bar.kind]] || [-0.4, 0.8], x = px(bar.start, l, width);
      const box = { bar, x, y: TOP + (bar.track + 0.5 + offset) * step, width: Math.max(1, px(bar.end, l, width) - x), height: Math.max(1, part * step) };
      g.fillStyle = COLORS[line.kinds[bar.kind]] || "#888"; g.fillRect(box.x, box.y, box.width, box.height);
      return box;
    });
    g.restore();
    hint.textContent = `${line.count.toLocaleString("en-US")} slices`
      + (resolution ? `; slices of one row closer than ${time(resolution)} are joined, zoom in to tell them apart.` : ".")
      + " Drag to move, turn the wheel to zoom, double-click for all of it.";
  }
  let waiting = 0;
  const soon = () => { cancelAnimationFrame(waiting); waiting = requestAnimationFrame(draw); };
  const at = (event) => { const box = canvas.getBoundingClientRect(); return [event.clientX - box.left, event.clientY - box.top]; };
  let grip = null;
  canvas.addEventListener("pointerdown", (event) => { grip = at(event)[0]; canvas.setPointerCapture(event.pointerId); });
  for (const end of ["pointerup", "pointercancel"]) canvas.addEventListener(end, () => (grip = null));
  canvas.addEventListener("pointerleave", () => (tip.hidden = true));
  canvas.addEventListener("pointermove", (event) => {
    const [x, y] = at(event), width = canvas.clientWidth - left() - 10;
    if (grip !== null) {
      const moved = ((grip - x) / width) * (span[1] - span[0]);
      span[0] += moved; span[1] += moved; grip = x; tip.hidden = true; soon();
      return;
    }
    const box = shown.findLast((b) => x >= b.x - 1 && x <= b.x + b.width + 1 && y >= b.y && y <= b.y + b.height);
    tip.hidden = !box;
    if (!box) return;
    const { bar } = box, length = bar.end - bar.start;
    tip.textContent = [line.tracks[bar.track], bar.count > 1 ? `${bar.count} slices, ${line.kinds[bar.kind]}` : line.names[bar.name],
      `from ${time(bar.start)}, ${time(length)} long, ${((100 * bar.busy) / (length || 1)).toFixed(0)} % covered`].join("\n");
    tip.style.left = `${Math.max(0, Math.min(canvas.clientWidth - 260, x + 12))}px`; tip.style.top = `${canvas.offsetTop + y + 14}px`;
  });
  canvas.addEventListener("wheel", (event) => {
    event.preventDefault();
    const width = canvas.clientWidth - left() - 10, s = span[0] + ((at(event)[0] - left()) / width) * (span[1] - span[0]);
    const factor = Math.exp(event.deltaY / 500), next = Math.max(line.end_s * 1e-7, Math.min(2 * line.end_s, (span[1] - span[0]) * factor));
    const part = (s - span[0]) / (span[1] - span[0]);
    span[0] = s - part * next; span[1] = span[0] + next; soon();
  }, { passive: false });
  canvas.addEventListener("dblclick", () => { span[0] = 0; span[1] = line.end_s; soon(); });
  redraws.push(draw);
  draw();

  // Counters: steps over the whole time.
  const counters = Object.entries(data.counters);
  if (!counters.length) return;
  const plot = document.getElementById("counter-plot"), chart = document.createElement("canvas"), names = document.createElement("div");
  names.className = "legend"; chart.style.height = "230px"; plot.append(names, chart);
  counters.forEach(([name], i) => {
    const entry = document.createElement("span"), mark = document.createElement("i");
    mark.style.background = SERIES[i % SERIES.length]; entry.append(mark, name); names.append(entry);
  });
  function drawCounters() {
    const g = clean(chart), l = left(), width = chart.clientWidth - l - 10, base = chart.clientHeight - BOTTOM, kept = [...span];
    span[0] = 0; span[1] = line.end_s;
    const top = Math.max(1, ...counters.flatMap(([, points]) => points.map((p) => p[1])));
    axis(g, l, width, base);
    g.textAlign = "right"; g.textBaseline = "middle"; g.fillStyle = style("--soft");
    for (const v of ticks(0, top, (base - TOP) / top, 36, 0)) g.fillText(v.toLocaleString("en-US"), l - 6, base - (v / top) * (base - TOP));
    counters.forEach(([, points], i) => {
      g.strokeStyle = SERIES[i % SERIES.length]; g.lineWidth = 1.5; g.beginPath();
      points.forEach(([s, v], k) => {
        const x = px(s, l, width), y = base - (v / top) * (base - TOP);
        if (k) g.lineTo(x, base - (points[k - 1][1] / top) * (base - TOP)); else g.moveTo(x, y);
        g.lineTo(x, y);
      });
      g.stroke();
    });
    [span[0], span[1]] = kept;
  }
  redraws.push(drawCounters);
  drawCounters();
};
