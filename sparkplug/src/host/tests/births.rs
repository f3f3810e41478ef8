//! Births, deaths and who holds the session.

use super::*;

#[test]
fn a_node_its_device_and_data_by_alias() {
    let mut bench = Bench::new();
    bench.nbirth(0, 0);
    bench.dbirth(1);
    bench.now = 5;
    bench.ddata(2, 3.5);
    assert_eq!(bench.story(), ["nbirth", "dbirth", "ddata 2"]);
    let metric = bench.device().metric("Pressure").unwrap();
    assert_eq!(metric.value, Value::Double(3.5));
    assert_eq!(metric.timestamp, EPOCH + 5);
    assert_eq!(bench.node().last_seq(), Some(2));
}
