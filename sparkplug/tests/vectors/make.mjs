// Writes what sparkplug-payload 1.0.3 (npm) makes of cases.json, and of a DataSet, a template and properties.
//
//     npm install sparkplug-payload@1.0.3 && node make.mjs
//
// `node make.mjs check ours.json` lets its decoder read the payloads of that file and compares the values.
import { readFileSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';

const require = createRequire(process.cwd() + '/');
const { encodePayload, decodePayload } = require('sparkplug-payload').get('spBv1.0');
const Long = require('long');

const here = new URL('.', import.meta.url);
const { timestamp, seq, cases } = JSON.parse(readFileSync(new URL('cases.json', here)));

const native = (kind, value) => {
  if (/^U?Int(8|16|32)$/.test(kind)) return Number(value);
  if (/^(U?Int64|DateTime)$/.test(kind)) return Long.fromString(value, kind.startsWith('U'), 10);
  if (kind === 'Bytes' || kind === 'File') return Uint8Array.from(Buffer.from(value, 'hex'));
  return value;
};
const hex = (metric) => Buffer.from(encodePayload({
  timestamp, seq, metrics: [{ timestamp, alias: 7, ...metric }],
})).toString('hex');

if (process.argv[2] === 'check') {
  let wrong = 0;
  for (const [kind, value, bytes] of JSON.parse(readFileSync(new URL(process.argv[3], here)))) {
    // It knows no arrays, and reads UInt32 from long_value only, where the norm has it in int_value.
    if (kind.endsWith('Array') || kind === 'UInt32') continue;
    const got = decodePayload(Buffer.from(bytes, 'hex')).metrics[0].value;
    const plain = typeof value !== 'string' ? got
      : got instanceof Uint8Array ? Buffer.from(got).toString('hex') : String(got);
    if (plain !== value) {
      wrong += 1;
      console.log(`${kind}: wrote ${value}, read ${plain}`);
    }
  }
  process.exit(wrong === 0 ? 0 : 1);
}

const vectors = [];
const refused = [];
for (const [kind, value] of cases) {
  try {
    if (kind.endsWith('Array')) throw new Error('no arrays');
    vectors.push([kind, value, hex({ name: kind, type: kind, value: native(kind, value) })]);
  } catch (error) {
    refused.push([kind, value, error.message]);
  }
}
const structured = {
  dataset: hex({
    name: 'DataSet', type: 'DataSet', value: {
      numOfColumns: 3, types: ['Int32', 'String', 'Boolean'], columns: ['n', 's', 'b'],
      rows: [[-1, 'a', true], [2, '', false]],
    },
  }),
  template: hex({
    name: 'Template', type: 'Template', value: {
      version: '1.0', templateRef: 'Motor', isDefinition: false,
      metrics: [{ name: 'rpm', type: 'Double', value: 12.5 }, { name: 'on', type: 'Boolean', value: false }],
      parameters: [{ name: 'limit', type: 'Int32', value: -5 }],
    },
  }),
  properties: hex({
    name: 'Properties', type: 'Double', value: 1,
    properties: { Quality: { type: 'Int32', value: 500 }, unit: { type: 'String', value: '°C' } },
  }),
};
writeFileSync(new URL('sparkplug_payload.json', here),
  JSON.stringify({ encoder: 'sparkplug-payload', vectors, refused, structured }, null, 0) + '\n');
