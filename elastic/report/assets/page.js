"use strict";
// Draws a report: the figures as they are in the JSON, in charts, tables and stories. Nothing is computed here.

let report = JSON.parse(document.getElementById("report").textContent);
const isNarrow = () => window.innerWidth < 560;
const part = (id) => document.getElementById(id);
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

// --- text ---

function element(kind, text, attributes) {
  const made = document.createElement(kind);
  if (text !== undefined && text !== null) made.textContent = text;
  for (const [name, value] of Object.entries(attributes || {})) made.setAttribute(name, value);
  return made;
}

function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 10) return `${seconds.toFixed(2)} s`;
  if (seconds < 120) return `${seconds.toFixed(1)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 120) return `${minutes} min ${Math.round(seconds % 60)} s`;
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? `${hours} h ${minutes % 60} min` : `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

const figure = (value) => (value === null || value === undefined ? "–" : Number(value.toPrecision(4)).toLocaleString("en"));
const share = (value) => `${(100 * value).toFixed(value > 0.9995 && value < 1 ? 3 : 1)} %`;
const moment = (at) => new Date((report.headline.began_s + at) * 1000).toISOString();
const clock = (at) => moment(at).slice(11, 19);

// Columns are [name, kind]; kind is "number" or "text".
function fill(table, columns, rows, caption) {
  table.replaceChildren();
  if (!rows.length) return;
  if (caption) table.append(element("caption", caption));
  const head = element("tr");
  for (const [name, kind, when] of columns) head.append(element("th", name, { scope: "col", class: `${kind} ${when || ""}` }));
  table.append(element("thead"));
  table.tHead.append(head);
  const body = element("tbody");
  for (const row of rows) {
    const line = element("tr", null, row.isWhole ? { class: "whole" } : {});
    columns.forEach(([, kind, when], number) => line.append(element("td", row[number], { class: `${kind} ${when || ""}` })));
    body.append(line);
  }
  table.append(body);
}

// --- charts ---

const MOST_ROWS = 300;

function base(extra) {
  const ink = colour("ink"), grid = colour("grid");
  const axis = { gridcolor: grid, linecolor: colour("line"), zerolinecolor: colour("line"), tickfont: { size: 12 }, automargin: true };
  const layout = {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: { color: ink, size: 13, family: "system-ui, sans-serif" },
    margin: { l: 8, r: 14, t: 8, b: 8 }, hovermode: "closest", showlegend: false, uirevision: "kept",
    dragmode: isNarrow() ? false : "zoom", hoverlabel: { bgcolor: colour("panel"), font: { color: ink }, align: "left" },
    legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom" },
  };
  const merged = Object.assign(layout, extra);
  merged.xaxis = Object.assign({}, axis, extra.xaxis);
  merged.yaxis = Object.assign({}, axis, { fixedrange: true }, extra.yaxis);
  return merged;
}

const overTime = () => ({ type: "date", range: [moment(0), moment(Math.max(report.headline.wall_s, 1e-3))], nticks: isNarrow() ? 4 : 9, hoverformat: "%H:%M:%S.%L" });

function draw(id, traces, layout) {
  const place = part(id).querySelector(".chart");
  place.setAttribute("aria-label", report.summaries[id]);
  if (!window.Plotly || !traces.length) return place;
  Plotly.react(place, traces, base(layout), { responsive: true, displayModeBar: false, scrollZoom: false });
  return place;
}

// The table of a chart is built when somebody opens it.
const tables = {};
function tabled(id, columns, rows) {
  tables[id] = () => {
    const all = rows();
    const every = Math.max(1, Math.ceil(all.length / MOST_ROWS));
    const shown = all.filter((_, number) => number % every === 0);
    fill(part(id).querySelector("details.as-table table"), columns, shown, every > 1 ? `Every ${every}th of ${all.length} rows` : "");
  };
  const details = part(id).querySelector("details.as-table");
  details.ontoggle = () => details.open && tables[id]();
  if (details.open) tables[id]();
}

