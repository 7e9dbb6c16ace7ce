"use strict";
// Snapshots of GET /v1/events, drawn as they come. Nothing is kept beyond what is on the screen.

const byId = id => document.getElementById(id);
const EVERY_MS = 500;
const HISTORY = 120;

const count = n => n == null ? "–" : n >= 1e6 ? (n / 1e6).toFixed(1) + "M" : n >= 1e4 ? (n / 1e3).toFixed(1) + "k" : Math.round(n).toString();
const rate = n => n == null ? "–" : n < 10 ? n.toFixed(1) : count(n);
const share = n => n == null ? "–" : (100 * n).toFixed(0) + " %";
const few = n => n == null ? "–" : n.toFixed(2);
const time = s => s == null ? "–" : s < 1 ? (1e3 * s).toFixed(0) + " ms" : s < 120 ? s.toFixed(1) + " s" : s < 7200 ? (s / 60).toFixed(0) + " min" : (s / 3600).toFixed(1) + " h";
const width = part => `width:${(100 * Math.min(Math.max(part || 0, 0), 1)).toFixed(1)}%`;

function element(name, props, ...children) {
  const made = Object.assign(document.createElement(name), props);
  made.append(...children);
  return made;
}

// Tiles, each with the last minute as a line.

const pasts = new Map(); // the tile's name -> its values

function spark(name, value, most) {
  const values = pasts.get(name) || [];
  pasts.set(name, values);
  values.push(value || 0);
  if (values.length > HISTORY) values.shift();
  const top = most || Math.max(...values, 1e-9);
  const step = 100 / (HISTORY - 1);
  const at = i => ((HISTORY - values.length + i) * step).toFixed(1);
  const line = values.map((v, i) => `${at(i)},${(32 - 29 * Math.min(v / top, 1)).toFixed(1)}`);
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("viewBox", "0 0 100 34");
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("aria-hidden", "true");
  for (const [kind, points] of [["polygon", [`${at(0)},34`, ...line, "100,34"]], ["polyline", line]]) {
    const drawn = document.createElementNS(svg.namespaceURI, kind);
    drawn.setAttribute("points", points.join(" "));
    svg.append(drawn);
  }
  return svg;
}

function tiles({ total }) {
  const tile = (name, value, below, color, drawn, most) => {
    const made = element("div", { className: "tile" }, name, element("b", { textContent: value }),
      element("span", { textContent: below, title: below }), spark(name, drawn, most));
    made.style.setProperty("--color", `var(--${color})`);
    return made;
  };
  byId("tiles").replaceChildren(
    tile("Output tokens/s", rate(total.output_tokens_per_s), `${rate(total.prompt_tokens_per_s)} of prompts`, "verify", total.output_tokens_per_s),
    tile("Running", count(total.running), `${count(total.waiting)} waiting`, "verify", total.running),
    tile("Acceptance", share(total.acceptance), `${few(total.tokens_per_chunk)} tokens per chunk`, "ahead", total.acceptance, 1),
    tile("Passes/s", rate(total.passes_per_s), `${total.rows_per_pass == null ? "–" : total.rows_per_pass.toFixed(1)} rows each`, "verify", total.passes_per_s),
    tile("Overlapped", share(total.overlapped), total.outcome_hits == null ? `${rate(total.chunks_cancelled_per_s)} chunks/s cancelled` : `${share(total.outcome_hits)} of verdicts prepared for`, "ahead", total.overlapped, 1),
    tile("Pruned rows/s", rate(total.rows_pruned_per_s), `${share(total.pruning)} of passes have pruning checkpoints`, "prune", total.rows_pruned_per_s),
  );
}

// Charts, meters, tables.

// Bars as high as `height` says, from 0 to 1, with `percent` above them.
function chart(id, values, first, height, percent, title) {
  const last = values.findLastIndex(value => value);
  byId(id).replaceChildren(...values.slice(0, Math.max(last + 1, 9 - first)).map((value, i) => element("div", { title: title(i + first, value) },
    element("em", { textContent: value ? percent(value).toFixed(0) : "" }),
    element("i", { style: `height:${(142 * (value ? height(value) : 0)).toFixed(1)}px` }), i + first)));
}

