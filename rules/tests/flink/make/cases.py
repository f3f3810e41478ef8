"""Random cases without an outcome: half of them made up, half changed from `../cases.jsonl`.

usage: cases.py COUNT SEED > cases.jsonl"""
import json, pathlib, random, sys

COUNT, SEED = int(sys.argv[1]), int(sys.argv[2])
dice = random.Random(SEED)
TYPES = "ABCD"
JOINS = ["next", "followedBy", "followedByAny"]
NOTS = ["notNext", "notFollowedBy"]
KNOWN = [json.loads(line) for line in open(pathlib.Path(__file__).parent.parent / "cases.jsonl")]


def chance(share):
    return dice.random() < share


def condition(before, own, depth=0):
    """`before`: stages before it, `own`: its own, of which it may read what they hold."""
    kind = dice.random()
    if kind < 0.08:
        return {"op": "true"}
    is_type = {"op": "eq", "left": {"field": "type"}, "right": {"const": dice.choice(TYPES)}}
    if kind < 0.50:
        return is_type
    if kind < 0.60:
        op = dice.choice(["gt", "ge", "lt", "le", "ne"])
        return {"op": op, "left": {"field": "value"}, "right": {"const": dice.randrange(8)}}
    if kind < 0.70:
        return {"op": "not", "arg": is_type}
    if kind < 0.90:
        held = {"stage": dice.choice(before + [own]), "of": "value"}
        plain, aggregate = {"field": "value"}, dice.choice(["last", "first", "avg", "sum", "count", "min", "max"])
        left = plain if chance(0.7) else {"add": [plain, {"agg": "sum"} | held]}
        right = dice.choice([{"const": dice.randrange(12)}, {"agg": aggregate} | held])
        return {"op": dice.choice(["gt", "lt", "ge", "le"]), "left": left, "right": right}
    if depth < 2:
        return {"op": dice.choice(["and", "or"]), "args": [condition(before, own, depth + 1) for _ in range(2)]}
    return {"op": "true"}


def quantifier():
    if chance(0.35):
        return None
    least = dice.randrange(0, 3)
    found = dict(dice.choice([
        {"kind": "one"},
        {"kind": "oneOrMore"},
        {"kind": "oneOrMore"},
        {"kind": "times", "n": dice.randrange(1, 4)},
        {"kind": "timesOrMore", "n": dice.randrange(1, 3)},
        {"kind": "timesRange", "from": least, "to": least + dice.randrange(1, 3)},
    ]))
    if found["kind"] != "one":
        found["inner"] = dice.choice(["relaxed", "relaxed", "consecutive", "allowCombinations"])
        if chance(0.25):
            found["greedy"] = True
        if chance(0.08):
            found["within_ms"] = dice.choice([20, 40, 60])
    if chance(0.25):
        found["optional"] = True
    return found


def is_loop(stage):
    return stage.get("quantifier", {}).get("kind") in ("oneOrMore", "timesOrMore")


def stages(prefix, depth, names):
    found = []
    count = dice.randrange(1, 4) if depth else dice.randrange(1, 5)
    for place in range(count):
        name = prefix + "abcdef"[place]
        joins = JOINS + ["followedBy"]
        if place + 1 < count or chance(0.25):
            joins = joins + NOTS
        contiguity = dice.choice(joins) if place else "begin"
        is_not = contiguity in NOTS
        if depth < 2 and not is_not and chance(0.1 if depth else 0.18):
            stage = {"group": stages(f"{prefix}g{place}", depth + 1, names), "contiguity": contiguity}
            many = quantifier()
            if many:
                if chance(0.9):
                    many.pop("greedy", None)
                stage["quantifier"] = many
            found.append(stage)
            continue
        stage = {"name": name, "contiguity": contiguity, "condition": condition(list(names), name)}
        many = None if is_not else quantifier()
        if many:
            stage["quantifier"] = many
            if is_loop(stage) and chance(0.25):
                stage["until"] = condition(list(names), name)
        elif is_not and chance(0.03):
            stage["quantifier"] = {"kind": "one", "optional": True}
        if chance(0.08):
            stage["within_ms"] = dice.choice([15, 30, 50])
            stage["within_type"] = dice.choice(["FIRST_AND_LAST", "PREVIOUS_AND_CURRENT"])
        names.append(name)
        found.append(stage)
    return found