function drawWaterfall() {
  const { wall_s: wall, worker_s: worker, spent } = report.waterfall;
  const lost = spent.filter((one) => one.category !== "productive" && one.wall_s > 0).sort((a, b) => b.wall_s - a.wall_s);
  const productive = spent.find((one) => one.category === "productive");
  const rows = [["wall time", wall, "absolute"], ...lost.map((one) => [one.category, -one.wall_s, "relative"]), ["productive", 0, "total"]];
  part("waterfall").querySelector(".chart").style.height = `${60 + 27 * rows.length}px`;
  draw("waterfall", wall > 0 ? [{
    type: "waterfall", orientation: "h", y: rows.map((row) => row[0]), x: rows.map((row) => row[1]), measure: rows.map((row) => row[2]),
    text: rows.map((row) => duration(row[2] === "total" ? productive.wall_s : Math.abs(row[1]))), textposition: "outside", cliponaxis: false,
    hoverinfo: "y+text", connector: { line: { color: colour("line"), width: 1 } }, constraintext: "none",
    decreasing: { marker: { color: colour("orange") } }, totals: { marker: { color: colour("blue") } },
  }] : [], {
    xaxis: { ticksuffix: " s", rangemode: "tozero", range: [0, wall * (isNarrow() ? 1.32 : 1.12)], nticks: isNarrow() ? 4 : 9 },
    yaxis: { autorange: "reversed" }, dragmode: false,
  });
  const ordered = [productive, ...spent.filter((one) => one !== productive).sort((a, b) => b.wall_s - a.wall_s || b.worker_s - a.worker_s)];
  const lines = ordered.map((one) => [one.category, duration(one.wall_s), share(wall ? one.wall_s / wall : 0), duration(one.worker_s), share(worker ? one.worker_s / worker : 0), one.meaning]);
  const whole = ["all", duration(wall), share(1), duration(worker), share(1), ""];
  whole.isWhole = true;
  fill(part("spent"), [["category", "text"], ["wall time", "number"], ["share", "number"], ["workers' time", "number"], ["share", "number"], ["what it is", "text", "wide"]], [...lines, whole]);
  fill(part("measures").querySelector("table"), [["definition", "text"], ["value", "number"], ["formula", "text"], ["source", "text"]],
    report.measures.map((one) => [one.name, one.value === null ? "–" : share(one.value), one.formula, one.source]));
  part("measures").hidden = !report.measures.length;
}

const STATES = { training: ["blue", ""], ready: ["sky", "."], starting: ["orange", "/"] };
const INCIDENTS = "incidents";

function marks(row) {
  const shown = report.incidents;
  return {
    type: "scatter", mode: "markers+text", x: shown.map((one) => moment(one.opened_s)), y: shown.map(() => row),
    text: shown.map((one) => String(one.number)), textposition: "top center", textfont: { size: 11, color: colour("ink") }, cliponaxis: false,
    customdata: shown.map((one) => one.number), hovertext: shown.map((one) => `${one.number}: ${one.kind}, ${duration(one.cost_s)}; click for its story`), hoverinfo: "text",
    marker: { size: isNarrow() ? 13 : 12, symbol: shown.map((one) => (one.is_planned ? "circle-open" : "diamond")), color: colour("red"), line: { color: colour("red"), width: 2 } },
  };
}

function lines(incidents) {
  return incidents.slice(0, 150).map((one) => ({ type: "line", xref: "x", yref: "paper", x0: moment(one.opened_s), x1: moment(one.opened_s), y0: 0, y1: 1, line: { color: colour("red"), width: 1, dash: "dot" }, layer: "below" }));
}

