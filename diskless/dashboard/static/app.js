// The page: shows what an agent tells, live. It changes nothing, and asks nobody but agents.
// The token comes in the address's fragment, which no browser sends, and stays in this tab.

import { $, brief, bytes, clock, command, make, sh, show, table, when } from "./common.js";
import { batchesBehind, renderQueries } from "./queries.js";

const KEPT = "diskless-token";
const POINTS_MAX = 720, EVENTS_MAX = 500, LOOK_MS = 5000, RETRY_MS = 500, SILENCE_MS = 15000;
const QUOTA_FULL = 0.98, DRILL_OLD_MS = 7 * 86400e3, DAY_S = 86400; // as the alarms have it
let life = 0; // of a token: what was begun with an earlier one ends, and its refusals say nothing of this one
let token = "", failures = 0, status = null, series = { columns: [], points: [], marks: [] }, agents = [];

// -- asking ------------------------------------------------------------------------------

async function ask(path, parameters = {}) {
  const mine = life;
  const answer = await fetch(`${path}?${new URLSearchParams(parameters)}`, { headers: { Authorization: `Bearer ${token}` } });
  if (answer.status === 401) { refuse(mine); throw new Error("no token"); }
  if (!answer.ok) throw new Error((await answer.text()).trim());
  return answer.json();
}

const refuse = (mine) => { if (mine === life) login("That token is not valid here, or no longer."); };

function login(why = "") {
  life++;
  $("login").hidden = false;
  $("refused").textContent = why;
  show($("verdict"), why || "Who are you?");
  sessionStorage.removeItem(KEPT);
  token = "";
}

async function stream(mine) {
  const ending = new AbortController();
  let heard = Date.now();
  const watch = setInterval(() => { if (Date.now() - heard > SILENCE_MS) ending.abort(); }, 1000);
  try {
    const answer = await fetch("api/live", { headers: { Authorization: `Bearer ${token}` }, signal: ending.signal });
    if (answer.status === 401) { refuse(mine); return; }
    if (!answer.ok) throw new Error(answer.statusText);
    failures = 0;
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let text = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done || mine !== life) break;
      heard = Date.now();
      const parts = (text + value).split("\n\n");
      text = parts.pop();
      for (const part of parts) take(part);
    }
  } finally { clearInterval(watch); ending.abort(); } // else what is not read any more stays open
}

function take(message) {
  const kind = /^event: (.*)$/m.exec(message), data = /^data: (.*)$/m.exec(message);
  if (!kind || !data) return;
  const content = JSON.parse(data[1]);
  if (kind[1] === "status") { status = content; renderStatus(); }
  else if (kind[1] === "series") { series = content; renderPlots(); }
  else if (kind[1] === "marks") { series.marks = content; renderPlots(); }
  else if (kind[1] === "point") { series.points = [...series.points, content].slice(-POINTS_MAX); renderPlots(); }
}

// Goes on for as long as the token is good: the same agent first, then any other that answers.
async function live(mine) {
  for (;;) {
    try { await stream(mine); } catch { /* it is gone */ }
    if (mine !== life) return;
    show($("verdict"), `This page's agent does not answer: asking again …`);
    $("top").className = "unknown";
    if (failures++) await move();
    await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
  }
}

async function move() {
  for (const address of agents) {
    if (address === location.origin) continue;
    try {
      await fetch(`${address}/icon.svg`, { mode: "no-cors", signal: AbortSignal.timeout(1000) });
      location.href = `${address}/#token=${token}`;
      await new Promise(() => {});
    } catch { /* dead too */ }
  }
}

// -- the top -----------------------------------------------------------------------------

function renderStatus() {
  $("teller").textContent = status.agent;
  if (status.error) {
    $("top").className = "losing";
    show($("verdict"), "Nothing is served");
    show($("margin"), `${status.error}: ${status.message}`);
    show($("loss"));
    show($("todo"), make("li", {}, "Nothing is lost while the voters that are needed live. Look at them: ", command("diskless logs")));
    return;
  }
  const s = status.status;
  agents = s.agents.map((agent) => agent.http).filter(Boolean);
  $("name").textContent = s.name;
  document.title = `${s.name}: ${verdict(s)[1].toLowerCase()}`;
  const [kind, words] = verdict(s);
  $("top").className = kind;
  show($("verdict"), words);
  show($("margin"), s.margin < 0 ? "Some data cannot be read." :
    `Margin ${s.margin} of ${s.parity_shards}: ${s.margin ? `${s.margin === 1 ? "any one more agent" : `any ${s.margin} more agents`} may die` : "one more loss loses data"}.`);
  show($("loss"), loss(s));
  show($("cache"), cache(s));
  show($("todo"), ...problems(s).map(([text, what]) => make("li", {}, `${text} `, what ? command(what) : "")));
  renderAgents(s);
}

