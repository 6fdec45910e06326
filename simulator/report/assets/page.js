"use strict";
(() => {
  const read = (id) => JSON.parse(document.getElementById(id).textContent);
  const root = document.documentElement, charts = read("charts"), config = read("config");
  const touch = window.matchMedia("(pointer: coarse)").matches, phone = () => window.innerWidth < 640;
  const views = {};
  let printing = false;

  /* ---- light and dark ---- */
  const system = window.matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => !printing && (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
  const theme = () => {
    if (printing) return { text: "#000", soft: "#444", panel: "#fff", line: "#999", grid: "#ddd" };
    const style = getComputedStyle(root), get = (name) => style.getPropertyValue(`--${name}`).trim();
    return { text: get("text"), soft: get("soft"), panel: get("panel"), line: get("line"), grid: get("grid") };
  };
  function themed(value, colours) {
    if (Array.isArray(value)) return value.map((v) => themed(v, colours));
    if (value && typeof value === "object") return Object.fromEntries(Object.entries(value).map(([k, v]) => [k, themed(v, colours)]));
    return typeof value === "string" && value.startsWith("theme:") ? colours[value.slice(6)] : value;
  }
  /* labels that would overlap in their row stand on their side, unless they stand as they are */
  function upright(annotations, width) {
    const rows = new Map();
    for (const one of annotations) rows.set(one.y, (rows.get(one.y) || 0) + 8 * `${one.text}`.length + 14);
    return annotations.map((one) => (one.textangle === undefined && (rows.get(one.y) > width || (phone() && one.x > 1)) && !printing ? { ...one, textangle: -90, font: { ...one.font, size: 10 }, borderpad: 1 } : one));
  }
  function layoutOf(layout, element) {
    const colours = theme(), filled = themed(layout, colours);
    const axis = { gridcolor: colours.grid, linecolor: colours.line, zerolinecolor: colours.line, tickcolor: colours.line };
    const made = { ...filled, autosize: true, height: element.offsetHeight, paper_bgcolor: colours.panel, plot_bgcolor: colours.panel,
                   font: { color: colours.text, size: phone() ? 11 : 12.5, family: getComputedStyle(document.body).fontFamily },
                   hoverlabel: { bgcolor: colours.text, bordercolor: colours.text, font: { color: colours.panel } } };
    for (const name of ["xaxis", "yaxis"]) {
      made[name] = { ...axis, ...(filled[name] || {}) };
      if (made[name].title) made[name].title = { standoff: 6, ...made[name].title, font: { size: phone() ? 11 : 12.5, color: colours.soft } };
    }
    const cut = (text) => (text.length > 20 && !text.includes("<") ? `${text.slice(0, 19)}…` : text);
    if (phone() && made.yaxis.ticktext) made.yaxis.ticktext = made.yaxis.ticktext.map(cut);
    if (made.annotations) made.annotations = upright(made.annotations, element.clientWidth);
    if (printing) made.width = 680;
    if (touch) made.dragmode = false;
    return made;
  }

  /* a legend that stands in one column on a phone takes room from no picture */
  function legendPx(chart) {
    const names = chart.layout.showlegend === false ? [] : chart.traces.filter((one) => one.showlegend !== false && one.name).map((one) => one.name);
    const isLine = names.reduce((length, name) => length + 6.2 * name.length + 46, 0) < window.innerWidth - 100;
    return phone() && !isLine ? 19 * Math.max(names.length - 1, 0) : 0;
  }

  /* of labels that would cover one another the first stays, and none that leaves the picture */
  function thin(element) {
    const frame = element.getBoundingClientRect(), shown = [];
    for (const label of element.querySelectorAll(".annotation")) {
      const box = label.getBoundingClientRect();
      const covers = shown.some((one) => box.left < one.right && one.left < box.right && box.top < one.bottom && one.top < box.bottom);
      const isHidden = covers || box.left < frame.left || box.right > frame.right;
      label.style.visibility = isHidden ? "hidden" : "";
      if (!isHidden) shown.push(box);
    }
  }

  /* ---- charts that are drawn as they are ---- */
  function drawChart(key) {
    const element = document.getElementById(`plot-${key}`), chart = charts[key], isFirst = !element.on;
    element.style.height = `${chart.height + legendPx(chart)}px`;
    const drawn = Plotly.react(element, themed(chart.traces, theme()), layoutOf(chart.layout, element), config);
    const areOfPoints = (chart.layout.annotations || []).some((one) => one.textangle === 0);
    if (isFirst && areOfPoints) element.on("plotly_afterplot", () => thin(element));
    return drawn;
  }

  /* ---- charts that are drawn for the present zoom ---- */
  function drawStream(key) {
    const element = document.getElementById(`plot-${key}`), view = views[key], data = view.data, colours = theme();
    const scale = data.unit || data.steps * data.unit_s >= 10 ? 1 : 1e3, unit = data.unit || (scale === 1 ? "s" : "ms"), to = (v) => v * data.unit_s * scale;
    const width = Math.max((printing ? 680 : element.clientWidth) - (phone() ? 90 : 130), 100);
    const picture = new Streams.Picture(data, view.from, view.to, width);
    const trace = (bars, i, outline) => ({
      type: "scatter", mode: "lines", fill: "toself", name: data.categories[i].label, x: bars.x.map((v) => (v === null ? null : to(v))), y: bars.y,
      fillcolor: data.categories[i].colour, line: { width: outline, color: colours.panel, simplify: false }, hoverinfo: "skip", legendgroup: i,
      showlegend: bars.x.length > 0 && !(outline && picture.merged[i].x.length),
    });
    const traces = [...picture.merged.map((bars, i) => trace(bars, i, 0)), ...picture.bars.map((bars, i) => trace(bars, i, 0.7))];
    const labels = picture.labels;
    if (data.labels && labels.x.length && labels.x.length < 1500)
      traces.push({ type: "scatter", mode: "text", x: labels.x.map(to), y: labels.y, text: labels.text, showlegend: false, hoverinfo: "skip",
                    textfont: { size: 10, color: "#101418" } });
    const layout = layoutOf({
      margin: { l: 8, r: 12, t: 8, b: 40 }, hovermode: false, dragmode: "zoom",
      showlegend: false, legend: { orientation: "h", x: 0, y: 1, yanchor: "bottom" },
      xaxis: { range: [to(view.from), to(view.to)], title: { text: unit }, showgrid: true, automargin: true, nticks: phone() ? 4 : 9, exponentformat: "none", separatethousands: true },
      yaxis: { range: [data.rows.length - 0.4, -0.6], fixedrange: true, automargin: true, showgrid: false, zeroline: false,
               tickvals: data.rows.map((_, i) => i), ticktext: data.rows.map((row) => row.label), tickfont: { size: phone() ? 10 : 12 } },
    }, element);
    view.scale = scale * data.unit_s;
    element.dataset.bars = picture.drawn;
    view.busy = true;
    const done = Plotly.react(element, traces, layout, { ...config, doubleClick: false });
    view.busy = false;
    return done;
  }

  function show(key, from, to) {
    const view = views[key], total = view.data.steps, least = total / 2e5;
    const length = Math.min(Math.max(to - from, least), total);
    view.from = Math.min(Math.max(from, 0), total - length);
    view.to = view.from + length;
    return drawStream(key);
  }

  const ACTIONS = {
    all: (v) => [0, v.data.steps],
    start: (v) => [0, v.data.steps * (v.data.start || 1)],
    left: (v) => [v.from - 0.4 * (v.to - v.from), v.to - 0.4 * (v.to - v.from)],
    right: (v) => [v.from + 0.4 * (v.to - v.from), v.to + 0.4 * (v.to - v.from)],
    in: (v) => [v.from + 0.25 * (v.to - v.from), v.to - 0.25 * (v.to - v.from)],
    out: (v) => [v.from - 0.5 * (v.to - v.from), v.to + 0.5 * (v.to - v.from)],
  };
  const KEYS = { ArrowLeft: "left", ArrowRight: "right", "+": "in", "=": "in", "-": "out", Home: "all", End: "all", "0": "all" };
  const act = (key, action) => show(key, ...ACTIONS[action](views[key]));

  const tip = document.getElementById("tip");
  function timeText(seconds) {
    for (const [scale, name] of [[1, "s"], [1e-3, "ms"], [1e-6, "µs"]]) if (seconds >= scale) return `${+(seconds / scale).toPrecision(4)} ${name}`;
    return `${+(seconds / 1e-9).toPrecision(3)} ns`;
  }
  function bytesText(n) {
    for (const [scale, name] of [[2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]]) if (n >= scale) return `${+(n / scale).toPrecision(4)} ${name}`;
    return `${n} B`;
  }
  function hover(key, event) {
    const element = document.getElementById(`plot-${key}`), view = views[key], area = element.querySelector(".nsewdrag");
    if (!area) return;
    const box = area.getBoundingClientRect(), x = (event.clientX - box.left) / box.width, y = (event.clientY - box.top) / box.height;
    if (x < 0 || x > 1 || y < 0 || y > 1) { tip.hidden = true; return; }
    const row = Math.round(-0.6 + y * (view.data.rows.length + 0.2)), t = view.from + x * (view.to - view.from);
    const found = Streams.lookUp(view.data, row, t);
    tip.hidden = !found;
    if (!found) return;
    const unit = view.data.unit_s, lines = [found.name + (found.microBatch >= 0 ? `, micro-batch ${found.microBatch}` : "")];
    if (found.within) lines.push(`in ${found.within}`);
    const text = (v) => (view.data.unit ? `${+(v * unit).toPrecision(4)} ${view.data.unit}` : timeText(v * unit));
    lines.push(`${text(found.end - found.start)} from ${text(found.start)}`);
    if (found.bytes) lines.push(bytesText(found.bytes));
    tip.replaceChildren(...lines.map((line, i) => { const p = document.createElement(i ? "div" : "b"); p.textContent = line; return p; }));
    const left = Math.min(event.clientX + 14, window.innerWidth - tip.offsetWidth - 8);
    tip.style.left = `${Math.max(left, 4)}px`;
    tip.style.top = `${event.clientY + 18 + tip.offsetHeight > window.innerHeight ? event.clientY - tip.offsetHeight - 12 : event.clientY + 18}px`;
  }

  function startStream(key) {
    const data = Streams.prepare(streams[key]), element = document.getElementById(`plot-${key}`);
    data.used = new Set(data.ops.map((op) => op[1]));
    views[key] = { data, from: 0, to: data.steps * (data.start || 1) };
    const drawn = drawStream(key);
    element.on("plotly_relayout", (change) => {
      const view = views[key], a = change["xaxis.range[0]"], b = change["xaxis.range[1]"];
      if (view.busy || a === undefined || printing) return;
      show(key, a / view.scale, b / view.scale);
    });
    element.on("plotly_doubleclick", () => act(key, "all"));
    element.addEventListener("mousemove", (event) => hover(key, event));
    element.addEventListener("click", (event) => hover(key, event));
    element.addEventListener("mouseleave", () => { tip.hidden = true; });
    element.addEventListener("keydown", (event) => {
      const action = KEYS[event.key];
      if (!action || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      act(key, action);
    });
    return drawn;
  }

  /* ---- everything together ---- */
  const drawn = (key) => !waiting.has(document.getElementById(`plot-${key}`));
  const redraw = () => Promise.all([...Object.keys(charts).filter(drawn).map(drawChart), ...Object.keys(views).map(drawStream)]);
  function name() { document.getElementById("theme-name").textContent = isDark() ? "dark" : "light"; }
  document.getElementById("theme").addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    try { localStorage.setItem("simulate-theme", root.dataset.theme); } catch { /* a page from a file may have no storage */ }
    name();
    redraw();
  });
  system.addEventListener("change", () => { name(); redraw(); });
  window.addEventListener("beforeprint", () => { printing = true; if (window.Plotly) waiting.forEach(draw); redraw(); });
  window.addEventListener("afterprint", () => { printing = false; redraw(); });
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") tip.hidden = true; });
  document.addEventListener("scroll", () => { tip.hidden = true; }, { passive: true });
  document.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (!button) return;
    if (button.dataset.do) act(button.dataset.stream, button.dataset.do);
    if (button.dataset.save) {
      const element = document.getElementById(`plot-${button.dataset.save}`);
      const figure = { data: element.data, layout: { ...element.layout, showlegend: element.dataset.streams ? true : element.layout.showlegend, title: { text: document.title } }, config };
      figure.layout.margin = { ...figure.layout.margin, t: 70 };
      Plotly.downloadImage(figure, { format: button.dataset.format, filename: button.dataset.save, width: element.clientWidth, height: element.clientHeight + 70, scale: button.dataset.format === "png" ? 2 : 1 });
    }
  });
  let timer = 0, lastWidth = window.innerWidth;
  window.addEventListener("resize", () => {
    if (printing || window.innerWidth === lastWidth) return;
    lastWidth = window.innerWidth;
    clearTimeout(timer);
    timer = setTimeout(redraw, 150);
  });

  try { const kept = localStorage.getItem("simulate-theme"); if (kept === "light" || kept === "dark") root.dataset.theme = kept; } catch { /* as above */ }
  name();

  /* The answer is on the screen before the library of the pictures starts. Then come the pictures in view, one per turn,
     and the others when they are near or the browser is idle; printing draws them all. */
  const pause = () => new Promise((go) => setTimeout(go));
  const waiting = new Set(document.querySelectorAll(".plot"));
  async function draw(element) {
    if (!waiting.delete(element)) return;
    await (element.dataset.chart ? drawChart(element.dataset.chart) : startStream(element.dataset.streams));
    element.dataset.drawn = "true";
    if (!waiting.size) root.dataset.complete = "true";
  }
  const inView = (element) => { const box = element.getBoundingClientRect(); return box.top < window.innerHeight && box.bottom > 0; };
  const idle = window.requestIdleCallback || ((go) => setTimeout(go, 200));
  const next = () => { const [first] = waiting; if (first) draw(first).finally(() => idle(next)); };
  /* plotly travels compressed: base 85 of zlib, a third of its size */
  const DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~";
  async function unpacked(text) {
    const value = new Uint8Array(128), length = Math.floor((text.length * 4) / 5);
    for (let i = 0; i < 85; i++) value[DIGITS.charCodeAt(i)] = i;
    const bytes = new Uint8Array(Math.ceil(text.length / 5) * 4), view = new DataView(bytes.buffer);
    for (let i = 0, at = 0; i < text.length; i += 5, at += 4) {
      let word = 0;
      for (let j = i; j < i + 5; j++) word = word * 85 + (j < text.length ? value[text.charCodeAt(j)] : 84);
      view.setUint32(at, word);
    }
    const stream = new Blob([bytes.subarray(0, length)]).stream().pipeThrough(new DecompressionStream("deflate"));
    return new Response(stream).text();
  }
  window.Page = { unpacked, timeText, bytesText };
  let starting, streams;
  function startLibrary() {
    starting ||= (async () => {
      const script = document.createElement("script");
      const [source, lanes] = await Promise.all(["library", "streams"].map((id) => unpacked(document.getElementById(id).textContent)));
      streams = JSON.parse(lanes);
      script.textContent = source;
      document.head.append(script);
    })();
    return starting;
  }
  /* A frame that is being written holds the page's load event back, on which headless browsers take their picture. */
  const hold = document.createElement("iframe");
  hold.hidden = true;
  root.append(hold);
  hold.contentDocument.open();
  requestAnimationFrame(() => setTimeout(async () => {
    try {
      if (waiting.size) await startLibrary();
      for (const element of [...waiting].filter(inView)) { await draw(element); await pause(); }
    } finally {
      hold.contentDocument.close();
      hold.remove();
    }
    root.dataset.ready = "true";
    const near = new IntersectionObserver((seen) => seen.filter((s) => s.isIntersecting).forEach((s) => draw(s.target)), { rootMargin: "400px" });
    waiting.forEach((element) => near.observe(element));
    idle(next);
  }));
})();
