// The page of a server: it sends requests of verbs, follows their events, and draws what they leave.  It asks nobody but the server.

const at = (id) => document.getElementById(id);
const make = (tag, props = {}, ...children) => { const e = Object.assign(document.createElement(tag), props); e.append(...children); return e; };
const drawn = (tag, props, text) => { const e = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [k, v] of Object.entries(props)) e.setAttribute(k, v); if (text !== undefined) e.textContent = text; return e; };

// --- the server ---------------------------------------------------------------------------------------------------------

if (location.hash.startsWith("#token=")) { sessionStorage.token = location.hash.slice(7); history.replaceState(null, "", location.pathname); }
const shown = () => (sessionStorage.token ? { authorization: `Bearer ${sessionStorage.token}` } : {});

async function ask(path, options = {}) {
  const reply = await fetch(path, { ...options, headers: { ...options.headers, ...shown() } });
  if (reply.ok) return reply;
  const said = await reply.json().catch(() => ({ error: { message: `status ${reply.status}` } }));
  if (reply.status === 401) { at("door").hidden = false; at("token").focus(); }
  throw new Error(said.error.message);
}
const send = async (path, body) => (await ask(path, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) })).json();
const keep = async (content) => (await (await ask("/v1/files", { method: "POST", body: content })).json()).sha256;

async function* events(id) {
  const reader = (await ask(`/v1/requests/${id}/events`)).body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    text += value;
    for (let end; (end = text.indexOf("\n\n")) >= 0; text = text.slice(end + 2)) {
      const fields = Object.fromEntries(text.slice(0, end).split("\n").map((line) => [line.slice(0, line.indexOf(":")), line.slice(line.indexOf(":") + 2)]));
      if (fields.data) yield [fields.event, JSON.parse(fields.data)]; // else a sign of life
    }
  }
}

// A request to its end, also over a restart of the server; tell(progress) meanwhile.
async function ended(id, tell = () => {}) {
  for (let failures = 0; ;) {
    try {
      for await (const [name, data] of events(id)) { failures = 0; if (name === "progress") tell(data); }
      const found = await (await ask(`/v1/requests/${id}`)).json();
      if (found.outcome) { if (found.outcome.error) throw new Error(found.outcome.error.message); return found.outcome; }
    } catch (error) { if (!(error instanceof TypeError) || ++failures > 120) throw error; } // TypeError: fetch reaches nobody
    await new Promise((go) => setTimeout(go, 500));
  }
}
const submit = async (verb, args, files = {}) => (await send("/v1/requests", { wire: 1, verb, arguments: args, files })).id;
const perform = async (verb, args, files) => ended(await submit(verb, args, files));

// --- numbers ------------------------------------------------------------------------------------------------------------

const three = (x) => (x >= 100 ? x.toFixed(0) : x.toPrecision(3));
const seconds = (s) => (s == null ? "-" : s >= 1 ? `${three(s)} s` : s >= 1e-3 ? `${three(s * 1e3)} ms` : `${three(s * 1e6)} us`);
const bytes = (b) => (b >= 2 ** 30 ? `${(b / 2 ** 30).toFixed(1)} GiB` : b >= 2 ** 20 ? `${(b / 2 ** 20).toFixed(1)} MiB` : `${(b / 1024).toFixed(1)} KiB`);
const power = (id) => 2 ** Number(at(id).value);
const GROWTH = [0.125, 0.25, 0.5, 0.75, 1, 1.5, 2, 4, 8];
const factor = (id) => GROWTH[Number(at(id).value) + 4];
const text = { "p-nodes": () => power("p-nodes"), "s-nodes": () => power("s-nodes"), tp: () => power("tp"), pp: () => power("pp"), micro: () => power("micro"),
  global: () => power("global"), zero: () => at("zero").value, stages: () => auto("stages"), "s-tp": () => auto("s-tp"), "s-dp": () => auto("s-dp"),
  batches: () => auto("batches"), seconds: () => `${5 * Number(at("seconds").value)} s`, nic: () => changed("nic"), memory: () => changed("memory") };
const auto = (id) => (Number(at(id).value) < 0 ? "searched" : power(id));
const changed = (id) => `x ${factor(id)}${last ? ` = ${three(base(id) * factor(id))} GB${id === "nic" ? "/s" : ""}` : ""}`;
let last = null; // the plan that what-ifs begin from: {sha, cluster, files}; files: the program that it is of, where that was sent
const link = () => (last.cluster.nic && last.cluster.num_nodes > 1 ? "nic" : "node");
const precise = (id) => { const x = String(base(id) * factor(id)); return x.includes(".") ? x : `${x}.0`; };
const base = (id) => (id === "memory" ? last.cluster.device.memory_bytes : last.cluster[link()].bandwidth_bytes_per_s) / 1e9;