function verdict(s) {
  if (s.margin < 0 || s.stripes.lost || s.repair.lost) return ["losing", "Losing"];
  const tier = s.tier && (s.tier.state !== "draining" || s.tier.lag_s > s.tier.lag_max_s);
  const away = s.agents.some((agent) => agent.state !== "up") || s.voters.some((voter) => voter.lag === null);
  const drill = s.tier?.drill && !s.tier.drill.sound, stuck = s.tier?.eviction.state === "stuck";
  if (s.margin < s.parity_shards || s.repair.unprotectable || tier || away || drill || stuck) return ["risk", "At risk"];
  return ["safe", "Safe"];
}

function loss(s) {
  if (!s.tier) return "If every agent died now, everything would be lost: there is no tier.";
  const t = s.tier;
  return t.lag_commands ? `If every agent died now, ${t.lag_s.toFixed(1)} s would be lost: ${t.lag_commands} changes, ${bytes(t.lag_bytes)}${batchesBehind ? `, ${batchesBehind} ${batchesBehind === 1 ? "batch" : "batches"} of queries` : ""}.`
    : "If every agent died now, nothing would be lost: the tier has it all.";
}

// What is in the tier alone, how reads fare by that, and whether a restore was tried.
function cache(s) {
  if (!s.tier) return "";
  const { eviction: e, hydration: h, drill: d } = s.tier, said = [];
  if (e.files) said.push(`${e.files} files and ${bytes(e.bytes)} were evicted and are in the tier alone${e.state === "evicting" ? ", and more follow" : ""}.`);
  if (e.misses) said.push(`${(100 * e.hit_rate).toFixed(1)} % of reads found their bytes in memory, others waited ${e.hydration_ms} ms.`);
  if (h.files_left) said.push(`Coming back: ${h.files_left} files and ${bytes(h.bytes_left)}, ${bytes(h.bytes_per_s)}/s.`);
  said.push(d ? `Last drill ${when(d.time_ms)}: ${d.sound ? `sound, a restore would serve after ${d.serves_s} s` : "not sound"}.` : "No drill has tried a restore yet.");
  return said.join(" ");
}

function tierProblems(t) {
  const found = [], d = t.drill;
  if (t.state === "closed") found.push(["Changes are refused: the cluster is being ended.", "diskless up"]);
  if (t.eviction.state === "stuck") found.push(["Memory is full of what the tier may not have, and writes are refused: delete files, or unpin some.", "diskless policy rm PATH pin"]);
  if (d && !d.sound) found.push([`The last drill could not restore the tier: ${d.problem}`, "diskless tier drill --full"]);
  else if (d && Date.now() - d.time_ms > DRILL_OLD_MS) found.push(["Nobody has tried a restore for more than a week.", "diskless tier drill --full"]);
  if (t.hydration.damaged) found.push([`${t.hydration.damaged} files are damaged in the tier.`, "diskless tier verify --full"]);
  return found;
}

function ending(agent) {
  const when = agent.ends_in_s < 0 ? "should have ended" : agent.ends_in_s > DAY_S / 2 ? "ends soon" : `ends in ${Math.round(agent.ends_in_s)} s`;
  return `${when}, ${agent.shards_placed ? `${bytes(agent.bytes_placed)} left` : "and is empty"} (${agent.ends_by})`;
}

