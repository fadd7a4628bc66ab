// Spark's checkpoints: a line for each, and of those that are opened their batches, the ways back
// and the snapshots.

import { $, bytes, command, make, sh, show, table, when } from "./common.js";

const opened = new Map(); // path: what was told of it last, or null

let shown = "";
export let batchesBehind = 0; // the tier, of all queries, when they were last looked at

const ms = (took) => took === undefined || took === null ? "" : `${took} ms`;
// Of a note: what was 0 is left out of it.
const rows = (note) => count(note ? note.rows ?? 0 : null);
const count = (number) => number === undefined || number === null ? "" : number.toLocaleString("en");

export async function renderQueries(ask) {
  const found = await ask("api/queries");
  batchesBehind = found.checkpoints.reduce((sum, one) => sum + (one.behind ?? 0), 0);
  if (!found.checkpoints.length) {
    shown = "";
    show($("checkpoints"), make("p", { class: "dim" }, "No checkpoint is here yet. Give a query one: ", command('option("checkpointLocation", "diskless:///checkpoints/q1")')));
    return;
  }
  for (const path of opened.keys())
    if (found.checkpoints.some((one) => one.path === path)) await look(ask, path); else opened.delete(path);
  const told = JSON.stringify([found, [...opened]]);
  if (told === shown) return; // who reads it is not disturbed
  shown = told;
  const more = found.complete ? [] : [make("p", { class: "dim" }, "Not all directories were looked at: there are too many.")];
  const scrolled = tables().map(([key, node]) => [key, node.scrollTop, node.scrollLeft]);
  show($("checkpoints"), ...found.checkpoints.map((one) => checkpoint(ask, one)), ...more);
  const now = new Map(tables());
  for (const [key, top, left] of scrolled) now.get(key)?.scrollTo(left, top);
}

// Those of opened rows, by row and label: they stay where somebody has scrolled them to.
const tables = () => [...document.querySelectorAll("#checkpoints .scroll")].map((node) =>
  [`${node.closest("details").dataset.path} ${node.getAttribute("aria-label")}`, node]);

// What is soon told first; `between` shows that much while the batches are judged.
async function look(ask, path, between = () => {}) {
  const keep = (told) => { if (opened.has(path)) opened.set(path, told); }; // else it was closed meanwhile
  let told = null;
  try { told = await ask("api/query", { path }); } catch { keep(null); return; } // shown as such
  keep({ ...told, left: opened.get(path)?.left ?? null });
  between();
  let left;
  try { left = await ask("api/batches", { path }); } catch (error) { left = { problem: error.message, batches: [] }; }
  keep({ ...told, left });
}

function checkpoint(ask, one) {
  const done = one.batches.find((batch) => batch.took_ms !== null), runs = one.batches.find((batch) => batch.took_ms === null);
  const said = [one.complete ? ` batch ${one.last ?? "none yet"}` : " more batches than this page looks at", done ? ` took ${ms(done.note?.trigger_ms ?? done.took_ms)}` : "", steps(done?.note)];
  if (done?.note) said.push(`, ${rows(done.note)} rows`);
  if (runs) said.push(`, batch ${runs.batch} runs`);
  said.push(`, ${bytes(one.bytes)}`);
  if (one.behind !== null) said.push(one.behind ? `, ${one.behind} ${one.behind === 1 ? "batch" : "batches"} behind the tier` : ", all in the tier");
  if (one.lease) said.push(`, written by ${one.lease.application.replace(/ since \d+$/, "")}`);
  const line = make("summary", {}, make("strong", {}, one.path), said.join(""));
  const inside = make("div", {}, ...(opened.has(one.path) ? details(one) : []));
  const node = make("details", { "data-path": one.path, ...(opened.has(one.path) ? { open: "" } : {}) }, line, inside);
  node.ontoggle = async () => {
    if (!node.open) { opened.delete(one.path); return; }
    if (opened.has(one.path)) return;
    opened.set(one.path, null);
    const fill = () => { if (node.open) show(inside, ...details(one)); };
    await look(ask, one.path, fill);
    fill();
  };
  return node;
}

function steps(note) {
  const parts = note ? [["walCommit", note.wal_commit_ms], ["state commit", note.state_commit_ms], ["commitOffsets", note.commit_offsets_ms]] : [];
  const told = parts.filter(([, took]) => took !== undefined);
  return told.length ? ` (${told.map(([name, took]) => `${name} ${took}`).join(", ")})` : "";
}