function label() {
  for (const [id, of] of Object.entries(text)) { document.querySelector(`output[for="${id}"]`).textContent = of(); at(id).setAttribute("aria-valuetext", of()); }
  const devices = power("p-nodes") * perNode(at("p-cluster").value), dp = devices / (power("tp") * power("pp"));
  at("dp").textContent = Number.isInteger(dp) ? dp : `${devices} devices are no multiple of tp x pp`;
}

// --- results ------------------------------------------------------------------------------------------------------------

let now = null, kept = null;
const tile = (head, value, more = "") => make("div", { className: "tile" }, make("b", {}, value), make("span", {}, head), ...(more ? [make("span", {}, more)] : []));

// One bar per row of parts, as wide as its sum; unit says the numbers.
function bars(head, rows, unit, limit = 0) {
  const sum = (parts) => Object.values(parts).reduce((a, b) => a + b, 0), names = [...new Set(rows.flatMap(({ parts }) => Object.keys(parts)))];
  const most = Math.max(limit, ...rows.map(({ parts }) => sum(parts))), box = make("figure", {}, make("h3", {}, head));
  for (const { name, parts } of rows) {
    const bar = make("span", { className: "bar" });
    for (const [owner, size] of Object.entries(parts)) {
      const part = make("i", { title: `${owner} ${unit(size)}` });
      part.style.flexBasis = `${(100 * size) / most}%`; part.style.background = `var(--set${names.indexOf(owner) % 10})`;
      bar.append(part);
    }
    box.append(make("div", { className: "stage" }, make("span", {}, name), bar, make("span", {}, unit(sum(parts)))));
  }
  const key = make("figcaption", { className: "legend" });
  for (const [n, name] of names.entries()) { const dot = make("i", { className: "key" }); dot.style.background = `var(--set${n % 10})`; key.append(make("span", {}, dot, name)); }
  box.append(key);
  return box;
}

function show(side, found) {
  const box = at(side);
  box.hidden = !found;
  if (!found) return;
  const tiles = make("div", { className: "tiles" }, tile("per step", seconds(found.step_s), found.interval), tile(found.rateName, found.rate),
    tile("memory", found.fits ? "fits" : "does not fit"));
  box.replaceChildren(make("h3", {}, found.title), make("p", { className: "soft" }, found.about), tiles,
    bars(`Memory by owner${found.limit ? `, of ${bytes(found.limit)} per device` : ""}`, found.stages, bytes, found.limit));
  if (found.parts) box.append(bars("Where the time goes", [{ name: "step", parts: found.parts }], seconds));
  if (found.gantt) box.append(make("figure", {}, make("h3", {}, "Timeline of the last step (sim)"), make("div", { className: "gantt", tabIndex: 0 }, make("img", { src: found.gantt, alt: "one row per device: forward, backward, update, transfers" }))));
}

function result(found) {
  now = found;
  at("error").textContent = "";
  show("now", now); show("kept", kept);
  at("pin").disabled = false; at("unpin").hidden = !kept;
  at("difference").textContent = kept ? `Latest against kept: ${three((100 * now.step_s) / kept.step_s)} % of its step time (${seconds(kept.step_s)} -> ${seconds(now.step_s)}).` : "";
}
const refused = (error) => { at("error").textContent = error.message; };

// --- predict ------------------------------------------------------------------------------------------------------------

let clusters = {}, turn = 0, waiting = 0, uploaded = null;
const perNode = (name) => clusters[name]?.devices_per_node ?? 1;
const written = () => `[model]\nfamily = "${at("family").value}"\n[cluster]\nname = "${at("p-cluster").value}:${power("p-nodes")}"\n[layout]\ntp = ${power("tp")}\npp = ${power("pp")}\n` +
  `micro_batch = ${power("micro")}\nglobal_batch = ${power("global")}\nzero = ${at("zero").value}\nrecompute = "${at("recompute").value}"\nsequence_parallel = ${power("tp") > 1}\n`;

async function predict() {
  const mine = ++turn;
  try {
    const sha = await keep(uploaded ? await uploaded.text() : written());
    const found = (await perform("predict", { jobs: ["job.toml"] }, { "job.toml": sha })).result.jobs[0];
    if (mine !== turn) return; // a newer one is on its way
    const high = found.step_high_s ? `90 %: ${seconds(found.step_low_s)} to ${seconds(found.step_high_s)}` : "no interval";
    result({ title: uploaded ? uploaded.name : `${at("family").value} on ${at("p-cluster").value}:${power("p-nodes")}`, about: uploaded ? "as uploaded" :
      `tp ${power("tp")}, pp ${power("pp")}, dp ${at("dp").textContent}, ZeRO ${at("zero").value}, recomputation ${at("recompute").value}; limited by ${found.limiter}`,
      step_s: found.step_s, interval: high, rateName: "tokens/s per device", rate: three(found.tokens_per_s_per_gpu), fits: found.fits, parts: found.seconds,
      stages: found.owners.map((parts, n) => ({ name: `stage ${n}`, parts })), limit: clusters[at("p-cluster").value]?.device.memory_bytes });
  } catch (error) { if (mine === turn) refused(error); }
}
const soon = () => { label(); clearTimeout(waiting); waiting = setTimeout(predict, 150); };