function problems(s) {
  const found = [], named = (states) => s.agents.filter((a) => states.includes(a.state)).map((a) => a.slot);
  const r = s.repair, t = s.tier;
  if (r.lost || s.stripes.lost) found.push([`${Math.max(r.lost, s.stripes.lost)} stripes have too few shards left: bring back agents that are only away, or restore.`, t ? sh`diskless up --restore ${t.uri}` : "diskless logs"]);
  if (r.unprotectable) found.push([`No agent has room for ${r.unprotectable} stripes: delete files, or add agents.`, `diskless up --agents ${s.agents.length + 2}`]);
  if (r.stripes_left) found.push([`Repair: ${r.stripes_left} stripes and ${bytes(r.bytes_left)} left, ${bytes(r.bytes_per_s)}/s${r.eta_s ? `, about ${r.eta_s} s` : ""}.`, ""]);
  if (s.balance.state === "moving") found.push([`${bytes(s.balance.bytes_left)} move to agents with more room, ${bytes(s.balance.bytes_per_s)}/s${s.balance.eta_s ? `, about ${s.balance.eta_s} s` : ""}.`, ""]);
  for (const slot of named(["down", "starting"])) found.push([`${slot} is down${s.unhosted[slot] ? `: ${s.unhosted[slot]}` : "; Ray restarts it, or it is given up and rebuilt elsewhere"}.`, `diskless logs ${slot}`]);
  for (const slot of named(["slow"])) found.push([`${slot} answers far later than the others: look at its host.`, `diskless drain ${slot}`]);
  for (const slot of named(["draining"])) found.push([`${slot} drains: it gets no new shards.`, `diskless drain ${slot} --undo`]);
  if (r.at_stake) found.push([`${r.at_stake} stripes would be lost with the agents that are announced to end: add agents.`, `diskless up --agents ${s.agents.length + 2}`]);
  for (const agent of s.agents) if (agent.state === "ending") found.push([`${agent.slot} ${ending(agent)}.`, `diskless drain ${agent.slot} --undo`]);
  for (const voter of s.voters) if (voter.lag === null && named(["up", "slow", "draining", "ending"]).includes(voter.slot)) found.push([`The voter of ${voter.slot} is not heard, or has no memory yet.`, `diskless logs ${voter.slot}`]);
  for (const agent of s.agents) if (agent.bytes_used >= agent.bytes_max * 7 / 8) found.push([`${agent.slot} is full: writes are refused.`, "diskless du /"]);
  if (t && t.state === "failing") found.push([`The tier does not take anything for ${t.failing_s} s: ${t.last_error}`, "diskless tier status"]);
  else if (t && t.state === "superseded") found.push(["Another cluster continues with this tier.", "diskless down --discard"]);
  else if (t && t.lag_s > t.lag_max_s) found.push([`The tier is ${t.lag_s.toFixed(1)} s behind, more than ${t.lag_max_s} s.`, "diskless tier status"]);
  if (t) found.push(...tierProblems(t));
  for (const one of s.quotas) if (one.bytes_used >= one.bytes_max * QUOTA_FULL) found.push([`The quota of ${one.path} is used up, ${bytes(one.bytes_used)} of ${bytes(one.bytes_max)}: delete files or snapshots there, or raise it.`, sh`diskless du ${one.path}`]);
  if (!t) found.push(["A tier would outlive every machine.", "diskless up --tier URI"]);
  if (s.audit_dropped) found.push([`${s.audit_dropped} lines are missing in audit files: look at the disks.`, "diskless logs --level warning"]);
  return found;
}

// -- agents ------------------------------------------------------------------------------

const COLOURS = ["#2f7ed8", "#d8862f", "#3c9a5f", "#a05ab5", "#b5554a", "#7a8794"];

function memory(agent) {
  const kinds = Object.entries(agent.memory).filter(([, count]) => count > 0).sort((a, b) => b[1] - a[1]);
  const shown = kinds.slice(0, 5), rest = kinds.slice(5).reduce((sum, [, count]) => sum + count, 0);
  if (rest) shown.push(["other", rest]);
  const words = shown.map(([kind, count]) => `${kind} ${bytes(count)}`).join(", ") || "nothing";
  const bar = make("svg", { class: "bar", viewBox: "0 0 100 1", preserveAspectRatio: "none", role: "img", "aria-label": `memory of ${agent.slot}: ${words}` });
  let at = 0;
  shown.forEach(([kind, count], n) => {
    const width = agent.bytes_max ? 100 * count / agent.bytes_max : 0;
    bar.append(make("rect", { x: at, y: 0, width, height: 1, fill: COLOURS[n] }, make("title", {}, `${kind} ${bytes(count)}`)));
    at += width;
  });
  return [bar, make("p", { class: "dim" }, `${bytes(agent.bytes_used)} of ${bytes(agent.bytes_max)}: ${words}`)];
}

function role(s, agent) {
  const voter = s.voters.find((one) => one.slot === agent.slot);
  if (!voter) return "holds shards";
  if (voter.role === "leader") return "leads";
  return voter.lag === null ? "voter, not heard" : `voter${voter.lag ? `, ${voter.lag} behind` : ""}`;
}

function renderAgents(s) {
  const hosts = new Map();
  for (const agent of s.agents) hosts.set(agent.host, [...(hosts.get(agent.host) ?? []), agent]);
  show($("hosts"), ...[...hosts].map(([host, there]) => make("div", {},
    make("p", { class: "dim" }, host || "not started yet"),
    make("div", { class: "grid" }, ...there.map((agent) => make("article", { class: "card", id: agent.slot },
      make("h3", {}, make("span", {}, agent.slot), make("span", { class: agent.state }, agent.state)),
      make("p", {}, `${role(s, agent)}, life ${agent.incarnation}, ${agent.shards} shards`,
        agent.shards_placed > agent.shards ? ` of ${agent.shards_placed} (${agent.shards_placed - agent.shards} to rebuild)` : ""),
      ...(agent.state === "ending" ? [make("p", { class: "ending" }, ending(agent))] : []),
      ...(["down", "starting"].includes(agent.state) ? [] : [...memory(agent),
        make("p", { class: "dim" }, `loop lag p99 ${agent.loop_lag.p99_ms} ms`)])))))));
}

