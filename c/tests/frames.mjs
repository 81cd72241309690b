// Frames of gradients that come as JSON on stdin, by fedmpdd.wasm: frames.mjs fedmpdd.wasm fedmpdd.mjs
import { readFile } from "node:fs/promises";
import { pathToFileURL } from "node:url";

const { load } = await import(pathToFileURL(process.argv[3]));
const client = await load(await readFile(process.argv[2]));
const cases = JSON.parse(await readFile("/dev/stdin", "utf8"));
const frames = cases.map(({ gradient, codec, seed, slot, frame }) =>
  Buffer.from(client.encode(Float32Array.from(gradient), codec, { seed: BigInt(seed), slot }, frame)).toString("hex"));
console.log(JSON.stringify(frames));