function details(one) {
  const told = opened.get(one.path);
  if (!told) return [make("p", { class: "dim" }, "Its batches could not be fetched.")];
  const lines = told.batches.map((batch) => {
    const note = batch.note ?? {};
    return [`${batch.batch}`, when(batch.planned_ms), batch.took_ms === null ? "runs" : ms(note.trigger_ms ?? batch.took_ms), ms(note.wal_commit_ms), ms(note.add_batch_ms), ms(note.state_commit_ms), ms(note.commit_offsets_ms),
      rows(batch.note), count(note.state_rows), note.checkpoint_bytes === undefined ? "" : bytes(note.checkpoint_bytes), batch.took_ms === null || batch.in_tier === null ? "" : batch.in_tier ? "in the tier" : "behind"];
  });
  const names = ["#batch", "@planned", "#took", "#walCommit", "#addBatch", "#state commit", "#commitOffsets", "#rows", "#state rows", "#checkpoint", "@tier"];
  const snapshots = told.snapshots.map((snapshot) => [snapshot.name, when(snapshot.time_ms), bytes(snapshot.bytes)]);
  return [
    told.complete ? table(names, lines, "No batch yet.", "batches") : make("p", { class: "dim" }, "It has more batches than this page looks at."),
    make("p", { class: "dim" }, told.batches.some((batch) => batch.note)
      ? "As Spark reports it; the state's commits are of all partitions together, of which many run at once. A batch without steps is timed by what Spark writes: from its plan to its end."
      : "Spark's listener has reported nothing about these batches, so they are timed by what Spark writes: from their plans to their ends. This sets it: ", told.batches.some((batch) => batch.note) ? "" : command("diskless spark-conf")),
    make("p", { class: "dim" }, one.lease ? `${one.lease.application} has its lease since ${when(one.lease.since_ms)}: no other application may write there.` : "No application writes to it."),
    ...ways(one, told),
    table(["snapshot", "@taken", "#bytes"], snapshots, "It has no snapshots.", "snapshots"),
    make("p", {}, "More of it: ", command(sh`diskless query show ${one.path}`), " ", command(sh`diskless snapshot ls ${one.path}`)),
  ];
}

// What each batch has read and left, and whether there is a way back to it: judged as `diskless query` does.
function ways(one, told) {
  const head = make("h3", {}, "Ways back"), left = told.left;
  if (!left) return [head, make("p", { class: "dim" }, "Being looked at …")];
  if (!left.batches.length) return [head, make("p", { class: "dim" }, `Not judged: ${left.problem}.`)];
  const lines = left.batches.map((batch) => [`${batch.batch}`, way(batch, left.problem),
    batch.files === null ? "" : count(batch.files), batch.bytes === null ? "" : bytes(batch.bytes), make("span", { class: "o" }, ends(batch))]);
  const last = told.batches.find((batch) => batch.took_ms !== null)?.batch, back = left.batches.find((batch) => batch.why_not === "" && batch.batch !== last);
  return [head,
    make("p", { class: "dim" }, `Query ${left.query.id || "without an id"}, ${state(left)}.`),
    table(["#batch", "~way back", "#state files", "#state bytes", "@sources end at"], lines, "", "ways back"),
    left.problem ? make("p", { class: "dim" }, `Not judged: ${left.problem}, more than this page looks at. This does: `, command(sh`diskless query show ${one.path}`)) : null,
    back ? make("p", {}, "To see what a return would take away: ", command(sh`diskless query rollback ${one.path} --batch ${back.batch} --dry-run`)) : null,
  ].filter(Boolean);
}

function state({ state_bytes: size, query: { operators, partitions, providers } }) {
  if (!size && !operators.length) return "no state";
  return `state of ${bytes(size)}${operators.length ? `: ${operators.join(", ")} × ${partitions}` : ""}${providers.length ? ` in ${providers.join(", ")}` : ""}`;
}

const ends = (batch) => batch.offsets.join(" ") + (batch.more_sources ? ` and ${batch.more_sources} more` : "");

function way(batch, problem) {
  if (batch.why_not === "") return make("span", { class: "up" }, "yes");
  if (batch.why_not) return make("span", {}, make("span", { class: "slow" }, "no: "), batch.why_not);
  return make("span", { class: "dim" }, problem ? "not judged" : `not known: ${batch.unknown}`);
}