// -- the last hour -----------------------------------------------------------------------

const PLOTS = [
  ["Commits", { commits_per_s: "" }, (v) => `${brief(v)}/s`],
  ["Commit latency", { p50_ms: "p50 ", p99_ms: "p99 " }, (v) => `${brief(v)} ms`],
  ["Bytes", { written_per_s: "written ", read_per_s: "read " }, (v) => `${bytes(v)}/s`],
  ["Margin", { margin: "" }, (v) => `${v}`],
  ["Stripes to repair", { repair_left: "" }, (v) => `${v}`],
  ["Tier lag", { tier_lag_s: "" }, (v) => `${brief(v)} s`],
  ["Loop lag p99, the worst agent", { loop_lag_ms: "" }, (v) => `${brief(v)} ms`],
];

function renderPlots() {
  const points = series.points, end = Date.now();
  const span = Math.min(3600e3, Math.max(120e3, end - (points[0]?.[0] ?? end))), start = end - span;
  show($("plots"), make("div", { class: "grid" }, ...PLOTS.map(([title, columns, words]) => {
    if (!points.length) return make("figure", { class: "card" }, make("figcaption", {}, title), make("p", { class: "dim" }, "The first point comes in some seconds."));
    const at = Object.keys(columns).map((name) => series.columns.indexOf(name)), names = Object.values(columns);
    const high = Math.max(0, ...points.flatMap((point) => at.map((column) => point[column])));
    const low = Math.min(0, ...points.flatMap((point) => at.map((column) => point[column])));
    const x = (ms) => 1000 * (ms - start) / span, y = (value) => 96 - 92 * (value - low) / (high - low || 1);
    const last = at.map((column, n) => `${names[n]}${words(points.at(-1)[column])}`);
    const plot = make("svg", { class: "plot", viewBox: "0 0 1000 100", preserveAspectRatio: "none", role: "img",
      "aria-label": `${title} in the last hour, now ${last.join(", ")}, at most ${words(high)}` });
    plot.append(make("line", { x1: 0, x2: 1000, y1: y(0), y2: y(0) }));
    for (const mark of series.marks) if (mark.time_ms > start)
      plot.append(make("line", { x1: x(mark.time_ms), x2: x(mark.time_ms), y1: 0, y2: 100, class: mark.bad ? "bad" : "mark" }, make("title", {}, `${clock(mark.time_ms)} ${mark.text}`)));
    at.forEach((column, n) => plot.append(make("path", { class: "ab"[n], d: points.filter((point) => point[0] > start)
      .map((point, m) => `${m ? "L" : "M"}${x(point[0]).toFixed(1)} ${y(point[column]).toFixed(1)}`).join("") })));
    return make("figure", { class: "card" }, make("figcaption", {}, `${title}: `,
      ...last.flatMap((text, n) => [n ? ", " : "", make("strong", { class: last.length > 1 ? "ab"[n] : "" }, text)]), make("span", { class: "dim" }, ` at most ${words(high)} since ${clock(start)}`)), plot);
  })), marksList());
}

function marksList() {
  const shown = series.marks.slice(-8).reverse();
  return make("p", { class: "dim", id: "marks" }, shown.length ? `Marked: ${shown.map((mark) => `${clock(mark.time_ms)} ${mark.text}`).join(" · ")}` : "No agent joined or left, and the leader did not change.");
}

// -- files -------------------------------------------------------------------------------

let looks = 0; // at files: of several that were asked for, the last is shown

async function renderFiles(path, after = "") {
  const look = ++looks;
  $("path").value = path;
  try {
    const about = await ask("api/path", { path });
    if (look !== looks) return;
    show($("about"), aboutPath(about));
    show($("entries"));
    if (!about.status.directory) return;
    const page = await ask("api/list", { path, after });
    if (look !== looks) return;
    const rows = page.entries.map((entry) => [open(entry), entry.directory ? "" : bytes(entry.size), when(entry.mtime_ms)]);
    if (path !== "/") rows.unshift([open({ path: path.replace(/\/[^/]*$/, "") || "/", directory: true }, ".."), "", ""]);
    const list = table(["name", "#size", "@changed"], rows, "Nothing is here yet.");
    const next = make("button", { type: "button" }, "more");
    next.onclick = () => renderFiles(path, page.entries.at(-1).path.split("/").pop());
    show($("entries"), list, ...(page.more ? [next] : []), ...(rows.length ? [] : [command(sh`diskless put FILE ${path}`)]));
  } catch (error) { if (look === looks) { show($("about"), make("p", { role: "alert" }, error.message)); show($("entries")); } }
}

