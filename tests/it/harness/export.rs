//! What `buffer export` tells, and whether it is all that was acknowledged.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::fleet::Plan;
use super::gateway::Gateway;
use super::until;

/// The lines of `buffer export`.
pub fn lines(gateway: &Gateway) -> Vec<Value> {
    let (code, out, errors) = gateway.tool(&["buffer", "export"]);
    assert_eq!(code, 0, "{errors}");
    out.lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect()
}

/// Values of all metrics of `data` records, by device.
pub fn values(lines: &[Value]) -> BTreeMap<String, BTreeSet<u64>> {
    let mut values: BTreeMap<String, BTreeSet<u64>> = BTreeMap::new();
    for line in lines.iter().filter(|line| line["class"] == "data") {
        let device = line["device"].as_str().expect("a device").to_owned();
        let metrics = line["body"]["metrics"].as_array().expect("metrics");
        let found = metrics.iter().filter_map(|metric| metric["value"].as_u64());
        values.entry(device).or_default().extend(found);
    }
    values
}

/// Ids, in the order of the lines.
pub fn ids(lines: &[Value]) -> Vec<u64> {
    lines
        .iter()
        .map(|line| line["record"].as_u64().expect("an id"))
        .collect()
}

/// What was acknowledged is exported and nothing else of the fleet, each record once and in order, and there is none
/// that the counters don't know.
pub fn is_complete(gateway: &Gateway, plan: Plan) {
    let lines = until("the export and the counters agree", 60, || {
        // A presence record may come in between.
        let count =
            |status: Value| Some(status["received"].as_u64()? + status["derived"].as_u64()?);
        let before = count(gateway.check_identity())?;
        let lines = lines(gateway);
        let after = count(gateway.check_identity())?;
        (before == after && lines.len() as u64 == after).then_some(lines)
    });
    assert!(
        ids(&lines).windows(2).all(|pair| pair[0] < pair[1]),
        "each once, in order"
    );
    let values = values(&lines);
    assert_eq!(values.len(), plan.nodes * plan.devices);
    let all: BTreeSet<u64> = (plan.from..plan.to).collect();
    for (device, found) in values {
        let missing: Vec<_> = all.difference(&found).take(10).collect();
        let alien: Vec<_> = found.difference(&all).take(10).collect();
        assert!(
            missing.is_empty() && alien.is_empty(),
            "{device}: missing {missing:?}, never said {alien:?}"
        );
    }
}
