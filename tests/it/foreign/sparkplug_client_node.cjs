// An edge node of the JavaScript sparkplug-client: `js-node`/`js-dev`. usage: sparkplug_client_node.cjs PORT
// Prints one JSON line a metric it sends, then waits for its standard input to close.
const sparkplug = require("sparkplug-client");

const BASE = 1790000000000;
const values = [
  ["Int8", -12], ["Int16", -87], ["Int32", -2147483648], ["UInt8", 255], ["UInt16", 65535], ["UInt32", 4294967284],
  ["Int64", -5], ["UInt64", 4294967297], ["Float", 1.5], ["Double", -0.1], ["Boolean", false],
  ["String", "Pumpe Süd ≥ 5 bar"], ["Text", ""],
];
const rows = (shift) => values.map(([type, value], i) =>
  ({ name: `Types/${type}`, type, value, timestamp: BASE + shift + i }));
const dataset = (shift) => ({
  name: "Types/DataSet", type: "DataSet", timestamp: BASE + shift,
  value: { numOfColumns: 2, types: ["Int32", "String"], columns: ["n", "s"], rows: [[1, "one"], [-2, "zwei"]] },
});
const say = (message, list) => list.forEach((row) => console.log(JSON.stringify({ message, ...row })));

const client = sparkplug.newClient({
  serverUrl: `tcp://127.0.0.1:${process.argv[2]}`, groupId: "foreign", edgeNode: "js-node",
  clientId: "js-node", version: "spBv1.0", username: "", password: "", publishDeath: true,
});
client.on("birth", () => {
  client.publishNodeBirth({ timestamp: BASE, metrics: [{ name: "Up", type: "Boolean", value: true, timestamp: BASE }] });
  const birth = rows(0);
  client.publishDeviceBirth("js-dev", { timestamp: BASE, metrics: [...birth, dataset(0)] });
  const data = rows(1000);
  client.publishDeviceData("js-dev", { timestamp: BASE + 1000, metrics: data });
  const zipped = rows(2000);
  client.publishDeviceData("js-dev", { timestamp: BASE + 2000, metrics: zipped }, { compress: true, algorithm: "GZIP" });
  say("birth", birth);
  say("data", data);
  say("data", zipped);
});
process.stdin.resume();
process.stdin.on("end", () => { client.stop(); setTimeout(() => process.exit(0), 200); });
