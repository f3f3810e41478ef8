"""Runs Eclipse Paho's MQTT interoperability suite (github.com/eclipse/paho.mqtt.testing) against a broker, each test in
a process of its own:  python3 tests/mqtt/paho.py CHECKOUT PORT

The broker needs a configuration that the suite expects: `test/nosubscribe` may not be subscribed to, and keep alive is
bounded by 60 s. For sparkgate:

    [mqtt]
    acl_file = "acl.toml"          # [anonymous] all = true, deny = ["test/nosubscribe"]
    [mqtt.limits]
    keep_alive = "60s"
"""
import pathlib
import re
import subprocess
import sys

RUN = """
import sys, unittest, {suite} as suite
suite.host, suite.port, suite.topic_prefix = "127.0.0.1", {port}, {prefix!r}
suite.topics = [{prefix!r} + t for t in ("TopicA", "TopicA/B", "Topic/C", "TopicA/C", "/TopicA")]
suite.wildtopics = [{prefix!r} + t for t in ("TopicA/+", "+/C", "#", "/#", "/+", "+/+", "TopicA/#")]
suite.nosubscribe_topics = ("test/nosubscribe",)
unittest.main(module=suite, argv=["paho", "Test." + sys.argv[1]])
"""


def main(checkout, port):
    folder = pathlib.Path(checkout) / "interoperability"
    for version, suite, prefix in (("v3.1.1", "client_test", ""), ("v5", "client_test5", "client_test5/")):
        tests = re.findall(r"def (test\w*)\(self", (folder / f"{suite}.py").read_text())
        passed = 0
        for test in tests:
            code = RUN.format(suite=suite, port=int(port), prefix=prefix)
            try:
                done = subprocess.run([sys.executable, "-c", code, test], cwd=folder, capture_output=True, timeout=180)
                good = done.returncode == 0
            except subprocess.TimeoutExpired:
                good = False
            passed += good
            print(version, test, "passed" if good else "FAILED", flush=True)
        print(f"{version}: {passed} of {len(tests)}", flush=True)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(sys.argv[1], sys.argv[2])