function ofWorkers(lanes) {
  const label = (lane) => (lane.node ? `${lane.name} · ${lane.node.slice(0, isNarrow() ? 4 : 8)}` : lane.name);
  const traces = Object.entries(STATES).map(([state, [name, shape]]) => {
    const found = lanes.flatMap((lane) => lane.segments.filter((one) => one.state === state).map((one) => [lane, one]));
    return {
      type: "bar", orientation: "h", name: state, y: found.map(([lane]) => label(lane)), base: found.map(([, one]) => moment(one.begin_s)),
      x: found.map(([, one]) => 1000 * (one.end_s - one.begin_s)), width: 0.62, hoverinfo: "text", textposition: "none",
      hovertext: found.map(([lane, one]) => `${lane.name} ${state}, ${clock(one.begin_s)}, ${duration(one.end_s - one.begin_s)}`),
      marker: { color: colour(name), line: { width: 0 }, pattern: { shape, fgcolor: colour("paper"), bgcolor: colour(name), size: 5, solidity: 0.35, fillmode: "overlay" } },
    };
  });
  const gone = lanes.filter((lane) => /^(dead|lost|raised)/.test(lane.end));
  traces.push({
    type: "scatter", mode: "markers", y: gone.map(label), x: gone.map((lane) => moment(lane.ended_s)), hoverinfo: "text", cliponaxis: false,
    hovertext: gone.map((lane) => `${lane.name} ${lane.end}`), marker: { symbol: "x", size: 9, color: colour("ink") },
  });
  return { traces, labels: lanes.map(label) };
}

function ofNodes(lanes, bin) {
  const bins = lanes.length ? lanes[0].shares.length : 0;
  return {
    traces: [{
      type: "heatmap", x: Array.from({ length: bins }, (_, number) => moment((number + 0.5) * bin)), y: lanes.map((lane) => lane.name),
      z: lanes.map((lane) => lane.shares), zmin: 0, zmax: 1, showscale: false, zsmooth: false, hovertemplate: "%{y}, %{x|%H:%M:%S}: %{z:.0%} trains<extra></extra>",
      colorscale: [[0, colour("panel")], [0.5, colour("sky")], [1, colour("blue")]],
    }],
    labels: lanes.map((lane) => lane.name),
  };
}

function drawTimeline() {
  const { lanes, is_by_node: isByNode, bin_s: bin } = report.timeline;
  const { traces, labels } = isByNode ? ofNodes(lanes, bin) : ofWorkers(lanes);
  const place = part("timeline").querySelector(".chart");
  place.style.height = `${Math.min(760, 96 + (isByNode ? 6 : 24) * lanes.length)}px`;
  draw("timeline", lanes.length ? [...traces, marks(INCIDENTS)] : [], {
    barmode: "overlay", shapes: lines(report.incidents), margin: { l: 8, r: 14, t: 20, b: 8 }, xaxis: overTime(),
    yaxis: { type: "category", categoryorder: "array", categoryarray: [...labels].reverse().concat([INCIDENTS]), showgrid: false, range: [-0.6, labels.length + 0.5], nticks: isByNode ? 24 : undefined, dtick: isByNode ? undefined : 1, tickfont: { size: 11 } },
  });
  if (window.Plotly && lanes.length && !place.heeds) {
    place.heeds = true;
    place.on("plotly_click", (click) => {
      const number = click.points.map((point) => point.customdata).find((one) => one !== undefined);
      if (number !== undefined) openStory(number, true);
    });
  }
  const legend = isByNode ? [["blue", "all of a node's workers train"], ["sky", "half of them"]] : Object.entries(STATES).map(([state, [name]]) => [name, state]);
  const told = legend.map(([name, text]) => { const item = element("li"); item.append(element("i", null, { style: `background: var(--${name})` }), text); return item; });
  part("states").replaceChildren(...told, element("li", isByNode ? "◆ incident" : "◆ incident   ○ planned   ✕ worker lost"));
  const end = (lane) => lane.end || "is there";
  if (isByNode) tabled("timeline", [["node", "text"], ["time in training", "number"]], () => lanes.map((lane) => [lane.name, share(lane.shares.reduce((sum, one) => sum + one, 0) / Math.max(1, lane.shares.length))]));
  else tabled("timeline", [["worker", "text"], ["node", "text"], ["starting", "number"], ["ready", "number"], ["training", "number"], ["end", "text"]], () => lanes.map((lane) => {
    const took = (state) => duration(lane.segments.filter((one) => one.state === state).reduce((sum, one) => sum + one.end_s - one.begin_s, 0));
    return [lane.name, lane.node, took("starting"), took("ready"), took("training"), end(lane)];
  }));
}

