"use strict";
/* Change one thing: every state is an answer that was simulated, found by its choices. */
window.addEventListener("DOMContentLoaded", async () => {
  const { unpacked, timeText, bytesText } = window.Page;
  const data = JSON.parse(await unpacked(document.getElementById("nearby-data").textContent));
  const place = (id) => document.getElementById(id), keyOf = (choices) => JSON.stringify(Object.entries(choices).sort());
  const answers = new Map(data.answers.map((answer) => [keyOf(answer.choices), answer])), base = data.answers[0];
  const make = (name, content = "", attributes = {}) => {
    const element = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    element.append(...[content].flat());
    return element;
  };
  let choices = {}, pinned = null;

  /* the address: #nearby?micro_batch=8&pin=... */
  function read() {
    if (!location.hash.startsWith("#nearby?")) return;
    const found = Object.fromEntries(new URLSearchParams(location.hash.slice(8)));
    const pin = found.pin === undefined ? null : Object.fromEntries(new URLSearchParams(found.pin));
    delete found.pin;
    if (answers.has(keyOf(found))) choices = found;
    pinned = pin && answers.has(keyOf(pin)) ? pin : null;
  }
  function write() {
    const words = new URLSearchParams(choices);
    if (pinned) words.set("pin", new URLSearchParams(pinned).toString());
    history.replaceState(null, "", `#nearby?${words}`);
  }
  const named = (some) => Object.entries(some).map(([key, word]) => `${data.settings.find((s) => s.key === key).label} ${word}`).join(", ") || "the answer above";

  function selectors() {
    place("nearby-choices").replaceChildren(...data.settings.map(({ key, label, now, words }) => {
      const others = { ...choices };
      delete others[key];
      const options = [make("option", now === "as it is" ? now : `${now} (as above)`, { value: "" })];
      for (const word of words) {
        const there = answers.has(keyOf({ ...others, [key]: word }));
        options.push(make("option", there ? word : `${word} (not simulated)`, { value: word, ...(there ? {} : { disabled: "" }) }));
      }
      const select = make("select", options, { id: `nearby-${key.replaceAll(" ", "-")}` });
      select.value = choices[key] || "";
      select.addEventListener("change", () => {
        choices = select.value ? { ...others, [key]: select.value } : others;
        write();
        draw();
        document.getElementById(select.id).focus();
      });
      return make("label", [make("span", label), select], { class: key in choices ? "chosen" : "" });
    }));
  }
  function bar(answer, parts, valueOf, whole, limit) {
    const pieces = parts.filter((part) => valueOf(part) > 0).map((part) => {
      const text = `${part.label}: ${limit ? bytesText(valueOf(part)) : timeText(valueOf(part))}`;
      return make("i", "", { style: `width:${(100 * valueOf(part)) / whole}%;background:${part.colour}`, title: text, "aria-label": text, role: "img" });
    });
    if (limit) pieces.push(make("b", "", { class: "limit", style: `left:${(100 * limit) / whole}%`, title: `capacity ${bytesText(limit)}` }));
    return make("span", pieces, { class: "stack" });
  }
  const rateText = (value) => value.toLocaleString("en", value < 1e4 ? { maximumSignificantDigits: 4 } : { maximumFractionDigits: 0 });
  const percent = (value, from) => (from && Math.abs(value / from - 1) >= 5e-4 ? ` (${value > from ? "+" : "\u2212"}${Math.abs(100 * (value / from - 1)).toFixed(1)} %)` : "");
  function draw() {
    selectors();
    const shown = [["the answer above", base], ...(pinned ? [[`pinned: ${named(pinned)}`, answers.get(keyOf(pinned))]] : [])];
    if (Object.keys(choices).length) shown.push([named(choices), answers.get(keyOf(choices))]);
    const slowest = Math.max(...shown.map(([, a]) => a.iteration_time_s)), fullest = Math.max(...shown.map(([, a]) => Math.max(a.memory.peak_bytes, a.memory.capacity_bytes)));
    const counted = base.tokens_per_s === null ? "samples" : "tokens";
    const cost = (a) => (a.gpu_hours_per_billion_tokens === null ? "" : a.cost_per_billion_tokens === null ? `${a.gpu_hours_per_billion_tokens.toPrecision(4)} GPU hours` : `${a.cost_per_billion_tokens.toFixed(2)} ${a.currency}`.trim());
    const rows = [
      ["iteration", (a) => timeText(a.iteration_time_s) + percent(a.iteration_time_s, base.iteration_time_s)],
      ["where the time goes", (a) => bar(a, data.parts, (part) => a.breakdown[part.key], slowest)],
      [`${counted}/s`, (a) => rateText(a[`${counted}_per_s`]) + percent(a[`${counted}_per_s`], base[`${counted}_per_s`])],
      ["MFU", (a) => `${(100 * a.mfu).toFixed(1)} %`],
      ["memory", (a) => `${bytesText(a.memory.peak_bytes)} of ${bytesText(a.memory.capacity_bytes)}${a.memory.fits ? "" : ": does not fit"}${a.memory.is_tight ? ", tight" : ""}`],
      ["by category", (a) => bar(a, data.memory, (part) => a.memory[part.key] || 0, fullest, a.memory.capacity_bytes)],
      ["for a billion tokens", cost],
    ];
    const head = make("tr", [make("td"), ...shown.map(([title]) => make("th", title, { scope: "col" }))]);
    const body = rows.map(([title, cell]) => make("tr", [make("th", title, { scope: "row" }), ...shown.map(([, a]) => make("td", cell(a), a.memory.fits ? {} : { class: "unfit" }))]));
    const keys = (parts, valueOf) => make("p", parts.filter((part) => shown.some(([, a]) => valueOf(a, part) > 0)).map((part) => make("span", [make("i", "", { style: `background:${part.colour}` }), part.label], { class: "key" })), { class: "note" });
    const legends = [keys(data.parts, (a, part) => a.breakdown[part.key]), keys(data.memory, (a, part) => a.memory[part.key])];
    place("nearby-answer").replaceChildren(make("div", make("table", [head, ...body], { class: "nearby" }), { class: "scroll" }), ...legends);
    tools(answers.get(keyOf(choices)));
  }
  function tools(answer) {
    const copy = (label, text) => {
      const button = make("button", label, { type: "button" });
      button.addEventListener("click", async () => {
        try { await navigator.clipboard.writeText(text); button.textContent = "copied"; } catch { window.prompt("Copy:", text); }
        setTimeout(() => { button.textContent = label; }, 1500);
      });
      return button;
    };
    const does = (label, act) => {
      const button = make("button", label, { type: "button" });
      button.addEventListener("click", () => { act(); write(); draw(); });
      return button;
    };
    place("nearby-tools").replaceChildren(
      does("pin this one", () => { pinned = { ...choices }; }), ...(pinned ? [does("unpin", () => { pinned = null; })] : []),
      does("back to the answer above", () => { choices = {}; }),
      copy("copy the command", answer.command), copy("copy the address", location.href),
      ...Object.entries(answer.files).map(([name, text]) => copy(`copy ${name}`, text)),
    );
  }
  window.addEventListener("hashchange", () => { read(); draw(); });
  read();
  draw();
  if (location.hash.startsWith("#nearby?")) document.getElementById("nearby").scrollIntoView();
});