// --- search -------------------------------------------------------------------------------------------------------------

let running = null, course = [];
function draw() {
  const svg = at("course");
  svg.parentElement.hidden = !course.length;
  const known = course.filter((p) => p.best_s != null || p.bound_s != null);
  const end = Math.max(1, ...known.map((p) => p.seconds)), high = 1.05 * Math.max(1e-12, ...known.map((p) => p.best_s ?? p.bound_s));
  const x = (s) => 64 + (566 * s) / end, y = (s) => 160 - (150 * s) / high;
  const line = (key, colour) => { let d = "", before = null;
    for (const p of known.filter((p) => p[key] != null)) { d += before == null ? `M${x(p.seconds)},${y(p[key])}` : `H${x(p.seconds)}V${y(p[key])}`; before = p; }
    return drawn("path", { d: d && `${d}H${x(end)}`, class: "course", stroke: `var(--${colour})` }); };
  svg.replaceChildren(drawn("line", { x1: 64, x2: 630, y1: 160, y2: 160, class: "axis" }), drawn("text", { x: 64, y: 175 }, "0"), drawn("text", { x: 630, y: 175, "text-anchor": "end" }, `${three(end)} s`),
    drawn("text", { x: 60, y: 16, "text-anchor": "end" }, seconds(high)), line("bound_s", "red"), line("best_s", "blue"));
}
function tell(p) {
  course.push(p); if (course.length > 2000) course = course.filter((_, n) => n % 2);
  at("state").textContent = (p.best_s == null ? "No plan yet" : `Best so far ${seconds(p.best_s)}`) + `, lower bound ${seconds(p.bound_s)}` +
    (p.gap == null ? "" : `, at most ${(100 * p.gap).toFixed(2)} % above the optimum`) + (p.shape ? `; at ${p.shape}` : "") + ".";
  draw();
}

// A plan's file -> what is shown of it: simulated, and its timeline drawn.
async function look(sha, files, title, more) {
  const file = await (await ask(`/v1/files/${sha}`)).json();
  last = { sha, files, cluster: file.plan.cluster };
  at("whatif").hidden = false; label();
  const sim = await perform("simulate", { plan: "plan.json", out: "sim.json" }, { "plan.json": sha });
  const picture = await perform("gantt", { traces: ["sim.json"], steps: "1", out: "gantt.svg" }, { "sim.json": sim.files["sim.json"] });
  const gantt = URL.createObjectURL(new Blob([await (await ask(`/v1/files/${picture.files["gantt.svg"]}`)).blob()], { type: "image/svg+xml" }));
  const s = sim.result, i = s.interval;
  result({ title, about: more, step_s: s.step_time_s, interval: i.low_s ? `90 %: ${seconds(i.low_s)} to ${seconds(i.high_s)}` : "no measured points: no interval",
    rateName: "samples/s", rate: three(s.throughput_per_s), fits: Math.max(...Object.values(s.peak_bytes)) <= s.device_memory_bytes, limit: s.device_memory_bytes,
    stages: s.devices.slice(0, 32).map((d) => ({ name: d.placements.join(" "), parts: d.categories_bytes })), gantt });
}

async function follow(id) {
  course = []; draw(); running = id;
  at("searching").hidden = false; at("state").textContent = "Waiting for a process ..."; at("finish").disabled = at("cancel").disabled = false;
  try { return await ended(id, tell); }
  finally { running = null; at("finish").disabled = at("cancel").disabled = true; }
}

// A search to its plan.  Its id is kept with the tab, which comes back to it when it is loaded anew.
async function watch(found) {
  sessionStorage.search = JSON.stringify(found);
  at("search").disabled = true; at("error").textContent = "";
  try {
    const done = await follow(found.id);
    at("state").textContent = `${course.length ? at("state").textContent : "Found at once."} Done in ${three(done.seconds)} s.`;
    await look(done.files["plan.json"], found.files, found.title, `${done.result.answer.split}; plan ${done.result.plan_id}`);
    for (const id of ["nic", "memory"]) at(id).value = 0;
    label();
  } finally { delete sessionStorage.search; at("search").disabled = false; }
}