function charts({ total }) {
  const [all, most] = [total.k_histogram.reduce((sum, n) => sum + n, 0), Math.max(...total.k_histogram)];
  chart("lengths", total.k_histogram, 0, n => n / most, n => 100 * n / all, (k, n) => `${n} chunks of ${k}, in %`);
  chart("places", total.acceptance_by_position, 1, n => n, n => 100 * n, (place, n) => `place ${place}: ${share(n)}`);
}

function meter(name, words, parts) {
  const bar = element("div", {});
  bar.append(...parts.map(([part, color]) => element("i", { style: `${width(part)};background:var(--${color})` })));
  return element("div", { className: "meter" }, element("span", {}, name, element("span", { textContent: words })), bar);
}

function steering({ pass_rows, displaced_share, credit_s, suspended, kv_short }) {
  const words = suspended ? "speculation suspended: it lost more than it may"
    : `${count(pass_rows)} rows, ${share(displaced_share)} displaced, credit ${time(Math.max(credit_s, 0))}${kv_short ? ", KV short" : ""}`;
  return meter("Pass", words, [[displaced_share, "prune"]]);
}

function device({ total, model }) {
  const kv = (name, pool) => {
    const [used, all] = [pool.total - pool.free, Math.max(pool.total, 1)];
    return meter(name, `${count(used)} of ${count(pool.total)} blocks, ${count(pool.cached)} cached`,
      [[used / all, "prune"], [Math.min(pool.cached, pool.free) / all, "line"]]);
  };
  const now = model && total.partition > 0 ? model.partitions[total.partition] : null;
  const shares = now
    ? meter("Partition", `${model.unit}: ${now.draft} draft, ${now.verify} verify`,
      [[now.draft / (now.draft + now.verify), "ahead"], [now.verify / (now.draft + now.verify), "verify"]])
    : meter("Partition", "all for each lane, in turns", [[1, "line"]]);
  byId("device-name").textContent = model ? model.device : "";
  byId("device").replaceChildren(
    meter("Verify lane", `${share(total.verify_busy)} busy`, [[total.verify_busy, "verify"]]),
    meter("Draft lane", `${share(total.draft_busy)} busy`, [[total.draft_busy, "draft"]]),
    shares, ...(total.steering ? [steering(total.steering)] : []), kv("Target KV", total.target_kv), kv("Draft KV", total.draft_kv));
}

function table(id, heads, rows, empty) {
  const head = element("tr", {}, ...heads.map(name => element("th", { textContent: name })));
  const none = element("tr", {}, element("td", { colSpan: heads.length, className: "dim", textContent: empty }));
  const body = rows.map(row => element("tr", {}, ...row.map(cell => element("td", {}, cell))));
  byId(id).replaceChildren(head, ...(body.length ? body : [none]));
}

function requests({ slowest }) {
  const output = r => element("span", {}, `${r.output_tokens} of ${r.max_new_tokens}`,
    element("span", { className: "part" }, element("i", { style: width(r.output_tokens / r.max_new_tokens) })));
  table("requests", ["request", "state", "k", "acceptance", "tokens per pass", "prompt", "cached", "first token", "age", "output"],
    slowest.map(r => [r.id, r.state, r.k, share(r.acceptance), few(r.tokens_per_pass), r.prompt_tokens, r.cached_tokens,
      time(r.ttft_s), time(r.age_s), output(r)]), "No requests.");
}

function replicas({ replicas, policy }) {
  const shown = policy ? Object.entries(policy).filter(([, value]) => value != null) : [];
  byId("policy").replaceChildren(...shown.map(([key, value]) => element("span", {}, key + " ", element("b", { textContent: value }))));
  table("replicas", ["replica", "state", "running", "waiting", "tokens/s", "acceptance", "submitted", "finished", "cancelled", "failed", "preempted"],
    replicas.map(({ replica, state, answers, figures: f }) => [replica, answers ? state : `${state}, silent`, f.running, f.waiting,
      rate(f.output_tokens_per_s), share(f.acceptance), count(f.totals.submitted), count(f.totals.finished), count(f.totals.cancelled),
      count(f.totals.failed), count(f.totals.preemptions)]), "Loading.");
}

