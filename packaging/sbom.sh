#!/usr/bin/env bash
# Writes a software bill of materials (SPDX 2.3, JSON) of what a build links.
# usage: packaging/sbom.sh [CARGO-FEATURE-OPTIONS…] > sparkgate.spdx.json     such as: --no-default-features --features cold,top
set -euo pipefail
cd "$(dirname "$0")/.."
cargo metadata --format-version 1 --locked --filter-platform "${TARGET:-x86_64-unknown-linux-gnu}" "$@" | python3 -c '
import json, re, sys, datetime, os
meta = json.load(sys.stdin)
packages = {p["id"]: p for p in meta["packages"]}
nodes = {n["id"]: n for n in meta["resolve"]["nodes"]}
root = next(p for p in meta["workspace_members"] if packages[p]["name"] == "sparkgate")
def linked(node):
    for dep in nodes[node]["deps"]:
        # Without tests; what only builds (build scripts, macros) is part of how the binary came to be.
        if any(kind["kind"] in (None, "build") for kind in dep["dep_kinds"]):
            yield dep["pkg"]
seen, stack, edges = {root}, [root], []
while stack:
    node = stack.pop()
    for dep in linked(node):
        edges.append((node, dep))
        if dep not in seen:
            seen.add(dep)
            stack.append(dep)
sums = {}
for name, version, checksum in re.findall(r"name = \"(.+?)\"\nversion = \"(.+?)\"\nsource = \".+?\"\nchecksum = \"(.+?)\"", open("Cargo.lock").read()):
    sums[name, version] = checksum
def ref(node):
    p = packages[node]
    return "SPDXRef-" + re.sub(r"[^A-Za-z0-9.-]", "-", "%s-%s" % (p["name"], p["version"]))
def entry(node):
    p = packages[node]
    name, version = p["name"], p["version"]
    out = {"SPDXID": ref(node), "name": name, "versionInfo": version, "licenseDeclared": (p["license"] or "NOASSERTION").replace("/", " OR "),
           "licenseConcluded": "NOASSERTION", "copyrightText": "NOASSERTION", "filesAnalyzed": False,
           "downloadLocation": f"https://crates.io/crates/{name}/{version}" if p["source"] else "NOASSERTION"}
    if (name, version) in sums:
        out["checksums"] = [{"algorithm": "SHA256", "checksumValue": sums[name, version]}]
        out["externalRefs"] = [{"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": f"pkg:cargo/{name}@{version}"}]
    return out
version = packages[root]["version"]
made = datetime.datetime.fromtimestamp(int(os.environ.get("SOURCE_DATE_EPOCH", "0")) or datetime.datetime.now().timestamp(), datetime.timezone.utc)
json.dump({"spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": "SPDXRef-DOCUMENT", "name": f"sparkgate-{version}",
  "documentNamespace": f"urn:sparkgate:sbom:{version}", "creationInfo": {"created": made.strftime("%Y-%m-%dT%H:%M:%SZ"), "creators": ["Tool: packaging/sbom.sh"]},
  "documentDescribes": [ref(root)], "packages": [entry(node) for node in sorted(seen, key=ref)],
  "relationships": [{"spdxElementId": ref(a), "relationshipType": "DEPENDS_ON", "relatedSpdxElement": ref(b)} for a, b in sorted(set(edges), key=lambda e: (ref(e[0]), ref(e[1])))]},
  sys.stdout, indent=1)
'
