// The conformance program as WebAssembly, in node: conformance.mjs conformance.wasm
import { readFile } from "node:fs/promises";

let memory;
function say(text) {
  const bytes = new Uint8Array(memory.buffer, text);
  process.stdout.write(Buffer.from(bytes.subarray(0, bytes.indexOf(0))).toString());
}

const { instance } = await WebAssembly.instantiate(await readFile(process.argv[2]), { env: { say } });
memory = instance.exports.memory;
const checks = instance.exports.conformance();
console.log(`${checks} checks`);
process.exitCode = checks > 0 ? 0 : 1;
