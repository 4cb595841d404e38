// Verifies a fencing token with Node's own crypto only: a sketch for fences in languages without a Tenure client.
// docs/tokens.md explains each step. A program with a protobuf library reads tenure/v1/token.proto instead of decoding here.
//
//   tenure --json leases keys > keys.jsonl
//   tenure leases acquire tables/stock --holder me > token
//   node examples/verify_token.mjs keys.jsonl token leases/tables/stock default

import crypto from "node:crypto";
import fs from "node:fs";
import { pathToFileURL } from "node:url";

// Returns the fields of a protobuf message by number; the last value of a field counts. Varints are BigInts: an epoch needs 63 bits.
function decode(bytes) {
  const fields = new Map();
  let at = 0;
  const varint = () => {
    let value = 0n;
    for (let shift = 0n; ; shift += 7n) {
      if (at >= bytes.length || shift > 63n) throw new Error("INVALID_TOKEN: not a message");
      const byte = bytes[at++];
      value |= BigInt(byte & 0x7f) << shift;
      if (byte < 0x80) return value;
    }
  };
  while (at < bytes.length) {
    const tag = varint();
    const [number, type] = [Number(tag >> 3n), Number(tag & 7n)];
    if (type === 0) fields.set(number, varint());
    else if (type === 2) {
      const length = Number(varint());
      if (at + length > bytes.length) throw new Error("INVALID_TOKEN: cut off");
      fields.set(number, bytes.subarray(at, (at += length)));
    } else throw new Error("INVALID_TOKEN: no field of ours has this type");
  }
  return fields;
}

const [PROVIDER, LEASE] = [3, 4]; // TokenAudience

const text = (bytes) => (bytes ?? Buffer.alloc(0)).toString("utf8");

// Returns the claims of a token after checking its signature, resource and tenant.
export function verify(token, keys, resource, tenant) {
  const outer = decode(token); // FencingToken: 1 claims, 2 key_id, 3 signature
  const parts = { claims: outer.get(1), keyId: text(outer.get(2)), signature: outer.get(3) };
  return verifyParts(parts, keys, resource, tenant);
}

// Does the same for a token that a protobuf library has parsed.
export function verifyParts({ claims, keyId, signature }, keys, resource, tenant) {
  const known = keys.find((key) => key.key_id === keyId);
  if (!claims || !signature || !known) throw new Error("INVALID_TOKEN: signed with an unknown key");
  const x = Buffer.from(known.public_key, "base64").toString("base64url");
  const publicKey = crypto.createPublicKey({ key: { kty: "OKP", crv: "Ed25519", x }, format: "jwk" });
  // The signature is over the exact bytes: verify before decoding, and never encode them again.
  if (!crypto.verify(null, claims, publicKey, signature)) throw new Error("INVALID_TOKEN: the signature does not fit");
  const decoded = decode(claims); // TokenClaims: 1 resource, 2 tenant, 3 epoch, 4 claim_id, 5 holder, 8 audiences
  if (text(decoded.get(1)) !== resource || text(decoded.get(2)) !== tenant) throw new Error("WRONG_RESOURCE");
  const audiences = decoded.get(8); // packed: one byte for each
  const needed = resource.startsWith("leases/") ? LEASE : PROVIDER;
  if (!audiences?.includes(needed)) throw new Error("WRONG_AUDIENCE");
  return { epoch: decoded.get(3) ?? 0n, claimId: text(decoded.get(4)), holder: text(decoded.get(5)) };
}

if (import.meta.url === pathToFileURL(process.argv[1]).href) {
  const [keysFile, tokenFile, resource, tenant] = process.argv.slice(2);
  const keys = fs.readFileSync(keysFile, "utf8").trim().split("\n").map((line) => JSON.parse(line));
  const token = Buffer.from(fs.readFileSync(tokenFile, "utf8").trim(), "base64");
  try {
    const { epoch, claimId, holder } = verify(token, keys, resource, tenant);
    console.log(JSON.stringify({ epoch: epoch.toString(), claim_id: claimId, holder }));
  } catch (error) {
    console.error(error.message);
    process.exit(1);
  }
}