async function search(event) {
  event.preventDefault();
  try {
    const own = at("model-file").files[0], model = own ? own.name : at("model").value.trim(), nodes = power("s-nodes"), name = at("s-cluster").value;
    const files = own ? { [own.name]: await upload(own) } : {}, args = { model, cluster: `${name}:${nodes}`, out: "plan.json", stages: Number(at("stages").value) < 0 ? "auto" : String(power("stages")),
      micro_batches: Number(at("batches").value) < 0 ? "auto" : String(power("batches")), recompute: at("s-recompute").value, seconds: String(5 * Number(at("seconds").value)) };
    const [dp, tp] = ["s-dp", "s-tp"].map((id) => (Number(at(id).value) < 0 ? null : power(id)));
    if (dp || tp) { const per = (perNode(name) * nodes) / (args.stages === "auto" ? 1 : power("stages")); args.mesh = `${dp ?? per / tp},${tp ?? per / dp}`.replace(/^1,|,1$/, ""); }
    await watch({ id: await submit("plan", args, files), files, title: `${model} on ${args.cluster}` });
  } catch (error) { refused(error); }
}
async function upload(file) {
  const digest = [...new Uint8Array(await crypto.subtle.digest("SHA-256", await file.arrayBuffer()))].map((b) => b.toString(16).padStart(2, "0")).join("");
  await ask(`/v1/files/${digest}`, { method: "PUT", body: file });
  return digest;
}

async function whatif() {
  const set = [], from = last;
  if (factor("nic") !== 1) set.push(`cluster.links.${link()}.bandwidth_GBps=${precise("nic")}`);
  if (factor("memory") !== 1) set.push(`cluster.device.memory_GB=${precise("memory")}`);
  if (!set.length) return;
  try {
    const done = await follow(await submit("whatif", { plan: "plan.json", set, out: "new.json" }, { ...from.files, "plan.json": from.sha }));
    at("state").textContent = `Planned anew in ${three(done.seconds)} s.`;
    await look(done.files["new.json"], from.files, `What if ${set.map((s) => s.replace("cluster.", "")).join(", ")}`, `the plan before would take ${seconds(done.result.old_objective_s)} there, the new one ${seconds(done.result.objective_s)}, by the search's prices`);
    last = from; label(); // what-ifs begin from the plan that was searched
  } catch (error) { refused(error); }
}

// --- the page -----------------------------------------------------------------------------------------------------------

function choose() {
  const mode = document.querySelector("input[name=mode]:checked").value;
  at("predict").hidden = mode !== "predict"; at("plan").hidden = mode !== "plan"; at("whatif").hidden = mode !== "plan" || !last;
  if (mode === "predict") { at("searching").hidden = true; soon(); }
}

async function begin() {
  try {
    const about = await (await ask("/v1/server")).json();
    at("door").hidden = true;
    at("server").textContent = `${about.counts.running} requests run, ${about.counts.queued} wait; ${about.limits.searches} at once, at most ${about.limits.request_seconds} s each`;
    at("family").replaceChildren(...about.families.map((name) => new Option(name)));
    at("family").value = "llama3.1-8b";
    clusters = (await perform("clusters", { json: true })).result.clusters;
    for (const id of ["p-cluster", "s-cluster"]) at(id).replaceChildren(...Object.keys(clusters).sort().map((name) => new Option(name)));
    at("s-cluster").prepend(new Option("local"));
    at("p-cluster").value = "dgx-h100"; at("s-cluster").value = "local";
    const before = sessionStorage.search && JSON.parse(sessionStorage.search);
    if (before) document.querySelector("input[value=plan]").checked = true;
    choose();
    if (before) await watch(before).catch(refused);
  } catch (error) { at("server").textContent = error.message; }
}

at("door").addEventListener("submit", (event) => { event.preventDefault(); sessionStorage.token = at("token").value.trim(); begin(); });
for (const radio of document.querySelectorAll("input[name=mode]")) radio.addEventListener("change", choose);
at("predict").addEventListener("input", (event) => { if (event.target.id === "job-file") uploaded = event.target.files[0] ?? null; else uploaded = null; soon(); });
at("predict").addEventListener("submit", (event) => event.preventDefault());
at("plan").addEventListener("input", label);
at("plan").addEventListener("submit", search);
at("whatif").addEventListener("input", () => label());
at("whatif").addEventListener("change", whatif);
at("whatif").addEventListener("submit", (event) => event.preventDefault());
at("finish").addEventListener("click", () => running && send(`/v1/requests/${running}/cancel`, { keep_best: true }).catch(refused));
at("cancel").addEventListener("click", () => running && send(`/v1/requests/${running}/cancel`, { keep_best: false }).catch(refused));
at("pin").addEventListener("click", () => { kept = now; result(now); });
at("unpin").addEventListener("click", () => { kept = null; result(now); });
begin();