function badge(words, kind) {
  byId("state").textContent = words;
  byId("state").className = "badge " + kind;
}

function header({ state, detail, model, policy, uptime_s, version, total, replicas }) {
  const retired = (replicas ?? []).some(r => r.draft_retired) ? ", draft retired" : "";
  badge(state, state === "serving" ? "good" : state === "not-ready" ? "bad" : "warn");
  byId("detail").textContent = state === "serving" ? model.name + (policy ? `, policy ${policy.policy}` : "") + retired : detail;
  byId("about").textContent = `${version} · up ${time(uptime_s)}`;
  document.title = state === "serving" ? `${rate(total.output_tokens_per_s)} tokens/s · faser` : `${state} · faser`;
}

// What the lanes did. The picture runs one interval behind, so that it moves evenly.

const SPANS_MS = [250, 1000, 5000];
const ROWS = { verify: 20, draft: 66 };
const HEIGHT = 34;
const LEFT = 58;
const still = matchMedia("(prefers-reduced-motion: reduce)");
let span_ms = SPANS_MS[1];
let lanes = new Map(); // replica -> {passes, marks, since, now_us, shown_us, came}
let held = null;
let pointed = null; // {replica, pass}
let colors = {};

function collect({ replicas }) {
  for (const { replica, timeline } of replicas) {
    if (!timeline) continue;
    let lane = lanes.get(replica);
    // A daemon that was started anew begins its time anew.
    if (!lane || timeline.now_us < lane.now_us) lane = { passes: [], marks: [], since: timeline.from_us, now_us: timeline.now_us };
    const behind_us = timeline.now_us - lane.now_us;
    const from = timeline.now_us - 1e3 * (SPANS_MS.at(-1) + 4 * EVERY_MS);
    lanes.set(replica, {
      passes: lane.passes.concat(timeline.passes).filter(pass => pass.ended_us >= from),
      marks: lane.marks.concat(timeline.marks).filter(mark => mark.at_us >= from),
      // What came before a hole is not shown.
      since: timeline.from_us > lane.now_us ? timeline.from_us : lane.since,
      now_us: timeline.now_us,
      shown_us: lane.shown_us ?? timeline.now_us,
      wanted_us: timeline.now_us - behind_us,
      came: performance.now(),
    });
  }
}

// Moves the right edge of a lane on: it follows the daemon's clock, and makes up for errors little by little.
function move(lane, since_ms) {
  const wanted = still.matches ? lane.now_us : Math.min(lane.wanted_us + 1e3 * (performance.now() - lane.came), lane.now_us);
  const error = wanted - (lane.shown_us + 1e3 * since_ms);
  lane.shown_us = still.matches || Math.abs(error) > 5e5 ? wanted : Math.min(lane.shown_us + 1e3 * since_ms + 0.05 * error, lane.now_us);
}

let before = 0;
function frame(now) {
  requestAnimationFrame(frame);
  const since_ms = now - before;
  if (since_ms < (still.matches ? 400 : 30)) return;
  before = now;
  for (const lane of held ? [] : lanes.values()) move(lane, since_ms);
  drawLanes();
}

function readColors() {
  const style = getComputedStyle(document.documentElement);
  colors = Object.fromEntries(["text", "dim", "line", "track", "verify", "draft", "ahead", "bad", "prune", "on"].map(name => [name, style.getPropertyValue("--" + name).trim()]));
}

function drawLanes() {
  const view = held || lanes;
  for (const [replica, lane] of [...view].sort(([a], [b]) => a - b)) {
    let canvas = byId("lane-" + replica);
    if (!canvas) {
      canvas = element("canvas", { id: "lane-" + replica, role: "img", ariaLabel: `what the lanes of replica ${replica} did` });
      canvas.addEventListener("mousemove", event => point(canvas, replica, event));
      canvas.addEventListener("mouseleave", () => { pointed = null; });
      byId("lanes").append(canvas);
    }
    draw(canvas, lane, replica, view.size);
  }
}