const curve = (series, name, more) => Object.assign({ type: "scatter", mode: "lines", name: series.name, x: series.at_s.map(moment), y: series.values, line: { color: colour(name), width: 2 } }, more);

function drawSeries() {
  const { sizes, throughput, losses, retries, rungs, headline } = report;
  const floor = { rangemode: "tozero", nticks: 6 };
  draw("sizes", sizes.at_s.length ? [curve(sizes, "blue", { line: { color: colour("blue"), width: 2, shape: "hv" }, fill: "tozeroy", fillcolor: "rgba(77,163,221,0.18)" })] : [],
    { xaxis: overTime(), yaxis: { rangemode: "tozero", tickformat: "d", nticks: Math.min(8, headline.most_replicas + 2) }, shapes: lines(report.incidents) });
  tabled("sizes", [["time", "text"], ["replicas", "number"]], () => sizes.at_s.map((at, number) => [clock(at), sizes.values[number]]));
  draw("throughput", throughput.at_s.length ? [curve(throughput, "green")] : [], { xaxis: overTime(), yaxis: floor, shapes: lines(report.incidents) });
  tabled("throughput", [["time", "text"], ["samples a second", "number"]], () => throughput.at_s.map((at, number) => [clock(at), figure(throughput.values[number])]));
  const again = retries.filter((one) => one.value !== null);
  draw("losses", losses.at_s.length ? [curve(losses, "blue", { name: report.metric }), {
    type: "scatter", mode: "markers", name: "tried again", x: again.map((one) => moment(one.at_s)), y: again.map((one) => one.value), hoverinfo: "text", cliponaxis: false,
    hovertext: again.map((one) => `step ${one.step}, ${one.why}`), marker: { symbol: "triangle-up", size: 12, color: colour("red"), line: { color: colour("paper"), width: 1 } },
  }] : [], { xaxis: overTime(), showlegend: true, margin: { l: 8, r: 14, t: 30, b: 8 } });
  tabled("losses", [["time", "text"], [report.metric || "loss", "number"]], () => losses.at_s.map((at, number) => [clock(at), figure(losses.values[number])]));
  const looks = [["ink", "dot"], ["sky", "solid"], ["blue", "dash"], ["green", "dashdot"], ["pink", "longdash"]];
  draw("rungs", rungs.length > 1 ? rungs.map((one, number) => curve(one, looks[number][0], { line: { color: colour(looks[number][0]), dash: looks[number][1], width: 2, shape: "hv" } })) : [],
    { xaxis: overTime(), yaxis: { rangemode: "tozero", title: { text: "newest step" } }, showlegend: true, margin: { l: 8, r: 14, t: 30, b: 8 } });
  part("rungs").querySelector("details").hidden = rungs.length < 2;
  tabled("rungs", [["time", "text"], ["rung", "text"], ["newest step", "number"]], () => rungs.flatMap((one) => one.at_s.map((at, number) => [at, one.name, one.values[number]])).sort((a, b) => a[0] - b[0]).map((row) => [clock(row[0]), row[1], row[2]]));
}

