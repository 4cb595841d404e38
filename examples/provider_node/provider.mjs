// A tool provider: four tools over a table that fences its own writes (stock.mjs), served to Tenure's tool service by gRPC.
//
//   node provider.mjs [--listen 127.0.0.1:8490] [--database stock.db] [--protos ../../protos] [--keys keys.jsonl]
//                     [--answer-after-ms 0]
//
// With --keys it trusts only the signed token: epoch, task and tenant come from the token, see ../verify_token.mjs.

import fs from "node:fs";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";
import grpc from "@grpc/grpc-js";
import protoLoader from "@grpc/proto-loader";
import { verifyParts } from "../verify_token.mjs";
import { StaleEpoch, Stock } from "./stock.mjs";

const { values: options } = parseArgs({
  options: {
    listen: { type: "string", default: "127.0.0.1:8490" },
    database: { type: "string", default: "stock.db" },
    protos: { type: "string", default: fileURLToPath(new URL("../../protos", import.meta.url)) },
    keys: { type: "string" },
    "answer-after-ms": { type: "string", default: "0" },
  },
});
const stock = new Stock(options.database);
const answerAfterMs = Number(options["answer-after-ms"]);

const item = { type: "string", minLength: 1, maxLength: 64 };
const tool = (name, effectClass, description, properties) => ({
  name,
  description,
  effect_class: `EFFECT_CLASS_${effectClass}`,
  input_schema_json: JSON.stringify({
    type: "object",
    properties,
    required: Object.keys(properties),
    additionalProperties: false,
  }),
});
const TOOLS = [
  tool("read_stock", "PURE", "How many of an item there are.", { item }),
  tool("count_stock", "IDEMPOTENT", "Write down how many of an item were counted.", { item, amount: { type: "integer" } }),
  tool("move_stock", "KEYED", "Add to an item's stock, or take from it.", { item, delta: { type: "integer" } }),
  tool("ship", "UNSAFE", "Send some of an item off. It cannot be called back.", { item, quantity: { type: "integer" } }),
];
const RUN = { read_stock: "read", count_stock: "count", move_stock: "move", ship: "ship" };

// Returns the claim of a call. An epoch is a BigInt: it needs more bits than a double has.
function claimOf(request) {
  const claim = { task: request.task_id, epoch: BigInt(request.epoch), key: request.idempotency_key };
  if (!options.keys) return claim;
  if (!request.token) throw new Error("INVALID_TOKEN: the call has none");
  // Reads the keys each time, because keys are rotated. A busy provider caches them, and reads again for an unknown key_id.
  const keys = fs.readFileSync(options.keys, "utf8").trim().split("\n").map((line) => JSON.parse(line));
  const { claims, key_id: keyId, signature } = request.token;
  const verified = verifyParts({ claims, keyId, signature }, keys, `tasks/${claim.task}`, request.tenant);
  return { ...claim, epoch: verified.epoch };
}

function callTool(call) {
  const request = call.request;
  let outcome;
  try {
    if (!RUN[request.tool]) {
      return call.emit("error", { code: grpc.status.NOT_FOUND, details: `there is no tool ${request.tool}` });
    }
    const content = stock[RUN[request.tool]](claimOf(request), JSON.parse(request.arguments_json));
    outcome = { status: "PROVIDER_STATUS_SUCCEEDED", content };
  } catch (error) {
    if (error instanceof StaleEpoch) outcome = { status: "PROVIDER_STATUS_STALE_EPOCH", content: error.message };
    else if (/^(INVALID_TOKEN|WRONG_RESOURCE)/.test(error.message)) {
      return call.emit("error", { code: grpc.status.UNAUTHENTICATED, details: error.message });
    } else outcome = { status: "PROVIDER_STATUS_FAILED", content: `Nothing was written: ${error.message}` };
  }
  console.log(JSON.stringify({ tool: request.tool, key: request.idempotency_key, epoch: request.epoch, ...outcome }));
  // The write is done and the answer is not sent: if killed here, the tool service cannot know whether the call happened.
  setTimeout(() => {
    if (call.cancelled) return;
    call.write({ outcome });
    call.end();
  }, answerAfterMs);
}

const definition = protoLoader.loadSync("tenure/v1/tool_provider_service.proto", {
  includeDirs: [options.protos],
  keepCase: true,
  longs: String,
  enums: String,
  oneofs: true,
});
const server = new grpc.Server();
server.addService(grpc.loadPackageDefinition(definition).tenure.v1.ToolProviderService.service, {
  DescribeTools: (_call, answer) => answer(null, { tools: TOOLS }),
  CallTool: callTool,
});
server.bindAsync(options.listen, grpc.ServerCredentials.createInsecure(), (error, port) => {
  if (error) throw error;
  console.log(JSON.stringify({ listening: options.listen.replace(/:\d+$/, `:${port}`) }));
});
process.on("SIGTERM", () => server.tryShutdown(() => process.exit(0)));
