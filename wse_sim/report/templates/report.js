"use strict";
// The page's script: unpacks the maps, draws on canvases what their windows show, sorts tables.
(async function () {
  const data = JSON.parse(document.getElementById("data").textContent);
  const { rows, cols } = data;
  const wafer = document.getElementById("wafer");
  const MOST_CELLS = 420; // across the window; more than a screen shows is wasted work
  const GRID_BELOW = 60; // cores across the window from which single cores are set apart
  const LEAST_WIDTH = 120; // of a map that is drawn
  const MARGIN = { left: 52, right: 12, top: 8, bottom: 40 };

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
    const palette = Float32Array.from(map.palette), values = new Float32Array(index.length);
    for (let i = 0; i < index.length; i++) values[i] = palette[index[i]];
    return values;
  }

  // Maps are unpacked when they are first shown, the others after the first picture.
  const values = {};
  async function load(layer) { values[layer.key] ??= await unpack(layer); }
  const used = await unpack(data.used);
  let kernel = null;
  const areaOf = new Int32Array(rows * cols).fill(-1);
  (data.time ? data.time.areas : []).forEach(([row, col, height, width], i) => {
    for (let r = row; r < row + height; r++) areaOf.fill(i, r * cols + col, r * cols + col + width);
  });

  // Viridis, by its nine stops.
  const STOPS = [[68, 1, 84], [71, 44, 122], [59, 81, 139], [44, 113, 142], [33, 144, 141], [39, 173, 129], [92, 200, 99], [170, 220, 50], [253, 231, 37]];
  const SCALE = new Uint32Array(257);
  for (let i = 0; i <= 256; i++) {
    const at = Math.min(7, Math.floor(i / 32)), part = i / 32 - at;
    const [r, g, b] = STOPS[at].map((v, k) => Math.round(v + (STOPS[at + 1][k] - v) * part));
    SCALE[i] = (255 << 24) | (b << 16) | (g << 8) | r;
  }
  const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  const state = { layer: data.layers.find((layer) => layer.key === "busy") || data.layers[0], bin: 0, window: null };
  const isLink = (layer) => layer.key.startsWith("link_");
  const DECADES = 5; // of the log scale
  const isLog = () => isLink(state.layer) && document.getElementById("log-scale").checked;
  // Where a value is on the color scale, 0 to 1.
  function position(v, top) {
    if (!isLog()) return v / top;
    return v > 0 ? 1 + Math.log10(v / top) / DECADES : 0;
  }
  function valueAt(key, row, col) { return values[key][row * cols + col]; }
  function shownValue(i) {
    if (state.layer.key === "busy" && state.bin > 0) return areaOf[i] < 0 ? NaN : data.time.fractions[areaOf[i]][state.bin - 1];
    return isLink(state.layer) || used[i] ? values[state.layer.key][i] : NaN;
  }

  // Canvas, color bar and view: `scale` pixels per core, `x0`, `y0` the core's place at the frame's corner.
  const canvas = document.createElement("canvas"), bar = document.createElement("div");
  canvas.setAttribute("role", "img"); canvas.setAttribute("aria-label", "Map of the wafer: drag to move, turn the wheel or pinch to zoom");
  canvas.tabIndex = 0;
  bar.className = "colorbar";
  wafer.append(canvas, bar);
  const view = { x0: 0, y0: 0, scale: 1 };
  const frame = () => ({ width: canvas.clientWidth - MARGIN.left - MARGIN.right, height: canvas.clientHeight - MARGIN.top - MARGIN.bottom });
  function show(r0, r1, c0, c1) {
    const f = frame();
    view.scale = Math.min(f.width / (c1 - c0), f.height / (r1 - r0));
    view.x0 = (c0 + c1 - f.width / view.scale) / 2;
    view.y0 = (r0 + r1 - f.height / view.scale) / 2;
  }
  function windowOf() {
    const f = frame(), clip = (v, n) => Math.max(0, Math.min(n, v));
    const c0 = clip(Math.floor(view.x0), cols - 1), c1 = clip(Math.ceil(view.x0 + f.width / view.scale), cols);
    const r0 = clip(Math.floor(view.y0), rows - 1), r1 = clip(Math.ceil(view.y0 + f.height / view.scale), rows);
    return { r0, r1: Math.max(r1, r0 + 1), c0, c1: Math.max(c1, c0 + 1) };
  }
  const px = (col) => MARGIN.left + (col - view.x0) * view.scale, py = (row) => MARGIN.top + (row - view.y0) * view.scale;

  // Level of detail: the cells of the window, folded into blocks of f x f cores, as one small picture.
  const small = document.createElement("canvas");
  function picture(w, top) {
    const f = Math.max(1, Math.ceil(Math.max(w.r1 - w.r0, w.c1 - w.c0) / MOST_CELLS)), takesMaximum = state.layer.fold === "max";
    small.width = Math.ceil((w.c1 - w.c0) / f); small.height = Math.ceil((w.r1 - w.r0) / f);
    const image = new ImageData(small.width, small.height), pixels = new Uint32Array(image.data.buffer);
    for (let r = w.r0, n = 0; r < w.r1; r += f) for (let c = w.c0; c < w.c1; c += f, n++) {
      let sum = 0, count = 0, most = -Infinity;
      for (let y = r; y < Math.min(r + f, w.r1); y++) for (let x = c; x < Math.min(c + f, w.c1); x++) {
        const v = shownValue(y * cols + x);
        if (v === v) { sum += v; count++; if (v > most) most = v; }
      }
      if (count) pixels[n] = SCALE[Math.max(0, Math.min(256, Math.round(256 * position(takesMaximum ? most : sum / count, top))))];
    }
    small.getContext("2d").putImageData(image, 0, 0);
    return f;
  }

  const shortName = (name) => name.split(".").slice(-3).join(".");
  // The slowest region and, on link layers, the busiest link; a chosen region is outlined too.
  function outline(g, [name, row, col, height, width], color, label) {
    g.lineWidth = 2.5; g.strokeStyle = color; g.strokeRect(px(col), py(row), Math.max(3, width * view.scale), Math.max(3, height * view.scale));
    g.font = "bold 12px system-ui, sans-serif"; g.textAlign = "left"; g.textBaseline = "bottom";
    const most = MARGIN.left + frame().width - g.measureText(label).width - 3; // a label near the east edge ends there
    const x = Math.max(MARGIN.left + 3, Math.min(px(col), most)), y = Math.max(MARGIN.top + 15, py(row) - 3);
    g.lineWidth = 4; g.strokeStyle = "#18181b"; g.strokeText(label, x, y); g.fillStyle = color; g.fillText(label, x, y);
  }
  function mark(g) {
    const { slowest, link } = data.marks;
    if (slowest && !isLink(state.layer)) outline(g, slowest, "#fb923c", `slowest: ${shortName(slowest[0])}`);
    if (state.chosen && state.chosen !== slowest) outline(g, state.chosen, "#f472b6", shortName(state.chosen[0]));
    if (link && link.layer === state.layer.key) {
      outline(g, ["", link.row - 4, link.col - 4, 9, 9], "#fb923c", `busiest link, ${(100 * link.fraction).toFixed(1)} % of its capacity`);
    }
  }
  function overlay(g, w) {
    if (document.getElementById("show-regions").checked) {
      let drawn = 0, named = 0;
      g.lineWidth = 1; g.strokeStyle = "rgba(255,255,255,0.8)"; g.font = "11px system-ui, sans-serif"; g.textAlign = "center"; g.textBaseline = "middle";
      for (const [name, row, col, height, width] of data.regions) {
        if (row >= w.r1 || row + height <= w.r0 || col >= w.c1 || col + width <= w.c0) continue;
        if (Math.min(height, width) * view.scale < 4 || ++drawn > 500) continue;
        g.strokeRect(px(col), py(row), width * view.scale, height * view.scale);
        if (isLink(state.layer) || named >= 150) continue;
        const top = Math.max(row, w.r0), bottom = Math.min(row + height, w.r1), left = Math.max(col, w.c0), right = Math.min(col + width, w.c1);
        const text = shortName(name), across = (right - left) * view.scale, down = (bottom - top) * view.scale, length = 6.4 * text.length;
        const isUpright = across < length && down > across;
        if ((isUpright ? down : across) <= length || (isUpright ? across : down) <= 13) continue;
        named++;
        g.save(); g.translate(px((left + right) / 2), py((top + bottom) / 2)); if (isUpright) g.rotate(-Math.PI / 2);
        g.lineWidth = 3; g.strokeStyle = "#18181b"; g.strokeText(text, 0, 0); g.fillStyle = "#fff"; g.fillText(text, 0, 0); g.restore();
      }
    }
    mark(g, w);
    if (document.getElementById("show-dies").checked) {
      const [down, across] = data.die;
      g.strokeStyle = "#ef4444"; g.lineWidth = 1; g.setLineDash([2, 3]); g.beginPath();
      for (let row = down; row < rows; row += down) { g.moveTo(px(0), py(row)); g.lineTo(px(cols), py(row)); }
      for (let col = across; col < cols; col += across) { g.moveTo(px(col), py(0)); g.lineTo(px(col), py(rows)); }
      g.stroke(); g.setLineDash([]);
    }
  }

  // Round numbers that stand about `gap` pixels apart.
  function ticks(from, to, scale, gap, least) {
    const wanted = gap / scale, power = 10 ** Math.floor(Math.log10(wanted));
    const step = Math.max(least, [1, 2, 5, 10].map((n) => n * power).find((n) => n >= wanted)), found = [];
    for (let v = Math.ceil(from / step) * step; v <= to; v += step) found.push(v);
    return found;
  }
  function clean(node) {
    const dots = window.devicePixelRatio || 1, width = node.clientWidth, height = node.clientHeight;
    if (node.width !== Math.round(width * dots) || node.height !== Math.round(height * dots)) {
      node.width = Math.round(width * dots); node.height = Math.round(height * dots);
    }
    const g = node.getContext("2d");
    g.setTransform(dots, 0, 0, dots, 0, 0); g.clearRect(0, 0, width, height);
    return g;
  }

  function draw() {
    const g = clean(canvas), f = frame(), w = windowOf();
    const top = state.layer.key === "busy" && state.bin > 0 ? 1 : state.layer.end;
    const block = picture(w, top);
    state.window = { ...w, block };
    g.save();
    g.beginPath(); g.rect(MARGIN.left, MARGIN.top, f.width, f.height); g.clip();
    g.fillStyle = style("--unused"); g.fillRect(px(0), py(0), cols * view.scale, rows * view.scale);
    g.imageSmoothingEnabled = false;
    g.drawImage(small, px(w.c0), py(w.r0), small.width * block * view.scale, small.height * block * view.scale);
    if (Math.max(w.r1 - w.r0, w.c1 - w.c0) <= GRID_BELOW) {
      g.strokeStyle = style("--unused"); g.lineWidth = 1; g.beginPath();
      for (let c = w.c0; c <= w.c1; c++) { g.moveTo(px(c), py(w.r0)); g.lineTo(px(c), py(w.r1)); }
      for (let r = w.r0; r <= w.r1; r++) { g.moveTo(px(w.c0), py(r)); g.lineTo(px(w.c1), py(r)); }
      g.stroke();
    }
    overlay(g, w);
    g.restore();
    g.fillStyle = style("--soft"); g.font = "11px system-ui, sans-serif"; g.textBaseline = "middle"; g.textAlign = "right";
    for (const r of ticks(w.r0, w.r1 - 1, view.scale, 40, 1)) g.fillText(r, MARGIN.left - 6, py(r + 0.5));
    g.textAlign = "center"; g.textBaseline = "top";
    for (const c of ticks(w.c0, w.c1 - 1, view.scale, 55, 1)) g.fillText(c, px(c + 0.5), MARGIN.top + f.height + 5);
    g.fillText("column of cores (west to east)", MARGIN.left + f.width / 2, MARGIN.top + f.height + 22);
    g.save(); g.translate(12, MARGIN.top + f.height / 2); g.rotate(-Math.PI / 2); g.fillText("row of cores (north to south)", 0, -6); g.restore();
    const unit = state.layer.key === "busy" && state.bin ? "fraction of the time bin" : state.layer.unit;
    const number = (v) => v.toLocaleString("en-US", { maximumSignificantDigits: 3 });
    bar.innerHTML = "";
    const low = document.createElement("span"), ramp = document.createElement("i"), high = document.createElement("span"), what = document.createElement("span");
    low.textContent = isLog() ? `≤ ${number(top / 10 ** DECADES)}` : "0"; high.textContent = number(top); what.textContent = unit + (isLog() ? ", log scale" : "");
    bar.append(low, ramp, high, what);
    const rounded = state.layer.rounded ? ` Values of this layer are rounded to one part in ${state.layer.rounded}.` : "";
    document.getElementById("map-hint").textContent = (block > 1
      ? `One cell shows the ${state.layer.fold === "max" ? "largest" : "mean"} of ${block} x ${block} cores; zoom in for single cores.` : "One cell is one core.")
      + " Grey cores run no kernel." + rounded;
  }
  let waiting = 0;
  function soon() { cancelAnimationFrame(waiting); waiting = requestAnimationFrame(draw); }
  function zoomTo(r0, r1, c0, c1) { show(r0, r1, c0, c1); draw(); }
  const whole = () => zoomTo(0, rows, 0, cols);

  async function setLayer(key) {
    const layer = data.layers.find((one) => one.key === key);
    await load(layer);
    state.layer = layer;
    for (const b of document.querySelectorAll("#layers button")) b.setAttribute("aria-pressed", b.dataset.layer === key);
    document.getElementById("time-controls").hidden = !(data.time && key === "busy");
    document.getElementById("log-control").hidden = !isLink(layer);
    remember();
    draw();
  }
  // The address bar names the layer and the chosen region, so that a link shows the same to others.
  function remember() {
    const parts = [];
    if (state.chosen) parts.push(`kernel=${encodeURIComponent(state.chosen[0])}`);
    if (state.layer.key !== "busy") parts.push(`layer=${state.layer.key}`);
    if (parts.length || /[#&](kernel|layer)=/.test(location.hash)) history.replaceState(null, "", parts.length ? `#${parts.join("&")}` : "#map");
  }
  function choose(region) {
    state.chosen = region;
    remember();
    draw();
  }
  async function follow(hash) {
    const wanted = new URLSearchParams(hash.slice(1));
    const region = data.regions.find(([name]) => name === wanted.get("kernel"));
    const layer = data.layers.find((one) => one.key === wanted.get("layer"));
    if (region) state.chosen = region;
    if (layer) await setLayer(layer.key); else draw();
    if (region) {
      describe(region[1] + Math.floor(region[3] / 2), region[2] + Math.floor(region[4] / 2));
      document.getElementById("inspected").textContent = "Chosen region";
    }
    if (region || layer) document.getElementById("map").scrollIntoView();
  }
  for (const layer of data.layers) {
    const button = document.createElement("button");
    button.type = "button"; button.textContent = layer.title; button.dataset.layer = layer.key;
    button.addEventListener("click", () => setLayer(layer.key));
    document.getElementById("layers").append(button);
  }

  // Moving and zooming: one finger or the mouse drags, two fingers and the wheel zoom, keys do both.
  function zoomAt(node, x, y, factor) {
    const col = view.x0 + (x - MARGIN.left) / view.scale, row = view.y0 + (y - MARGIN.top) / view.scale;
    const f = frame(), least = 0.5 * Math.min(f.width / cols, f.height / rows);
    view.scale = Math.max(least, Math.min(200, view.scale * factor));
    view.x0 = col - (x - MARGIN.left) / view.scale; view.y0 = row - (y - MARGIN.top) / view.scale;
    soon();
  }
  const fingers = new Map();
  const at = (event) => { const box = canvas.getBoundingClientRect(); return [event.clientX - box.left, event.clientY - box.top]; };
  canvas.addEventListener("pointerdown", (event) => { fingers.set(event.pointerId, at(event)); canvas.setPointerCapture(event.pointerId); inspect(event); });
  for (const end of ["pointerup", "pointercancel"]) canvas.addEventListener(end, (event) => fingers.delete(event.pointerId));
  canvas.addEventListener("pointermove", (event) => {
    inspect(event);
    const old = fingers.get(event.pointerId), now = at(event);
    if (!old) return;
    const other = [...fingers].find(([id]) => id !== event.pointerId);
    if (other) {
      const length = (a, b) => Math.hypot(a[0] - b[0], a[1] - b[1]) || 1;
      zoomAt(canvas, other[1][0], other[1][1], length(now, other[1]) / length(old, other[1]));
    } else { view.x0 -= (now[0] - old[0]) / view.scale; view.y0 -= (now[1] - old[1]) / view.scale; soon(); }
    fingers.set(event.pointerId, now);
  });
  canvas.addEventListener("wheel", (event) => { event.preventDefault(); zoomAt(canvas, ...at(event), Math.exp(-event.deltaY / 500)); }, { passive: false });
  canvas.addEventListener("dblclick", whole);
  canvas.addEventListener("click", (event) => {
    const [x, y] = at(event), col = view.x0 + (x - MARGIN.left) / view.scale, row = view.y0 + (y - MARGIN.top) / view.scale;
    choose(data.regions.find(([name, r, c, h, w]) => row >= r && row < r + h && col >= c && col < c + w) || null);
  });
  canvas.addEventListener("keydown", (event) => {
    const step = 40 / view.scale, middle = [canvas.clientWidth / 2, canvas.clientHeight / 2];
    const act = { ArrowLeft: () => (view.x0 -= step), ArrowRight: () => (view.x0 += step), ArrowUp: () => (view.y0 -= step), ArrowDown: () => (view.y0 += step),
      "+": () => zoomAt(canvas, ...middle, 1.3), "-": () => zoomAt(canvas, ...middle, 1 / 1.3), 0: whole }[event.key];
    if (act) { act(); event.preventDefault(); soon(); }
  });

  // What the pointer is over: exact values of one core at every zoom.
  function time(s) {
    if (s >= 1) return `${s.toPrecision(4)} s`;
    return s >= 1e-3 ? `${(s * 1e3).toPrecision(4)} ms` : `${(s * 1e6).toPrecision(4)} us`;
  }
  const fraction = (v) => `${v > 1e-9 && v < 5e-5 ? (100 * v).toPrecision(2) : (100 * v).toFixed(2)} %`;
  function describe(row, col) {
    const i = row * cols + col, index = kernel ? kernel[i] : -1;
    const lines = [["core (row, column)", `${row}, ${col}`]];
    if (index >= 0) lines.push(["kernel", data.kernels[index]], ["family", data.families[index]]);
    else lines.push(["kernel", used[i] ? "all in turn" : "none"]);
    const region = index >= 0 && data.regions.find(([name, r, c, h, w]) => row >= r && row < r + h && col >= c && col < c + w);
    if (region) lines.push(["region", `${region[3]} x ${region[4]} at (${region[1]}, ${region[2]})`]);
    for (const layer of data.layers) {
      if (!values[layer.key]) continue;
      const v = values[layer.key][i];
      const text = layer.unit.startsWith("fraction") ? fraction(v) : layer.key === "sram"
        ? `${(v / 1024).toFixed(2)} KiB` : v.toLocaleString("en-US", { maximumFractionDigits: v < 100 ? 1 : 0 }) + (isLink(layer) ? " wavelets" : "");
      lines.push([layer.title.toLowerCase(), text, layer.key, v]);
    }
    if (state.bin > 0 && areaOf[i] >= 0) lines.push(["busy in this bin", fraction(data.time.fractions[areaOf[i]][state.bin - 1])]);
    const list = document.getElementById("core");
    list.replaceChildren(...lines.flatMap(([name, text, key, v]) => {
      const dt = document.createElement("dt"), dd = document.createElement("dd");
      dt.textContent = name; dd.textContent = text;
      if (key) { dd.dataset.key = key; dd.dataset.value = v; }
      return [dt, dd];
    }));
    list.dataset.row = row; list.dataset.col = col;
  }
  function inspect(event) {
    const [x, y] = at(event), col = Math.floor(view.x0 + (x - MARGIN.left) / view.scale), row = Math.floor(view.y0 + (y - MARGIN.top) / view.scale);
    if (row < 0 || row >= rows || col < 0 || col >= cols) return;
    document.getElementById("inspected").textContent = "Core";
    describe(row, col);
  }

  if (data.time) {
    const slider = document.getElementById("time-slider"), out = document.getElementById("time-value");
    const bins = data.time.fractions[0].length, width = (data.time.end_s - data.time.start_s) / bins;
    slider.max = bins;
    slider.addEventListener("input", () => {
      state.bin = Number(slider.value);
      const start = data.time.start_s + (state.bin - 1) * width;
      out.textContent = state.bin ? `${time(start)} to ${time(start + width)} of simulated time` : "the whole step";
      soon();
    });
    out.textContent = "the whole step";
  }
  for (const id of ["show-regions", "show-dies", "log-scale"]) document.getElementById(id).addEventListener("change", draw);
  document.getElementById("reset-view").addEventListener("click", whole);

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

  const asked = location.hash; // before the first layer writes its own
  await load(state.layer);
  show(0, rows, 0, cols);
  await setLayer(state.layer.key);
  const redraws = [draw];
  window.report = { data, valueAt, setLayer, state, zoomTo, inflate, time, style, clean, ticks, redraws, whole,
    pixelOf(row, col) { const box = canvas.getBoundingClientRect(); return [box.left + px(col + 0.5), box.top + py(row + 0.5)]; } };
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => redraws.forEach((one) => one()));
  let width = canvas.clientWidth;
  function refit() {
    // A capture of the whole page lays it out one pixel wide for a moment: no map has to fit that.
    if (canvas.clientWidth === width || canvas.clientWidth < LEAST_WIDTH) return false;
    const w = state.window; width = canvas.clientWidth;
    show(w.r0, w.r1, w.c0, w.c1);
    return true;
  }
  new ResizeObserver(() => { if (refit()) redraws.forEach((one) => one()); }).observe(wafer);
  await new Promise((done) => setTimeout(done)); // the first picture is on the screen
  kernel = await unpack(data.kernel);
  for (const layer of data.layers) await load(layer);
  await window.drawTimelines();
  const first = data.marks.slowest;
  const shownFirst = first || ["", 0, 0, rows, cols];
  describe(shownFirst[1] + Math.floor(shownFirst[3] / 2), shownFirst[2] + Math.floor(shownFirst[4] / 2));
  document.getElementById("inspected").textContent = first ? "Slowest region" : "Core in the middle";
  await follow(asked);
  window.addEventListener("hashchange", () => follow(location.hash));
  // Paper is white: canvases are drawn again with the light palette, and back.
  for (const [event, isPrinting] of [["beforeprint", true], ["afterprint", false]]) window.addEventListener(event, () => {
    document.documentElement.classList.toggle("printing", isPrinting);
    const again = () => redraws.forEach((one) => one());
    if (isPrinting) again(); else requestAnimationFrame(() => { refit(); again(); }); // the layout of the screen is back by then
  });
  window.report.isReady = true;
})();
