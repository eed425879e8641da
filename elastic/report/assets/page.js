// Shows a report: the figures as they are in the JSON, in tables and stories. Nothing is computed here.

let report = JSON.parse(document.getElementById("report").textContent);
const isNarrow = () => matchMedia("(max-width: 560px)").matches; // innerWidth grows where something is too wide
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
  const whole = Math.round(seconds);
  const minutes = Math.floor(whole / 60);
  if (minutes < 120) return `${minutes} min ${whole % 60} s`;
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? `${hours} h ${minutes % 60} min` : `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

const figure = (value) => (value === null || value === undefined ? "–" : Number(value.toPrecision(4)).toLocaleString("en"));
const share = (value) => `${(100 * value).toFixed(value > 0.9995 && value < 1 ? 3 : 1)} %`;
const moment = (at) => new Date((report.headline.began_s + at) * 1000).toISOString();
const isLong = () => report.headline.wall_s >= 86400; // the time of the day alone would stand for two moments
const clock = (at) => (isLong() ? moment(at).slice(5, 19).replace("T", " ") : moment(at).slice(11, 19));

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

// --- parts without charts ---

function showHead() {
  const now = report.headline;
  const name = now.run || "a run";
  document.title = `${name}: ${now.ending || now.phase}`;
  part("run").textContent = name;
  part("phase").textContent = now.ending || now.phase;
  const isBad = now.ending ? !/^succeeded|^stopped|^exited/.test(now.ending) : now.open_incidents > 0;
  part("phase").className = `pill ${isBad ? "bad" : "good"}`;
  part("clock").textContent = `from ${moment(0).slice(0, 19).replace("T", " ")} UTC for ${duration(now.wall_s)}`;
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
    if (more) told.append(element("span", more, { class: "more" }));
    tile.append(element("dt", label), told);
    return tile;
  }));
  for (const [id, text] of Object.entries(report.summaries)) part(id).querySelector(".summary").textContent = text;
  part("notes").replaceChildren(...report.notes.map((text) => element("li", text)));
}

function showTables() {
  fill(part("stalls"), [["steps waited for", "text"], ["wall time", "number"]], report.stalls.map((one) => [one.category, duration(one.wall_s)]));
  const decisions = report.decisions.slice(-MOST_DECISIONS);
  fill(part("decisions"), [["time", "text"], ["tier", "text"], ["decision", "text"]], decisions.map((one) => [clock(one.at_s), one.tier, one.reason]), report.decided > decisions.length ? `The last ${decisions.length} of ${report.decided}` : "");
  fill(part("knobs").querySelector("table"), [["setting", "text"], ["value", "text"], ["from", "text"]], report.settings.map((one) => [one.path, one.value, one.source]));
  part("knobs").hidden = !report.settings.length;
}

// --- stories ---

let opened = null; // a key: numbers may move while a run goes on, and what a failure is called

const keyOf = (one) => (one.label ? `failure ${one.label}` : `${one.kind} ${one.opened_s} ${one.injected}`);

function storyOf(one) {
  const story = element("div", null, { class: "story", id: `story-${one.number}` });
  const facts = element("dl");
  const rows = [
    ["first signal", `${clock(one.opened_s)}, ${duration(one.opened_s)} after the start`],
    ["resumed", one.resumed_s === null ? (one.is_planned ? "" : "not yet") : `${duration(one.resumed_s - one.opened_s)} later${one.step === null ? "" : `, with step ${one.step}`}`],
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
  const key = keyOf(report.incidents.find((one) => one.number === number));
  opened = opened === key && !comesFromChart ? null : key;
  showStories();
  if (comesFromChart) {
    const button = document.querySelector(`#stories [data-number="${number}"] button`);
    button.focus({ preventScroll: true });
    button.scrollIntoView({ block: "center", behavior: matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth" });
  }
}

function showStories() {
  const focused = document.activeElement && document.activeElement.closest("#stories li");
  const kept = focused && focused.dataset.key;
  part("stories").replaceChildren(...[...report.incidents].reverse().map((one) => {
    const isOpen = keyOf(one) === opened;
    const item = element("li", null, { "data-number": one.number, "data-key": keyOf(one) });
    if (one.resumed_s === null && !report.headline.ending && one.is_failure) item.className = "open";
    const button = element("button", null, { type: "button", "aria-expanded": isOpen, "aria-controls": `story-${one.number}` });
    button.append(element("b", one.label || "·"), element("span", one.kind, { class: "kind" }), ...(one.culprits.length ? [element("span", one.culprits.slice(0, 4).join(", "))] : []),
      element("span", clock(one.opened_s), { class: "when" }), element("span", one.is_planned ? `${duration(one.cost_s)}, planned` : duration(one.cost_s), { class: "cost" }));
    button.onclick = () => openStory(one.number, false);
    item.append(button);
    if (isOpen) item.append(storyOf(one));
    return item;
  }));
  if (kept) [...part("stories").children].find((one) => one.dataset.key === kept)?.querySelector("button").focus({ preventScroll: true });
}

// --- all of it, now and as things happen ---

let drawnNarrow = isNarrow();
function show() {
  drawnNarrow = isNarrow();
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
new ResizeObserver(() => { if (report && drawnNarrow !== isNarrow()) show(); }).observe(document.documentElement);
addEventListener("beforeprint", () => [...waiting.keys()].forEach(drawNow));
document.querySelectorAll(".chart").forEach((one) => watcher.observe(one));
if (!window.Plotly) part("no-charts").hidden = false;
if (report) { show(); setTimeout(drawNext, 300); }
if (document.documentElement.dataset.live) { part("live").hidden = false; part("live").textContent = "connecting"; follow(); }