function draw(canvas, lane, replica, replicas) {
  const ratio = window.devicePixelRatio || 1;
  const [wide, high] = [canvas.clientWidth, canvas.clientHeight];
  if (canvas.width !== Math.round(wide * ratio) || canvas.height !== Math.round(high * ratio)) {
    [canvas.width, canvas.height] = [Math.round(wide * ratio), Math.round(high * ratio)];
  }
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, wide, high);
  const from = lane.shown_us - 1e3 * span_ms;
  const x = at => LEFT + (wide - LEFT) * (at - from) / (1e3 * span_ms);
  canvas.at = px => from + 1e3 * span_ms * (px - LEFT) / (wide - LEFT);
  context.font = "11px system-ui, sans-serif";
  context.textBaseline = "middle";
  const known = Math.max(x(lane.since), LEFT);
  for (const [name, y] of Object.entries(ROWS)) {
    context.fillStyle = colors.track;
    context.fillRect(known, y, Math.max(wide - known, 0), HEIGHT);
    context.fillStyle = colors.dim;
    context.fillText(name, 0, y + HEIGHT / 2);
  }
  if (replicas > 1) context.fillText(`replica ${replica}`, 0, 8);
  ticks(context, x, lane, wide);
  context.save();
  context.beginPath();
  context.rect(LEFT, 0, wide - LEFT, high);
  context.clip();
  for (const pass of lane.passes) drawPass(context, pass, x(pass.began_us), x(pass.ended_us));
  drawAhead(context, lane, x);
  for (const pass of lane.passes) drawFallen(context, pass, x(pass.began_us), x(pass.ended_us));
  context.fillStyle = colors.bad;
  for (const mark of lane.marks) {
    if (mark.kind !== "cancelled" && mark.kind !== "device-lost") continue;
    context.fillRect(x(mark.at_us) - 0.75, ROWS.verify + HEIGHT + 1, 1.5, ROWS.draft - ROWS.verify - HEIGHT - 2);
  }
  if (pointed && pointed.replica === replica) {
    const { pass } = pointed;
    context.strokeStyle = colors.text;
    context.lineWidth = 1.5;
    context.strokeRect(x(pass.began_us), ROWS[pass.lane] - 1, Math.max(x(pass.ended_us) - x(pass.began_us), 1), HEIGHT + 2);
  }
  context.restore();
}

function ticks(context, x, lane, wide) {
  context.strokeStyle = colors.line;
  context.lineWidth = 1;
  context.fillStyle = colors.dim;
  for (let i = 0; i <= 5; i++) {
    const ms = span_ms / 5 * i;
    const px = Math.min(Math.round(x(lane.shown_us - 1e3 * ms)) + 0.5, wide - 0.5);
    context.beginPath();
    context.moveTo(px, 15);
    context.lineTo(px, 104);
    context.stroke();
    context.textAlign = i === 0 ? "right" : i === 5 ? "left" : "center";
    context.fillText(i === 0 ? "now" : ms < 1000 ? `−${ms} ms` : `−${ms / 1000} s`, px, 7);
  }
  context.textAlign = "left";
}

function drawPass(context, pass, begin, end) {
  if (end < LEFT || begin > context.canvas.clientWidth) return;
  context.fillStyle = colors[pass.lane];
  context.fillRect(begin, ROWS[pass.lane], solid(begin, end), HEIGHT);
}

// A gap between two passes, where there is room for it.
const solid = (begin, end) => Math.max(end - begin - (end - begin > 3 ? 1 : 0), 0.7);

// The part of drafting during which a verify pass ran. Passes of one lane follow one another.
function drawAhead(context, lane, x) {
  const verify = lane.passes.filter(pass => pass.lane === "verify");
  context.fillStyle = colors.ahead;
  let next = 0;
  for (const draft of lane.passes) {
    if (draft.lane !== "draft") continue;
    while (next < verify.length && verify[next].ended_us <= draft.began_us) next++;
    for (let i = next; i < verify.length && verify[i].began_us < draft.ended_us; i++) {
      const [begin, end] = [x(Math.max(draft.began_us, verify[i].began_us)), x(Math.min(draft.ended_us, verify[i].ended_us))];
      context.fillRect(begin, ROWS.draft, end < x(draft.ended_us) ? end - begin : solid(begin, end), HEIGHT);
    }
  }
}

