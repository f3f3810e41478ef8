"""Reads a stream to its present end and proves that nothing is missing: consume.py URL STREAM"""
import asyncio
import json
import sys

import nats


async def main(url, stream):
    nc = await nats.connect(url)
    js = nc.jetstream()
    end = (await js.stream_info(stream)).state.last_seq
    sub = await js.subscribe("sparkgate.>", stream=stream, ordered_consumer=True)
    last = {}  # load your own positions here
    records = lost = breaks = at = 0
    while at < end:
        msg = await sub.next_msg(timeout=20)
        at = msg.metadata.sequence.stream
        _, gateway, kind, *_ = msg.subject.split(".")
        # A gateway has a chain for each of its two streams; a hub holds both.
        chain = (gateway, kind in ("alarm", "command"))
        record, prev = (int(msg.headers[f"Sparkgate-{name}"]) for name in ("Record", "Prev"))
        before = last.get(chain)
        if before is None or record > before:  # else a further part, or sent again
            records += 1
            if before is not None and prev != before:
                breaks += 1
                print(f"{gateway}: {before} is followed by {record}, which follows {prev}")
            last[chain] = record
            if kind == "gap":
                gap = json.loads(msg.data)
                lost += gap["count"]
                print(f"{gateway}: lost {gap['from']} to {gap['to']}: {gap['cause']}")
        # if kind == "data":
        #     for metric in json.loads(msg.data)["metrics"]:
        #         print(msg.headers["Sparkgate-Device"], metric["name"], metric["value"])
    await nc.close()
    print(f"{records} records, {breaks} breaks, {lost} lost at the gateway")
    return 1 if breaks else 0


sys.exit(asyncio.run(main(*sys.argv[1:3])))
