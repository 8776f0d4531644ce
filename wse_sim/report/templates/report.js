"use strict";
// The page's script: unpacks the maps, draws what the window shows, sorts tables.
(async function () {
  const data = JSON.parse(document.getElementById("data").textContent);
  const { rows, cols } = data;
  const wafer = document.getElementById("wafer");
  const MOST_CELLS = 420; // across the window; more than a screen shows is wasted work
  const GRID_BELOW = 60; // cores across the window from which single cores are set apart

  async function inflate(text) {
    const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Uint8Array(await new Response(stream).arrayBuffer());
  }
  async function unpack(map) {
    const raw = await inflate(map.data);
    if (map.kind === "f4") {
      const count = raw.length / 4, sorted = new Uint8Array(raw.length);
      for (let p = 0; p < 4; p++) for (let i = 0; i < count; i++) sorted[4 * i + p] = raw[p * count + i];
      return new Float32Array(sorted.buffer);
    }
    const index = map.kind === "u1" ? raw : new Uint16Array(raw.buffer);
    return Float32Array.from(index, (i) => map.palette[i]);
  }

  const values = {};
  for (const layer of data.layers) values[layer.key] = await unpack(layer);
  const used = await unpack(data.used), kernel = await unpack(data.kernel);
  const areaOf = new Int32Array(rows * cols).fill(-1);
  (data.time ? data.time.areas : []).forEach(([row, col, height, width], i) => {
    for (let r = row; r < row + height; r++) areaOf.fill(i, r * cols + col, r * cols + col + width);
  });

  const state = { layer: data.layers[0], bin: 0, window: null };
  const isLink = (layer) => layer.key.startsWith("link_");

  function valueAt(key, row, col) { return values[key][row * cols + col]; }
  function shownValue(i) {
    if (state.layer.key === "busy" && state.bin > 0) {
      return areaOf[i] < 0 ? NaN : data.time.shares[areaOf[i]][state.bin - 1];
    }
    return isLink(state.layer) || used[i] ? values[state.layer.key][i] : NaN;
  }

  // Level of detail: the cells of the window, folded into blocks of f x f cores.
  function cells(r0, r1, c0, c1) {
    const f = Math.max(1, Math.ceil(Math.max(r1 - r0, c1 - c0) / MOST_CELLS));
    const z = [], takesMaximum = state.layer.fold === "max";
    for (let r = r0; r < r1; r += f) {
      const line = new Array(Math.ceil((c1 - c0) / f));
      for (let k = 0, c = c0; c < c1; c += f, k++) {
        let sum = 0, count = 0, top = -Infinity;
        for (let y = r; y < Math.min(r + f, r1); y++) for (let x = c; x < Math.min(c + f, c1); x++) {
          const v = shownValue(y * cols + x);
          if (v === v) { sum += v; count++; if (v > top) top = v; }
        }
        line[k] = count ? (takesMaximum ? top : sum / count) : null;
      }
      z.push(line);
    }
    return { z, f };
  }

  function windowOf() {
    const layout = wafer._fullLayout;
    const xr = layout ? layout.xaxis.range : [-0.5, cols - 0.5];
    const yr = layout ? layout.yaxis.range : [rows - 0.5, -0.5];
    const clip = (v, n) => Math.max(0, Math.min(n, v));
    const c0 = clip(Math.floor(Math.min(...xr) + 0.5), cols), c1 = clip(Math.ceil(Math.max(...xr) + 0.5), cols);
    const r0 = clip(Math.floor(Math.min(...yr) + 0.5), rows), r1 = clip(Math.ceil(Math.max(...yr) + 0.5), rows);
    return { r0, r1: Math.max(r1, r0 + 1), c0, c1: Math.max(c1, c0 + 1) };
  }
  // A quarter more on each side: what comes into sight while dragging is there already.
  function widened(w) {
    const y = Math.ceil((w.r1 - w.r0) / 4), x = Math.ceil((w.c1 - w.c0) / 4);
    return { r0: Math.max(0, w.r0 - y), r1: Math.min(rows, w.r1 + y), c0: Math.max(0, w.c0 - x), c1: Math.min(cols, w.c1 + x) };
  }

  function shortName(name) { return name.split(".").slice(-3).join("."); }

  function overlay(w) {
    const shapes = [], annotations = [];
    const scale = (wafer._fullLayout ? wafer._fullLayout.xaxis._length : 600) / (w.c1 - w.c0);
    if (document.getElementById("show-regions").checked) {
      for (const [name, row, col, height, width] of data.regions) {
        if (row >= w.r1 || row + height <= w.r0 || col >= w.c1 || col + width <= w.c0) continue;
        if (Math.min(height, width) * scale < 4 || shapes.length > 500) continue;
        shapes.push({ type: "rect", x0: col - 0.5, x1: col + width - 0.5, y0: row - 0.5, y1: row + height - 0.5,
          line: { color: "rgba(255,255,255,0.8)", width: 1 } });
        const top = Math.max(row, w.r0), bottom = Math.min(row + height, w.r1);
        const left = Math.max(col, w.c0), right = Math.min(col + width, w.c1);
        const text = shortName(name);
        const across = (right - left) * scale, down = (bottom - top) * scale, length = 6.4 * text.length;
        const isUpright = across < length && down > across;
        if (isLink(state.layer) || annotations.length >= 150) continue;
        if ((isUpright ? down : across) > length && (isUpright ? across : down) > 13) {
          annotations.push({ x: (left + right - 1) / 2, y: (top + bottom - 1) / 2, text, showarrow: false,
            textangle: isUpright ? -90 : 0, font: { size: 11, color: "#fff" }, captureevents: false });
        }
      }
    }
    if (document.getElementById("show-dies").checked) {
      const [down, across] = data.dies, line = { color: "#ef4444", width: 1, dash: "dot" };
      for (let i = 1; i < down; i++) {
        const y = (i * rows) / down - 0.5;
        shapes.push({ type: "line", x0: -0.5, x1: cols - 0.5, y0: y, y1: y, line });
      }
      for (let i = 1; i < across; i++) {
        const x = (i * cols) / across - 0.5;
        shapes.push({ type: "line", x0: x, x1: x, y0: -0.5, y1: rows - 0.5, line });
      }
    }
    return { shapes, annotations };
  }

  function heat(inner) {
    const w = widened(inner), { z, f } = cells(w.r0, w.r1, w.c0, w.c1);
    const gap = Math.max(inner.r1 - inner.r0, inner.c1 - inner.c0) <= GRID_BELOW ? 1 : 0;
    const top = state.layer.unit.startsWith("share") ? 1 : state.layer.top || 1;
    return { z, f, gap, top, x0: w.c0 + (f - 1) / 2, y0: w.r0 + (f - 1) / 2 };
  }

  let drawing = false;
  async function draw(ranges) {
    drawing = true;
    const w = ranges || windowOf();
    const h = heat(w), over = overlay(w);
    state.window = { ...w, block: h.f };
    const unit = state.layer.key === "busy" && state.bin ? "share of the time bin" : state.layer.unit;
    const bar = { title: { text: unit, side: "right" }, thickness: 14, len: 0.8 };
    const traces = [
      { type: "heatmap", z: h.z, x0: h.x0, dx: h.f, y0: h.y0, dy: h.f, zmin: 0, zmax: h.top, colorscale: "Viridis",
        hoverinfo: "skip", xgap: h.gap, ygap: h.gap, zsmooth: false, colorbar: bar },
    ];
    const full = wafer._fullLayout;
    const xRange = ranges ? [w.c0 - 0.5, w.c1 - 0.5] : full ? full.xaxis.range.slice() : [-0.5, cols - 0.5];
    const yRange = ranges ? [w.r1 - 0.5, w.r0 - 0.5] : full ? full.yaxis.range.slice() : [rows - 0.5, -0.5];
    const ticks = Math.max(w.r1 - w.r0, w.c1 - w.c0) <= 12 ? { tickmode: "linear", tick0: 0, dtick: 1 } : { tickmode: "auto" };
    const layout = {
      margin: { l: 54, r: 10, t: 30, b: 44 }, dragmode: "pan", plot_bgcolor: "#d4d4d8", ...over,
      xaxis: { range: xRange, title: { text: "column of cores (west to east)", font: { size: 12 } }, constrain: "domain",
        showgrid: false, zeroline: false, ...ticks },
      yaxis: { range: yRange, title: { text: "row of cores (north to south)", font: { size: 12 } }, constrain: "domain",
        scaleanchor: "x", showgrid: false, zeroline: false, ...ticks },
    };
    await Plotly.react(wafer, traces, layout, { scrollZoom: true, displaylogo: false, responsive: true, doubleClick: false,
      modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d", "resetScale2d"] });
    // Equal scales widen one of the two ranges that were asked for: fill what came into sight.
    const seen = windowOf();
    if (ranges && (seen.r0 < w.r0 || seen.r1 > w.r1 || seen.c0 < w.c0 || seen.c1 > w.c1)) return draw();
    drawing = false;
    const folds = state.layer.fold === "max" ? "largest" : "mean";
    const rounded = state.layer.rounded ? ` Values of this layer are rounded to one part in ${state.layer.rounded}.` : "";
    document.getElementById("map-hint").textContent = (h.f > 1
      ? `One cell shows the ${folds} of ${h.f} x ${h.f} cores; zoom in for single cores.` : "One cell is one core.")
      + " Grey cores run no kernel." + rounded;
  }

  // No wider than the wafer at this height needs, so that the color bar stays beside it.
  wafer.style.width = `${Math.max(420, Math.round((686 * cols) / rows)) + 190}px`;

  const whole = { r0: 0, r1: rows, c0: 0, c1: cols };
  async function setLayer(key) {
    state.layer = data.layers.find((layer) => layer.key === key);
    for (const b of document.querySelectorAll("#layers button")) b.setAttribute("aria-pressed", b.dataset.layer === key);
    document.getElementById("time-controls").hidden = !(data.time && key === "busy");
    await draw();
  }
  for (const layer of data.layers) {
    const button = document.createElement("button");
    button.type = "button"; button.textContent = layer.title; button.dataset.layer = layer.key;
    button.addEventListener("click", () => setLayer(layer.key));
    document.getElementById("layers").append(button);
  }

  // What the pointer is over: exact values of one core at every zoom.
  function time(s) {
    if (s >= 1) return `${s.toPrecision(4)} s`;
    return s >= 1e-3 ? `${(s * 1e3).toPrecision(4)} ms` : `${(s * 1e6).toPrecision(4)} us`;
  }
  function describe(row, col) {
    const i = row * cols + col, index = kernel[i];
    const lines = [["core (row, column)", `${row}, ${col}`]];
    if (index >= 0) lines.push(["kernel", data.kernels[index]], ["family", data.families[index]]);
    else lines.push(["kernel", used[i] ? "all in turn" : "none"]);
    const region = index >= 0 && data.regions.find(([name, r, c, h, w]) => row >= r && row < r + h && col >= c && col < c + w);
    if (region) lines.push(["region", `${region[3]} x ${region[4]} at (${region[1]}, ${region[2]})`]);
    for (const layer of data.layers) {
      const v = values[layer.key][i];
      const text = layer.unit.startsWith("share") ? `${(100 * v).toFixed(2)} %` : layer.key === "sram"
        ? `${(v / 1024).toFixed(2)} KiB` : v.toLocaleString("en-US", { maximumFractionDigits: 1 });
      lines.push([layer.title.toLowerCase(), text, layer.key, v]);
    }
    if (state.bin > 0 && areaOf[i] >= 0) {
      lines.push(["busy in this bin", `${(100 * data.time.shares[areaOf[i]][state.bin - 1]).toFixed(2)} %`]);
    }
    const list = document.getElementById("core");
    list.replaceChildren(...lines.flatMap(([name, text, key, v]) => {
      const dt = document.createElement("dt"), dd = document.createElement("dd");
      dt.textContent = name; dd.textContent = text;
      if (key) { dd.dataset.key = key; dd.dataset.value = v; }
      return [dt, dd];
    }));
    list.dataset.row = row; list.dataset.col = col;
  }
  wafer.addEventListener("mousemove", (event) => {
    const layout = wafer._fullLayout;
    if (!layout) return;
    const box = wafer.getBoundingClientRect();
    const col = Math.round(layout.xaxis.p2c(event.clientX - box.left - layout.xaxis._offset));
    const row = Math.round(layout.yaxis.p2c(event.clientY - box.top - layout.yaxis._offset));
    if (row >= 0 && row < rows && col >= 0 && col < cols) describe(row, col);
  });

  if (data.time) {
    const slider = document.getElementById("time-slider"), out = document.getElementById("time-value");
    const bins = data.time.shares[0].length, width = (data.time.end_s - data.time.start_s) / bins;
    slider.max = bins;
    slider.addEventListener("input", () => {
      state.bin = Number(slider.value);
      const start = data.time.start_s + (state.bin - 1) * width;
      out.textContent = state.bin ? `${time(start)} to ${time(start + width)} of simulated time` : "the whole step";
      draw();
    });
    out.textContent = "the whole step";
  }
  for (const id of ["show-regions", "show-dies"]) document.getElementById(id).addEventListener("change", () => draw());
  document.getElementById("reset-view").addEventListener("click", () => draw(whole));

  await draw(whole);
  await setLayer("busy");
  let wait = 0;
  wafer.on("plotly_relayout", (change) => {
    if (drawing || !Object.keys(change).some((key) => key.startsWith("xaxis.range") || key.startsWith("yaxis.range"))) return;
    clearTimeout(wait);
    wait = setTimeout(() => draw(), 60);
  });
  wafer.on("plotly_doubleclick", () => draw(whole));

  // Timeline and counters.
  const COLORS = { compute: "#2a9d8f", forward: "#2a9d8f", backward: "#e07b39", update: "#35b779", weights: "#7c5cbf", gradients: "#c0508a", spill: "#8f3a14",
    input: "#e9a23b", sync: "#52525b", stall: "#e76f51" };
  const timelineNode = document.getElementById("timeline-plot"), line = data.timeline;
  // Half rows for the two directions of training: where slices are joined, one would hide the other.
  const HALF = { forward: [0.2, 0.4], backward: [-0.2, 0.4] };
  const MOST_BARS = 2500;
  let slices = null, timelineDrawing = false;

  // Level of detail: slices of one row and kind closer than the resolution are one bar.
  function bars(from, to) {
    let resolution = 0, found = [];
    for (;;) {
      found = []; const open = new Map();
      for (let i = 0; i < line.count; i++) {
        const [start, length, track, kind, name] = slices.subarray(5 * i, 5 * i + 5), end = start + length;
        if (end < from || start > to) continue;
        const key = track * 64 + kind, last = open.get(key);
        if (last && resolution && start - last.end <= resolution) {
          last.end = Math.max(last.end, end); last.busy += length; last.count++;
        } else {
          const bar = { track, kind, name, start, end, busy: length, count: 1 };
          found.push(bar); open.set(key, bar);
          if (found.length > MOST_BARS) break;
        }
      }
      if (found.length <= MOST_BARS || resolution > to - from) return { found, resolution };
      resolution = resolution ? resolution * 2 : (to - from) / 4000;
    }
  }
  async function drawTimeline(range) {
    const hint = document.getElementById("timeline-hint");
    if (!line.count) { hint.textContent = "This run kept no timeline."; return; }
    timelineDrawing = true;
    const full = timelineNode._fullLayout, [from, to] = range || full.xaxis.range.map((v) => v / 1e3);
    const { found, resolution } = bars(from, to), byKind = new Map();
    for (const bar of found) byKind.set(bar.kind, [...(byKind.get(bar.kind) || []), bar]);
    const traces = [...byKind].sort((a, b) => a[0] - b[0]).map(([kind, rows]) => {
      const [offset, width] = HALF[line.kinds[kind]] || [0, 0.8];
      return { type: "bar", orientation: "h", name: line.kinds[kind], marker: { color: COLORS[line.kinds[kind]] || "#888" },
        width, y: rows.map((b) => b.track - offset), base: rows.map((b) => b.start * 1e3), x: rows.map((b) => (b.end - b.start) * 1e3),
        customdata: rows.map((b) => [line.tracks[b.track], b.count > 1 ? `${b.count} slices, ${line.kinds[kind]}` : line.names[b.name],
          time(b.start), time(b.end - b.start), `${((100 * b.busy) / (b.end - b.start || 1)).toFixed(0)} %`]),
        hovertemplate: "%{customdata[0]}<br>%{customdata[1]}<br>from %{customdata[2]}, %{customdata[3]} long, %{customdata[4]} covered<extra></extra>" };
    });
    const height = Math.max(240, Math.min(1100, 110 + 15 * line.tracks.length));
    const every = Math.max(1, Math.ceil((13 * line.tracks.length) / (height - 90)));
    const shown = line.tracks.map((_, i) => i).filter((i) => i % every === 0);
    const rowsRange = range ? [line.tracks.length - 0.4, -0.6] : full.yaxis.range.slice();
    await Plotly.react(timelineNode, traces, { barmode: "overlay", height, margin: { l: 210, r: 10, t: 8, b: 44 }, dragmode: "pan",
      legend: { orientation: "h", y: 1.01, yanchor: "bottom", x: 0, itemclick: false, itemdoubleclick: false }, hovermode: "closest", showlegend: true,
      xaxis: { title: { text: "simulated time (ms)" }, range: [from * 1e3, to * 1e3] },
      yaxis: { tickvals: shown, ticktext: shown.map((i) => line.tracks[i]).map((n) => (n.length > 30 ? "…" + n.slice(-29) : n)),
        range: rowsRange, tickfont: { size: 10 } } }, { scrollZoom: true, displaylogo: false, responsive: true, doubleClick: false });
    timelineDrawing = false;
    hint.textContent = `${line.count.toLocaleString("en-US")} slices`
      + (resolution ? `; slices of one row closer than ${time(resolution)} are joined, zoom in to tell them apart.` : ".")
      + " Drag to move, turn the wheel to zoom, double-click for all of it.";
  }
  const allTime = [0, line.end_s];
  if (line.count) slices = new Float64Array((await inflate(line.data)).buffer);
  await drawTimeline(allTime);
  if (line.count) {
    let later = 0;
    timelineNode.on("plotly_relayout", (change) => {
      if (timelineDrawing || !Object.keys(change).some((key) => key.startsWith("xaxis.range"))) return;
      clearTimeout(later);
      later = setTimeout(() => drawTimeline(), 60);
    });
    timelineNode.on("plotly_doubleclick", () => drawTimeline(allTime));
  }
  const counters = Object.entries(data.counters);
  if (counters.length) {
    Plotly.newPlot("counter-plot", counters.map(([name, points]) => ({ type: "scatter", mode: "lines", name,
      line: { shape: "hv", width: 1.5 }, x: points.map((p) => p[0] * 1e3), y: points.map((p) => p[1]) })),
    { height: 240, margin: { l: 210, r: 10, t: 8, b: 44 }, showlegend: true, legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0 },
      xaxis: { title: { text: "simulated time (ms)" }, range: allTime.map((v) => v * 1e3) }, yaxis: { rangemode: "tozero" } }, { displaylogo: false, responsive: true });
  }

  // Tables: numbers by data-value, else text.
  for (const table of document.querySelectorAll("table.sortable")) {
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) => head.addEventListener("click", () => {
      const isUp = head.getAttribute("aria-sort") === "descending";
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", isUp ? "ascending" : "descending");
      const key = (row) => { const cell = row.cells[column]; return cell.dataset.value === undefined ? cell.textContent : Number(cell.dataset.value); };
      const order = [...table.tBodies[0].rows].sort((a, b) => {
        const [x, y] = [key(a), key(b)];
        return (typeof x === "number" ? x - y : String(x).localeCompare(String(y))) * (isUp ? 1 : -1);
      });
      table.tBodies[0].append(...order);
    }));
  }

  window.report = { data, valueAt, setLayer, state, zoomTo: (r0, r1, c0, c1) => draw({ r0, r1, c0, c1 }),
    pixelOf(row, col) {
      const box = wafer.getBoundingClientRect(), l = wafer._fullLayout;
      return [box.left + l.xaxis._offset + l.xaxis.c2p(col), box.top + l.yaxis._offset + l.yaxis.c2p(row)];
    }, isReady: true };
})();