function open(entry, name = "") {
  const link = make("a", { href: "#files" }, name || entry.path.split("/").pop() + (entry.directory ? "/" : ""));
  link.onclick = (event) => { event.preventDefault(); renderFiles(entry.path); };
  return link;
}

function aboutPath(about) {
  const rules = !about.policy ? "leads to what your token is for" : about.policy.entries.map((rule) => `${rule.key}=${rule.value}${rule.source ? ` (by ${rule.source})` : ""}`).join(", ") || "no policy";
  const parts = [make("p", {}, make("strong", {}, about.status.path), ` ${rules}`)];
  if (about.summary) parts.push(make("p", { class: "dim" }, `${about.summary.files} files, ${about.summary.directories} directories, ${bytes(about.summary.bytes)}`));
  if (about.snapshots?.snapshots.length) parts.push(table(["snapshot", "@taken", "#bytes"], about.snapshots.snapshots.map((one) => [one.name, when(one.time_ms), bytes(one.bytes)]), ""));
  if (about.places) {
    const where = { tier: "Its bytes are in the tier alone.", inline: "Its bytes are in the namespace itself, on every voter.", stripes: "" }[about.places.where];
    parts.push(make("p", {}, `${bytes(about.status.size)}, ${when(about.status.mtime_ms)}. ${where}`));
    if (about.places.stripes.length) parts.push(table(["stripe", "data", "parity"], about.places.stripes.map((stripe) =>
      [stripe.id, stripe.agents.slice(0, stripe.data_shards).join(" "), stripe.agents.slice(stripe.data_shards).join(" ")]), ""));
    if (about.places.more) parts.push(make("p", { class: "dim" }, `and ${about.places.more} stripes more`));
    parts.push(make("p", {}, command(sh`diskless get ${about.status.path} .`)));
  }
  return make("div", {}, ...parts);
}

// -- events ------------------------------------------------------------------------------

let events = [], newest = 0;

async function renderEvents() {
  const page = await ask("api/events", { after: newest });
  newest = Math.max(newest, ...page.events.map((event) => event.op));
  events = [...events, ...page.events].slice(-EVENTS_MAX);
  if (page.events.length || !$("log").childElementCount) drawEvents();
}

function drawEvents() {
  const word = $("filter").value.toLowerCase();
  const shown = events.filter((event) => !word || `${event.kind} ${event.text} ${event.who} ${event.paths.join(" ")}`.toLowerCase().includes(word));
  show($("log"), table(["#op", "@time", "kind", "who", "what"], shown.slice(-100).reverse().map((event) =>
    [`${event.op}`, clock(event.time_ms), event.kind, event.who || "-", event.text]), word ? "None of the latest events match." : "Nothing has happened yet."));
}

// -- the beginning -----------------------------------------------------------------------

async function look(mine) {
  for (;;) {
    if (!document.hidden) for (const part of [renderQueries, renderEvents]) try { await part(ask); } catch { /* told at the top */ }
    await new Promise((resolve) => setTimeout(resolve, LOOK_MS));
    if (mine !== life) return;
  }
}

function begin() {
  $("login").hidden = true;
  sessionStorage.setItem(KEPT, token);
  const mine = ++life;
  live(mine); look(mine); renderFiles("/"); renderPlots();
}

// What the address gives, which then does not show it any more; else what this tab has kept.
function given() {
  const found = /[#&]token=([^&]+)/.exec(location.hash);
  if (found) history.replaceState(null, "", location.pathname);
  return found ? decodeURIComponent(found[1]) : sessionStorage.getItem(KEPT) ?? "";
}

token = given();
addEventListener("hashchange", () => { // an address with another token was pasted over this one
  if (!location.hash.includes("token=")) return;
  sessionStorage.setItem(KEPT, given());
  location.reload();
});
$("login").onsubmit = (event) => { event.preventDefault(); token = $("token").value.trim(); if (token) begin(); };
$("go").onsubmit = (event) => { event.preventDefault(); renderFiles($("path").value); };
$("find").onsubmit = (event) => event.preventDefault();
$("filter").oninput = drawEvents;
if (token) begin(); else login();
