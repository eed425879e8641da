"use strict";
// The charts of a report; `page.js` follows it, in the same script.

const MOST_ROWS = 300;
const MOST_DECISIONS = 30;

function base(extra) {
  const ink = colour("ink"), grid = colour("grid");
  const axis = { gridcolor: grid, linecolor: colour("line"), zerolinecolor: colour("line"), tickfont: { size: 12 }, automargin: true };
  const layout = {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: { color: ink, size: 13, family: "system-ui, sans-serif" },
    margin: { l: 8, r: 14, t: 8, b: 8 }, hovermode: "closest", showlegend: false, uirevision: "kept",
    dragmode: isNarrow() ? false : "zoom", hoverlabel: { bgcolor: colour("panel"), font: { color: ink }, align: "left", namelength: -1 },
    legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom" },
  };
  const merged = Object.assign(layout, extra);
  merged.xaxis = Object.assign({}, axis, extra.xaxis);
  merged.yaxis = Object.assign({}, axis, { fixedrange: true }, extra.yaxis);
  return merged;
}

// Charts over time begin at one place, left of which their first label has room.
const OVER_TIME = { l: 48, r: 14, t: 8, b: 8 };
const overTime = () => ({ type: "date", ticks: "outside", ticklen: 5, tickcolor: colour("line"), range: [moment((isNarrow() ? -0.04 : -0.012) * report.headline.wall_s), moment(Math.max(report.headline.wall_s, 1e-3))], nticks: isNarrow() ? 4 : 9, hoverformat: isLong() ? "%m-%d %H:%M:%S" : "%H:%M:%S.%L" });

// Plotly takes "<b>" in a name for bold, and "&lt;" for "<": what comes from a run is to be shown as it is written.
// It is never shortened by Plotly (namelength), which would cut an entity in two.
const ENTITIES = { "&": "&amp;", "<": "&lt;", ">": "&gt;" };
function asWritten(value) {
  if (typeof value === "string") return value.replace(/[&<>]/g, (one) => ENTITIES[one]);
  if (Array.isArray(value)) return value.map(asWritten);
  if (value === null || typeof value !== "object") return value;
  const isOurs = (name) => name === "hovertemplate"; // holds markup, and names no names
  return Object.fromEntries(Object.entries(value).map(([name, one]) => [name, isOurs(name) ? one : asWritten(one)]));
}

// Charts that nobody sees wait: until they are scrolled to, or, in a file, until the browser has nothing else to do.
const seen = new Set();
const waiting = new Map();
const watcher = new IntersectionObserver((changes) => {
  for (const change of changes) {
    const id = change.target.parentElement.id;
    if (change.isIntersecting) { seen.add(id); drawNow(id); } else seen.delete(id);
  }
}, { rootMargin: "400px" });

function draw(id, traces, layout, then) {
  const place = part(id).querySelector(".chart");
  place.setAttribute("aria-label", report.summaries[id]);
  place.hidden = !window.Plotly || !traces.length;
  if (place.hidden) return;
  waiting.set(id, () => {
    Plotly.react(place, asWritten(traces), base(asWritten({ ...layout, height: place.clientHeight })), { responsive: true, displayModeBar: false, scrollZoom: false });
    if (then && !place.heeds) { place.heeds = true; then(place); }
  });
  if (seen.has(id)) drawNow(id);
}

function drawNow(id) {
  const act = waiting.get(id);
  waiting.delete(id);
  if (act) act();
}

function drawNext() {
  const [id] = waiting.keys();
  if (id === undefined) return;
  drawNow(id);
  setTimeout(drawNext, 0);
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

// Round durations up to the longest, for an axis: 20 s, 5 min, 2 h.
function ticks(longest, most) {
  const steps = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 21600, 43200, 86400];
  const step = steps.find((one) => longest / one <= most) || Math.ceil(longest / most / 86400) * 86400;
  const values = Array.from({ length: Math.floor(longest / step) + 1 }, (_, number) => number * step);
  const [unit, name] = step < 60 ? [1, "s"] : step < 3600 ? [60, "min"] : [3600, "h"];
  return { tickmode: "array", tickvals: values, ticktext: values.map((one) => `${Number((one / unit).toFixed(2))} ${name}`) };
}

