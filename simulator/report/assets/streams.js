"use strict";
/* Zoomable rows of spans. Only what can be told apart at the present zoom is drawn: shorter spans are merged into bars
   whose height is the share of time that they are busy, and blocks open into their own operations when there is room. */
const Streams = (() => {
  const MAX_BARS = 3200, OPEN_PX = 90, LABEL_PX = 15, HALF = 0.41;

  /* [gap, length, op, micro-batch?]* -> sorted arrays of starts, ends, ops, micro-batches */
  function decode(flat, width) {
    const n = flat.length / width, start = new Float64Array(n), end = new Float64Array(n);
    const op = new Int32Array(n), microBatch = new Int32Array(n).fill(-1);
    let at = 0;
    for (let i = 0, j = 0; i < n; i++, j += width) {
      start[i] = at + flat[j];
      at = end[i] = start[i] + flat[j + 1];
      op[i] = flat[j + 2];
      if (width > 3) microBatch[i] = flat[j + 3];
    }
    return { n, start, end, op, microBatch };
  }

  function prepare(data) {
    const rows = data.rows.map((row) => ({ ...row, ...decode(row.spans, 4) }));
    const insides = data.insides.map((inside) => ({
      steps: inside.steps,
      streams: Object.entries(inside.streams).map(([name, s]) => ({ name, busy: s.busy, ...decode(s.spans, 3) })),
    }));
    const byName = new Map(rows.map((row, i) => [`${row.rank} ${row.stream}`, i]));
    return { ...data, rows, insides, byName };
  }

  /* first span that ends after t */
  function firstAfter(row, t) {
    let low = 0, high = row.n;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (row.end[middle] <= t) low = middle + 1; else high = middle;
    }
    return low;
  }

  class Picture {
    constructor(data, from, to, widthPx) {
      this.data = data;
      this.from = from;
      this.to = to;
      this.perPx = (to - from) / widthPx;
      this.least = this.perPx * Math.max(2.5, (widthPx * data.rows.length) / MAX_BARS);
      this.bars = data.categories.map(() => ({ x: [], y: [] })); // single operations, with an outline
      this.merged = data.categories.map(() => ({ x: [], y: [] })); // shares of time, without
      this.labels = { x: [], y: [], text: [] };
      this.drawn = 0;
      data.rows.forEach((row, index) => this.row(row, index));
    }

    /* a bar over a share of its row's height, above what is stacked below it already */
    bar(category, row, start, end, share, below = 0, merged = share < 1) {
      const a = Math.max(start, this.from), b = Math.min(end, this.to);
      if (b <= a) return;
      const { x, y } = (merged ? this.merged : this.bars)[category], low = row + HALF - 2 * HALF * below, high = low - 2 * HALF * Math.max(share, 0.05);
      x.push(a, b, b, a, a, null);
      y.push(low, low, high, high, low, null);
      this.drawn++;
    }

    row(row, index) {
      let group = null;
      const flush = () => {
        if (!group) return;
        const end = Math.max(group.end, group.start + this.least), length = end - group.start;
        let below = 0;
        group.busy.forEach((busy, category) => {
          if (!busy) return;
          const share = Math.min(busy / length, 1 - below);
          this.bar(category, index, group.start, end, share, below, true);
          below += share;
        });
        for (const [target, [category, busy]] of group.inside) this.bar(category, target, group.start, end, Math.min(busy / length, 1), 0, true);
        group = null;
      };
      for (let i = firstAfter(row, this.from); i < row.n && row.start[i] < this.to; i++) {
        const length = row.end[i] - row.start[i], op = this.data.ops[row.op[i]];
        if (length >= this.least) {
          flush();
          this.span(row, index, row.start[i], row.end[i], row.op[i], row.microBatch[i]);
          continue;
        }
        if (group && row.end[i] - group.start > this.least) flush();
        if (!group) group = { start: row.start[i], end: row.end[i], busy: this.data.categories.map(() => 0), inside: new Map() };
        group.end = Math.max(group.end, row.end[i]);
        group.busy[op[1]] += Math.max(length, 1e-9);
        if (op[2] >= 0) this.add(group.inside, row.rank, index, op[2], length);
      }
      flush();
    }

    /* what the streams inside a merged block are busy for */
    add(totals, rank, index, inside, length) {
      for (const stream of this.data.insides[inside].streams) {
        const target = this.data.byName.get(`${rank} ${stream.name}`);
        if (target === undefined || target === index || !stream.n) continue;
        const entry = totals.get(target) || [this.data.ops[stream.op[0]][1], 0];
        entry[1] += length * stream.busy;
        totals.set(target, entry);
      }
    }

    span(row, index, start, end, op, microBatch) {
      const inside = this.data.ops[op][2], px = (end - start) / this.perPx;
      if (inside >= 0) {
        const stretch = (end - start) / this.data.insides[inside].steps;
        for (const stream of this.data.insides[inside].streams) {
          const target = this.data.byName.get(`${row.rank} ${stream.name}`);
          if (target === undefined) continue;
          if (px > OPEN_PX) this.inner(row, target, stream, start, stretch);
          else if (target !== index && stream.n) this.bar(this.data.ops[stream.op[0]][1], target, start, end, stream.busy);
        }
        if (px > OPEN_PX) return;
      }
      this.bar(this.data.ops[op][1], index, start, end, 1);
      if (px > LABEL_PX && microBatch >= 0) {
        this.labels.x.push((Math.max(start, this.from) + Math.min(end, this.to)) / 2);
        this.labels.y.push(index);
        this.labels.text.push(String(microBatch));
      }
    }

    inner(row, target, stream, offset, stretch) {
      let pending = null;
      const flush = () => {
        if (pending) this.bar(pending.category, target, pending.start, Math.max(pending.end, pending.start + this.perPx), 1);
        pending = null;
      };
      for (let i = 0; i < stream.n; i++) {
        const start = offset + stream.start[i] * stretch, end = offset + stream.end[i] * stretch;
        if (end < this.from || start > this.to) continue;
        const category = this.data.ops[stream.op[i]][1];
        if (end - start > 3 * this.perPx) {
          flush();
          this.span({ rank: row.rank }, target, start, end, stream.op[i], -1);
        } else if (pending && pending.category === category && end - pending.start < 6 * this.perPx) {
          pending.end = end;
        } else {
          flush();
          pending = { start, end, category };
        }
      }
      flush();
    }
  }

  /* what lies at a time on a row: the innermost operation, or nothing */
  function lookUp(data, rowIndex, t) {
    const row = data.rows[rowIndex];
    if (!row) return null;
    for (const candidate of data.rows) {
      if (candidate.rank !== row.rank) continue;
      const i = firstAfter(candidate, t);
      if (i >= candidate.n || candidate.start[i] > t) continue;
      const found = { name: data.ops[candidate.op[i]][0], bytes: data.ops[candidate.op[i]][3], microBatch: candidate.microBatch[i],
                      start: candidate.start[i], end: candidate.end[i], label: row.label, within: "" };
      const opened = candidate === row || data.ops[candidate.op[i]][2] >= 0 ? open(data, found, candidate.op[i], row.stream, t) : null;
      if (opened) return opened;
      if (candidate === row) return found;
    }
    return null;
  }

  function open(data, outer, op, stream, t) {
    const inside = data.insides[data.ops[op][2]];
    if (!inside) return null;
    const stretch = (outer.end - outer.start) / inside.steps;
    for (const s of inside.streams) {
      if (s.name !== stream) continue;
      const i = firstAfter(s, (t - outer.start) / stretch);
      if (i >= s.n || outer.start + s.start[i] * stretch > t) continue;
      const found = { ...outer, name: data.ops[s.op[i]][0], bytes: data.ops[s.op[i]][3], within: outer.name,
                      start: outer.start + s.start[i] * stretch, end: outer.start + s.end[i] * stretch };
      return open(data, found, s.op[i], stream, t) || found;
    }
    return null;
  }

  return { prepare, Picture, lookUp };
})();