function drawStragglers() {
  const slow = report.stragglers.slice(0, isNarrow() ? 12 : 24);
  const place = part("stragglers").querySelector(".chart");
  place.style.height = `${70 + 22 * slow.length}px`;
  draw("stragglers", slow.length ? [{
    type: "bar", orientation: "h", y: slow.map((one) => one.worker), x: slow.map((one) => one.latest ?? one.mean), hoverinfo: "text", textposition: "none",
    hovertext: slow.map((one) => `${one.worker}: ${(one.latest ?? one.mean).toFixed(2)} times the median, at worst ${one.worst.toFixed(2)}`),
    marker: { color: slow.map((one) => colour(one.latest === null ? "grey" : "blue")) }, width: 0.6,
  }, {
    type: "scatter", mode: "markers", y: slow.map((one) => one.worker), x: slow.map((one) => one.worst), hoverinfo: "skip", marker: { symbol: "line-ns-open", size: 13, color: colour("red"), line: { width: 2 } },
  }] : [], {
    xaxis: { rangemode: "tozero", title: { text: "times the median: lately (bar), at worst (mark)", font: { size: 12 } } }, yaxis: { type: "category", autorange: "reversed", dtick: 1, tickfont: { size: 11 } }, dragmode: false,
    shapes: [{ type: "line", xref: "x", yref: "paper", x0: 1, x1: 1, y0: 0, y1: 1, line: { color: colour("ink"), width: 1, dash: "dot" } }],
  });
  part("stragglers").querySelector("details").hidden = !slow.length;
  tabled("stragglers", [["worker", "text"], ["node", "text"], ["lately", "number"], ["mean", "number"], ["at worst", "number"], ["micro-batch", "number"]],
    () => report.stragglers.map((one) => [one.worker, one.node, one.latest === null ? "gone" : one.latest.toFixed(2), one.mean.toFixed(2), one.worst.toFixed(2), `${(1000 * one.seconds).toFixed(1)} ms`]));
}

// --- parts without charts ---

function showHead() {
  const now = report.headline;
  const name = now.run || "a run";
  document.title = `${name}: ${now.ending || now.phase}`;
  part("run").textContent = name;
  part("phase").textContent = now.ending || now.phase;
  const isBad = now.ending ? !/^succeeded|^stopped|^exited/.test(now.ending) : now.open_incidents > 0;
  part("phase").className = `pill ${isBad ? "bad" : "good"}`;
  part("clock").textContent = `from ${moment(0).slice(0, 19).replace("T", " ")} for ${duration(now.wall_s)}`;
  const tiles = [
    ["goodput", share(now.goodput), "of the workers' time"],
    ["step", now.step < 0 ? "–" : now.step.toLocaleString("en"), `generation ${now.generation}, life ${now.incarnation}`],
    ["wall time", duration(now.wall_s), ""],
    ["replicas", String(now.replicas), `at most ${now.most_replicas}; ${now.spares} spare`],
    ["throughput", `${figure(now.samples_per_s)} /s`, `samples; ${figure(now.steps_per_s)} steps/s`],
    [report.metric || "loss", figure(now.loss), ""],
    ["failures", String(now.incidents), now.open_incidents ? `${now.open_incidents} open` : "none open"],
    ["resumed after", duration(now.typical_resume_s), now.worst_resume_s === null ? "" : `median; ${duration(now.worst_resume_s)} at worst`],
  ];
  part("figures").replaceChildren(...tiles.map(([label, value, more]) => {
    const tile = element("div"), told = element("dd", value);
    if (more) told.append(element("br"), element("span", more, { class: "more" }));
    tile.append(element("dt", label), told);
    return tile;
  }));
  for (const [id, text] of Object.entries(report.summaries)) part(id).querySelector(".summary").textContent = text;
  part("notes").replaceChildren(...report.notes.map((text) => element("li", text)));
}

function showTables() {
  fill(part("stalls"), [["steps waited for", "text"], ["wall time", "number"]], report.stalls.map((one) => [one.category, duration(one.wall_s)]));
  fill(part("decisions"), [["time", "text"], ["tier", "text"], ["decision", "text"]], report.decisions.slice(-30).map((one) => [clock(one.at_s), one.tier, one.reason]));
  fill(part("knobs").querySelector("table"), [["setting", "text"], ["value", "text"], ["from", "text"]], report.settings.map((one) => [one.path, one.value, one.source]));
  part("knobs").hidden = !report.settings.length;
}

// --- stories ---

let opened = null;