const isSeen = (seconds) => seconds >= 0.005; // else it would read 0.00 s

function drawWaterfall() {
  const { wall_s: wall, worker_s: worker, spent } = report.waterfall;
  const lost = spent.filter((one) => one.category !== "productive" && isSeen(one.wall_s)).sort((a, b) => b.wall_s - a.wall_s);
  const productive = spent.find((one) => one.category === "productive");
  const rows = [["wall time", wall, "absolute"], ...lost.map((one) => [one.category, -one.wall_s, "relative"]), ["productive", 0, "total"]];
  part("waterfall").querySelector(".chart").style.height = `${60 + 27 * rows.length}px`;
  draw("waterfall", wall > 0 ? [{
    type: "waterfall", orientation: "h", y: rows.map((row) => row[0]), x: rows.map((row) => row[1]), measure: rows.map((row) => row[2]),
    text: rows.map((row) => duration(row[2] === "total" ? productive.wall_s : Math.abs(row[1]))), textposition: "outside", cliponaxis: false,
    hoverinfo: "y+text", connector: { line: { color: colour("line"), width: 1 } }, constraintext: "none",
    decreasing: { marker: { color: colour("orange") } }, totals: { marker: { color: colour("blue") } },
  }] : [], {
    xaxis: { ...ticks(wall, isNarrow() ? 3 : 8), range: [0, wall * (isNarrow() ? 1.32 : 1.12)] },
    yaxis: { autorange: "reversed", showgrid: false }, dragmode: false,
  });
  const ordered = [productive, ...spent.filter((one) => one !== productive && (isSeen(one.wall_s) || isSeen(one.worker_s))).sort((a, b) => b.wall_s - a.wall_s || b.worker_s - a.worker_s)];
  const lines = ordered.map((one) => [one.category, duration(one.wall_s), share(wall ? one.wall_s / wall : 0), duration(one.worker_s), share(worker ? one.worker_s / worker : 0), one.meaning]);
  const whole = ["all", duration(wall), share(1), duration(worker), share(1), ""];
  whole.isWhole = true;
  fill(part("spent"), [["category", "text"], ["wall time", "number"], ["share", "number"], ["workers' time", "number"], ["share", "number"], ["what it is", "text", "wide"]], [...lines, whole]);
  fill(part("measures").querySelector("table"), [["definition", "text"], ["value", "number"], ["formula", "text"], ["source", "text"]],
    report.measures.map((one) => [one.name, one.value === null ? "–" : share(one.value), one.formula, one.source]));
  fill(part("measure-parts"), [["definition", "text"], ["its part", "text"], ["time", "number"]],
    report.measures.flatMap((one) => one.parts.map(([name, seconds]) => [one.name, name, duration(seconds)])));
  part("measures").hidden = !report.measures.length;
}

const STATES = { training: ["blue", ""], ready: ["sky", "."], starting: ["orange", "/"] };
const INCIDENTS = "incidents";
const CROWD = 40; // incidents that can be told apart by a number and a line each

function marks(row) {
  const shown = report.incidents;
  return {
    type: "scatter", mode: shown.length > CROWD ? "markers" : "markers+text", x: shown.map((one) => moment(one.opened_s)), y: shown.map(() => row),
    text: shown.map((one) => one.label), textposition: "top center", textfont: { size: 11, color: colour("ink") }, cliponaxis: false,
    customdata: shown.map((one) => one.number), hovertext: shown.map((one) => `${one.kind} ${one.label}, ${duration(one.cost_s)}; click for its story`), hoverinfo: "text",
    marker: { size: isNarrow() ? 13 : 12, symbol: shown.map((one) => (one.is_failure ? "diamond" : "circle-open")), color: colour("red"), line: { color: colour("red"), width: 2 } },
  };
}

