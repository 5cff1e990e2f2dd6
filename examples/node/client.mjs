// Streams one turn from a mesh to standard output:  node client.mjs MODEL "text" [SESSION] [TURN]
// The rules it follows are in docs/protocol.md. NATS_URL, NATS_USER, NATS_PASSWORD, MESHNET_TENANT and MAX_TOKENS in the
// environment change the defaults. Exit code 0: the turn completed, and every token of it was printed.
import { connect, nuid } from "nats";
import { decode, encode } from "@msgpack/msgpack";
import { setTimeout as sleep } from "node:timers/promises";

const [model, prompt, session = nuid.next(), turn = "1"] = process.argv.slice(2);
process.stdout.on("error", (err) => { // a reader like `head` has enough: 141 is the exit code of any writer then
  if (err.code === "EPIPE") process.exit(141);
  throw err;
});
if (!prompt) console.error('usage: node client.mjs MODEL "text" [SESSION] [TURN]'), process.exit(2);
const tenant = process.env.MESHNET_TENANT ?? "default";
const subject = `mesh.v1.tok.${tenant}.${session}.${turn}`;
const id = { v: 1, tenant, session, turn: Number(turn) }, begun = Date.now(), deadline = begun + 600_000;
const { NATS_URL: servers = "nats://127.0.0.1:4222", NATS_USER: user, NATS_PASSWORD: pass } = process.env;
const nc = await connect({ servers, user, pass, inboxPrefix: `_INBOX_${tenant}`, maxReconnectAttempts: -1 });
const js = nc.jetstream(), jsm = await nc.jetstreamManager({ checkAPI: false });

// The turn so far: the attempt that counts, a piece for each token event, and how the turn ended.
let attempt = 0, count = 0, pieces = [], shown = 0, final, gap = false, heard = Date.now(), finalAt = Infinity;
function fold(e, stored) {
  if (e.kind === "final") final ??= (finalAt = Date.now(), e);
  if (e.kind === "keepalive") gap ||= e.attempt === attempt && e.last_index >= count;
  if (e.kind === "started" && e.attempt > attempt) { // another worker goes on: what it does not go on after is void
    if (e.resume_index > count || (!stored && e.attempt > attempt + 1 && e.resume_index > 0)) return void (gap = true);
    while (count > e.resume_index) count = pieces.pop().index;
    if (shown > pieces.length) { // printed, and void now: what still stands is printed again
      shown = 0;
      process.stdout.write("\n");
    }
    if (e.resume_index > count) return void (gap = true); // an event was cut whole, and is stored in parts
    attempt = e.attempt;
  }
  if (e.kind !== "token" || e.attempt < attempt) return;
  if (e.attempt > attempt || e.index > count) return void (gap = true);
  if (e.index + e.token_ids.length <= count) return; // sent again
  const known = pieces.filter((p) => p.index >= e.index); // sent again in part: only the rest is new
  if (e.index < count && known[0]?.index !== e.index) return void (gap = true);
  pieces.push({ index: count, text: e.text.slice(known.map((p) => p.text).join("").length) });
  count = e.index + e.token_ids.length;
  while (shown < pieces.length) process.stdout.write(pieces[shown++].text);
}
// What was missed is in the stream of events for a quarter of an hour.
async function fill() {
  const info = await jsm.consumers.add("MESH_TOK", { name: nuid.next(), filter_subject: subject, deliver_policy: "all",
    ack_policy: "none", mem_storage: true, inactive_threshold: 10e9 });
  gap = false;
  const stored = info.num_pending && await (await js.consumers.get("MESH_TOK", info.name)).fetch({ max_messages: info.num_pending, expires: 2000 });
  for await (const m of stored || []) fold(decode(m.data), true);
}
const whole = () => final && final.attempt <= attempt && (final.reason === "completed" ? final.count === count : final.count <= count);

const events = nc.subscribe(subject); // before the request, so that nothing is missed
await nc.flush();
const nonce = nuid.next(), request = encode({ ...id, model, prompt, nonce, deadline_ms: deadline - begun,
  max_new_tokens: Number(process.env.MAX_TOKENS ?? 64) });
const msgID = `${tenant}/${session}/${turn}/${nonce}`; // by which the server knows a retry
for (let wait = 100; ; await sleep(wait), wait = Math.min(2 * wait, 2000)) {
  try { await js.publish(`mesh.v1.req.${model}.any.${tenant}`, request, { msgID, timeout: 1000 }); break; }
  catch (err) { if (err.api_error || Date.now() > begun + 15_000) throw err; } // a refusal (quota, size), or nobody takes requests
}
const watch = async () => { // a few times a second: fills gaps, and asks about a turn that is silent or overdue
  for (; !whole() && Date.now() < Math.min(finalAt + 5000, deadline + 20_000); await sleep(200)) try {
    if (gap || final) await fill();
    if (final || Date.now() < Math.min(heard + 15_000, deadline + 5000)) continue;
    heard = Date.now();
    const op = heard > deadline ? "cancel" : "status"; // any worker answers, with the final of a turn that ended
    const reply = decode((await nc.request(`mesh.v1.turn.${tenant}`, encode({ ...id, op }), { timeout: 2000 })).data);
    if (reply.final) fold(decode(reply.final)); else gap = reply.state === "running";
  } catch (err) { console.error(`will try again: ${err.message}`); }
  events.unsubscribe();
};
const watching = watch();
for await (const m of events) {
  heard = Date.now();
  fold(decode(m.data));
  if (whole()) break;
}
await watching;
await nc.close();
console.error("\n%s: %d of %s tokens; %o", final?.reason ?? "unreachable", count, final?.count, final?.error?.message ?? final?.finish ?? final?.cause);
process.exitCode = whole() && final.reason === "completed" ? 0 : 1;
