"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const $ = (id) => document.getElementById(id);
  const columns = data.columns, index = Object.fromEntries(columns.map((c, i) => [c.name, i]));
  const front = new Set(data.front);
  const byNumber = new Map(data.rows.map((row) => [row.n, row]));
  const PALETTE = ["#2563eb", "#d9622b", "#2a9d8f", "#8b5cf6", "#b5a21a", "#db2777", "#0891b2", "#71717a"];
  const STOPS = ["#440154", "#3b518b", "#21908d", "#5cc863", "#fde725"];
  const EXTRA = [["binding", "bottleneck"], ["mode", "mode"]];
  const state = { kind: "points", x: data.x, y: data.y, by: data.by, bands: true, chosen: null, hover: null, sort: [-1, 1], filters: {} };
  const value = (row, name) => name === "binding" ? row.w : name === "mode" ? row.m : row.v[index[name]];
  const isNumeric = (name) => name in index && columns[index[name]].numeric;
  const label = (name) => name in index ? columns[index[name]].label : name === "binding" ? "bottleneck" : name;
  const text = (v) => v === null || v === undefined ? "none" : typeof v === "number" ? number(v) : String(v);
  function number(v) {
    if (Number.isInteger(v) && Math.abs(v) < 1e7) return v.toLocaleString("en-US");
    const a = Math.abs(v);
    if (a >= 1e5 || (a > 0 && a < 1e-3)) return v.toExponential(3).replace("e+", "e");
    return v.toLocaleString("en-US", { maximumSignificantDigits: 5 });
  }
  function css(name) { return getComputedStyle(document.documentElement).getPropertyValue(name).trim(); }
  function make(tag, given = {}, ...inside) {
    const one = Object.assign(document.createElement(tag), given);
    one.append(...inside);
    return one;
  }
  function mix(share) {
    const at = Math.max(0, Math.min(0.9999, share)) * (STOPS.length - 1), i = Math.floor(at), f = at - i;
    const part = (c, k) => parseInt(c.slice(1 + 2 * k, 3 + 2 * k), 16);
    return "rgb(" + [0, 1, 2].map((k) => Math.round(part(STOPS[i], k) * (1 - f) + part(STOPS[i + 1], k) * f)).join(",") + ")";
  }
  const places = (name, rows = data.rows) => {
    const seen = [...new Set(rows.map((row) => value(row, name)).filter((v) => v !== null && v !== undefined && v !== ""))];
    return isNumeric(name) ? seen.sort((a, b) => a - b) : seen;
  };

  // Rows that no other beats in the outputs on the axes, and the names of these outputs.
  function unbeaten(rows) {
    const names = [...new Set([state.x, state.y])].filter((name) => name in index && columns[index[name]].kind === "output" && columns[index[name]].better);
    const found = new Set();
    if (!names.length) return [found, names];
    const key = (row) => [names[0], names[names.length - 1]].map((name) => columns[index[name]].better === "minimize" ? value(row, name) : -value(row, name));
    const sorted = rows.map((row) => [...key(row), row]).sort((a, b) => a[0] - b[0] || a[1] - b[1]);
    let best = Infinity, before = null;
    for (const [first, second, row] of sorted) {
      const equal = before && before[0] === first && before[1] === second;
      if (second < best || equal) { found.add(row.n); best = second; before = [first, second]; }
    }
    return [found, names];
  }
  const beaten = (names) => "Ringed: no other run has " + names.map((name) => (columns[index[name]].better === "minimize" ? "less " : "more ") + label(name)).join(" and ") + ".";

  // Filters: a choice for few values, a range for many.
  const parameters = columns.filter((c) => c.kind === "parameter").map((c) => c.name);
  for (const name of [...parameters, ...EXTRA.map((e) => e[0])]) {
    const seen = places(name);
    if (seen.length < 2) continue;
    const box = make("label", {}, (name in index ? name : label(name)) + " ");
    if (!isNumeric(name) || seen.length <= 12) {
      const choice = make("select", { onchange: () => { const i = choice.selectedIndex - 1; set(name, i < 0 ? null : (v) => v === seen[i]); } });
      choice.append(make("option", {}, "all"), ...seen.map((v) => make("option", {}, text(v))));
      box.append(choice);
    } else {
      const ends = [seen[0], seen[seen.length - 1]].map((v) => make("input", { type: "number", value: v, step: "any", oninput: limit }));
      function limit() { const [low, high] = ends.map((e) => e.valueAsNumber); set(name, (v) => v !== null && !(v < low * (1 - 1e-9)) && !(v > high * (1 + 1e-9))); }
      box.append(ends[0], " to ", ends[1]);
    }
    $("filters").append(box);
  }
  if (data.rows.some((row) => row.s !== "done")) {
    const only = make("input", { type: "checkbox", onchange: () => set("status", only.checked ? (_, row) => row.s === "done" : null) });
    $("filters").append(make("label", {}, only, " only runs with a result"));
  }
  function set(name, test) {
    if (test) state.filters[name] = test; else delete state.filters[name];
    refresh();
  }
  const kept = () => data.rows.filter((row) => Object.entries(state.filters).every(([name, test]) => test(name === "status" ? row.s : value(row, name), row)));

  function fill(id, names, current) {
    const list = $(id);
    list.replaceChildren(...names.map(([name, shown]) => make("option", { value: name, selected: name === current }, shown)));
    list.value = current;
    list.onchange = () => { state[id] = list.value; refresh(); };
  }
  const all = columns.map((c) => [c.name, c.label]);
  const numeric = columns.filter((c) => c.numeric).map((c) => [c.name, c.label]);
  if (!state.x) state.x = all[0][0];
  if (!state.by) {
    const others = parameters.filter((name) => name !== state.x).map((name) => [places(name).length, name]).sort((a, b) => a[0] - b[0]);
    state.by = others.length ? others[0][1] : "binding";
  }
  fill("x", all, state.x); fill("y", numeric, state.y); fill("by", [...all, ...EXTRA], state.by);
  $("bands").onchange = () => { state.bands = $("bands").checked; draw(); };
  for (const button of $("kinds").children) button.onclick = () => {
    state.kind = button.dataset.kind;
    for (const other of $("kinds").children) other.setAttribute("aria-pressed", String(other === button));
    refresh();
  };

  // Scales: numbers (logarithms where the span is large), or places of equal distance.
  function scale(name, rows, from, to) {
    if (!isNumeric(name)) {
      const seen = places(name), step = (to - from) / Math.max(1, seen.length);
      return { at: (v) => from + (seen.indexOf(v) + 0.5) * step, ticks: seen.map((v) => [from + (seen.indexOf(v) + 0.5) * step, text(v)]) };
    }
    let values = rows.map((row) => value(row, name)).filter((v) => typeof v === "number");
    if (state.bands && name === state.y) for (const row of rows) if (row.b[name]) values = values.concat(row.b[name]);
    let low = Math.min(...values.slice(0, 1)), high = low;
    for (const v of values) { if (v < low) low = v; if (v > high) high = v; }
    if (!values.length) { low = 0; high = 1; }
    const isLog = low > 0 && high / low > 8;
    const f = isLog ? Math.log : (v) => v;
    let a = f(low), b = f(high);
    if (a === b) { a -= Math.abs(a) * 0.05 || 0.5; b += Math.abs(b) * 0.05 || 0.5; }
    const pad = (b - a) * 0.04; a -= pad; b += pad;
    if (!isLog && low >= 0 && a < 0.35 * b) a = Math.min(0, low);
    const at = (v) => from + (f(v) - a) / (b - a) * (to - from);
    return { at, ticks: (isLog ? logTicks(Math.exp(a), Math.exp(b)) : ticks(a, b)).map((v) => [at(v), number(v)]) };
  }
  function ticks(a, b) {
    const raw = (b - a) / 6, power = 10 ** Math.floor(Math.log10(raw)), step = [1, 2, 5, 10].map((k) => k * power).find((s) => s >= raw);
    const out = [];
    for (let v = Math.ceil(a / step) * step; v <= b + step * 1e-9; v += step) out.push(Number(v.toPrecision(12)));
    return out;
  }
  function logTicks(a, b) {
    const out = [], many = Math.log10(b / a) > 3;
    for (let p = Math.floor(Math.log10(a)); p <= Math.ceil(Math.log10(b)); p++)
      for (const k of many ? [1] : [1, 2, 5]) { const v = k * 10 ** p; if (v >= a && v <= b) out.push(Number(v.toPrecision(12))); }
    return out.length > 1 ? out : ticks(a, b);
  }

  function shades(rows) {
    const name = state.by, seen = places(name);
    if (isNumeric(name) && seen.length > PALETTE.length) {
      const low = seen[0], high = seen[seen.length - 1], isLog = low > 0 && high / low > 8, f = isLog ? Math.log : (v) => v;
      const share = (v) => (f(v) - f(low)) / ((f(high) - f(low)) || 1);
      return { of: (row) => { const v = value(row, name); return v === null ? css("--unused") : mix(share(v)); }, few: false,
        legend: [0, 0.25, 0.5, 0.75, 1].map((s) => [mix(s), number(Number((isLog ? Math.exp(f(low) + s * (f(high) - f(low))) : low + s * (high - low)).toPrecision(3)))]) };
    }
    const color = (v) => { const i = seen.indexOf(v); return i < 0 ? css("--unused") : PALETTE[i % PALETTE.length]; };
    return { of: (row) => color(value(row, name)), few: true, legend: seen.slice(0, 24).map((v) => [color(v), text(v)]) };
  }

  const canvas = $("chart").querySelector("canvas"), tip = $("chart").querySelector(".tip"), pen = canvas.getContext("2d");
  let spots = []; // [x, y, row, reach]
  let lines = []; // of all axes: [points, row]
  function frame() {
    const box = canvas.getBoundingClientRect(), ratio = devicePixelRatio || 1;
    canvas.width = Math.max(1, Math.round(box.width * ratio)); canvas.height = Math.max(1, Math.round(box.height * ratio));
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, box.width, box.height);
    pen.font = "12px system-ui, 'DejaVu Sans', sans-serif";
    return [box.width, box.height];
  }
  function word(t, x, y, align = "center", base = "middle") {
    pen.fillStyle = css("--soft"); pen.textAlign = align; pen.textBaseline = base; pen.fillText(t, x, y);
  }
  function grid(sx, sy, left, right, top, bottom, across, up) {
    pen.lineWidth = 1; pen.strokeStyle = css("--line");
    let last = -1e9;
    for (const [x, t] of sx.ticks) {
      pen.beginPath(); pen.moveTo(x, top); pen.lineTo(x, bottom); pen.stroke();
      const width = pen.measureText(t).width;
      if (x - width / 2 > last + 8) { word(t, x, bottom + 7, "center", "top"); last = x + width / 2; }
    }
    for (const [y, t] of sy.ticks) { pen.beginPath(); pen.moveTo(left, y); pen.lineTo(right, y); pen.stroke(); word(t, left - 7, y, "right"); }
    word(across, (left + right) / 2, bottom + 30, "center", "top");
    pen.save(); pen.translate(13, (top + bottom) / 2); pen.rotate(-Math.PI / 2); word(up, 0, 0); pen.restore();
  }

  function drawPoints(rows, w, h) {
    const left = 78, right = w - 12, top = 12, bottom = h - 52;
    const usable = rows.filter((row) => value(row, state.y) !== null && value(row, state.x) !== null && row.s === "done");
    const misfits = rows.filter((row) => row.s !== "done" && value(row, state.x) !== null);
    const sx = scale(state.x, rows, left, right), sy = scale(state.y, usable, bottom, top), color = shades(rows);
    grid(sx, sy, left, right, top, bottom, label(state.x), label(state.y));
    if (color.few && usable.length <= 3000 && columns[index[state.x]].kind === "parameter") {
      // A line joins runs that differ in the parameter across alone.
      const groups = new Map(), rest = parameters.filter((name) => name !== state.x);
      for (const row of usable) { const key = JSON.stringify(rest.map((name) => value(row, name))); groups.set(key, [...(groups.get(key) || []), row]); }
      const drawn = new Set();
      for (const group of groups.values()) {
        if (group.length < 2) continue;
        group.sort((a, b) => sx.at(value(a, state.x)) - sx.at(value(b, state.x)));
        pen.strokeStyle = pen.fillStyle = color.of(group[0]); pen.globalAlpha = 0.12;
        if (state.bands && groups.size <= 12 && group.every((row) => row.b[state.y])) {
          pen.beginPath();
          group.forEach((row) => pen.lineTo(sx.at(value(row, state.x)), sy.at(row.b[state.y][1])));
          [...group].reverse().forEach((row) => pen.lineTo(sx.at(value(row, state.x)), sy.at(row.b[state.y][0])));
          pen.fill();
        }
        pen.globalAlpha = groups.size > 40 ? 0.25 : 0.8; pen.lineWidth = 1.5; pen.beginPath();
        const places = group.map((row) => [sx.at(value(row, state.x)), sy.at(value(row, state.y))]);
        places.forEach(([x, y]) => pen.lineTo(x, y));
        if (drawn.has(String(places))) pen.setLineDash([8, 8]);  // of two equal lines, both colors show
        pen.stroke(); pen.setLineDash([]); drawn.add(String(places));
      }
      pen.globalAlpha = 1;
    }
    const size = usable.length > 2000 ? 2 : usable.length > 300 ? 3 : 4.5;
    for (const row of usable) {
      const x = sx.at(value(row, state.x)), y = sy.at(value(row, state.y));
      pen.fillStyle = color.of(row); pen.globalAlpha = usable.length > 2000 ? 0.6 : 1;
      pen.beginPath(); pen.arc(x, y, size, 0, 7); pen.fill();
      spots.push([x, y, row, 12]);
    }
    pen.globalAlpha = 1;
    for (const row of misfits) {
      const x = sx.at(value(row, state.x)), y = bottom - 4;
      pen.strokeStyle = "#dc2626"; pen.lineWidth = 1.5; pen.beginPath();
      pen.moveTo(x - 3, y - 3); pen.lineTo(x + 3, y + 3); pen.moveTo(x + 3, y - 3); pen.lineTo(x - 3, y + 3); pen.stroke();
      spots.push([x, y, row, 8]);
    }
    const [ringed, names] = unbeaten(usable);
    if (usable.length > 1) for (const [x, y, row] of spots) if (ringed.has(row.n)) ring(x, y, size + 3, css("--ink"), 1.2);
    legend(color, misfits.length ? [["#dc2626", "x: no result"]] : []);
    const odd = rows.length - usable.length - misfits.length;
    $("hint").textContent = (names.length && usable.length > 1 ? beaten(names) : "") + (odd ? " " + odd + " runs lack " + state.x + " or " + state.y : "");
  }
  function ring(x, y, size, color, width) { pen.strokeStyle = color; pen.lineWidth = width; pen.beginPath(); pen.arc(x, y, size, 0, 7); pen.stroke(); }

  function drawMap(rows, w, h) {
    const second = state.by in index && state.by !== state.x ? state.by : parameters.find((name) => name !== state.x) || state.x;
    const across = places(state.x, rows), up = places(second, rows), left = 118, right = w - 14, top = 12, bottom = h - 52;
    const least = columns[index[state.y]].better === "minimize", best = new Map();
    for (const row of rows) {
      const key = across.indexOf(value(row, state.x)) + " " + up.indexOf(value(row, second)), v = value(row, state.y), old = best.get(key);
      if (old === undefined || (v !== null && row.s === "done" && (old.s !== "done" || (least ? v < value(old, state.y) : v > value(old, state.y))))) best.set(key, row);
    }
    const values = [...best.values()].filter((row) => row.s === "done").map((row) => value(row, state.y)).filter((v) => v !== null);
    const low = values.reduce((a, b) => Math.min(a, b), Infinity), high = values.reduce((a, b) => Math.max(a, b), -Infinity);
    const cw = (right - left) / across.length, ch = (bottom - top) / up.length;
    const [ringed] = unbeaten([...best.values()].filter((row) => row.s === "done" && value(row, state.y) !== null));
    for (const [key, row] of best) {
      const [i, j] = key.split(" ").map(Number), x = left + i * cw, y = bottom - (j + 1) * ch, v = value(row, state.y);
      const share = high > low ? (v - low) / (high - low) : 1;
      const fits = row.s === "done" && v !== null;
      pen.fillStyle = fits ? mix(least ? 1 - share : share) : css("--rail");
      pen.fillRect(x, y, Math.max(1, cw - 1), Math.max(1, ch - 1));
      if (cw > 46 && ch > 16) {
        pen.fillStyle = !fits ? css("--soft") : (least ? 1 - share : share) > 0.55 ? "#18181b" : "#fafafa";
        pen.textAlign = "center"; pen.textBaseline = "middle";
        pen.fillText(fits ? number(Number(v.toPrecision(3))) : row.w || row.s, x + cw / 2, y + ch / 2, cw - 4);
      }
      if (ringed.has(row.n)) { pen.strokeStyle = css("--ink"); pen.lineWidth = 2; pen.strokeRect(x + 1, y + 1, cw - 3, ch - 3); }
      spots.push([x + cw / 2, y + ch / 2, row, Math.max(cw, ch) / 1.4]);
    }
    const stepX = Math.max(1, Math.ceil(62 / cw)), stepY = Math.max(1, Math.ceil(16 / ch));
    across.forEach((v, i) => { if (i % stepX === 0) word(text(v), left + (i + 0.5) * cw, bottom + 7, "center", "top"); });
    up.forEach((v, j) => { if (j % stepY === 0) word(text(v), left - 7, bottom - (j + 0.5) * ch, "right"); });
    word(label(state.x), (left + right) / 2, bottom + 30, "center", "top");
    pen.save(); pen.translate(13, (top + bottom) / 2); pen.rotate(-Math.PI / 2); word(label(second), 0, 0); pen.restore();
    const five = values.length ? [0, 0.25, 0.5, 0.75, 1].map((s) => [mix(least ? 1 - s : s), number(Number((low + s * (high - low)).toPrecision(3)))]) : [];
    legend({ legend: five, title: label(state.y) }, []);
    $("hint").textContent = "Color: " + label(state.y) + (parameters.length > 2 ? ", the best over the other parameters" : "") + ". Up: the parameter under \"color\".";
  }

  function drawAxes(rows, w, h) {
    const done = rows.filter((row) => row.s === "done");
    const names = [...parameters, ...data.shown.filter((name) => name in index)];
    const top = 40, bottom = h - 30, left = 60, right = w - 70, color = shades(rows);
    const axes = names.map((name, i) => ({ name, x: left + i * (right - left) / Math.max(1, names.length - 1), s: scale(name, done, bottom, top) }));
    pen.globalAlpha = Math.max(0.06, Math.min(0.8, 60 / done.length)); pen.lineWidth = 1.3;
    for (const row of done) {
      const points = axes.filter((a) => value(row, a.name) !== null).map((a) => [a.x, a.s.at(value(row, a.name))]);
      pen.strokeStyle = color.of(row); pen.beginPath(); points.forEach(([x, y]) => pen.lineTo(x, y)); pen.stroke();
      lines.push([points, row]);
    }
    pen.globalAlpha = 1;
    axes.forEach((a, i) => {
      pen.strokeStyle = css("--edge"); pen.lineWidth = 1; pen.beginPath(); pen.moveTo(a.x, top); pen.lineTo(a.x, bottom); pen.stroke();
      for (const [y, t] of a.s.ticks.slice(0, 14)) word(t, a.x + 5, y, "left");
      word(a.name.replace(/_/g, " "), a.x, i % 2 ? 24 : 10);
    });
    for (const row of [byNumber.get(state.chosen), state.hover]) {
      const line = row && lines.find((one) => one[1] === row);
      if (line) { pen.strokeStyle = css("--ink"); pen.lineWidth = 2.5; pen.beginPath(); line[0].forEach(([x, y]) => pen.lineTo(x, y)); pen.stroke(); }
    }
    legend(color, []);
    $("hint").textContent = "Each line is a run with a result. Color: " + label(state.by) + ".";
  }

  function legend(color, more) {
    const title = color.title || label(state.by);
    $("legend").replaceChildren(make("b", {}, title), ...[...color.legend, ...more].map(([c, t]) => {
      const dot = make("i"); dot.style.background = c; return make("span", {}, dot, t);
    }));
  }

  function draw() {
    const rows = kept(), [w, h] = frame();
    spots = []; lines = [];
    if (!rows.length) { word("no run is left by the filters", w / 2, h / 2); $("legend").replaceChildren(); return; }
    ({ points: drawPoints, map: drawMap, axes: drawAxes })[state.kind](rows, w, h);
    if (state.kind !== "axes") for (const [x, y, row] of spots) {
      if (row.n === state.chosen) ring(x, y, 9, css("--accent"), 3);
      else if (state.hover === row) ring(x, y, 8, css("--ink"), 2);
    }
  }

  function nearest(event) {
    const box = canvas.getBoundingClientRect(), px = event.clientX - box.left, py = event.clientY - box.top;
    let found = null, best = Infinity;
    for (const [x, y, row, reach] of spots) { const d = Math.hypot(x - px, y - py); if (d < best && d <= reach) { best = d; found = row; } }
    for (const [points, row] of lines) for (let i = 1; i < points.length; i++) {
      const [[x0, y0], [x1, y1]] = [points[i - 1], points[i]];
      if (px < x0 || px > x1) continue;
      const d = Math.abs(py - (y0 + (y1 - y0) * (px - x0) / (x1 - x0)));
      if (d < best && d < 8) { best = d; found = row; }
    }
    return [found, px, py, box.width];
  }
  canvas.onmousemove = (event) => {
    const [row, x, y, width] = nearest(event);
    if (row !== state.hover) { state.hover = row; draw(); }
    tip.hidden = !row;
    if (!row) return;
    const listed = parameters.map((name) => name + ": " + text(value(row, name)));
    const v = value(row, state.y), b = row.b[state.y];
    tip.textContent = [...listed, row.s === "done" ? state.y + ": " + text(v) + (b ? " (" + number(b[0]) + " to " + number(b[1]) + ")" : "") : row.s, row.w ? "bottleneck: " + row.w : ""].filter(Boolean).join("\n");
    tip.style.left = (x > width - 240 ? x - 14 - tip.offsetWidth : x + 14) + "px";
    tip.style.top = Math.max(0, y - 10) + "px";
  };
  canvas.onmouseleave = () => { state.hover = null; tip.hidden = true; draw(); };
  canvas.onclick = (event) => { const [row] = nearest(event); if (row) choose(row.n); };
  canvas.onkeydown = (event) => {
    const rows = kept(), at = rows.findIndex((row) => row.n === state.chosen);
    if (event.key === "ArrowRight" || event.key === "ArrowLeft") { event.preventDefault(); choose(rows[(at + (event.key === "ArrowRight" ? 1 : rows.length - 1)) % rows.length].n); }
  };

  function choose(n) {
    state.chosen = n;
    const row = byNumber.get(n), list = make("dl");
    const add = (name, shown) => list.append(make("dt", {}, name), make("dd", {}, shown));
    parameters.forEach((name) => add(name, text(value(row, name))));
    if (row.m) add("mode", row.m);
    if (row.w) add("bottleneck", row.w);
    for (const c of columns) if (c.kind === "output" && row.v[index[c.name]] !== null) {
      const b = row.b[c.name];
      add(c.label, text(row.v[index[c.name]]) + (b ? " (" + number(b[0]) + " to " + number(b[1]) + ")" : ""));
    }
    for (const [name, shown] of Object.entries(data.fixed)) add(name, shown);
    const path = data.reports[n];
    const more = path ? [make("p", {}, make("a", { href: path }, "open its report"))]
      : row.s === "done" ? [make("p", { className: "hint" }, "Its full result and report come with"), make("code", {}, "wse-sim study result DIR " + n)] : [];
    $("inspector").replaceChildren(make("h3", {}, "Run " + n + (front.has(n) ? ", beaten by no other" : "")), ...(row.t ? [make("p", {}, row.t)] : []), ...more, list);
    draw(); table();
  }
  if ($("show-chosen")) $("show-chosen").onclick = () => { choose(data.chosen); $("explore").scrollIntoView(); };

  const heads = [...parameters, ...data.shown.filter((name) => name in index)];
  function table() {
    const rows = kept(), [column, way] = state.sort;
    const key = (row) => column < 0 ? row.n : column < heads.length ? value(row, heads[column]) : column === heads.length ? row.s : row.w;
    rows.sort((a, b) => { const [x, y] = [key(a), key(b)]; return (x === null ? 1 : y === null ? -1 : x < y ? -1 : x > y ? 1 : 0) * way; });
    const cells = ["run", ...heads.map(label), "status", "bottleneck"], linked = Object.keys(data.reports).length > 0;
    $("table").tHead.replaceChildren(make("tr", {}, ...cells.map((t, i) => {
      const head = make("th", { onclick: () => { state.sort = [i - 1, state.sort[0] === i - 1 ? -state.sort[1] : 1]; table(); } }, t);
      if (state.sort[0] === i - 1) head.setAttribute("aria-sort", state.sort[1] > 0 ? "ascending" : "descending");
      return head;
    }), ...(linked ? [make("th", {}, "report")] : [])));
    $("table").tBodies[0].replaceChildren(...rows.slice(0, 500).map((row) => make("tr", { className: row.n === state.chosen ? "chosen" : "", onclick: () => choose(row.n) },
      ...[row.n, ...heads.map((name) => value(row, name)), row.s, row.w].map((v) => make("td", {}, v === null ? "" : text(v))),
      ...(linked ? [make("td", {}, ...(data.reports[row.n] ? [make("a", { href: data.reports[row.n], onclick: (event) => event.stopPropagation() }, "open")] : []))] : []))));
    if (rows.length > 500) $("table").tBodies[0].append(make("tr", {}, make("td", { colSpan: cells.length + linked }, (rows.length - 500).toLocaleString("en-US") + " more: filter or sort")));
  }
  function refresh() { draw(); table(); }
  addEventListener("resize", draw);
  for (const [event, isPrinting] of [["beforeprint", true], ["afterprint", false]]) addEventListener(event, () => {
    document.documentElement.classList.toggle("printing", isPrinting);
    const again = () => draw();
    if (isPrinting) again(); else requestAnimationFrame(again); // the layout of the screen is back by then
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  refresh();
})();
