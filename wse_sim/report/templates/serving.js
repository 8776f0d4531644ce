"use strict";
(() => {
  // Hover: the nearest point of each line, its values in a small box.
  const SVG = "http://www.w3.org/2000/svg";
  const tip = document.body.appendChild(Object.assign(document.createElement("div"), { className: "tip", hidden: true }));
  const make = (tag, given) => { const one = document.createElementNS(SVG, tag); for (const [k, v] of Object.entries(given)) one.setAttribute(k, v); return one; };
  for (const chart of document.querySelectorAll("svg.chart")) {
    const data = JSON.parse(chart.dataset.hover), cursor = chart.querySelector(".cursor");
    const leave = () => { cursor.replaceChildren(); tip.hidden = true; };
    const move = (event) => {
      const box = chart.getBoundingClientRect(), size = chart.viewBox.baseVal;
      const x = (event.clientX - box.left) / box.width * size.width, y = (event.clientY - box.top) / box.height * size.height;
      if (x < 50 || y < 8 || y > size.height - 34) return leave();
      let best = null;
      for (const line of data.lines) line.at.forEach(([a, b], i) => {
        const far = data.names.length ? Math.hypot(a - x, b - y) : Math.abs(a - x);
        if (best === null || far < best.far) best = { far, i, a };
      });
      if (best === null) return leave();
      cursor.removeAttribute("hidden"); cursor.replaceChildren(make("line", { x1: best.a, x2: best.a, y1: 14, y2: size.height - 40 }));
      const rows = [];
      data.lines.forEach((line, n) => {
        let k = 0;
        line.at.forEach(([a], i) => { if (Math.abs(a - best.a) < Math.abs(line.at[k][0] - best.a)) k = i; });
        if (data.names.length) k = best.i;
        if (!n) rows.push(data.names[k] ? data.names[k] : data.x + ": " + line.values[k][0]);
        if (data.names.length) rows.push(data.x + ": " + line.values[k][0]);
        rows.push(line.name + ": " + line.values[k][1]);
        cursor.append(make("circle", { cx: line.at[k][0], cy: line.at[k][1], r: 4, class: "dot c" + line.color }));
      });
      tip.replaceChildren(...rows.flatMap((text, i) => i ? [document.createElement("br"), text] : [text]));
      tip.hidden = false;
      const left = event.clientX + 14 + tip.offsetWidth > innerWidth ? event.clientX - 14 - tip.offsetWidth : event.clientX + 14;
      tip.style.left = left + "px"; tip.style.top = Math.max(4, event.clientY - tip.offsetHeight - 10) + "px";
    };
    chart.addEventListener("pointermove", move);
    chart.addEventListener("pointerleave", leave);
  }
  window.serving = { isReady: true };
})();