function drawFallen(context, pass, begin, end) {
  if (end < LEFT || begin > context.canvas.clientWidth) return;
  const [y, wide] = [ROWS[pass.lane], solid(begin, end)];
  if (pass.pruned > 0) {
    context.fillStyle = colors.prune;
    context.fillRect(begin, y + HEIGHT - 6, Math.max(wide * Math.min(1, pass.pruned / Math.max(pass.rows, 1)), Math.min(wide, 2)), 6);
  }
  if (pass.cancelled > 0) {
    context.fillStyle = colors.bad;
    context.fillRect(begin, y, Math.max(wide, 2), 6);
  }
  if (wide > 46) {
    const words = pass.lane === "verify" ? `${pass.rows} rows` : pass.steps === 1 ? "1 step" : `${pass.steps} steps`;
    context.fillStyle = colors.on;
    context.fillText(words, Math.max(begin, LEFT) + 5, y + HEIGHT / 2 + 1);
  }
}

function point(canvas, replica, event) {
  const lane = (held || lanes).get(replica);
  const box = canvas.getBoundingClientRect();
  const [at, y] = [canvas.at(event.clientX - box.left), event.clientY - box.top];
  const name = Object.keys(ROWS).find(row => y >= ROWS[row] && y <= ROWS[row] + HEIGHT);
  const pass = lane.passes.find(pass => pass.lane === name && pass.began_us <= at && at <= pass.ended_us);
  pointed = pass ? { replica, pass } : null;
  if (!pass) return;
  const took = (pass.ended_us - pass.began_us) / 1e3;
  const told = pass.predicted_us == null ? "" : ` (${(pass.predicted_us / 1e3).toFixed(1)} predicted)`;
  const what = pass.lane === "verify"
    ? `${pass.rows} rows of ${pass.sequences} sequences, ${pass.accepted} of ${pass.proposals} proposals accepted, ${pass.pruned} pruned, ${pass.committed} tokens`
    : `${pass.steps} steps for ${pass.sequences} sequences, ${pass.proposals} proposals, ${pass.cancelled} chunks cancelled`;
  const where = pass.partition > 0 ? `partition ${pass.partition}` : "all cores or SMs";
  byId("hint").textContent = `${pass.lane} ${pass.step}: ${took.toFixed(1)} ms${told}, ${what}, ${where}, k ${pass.k.join(" ")}`;
}

function hold() {
  held = held ? null : new Map([...lanes].map(([replica, lane]) => [replica, { ...lane }]));
  spans();
}

function spans() {
  const button = (textContent, on, click) => {
    const made = element("button", { textContent, ariaPressed: on });
    made.addEventListener("click", click);
    return made;
  };
  byId("spans").replaceChildren(
    button(held ? "go on" : "hold", held !== null, hold),
    ...SPANS_MS.map(ms => button(ms < 1000 ? `${ms} ms` : `${ms / 1000} s`, ms === span_ms, () => { span_ms = ms; spans(); drawLanes(); })));
}

// The connection.

function show(snapshot) {
  header(snapshot);
  tiles(snapshot);
  charts(snapshot);
  device(snapshot);
  requests(snapshot);
  replicas(snapshot);
  collect(snapshot);
}

function connect() {
  // What stands in the page's address, a token for one, goes on to the events.
  const query = new URLSearchParams(location.search);
  if (!query.has("every_ms")) query.set("every_ms", EVERY_MS);
  const events = new EventSource("v1/events?" + query);
  events.addEventListener("status", event => show(JSON.parse(event.data)));
  events.addEventListener("error", () => {
    badge("no connection", "bad");
    byId("detail").textContent = "trying again";
    // After an answer that is no stream a browser gives up by itself.
    if (events.readyState === EventSource.CLOSED) setTimeout(connect, 2000);
  });
}

readColors();
spans();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", readColors);
document.addEventListener("keydown", event => {
  if (event.key !== " " || event.target instanceof HTMLButtonElement) return;
  event.preventDefault();
  hold();
});
requestAnimationFrame(frame);
connect();
