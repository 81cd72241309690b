// fedmpdd.wasm for a page and for node: a gradient in, the bytes of one update out.
//
//     const client = await load(bytes);                       // of fedmpdd.wasm
//     const seed = client.deriveSeed(session, round, number); // BigInt
//     const frame = client.encode(gradient, {scalars: "peaks", family: "hadamard", m: 7, group: 256}, {seed});

const SCALARS = ["float32", "one-bit", "peaks"];
const FAMILIES = ["rademacher", "hadamard"];
const FRAMES = ["bare", "compact", "compact-seed", "self-contained"];
const ERRORS = ["", "null", "codec", "dimension", "key", "buffer", "room", "piece", "not finite", "too large"];
const PAGE = 65_536;

function numberOf(names, name, what) {
  const number = names.indexOf(name);
  if (number < 0) throw new RangeError(`${what} is ${name}; expected one of ${names.join(", ")}`);
  return number;
}

export async function load(bytes) {
  const { instance } = await WebAssembly.instantiate(bytes, {});
  const { memory, bufferFloats, deriveSeed, encode, __heap_base } = instance.exports;
  return {
    deriveSeed(session, round, client) {
      return BigInt.asUintN(64, deriveSeed(session, round, BigInt(client)));
    },
    encode(gradient, { scalars, family, m, group = 0 }, { seed, slot = 0 }, frame = "bare") {
      const familyNumber = numberOf(FAMILIES, family, "family");
      const floats = bufferFloats(familyNumber, gradient.length);
      const start = Math.ceil(__heap_base.value / 16) * 16;
      const room = 4 * m + 64;
      const pages = Math.ceil((start + 4 * floats + room) / PAGE) - memory.buffer.byteLength / PAGE;
      if (pages > 0) memory.grow(pages);
      new Float32Array(memory.buffer, start, floats).set(gradient);
      const out = start + 4 * floats;
      const length = encode(numberOf(SCALARS, scalars, "scalars"), familyNumber, m, group, gradient.length, seed, slot,
        start, floats, numberOf(FRAMES, frame, "frame"), out, room);
      if (length < 0) throw new Error(`fedmpdd: error ${-length} (${ERRORS[-length]})`);
      return new Uint8Array(memory.buffer, out, length).slice();
    },
  };
}