def flat(of):
    for stage in of:
        if "group" in stage:
            yield from flat(stage["group"])
        else:
            yield stage


def skip(of):
    strategy = dice.choice(["NO_SKIP", "NO_SKIP", "SKIP_TO_NEXT", "SKIP_PAST_LAST_EVENT", "SKIP_TO_FIRST", "SKIP_TO_LAST"])
    found = {"strategy": strategy}
    if strategy in ("SKIP_TO_FIRST", "SKIP_TO_LAST"):
        found["stage"] = dice.choice([stage["name"] for stage in flat(of)])
        found["throw_on_miss"] = chance(0.15)
    return found


def events():
    found, now = [], 0
    keys = dice.choice([["k1"], ["k1"], ["k1", "k2"], ["k1", "k2", "k3"]])
    for seq in range(dice.randrange(4, 13)):
        now += dice.choice([0, 5, 10, 10, 10, 20])
        ts = now - dice.choice([0, 0, 0, 0, 5, 15, 30])
        found.append({"seq": seq, "ts": ts, "key": dice.choice(keys), "type": dice.choice(TYPES), "value": dice.randrange(8)})
    return found


def watermark(of):
    if chance(0.75):
        found = {"mode": "per_event", "out_of_orderness_ms": dice.choice([0, 0, 10, 20, 40])}
        if chance(0.4):
            found["every"] = dice.choice([2, 3, 5])
    else:
        count, now, at = 0, 0, []
        while count < len(of):
            count, now = count + dice.randrange(1, 4), now + dice.choice([10, 20, 40])
            at.append([min(count, len(of)), now])
        found = {"mode": "explicit", "at": at}
    found["final_flush"] = chance(0.8)
    return found


def window(pattern, types):
    pattern["within_ms"], pattern["within_type"] = dice.choice([15, 30, 40, 60, 100]), dice.choice(types)


def made(number):
    spec, stream = stages("", 0, []), events()
    pattern = {"skip": skip(spec), "stages": spec}
    if chance(0.55):
        window(pattern, ["FIRST_AND_LAST", "FIRST_AND_LAST", "PREVIOUS_AND_CURRENT"])
    return {"id": f"made-{SEED}-{number}", "key_field": "key", "pattern": pattern, "events": stream, "watermark": watermark(stream)}


def changed(number):
    case = json.loads(json.dumps(dice.choice(KNOWN)))
    case["id"] = f"changed-{SEED}-{number}-{case['id']}"
    del case["expect"]
    case.pop("tags", None)
    pattern = case["pattern"]
    for _ in range(dice.randrange(1, 4)):
        every = list(flat(pattern["stages"]))
        stage = dice.choice(every)
        names = [other["name"] for other in every]
        kind = dice.randrange(9)
        if kind == 0:
            case["events"] = events()
            case["watermark"] = watermark(case["events"])
        elif kind == 1:
            pattern["skip"] = skip(pattern["stages"])
        elif kind == 2 and stage["contiguity"] != "begin":
            stage["contiguity"] = dice.choice(JOINS + NOTS)
        elif kind == 3 and stage["contiguity"] not in NOTS:
            many = quantifier()
            if many:
                stage["quantifier"] = many
        elif kind == 4:
            stage["condition"] = condition(names[: names.index(stage["name"])], stage["name"])
        elif kind == 5:
            window(pattern, ["FIRST_AND_LAST", "PREVIOUS_AND_CURRENT"])
        elif kind == 6 and is_loop(stage):
            stage["until"] = condition([], stage["name"])
        elif kind == 7:
            case["watermark"] = watermark(case["events"])
        elif kind == 8 and "quantifier" in stage:
            stage["quantifier"]["greedy"] = not stage["quantifier"].get("greedy", False)
    return case


for number in range(COUNT):
    print(json.dumps(made(number) if number % 2 else changed(number), separators=(",", ":")))