function storyOf(one) {
  const story = element("div", null, { class: "story", id: `story-${one.number}` });
  const facts = element("dl");
  const rows = [
    ["first signal", `${clock(one.opened_s)}, ${duration(one.opened_s)} after the start`],
    ["resumed", one.resumed_s === null ? "not yet" : `${duration(one.resumed_s - one.opened_s)} later${one.step === null ? "" : `, with step ${one.step}`}`],
    ["culprits", one.culprits.join(", ") || "none known"],
    ["evidence", one.evidence.join("; ") || "none"],
    ["decision", one.decision || "none"],
    ["replicas", one.replicas_before || one.replicas_after ? `${one.replicas_before} before, ${one.replicas_after} after` : ""],
    ["cost", `${duration(one.cost_s)} of wall time, ${duration(one.cost_worker_s)} of workers' time`],
    ["made of", one.costs.map(([name, seconds]) => `${name} ${duration(seconds)}`).join(", ")],
    ["on purpose", one.injected],
  ];
  for (const [name, text] of rows) if (text) facts.append(element("dt", name), element("dd", text));
  story.append(facts);
  if (one.told.length) {
    const told = element("ol", null, { "aria-label": "What the journal has around it" });
    for (const line of one.told) {
      const item = element("li"), after = line.at_s - one.opened_s;
      item.append(element("time", `${after < 0 ? "−" : "+"}${Math.abs(after).toFixed(2)} s`), element("span", line.text));
      told.append(item);
    }
    story.append(told);
  }
  return story;
}

function openStory(number, comesFromChart) {
  opened = opened === number && !comesFromChart ? null : number;
  showStories();
  if (comesFromChart) {
    const button = document.querySelector(`#stories [data-number="${number}"] button`);
    button.focus({ preventScroll: true });
    button.scrollIntoView({ block: "center", behavior: matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth" });
  }
}

function showStories() {
  const focused = document.activeElement && document.activeElement.closest("#stories li");
  const kept = focused && focused.dataset.number;
  part("stories").replaceChildren(...report.incidents.map((one) => {
    const isOpen = one.number === opened;
    const item = element("li", null, { "data-number": one.number });
    if (one.resumed_s === null && !report.headline.ending && !one.is_planned) item.className = "open";
    const button = element("button", null, { type: "button", "aria-expanded": isOpen, "aria-controls": `story-${one.number}` });
    button.append(element("b", String(one.number)), element("span", one.kind, { class: "kind" }), element("span", one.culprits.slice(0, 4).join(", ")),
      element("span", clock(one.opened_s), { class: "when" }), element("span", one.is_planned ? `${duration(one.cost_s)}, planned` : duration(one.cost_s), { class: "cost" }));
    button.onclick = () => openStory(one.number, false);
    item.append(button);
    if (isOpen) item.append(storyOf(one));
    return item;
  }));
  if (kept) document.querySelector(`#stories [data-number="${kept}"] button`)?.focus({ preventScroll: true });
}

// --- all of it, now and as things happen ---

function show() {
  showHead();
  showStories();
  drawWaterfall();
  drawTimeline();
  drawSeries();
  drawStragglers();
  showTables();
}

function liveness(silent) {
  if (!report) return "no word of the run yet";
  if (report.headline.ending) return "the run has ended";
  return silent > 5 ? `live; the run has said nothing for ${duration(silent)}` : "live";
}

async function follow() {
  const token = new URLSearchParams(location.search).get("token");
  const headers = token ? { Authorization: `Bearer ${token}` } : {};
  let version = "", waits = 1000;
  for (;;) {
    try {
      const answer = await fetch(`report.json?after=${version}`, { headers, cache: "no-store" });
      if (!answer.ok) throw new Error(String(answer.status));
      const told = await answer.json();
      if (told.version !== version && told.report) { version = told.version; report = told.report; show(); }
      part("live").textContent = liveness(told.silent_s);
      waits = 1000;
    } catch (error) {
      part("live").textContent = "the page's server does not answer: what is shown may be old";
      await new Promise((go) => setTimeout(go, waits));
      waits = Math.min(15000, 2 * waits);
    }
    if (document.hidden) await new Promise((go) => document.addEventListener("visibilitychange", go, { once: true }));
  }
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => report && show());
let width = window.innerWidth;
addEventListener("resize", () => { if (report && (width < 560) !== isNarrow()) show(); width = window.innerWidth; });
if (report) show();
if (document.documentElement.dataset.live) { part("live").hidden = false; part("live").textContent = "connecting"; follow(); }
