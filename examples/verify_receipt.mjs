// Verifies receipts with Node's own crypto only: a sketch for banks and auditors without Tenure. docs/receipts.md explains
// each step.
//
//   tenure --json leases keys > keys.jsonl
//   tenure tools receipts TASK -o receipts.jsonl
//   node examples/verify_receipt.mjs keys.jsonl receipts.jsonl

import crypto from "node:crypto";
import fs from "node:fs";
import { pathToFileURL } from "node:url";

const fail = (problem) => { throw new Error(problem); };

// JSON with sorted keys, without spaces: the form that is signed. All numbers in receipts are integers.
const canonical = (value) =>
  Array.isArray(value) ? `[${value.map(canonical)}]`
  : value !== null && typeof value === "object" ? `{${Object.keys(value).sort().map((key) => `${JSON.stringify(key)}:${canonical(value[key])}`)}}`
  : JSON.stringify(value);

// Returns the signed object of a line. Only the canonical form is read: no doubled key, float or other spelling gets through.
function open(line, keys) {
  const envelope = JSON.parse(line);
  const known = keys.find((key) => key.key_id === envelope.key_id) ?? fail("signed with an unknown key");
  const kind = "head" in envelope ? "head" : "receipt";
  const signed = envelope[kind];
  const signature = Buffer.from(envelope.signature, "hex");
  const written = canonical({ [kind]: signed, key_id: envelope.key_id, signature: signature.toString("hex") });
  if (written !== line || signed.type !== kind || signed.v !== 1) fail("not a line of a receipts file");
  const x = Buffer.from(known.public_key, "base64").toString("base64url");
  const publicKey = crypto.createPublicKey({ key: { kty: "OKP", crv: "Ed25519", x }, format: "jwk" });
  const bytes = Buffer.from(`\0tenure receipt\0${canonical(signed)}`);
  if (!crypto.verify(null, bytes, publicKey, signature)) fail("the signature does not fit");
  return signed;
}

// Returns the head after checking every line: signatures, the chain 1, 2, 3 … and its end.
export function verify(text, keys) {
  const lines = text.replace(/\n$/, "").split("\n").map((line) => open(line, keys));
  const head = lines.pop();
  if (head.type !== "head") fail("the head is missing: receipts may be missing, too");
  let link = "0".repeat(64);
  lines.forEach(({ type, installation, tool_service: { record } = {} }, index) => {
    const isNext = type === "receipt" && record.number === index + 1 && record.previous === link;
    const isOfHead = record?.task === head.task && record.tenant === head.tenant && installation === head.installation;
    if (!isNext || !isOfHead) fail(`line ${index + 1} does not follow from the line before it`);
    link = crypto.createHash("sha256").update(canonical(record)).digest("hex");
  });
  if (head.receipts !== lines.length || head.link !== link) fail("the head is that of other receipts");
  return head;
}

if (import.meta.url === pathToFileURL(process.argv[1]).href) {
  const [keysFile, receiptsFile] = process.argv.slice(2);
  const keys = fs.readFileSync(keysFile, "utf8").trim().split("\n").map((line) => JSON.parse(line));
  try {
    console.log(JSON.stringify(verify(fs.readFileSync(receiptsFile, "utf8"), keys)));
  } catch (error) {
    console.error(error.message);
    process.exit(1);
  }
}
