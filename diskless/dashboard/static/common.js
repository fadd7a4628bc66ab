// What all parts of the page are made of.

export const $ = (id) => document.getElementById(id);

export function make(tag, attributes = {}, ...children) {
  const svg = ["svg", "path", "line", "rect", "title"].includes(tag);
  const node = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children.filter((child) => child !== null));
  return node;
}

export function show(node, ...children) { node.replaceChildren(...children); }

export function bytes(count) {
  for (const unit of ["B", "KiB", "MiB", "GiB"]) {
    if (Math.abs(count) < 1024) return unit === "B" ? `${Math.round(count)} B` : `${count.toFixed(1)} ${unit}`;
    count /= 1024;
  }
  return `${count.toFixed(1)} TiB`;
}

export const brief = (number) => Number(number.toPrecision(3)).toLocaleString("en");
export const clock = (ms) => new Date(ms).toLocaleTimeString();
export const when = (ms) => new Date(ms).toLocaleString();

// A command whose values mean nothing to a shell but themselves: a path may have any name. What
// could act on a terminal that it is pasted into is left out, and then the path is not found.
export const sh = (parts, ...values) => parts.map((part, at) => at ? quoted(values[at - 1]) + part : part).join("");
const quoted = (value) => /^[\w@%+=:,./-]+$/.test(value) ? value : `'${`${value}`.replace(/[\0-\x1f\x7f-\x9f]/g, "?").replaceAll("'", "'\\''")}'`;

export function command(text) {
  const button = make("button", { type: "button", "aria-label": `copy ${text}` }, "copy");
  button.onclick = async () => {
    try { await navigator.clipboard.writeText(text); button.textContent = "copied"; }
    catch { getSelection().selectAllChildren(button.previousElementSibling); }
  };
  return make("span", {}, make("code", {}, text), " ", button);
}

// A name that begins with # is of numbers, one with @ of times and the like: neither is broken into lines.
// One with ~ is of sentences, which have room even where the rest has not.
export function table(names, rows, empty, label = "table") {
  if (!rows.length) return make("p", { class: "dim" }, empty);
  const kinds = names.map((name) => ({ "#": "n", "@": "w", "~": "l" })[name[0]] ?? "t");
  const head = names.map((name, at) => make("th", { scope: "col", class: kinds[at] }, name.replace(/^[#@~]/, "")));
  const body = rows.map((row) => make("tr", {}, ...row.map((cell, at) => make("td", { class: kinds[at] }, cell ?? ""))));
  return make("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": label },
    make("table", {}, make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...body)));
}