function lines(incidents) {
  return (incidents.length > CROWD ? [] : incidents).filter((one) => one.is_failure).map((one) => ({ type: "line", xref: "x", yref: "paper", x0: moment(one.opened_s), x1: moment(one.opened_s), y0: 0, y1: 1, line: { color: colour("red"), width: 1, dash: "dot" }, layer: "below" }));
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
      type: "heatmap", x: Array.from({ length: bins }, (_, number) => moment((number + 0.5) * bin)), y: lanes.map((_, number) => lanes.length - 1 - number),
      z: lanes.map((lane) => lane.shares), text: lanes.map((lane) => lane.shares.map(() => lane.name)), zmin: 0, zmax: 1, showscale: false,
      zsmooth: false, hovertemplate: `%{text}, %{x|${isLong() ? "%m-%d " : ""}%H:%M:%S}: %{z:.0%} of its workers train<extra></extra>`,
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
  const top = isByNode ? lanes.length + 0.03 * lanes.length + 1 : INCIDENTS;
  const every = Math.ceil(lanes.length / 24);
  const rows = isByNode
    ? { tickmode: "array", tickvals: lanes.map((_, number) => lanes.length - 1 - number).filter((_, number) => number % every === 0), ticktext: labels.filter((_, number) => number % every === 0), range: [-0.6, 1.08 * lanes.length + 2] }
    : { type: "category", categoryorder: "array", categoryarray: [...labels].reverse().concat([INCIDENTS]), range: [-0.6, labels.length + 0.5], dtick: 1 };
  draw("timeline", lanes.length ? [...traces, marks(top)] : [], {
    barmode: "overlay", shapes: lines(report.incidents), margin: { l: 8, r: 14, t: 20, b: 8 }, xaxis: overTime(),
    yaxis: { ...rows, showgrid: false, tickfont: { size: 11 } },
  }, (chart) => chart.on("plotly_click", (click) => {
    const number = click.points.map((point) => point.customdata).find((one) => one !== undefined);
    if (number !== undefined) openStory(number, true);
  }));
  const legend = isByNode ? [["blue", "all of a node's workers train"], ["sky", "half of them"]] : Object.entries(STATES).map(([state, [name]]) => [name, state]);
  const told = legend.map(([name, text]) => { const item = element("li"); item.append(element("i", null, { style: `background: var(--${name})` }), text); return item; });
  part("states").replaceChildren(...told, element("li", isByNode ? "◆ failure   ○ other loss of time" : "◆ failure   ○ other loss of time   ✕ worker lost"));
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
    { xaxis: overTime(), yaxis: { rangemode: "tozero", tickformat: "d", nticks: Math.min(8, headline.most_replicas + 2) }, shapes: lines(report.incidents), margin: OVER_TIME });
  tabled("sizes", [["time", "text"], ["replicas", "number"]], () => sizes.at_s.map((at, number) => [clock(at), sizes.values[number]]));
  draw("throughput", throughput.at_s.length ? [curve(throughput, "green")] : [], { xaxis: overTime(), yaxis: floor, shapes: lines(report.incidents), margin: OVER_TIME });
  tabled("throughput", [["time", "text"], ["samples a second", "number"]], () => throughput.at_s.map((at, number) => [clock(at), figure(throughput.values[number])]));
  const again = retries.filter((one) => one.value !== null);
  draw("losses", losses.at_s.length ? [curve(losses, "blue", { name: report.metric }), {
    type: "scatter", mode: "markers", name: "tried again", x: again.map((one) => moment(one.at_s)), y: again.map((one) => one.value), hoverinfo: "text", cliponaxis: false,
    hovertext: again.map((one) => `step ${one.step}, ${one.why}`), marker: { symbol: "triangle-up", size: 12, color: colour("red"), line: { color: colour("paper"), width: 1 } },
  }] : [], { xaxis: overTime(), showlegend: true, margin: { ...OVER_TIME, t: 30 } });
  tabled("losses", [["time", "text"], [report.metric || "loss", "number"]], () => losses.at_s.map((at, number) => [clock(at), figure(losses.values[number])]));
  const looks = [["ink", "dot"], ["sky", "solid"], ["blue", "dash"], ["green", "dashdot"], ["pink", "longdash"]];
  draw("rungs", rungs.length > 1 ? rungs.map((one, number) => curve(one, looks[number][0], { line: { color: colour(looks[number][0]), dash: looks[number][1], width: 2, shape: "hv" } })) : [],
    { xaxis: overTime(), yaxis: { rangemode: "tozero", title: { text: "newest step" } }, showlegend: true, margin: { ...OVER_TIME, t: 30 } });
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
