//! A gateway's backup, made while it runs, makes another one on an empty box.

use crate::harness::gateway::Gateway;
use crate::harness::mqtt::Node;
use crate::harness::until;

#[test]
fn a_backup_of_a_running_gateway_restores_its_devices_and_holds() {
    let mut gateway = Gateway::builder()
        .config("[rules]\nuse_shipped = [\"press-cooling\"]\n")
        .start();
    let node = Node::birth(gateway.mqtt, "plant", "n1", "press-1");
    until("the device is known", 60, || {
        (gateway.json("/api/devices").as_array()?.len() == 2).then_some(())
    });
    let (code, _, said) = gateway.tool(&["hold", "plant/n1/press-1", "--for", "1h"]);
    assert_eq!(code, 0, "{said}");
    let file = gateway.folder().join("b.tar.gz").display().to_string();
    let (code, shown, said) = gateway.tool(&["backup", &file, "-o", "json"]);
    assert_eq!(code, 0, "{said}");
    let manifest: serde_json::Value = serde_json::from_str(&shown).unwrap();
    assert!(manifest["record"].as_u64().unwrap() > 0, "{manifest:#}");
    assert_eq!(gateway.tool(&["audit", "verify"]).0, 0);
    drop(node);
    assert!(gateway.stop().success());

    // The data is lost; the same box is set up again from the file.
    let data = gateway.folder().join("data");
    let (code, _, said) = gateway.tool(&["restore", &file]);
    assert_eq!(code, 1, "{said}");
    assert!(said.contains("--replace"), "{said}");
    std::fs::remove_dir_all(&data).unwrap();
    let (code, shown, said) = gateway.tool(&["restore", &file]);
    assert_eq!(code, 0, "{said}");
    assert!(shown.contains("sparkgate.toml"), "{shown}");
    gateway.restart();
    let devices = gateway.json("/api/devices");
    let press = devices
        .as_array()
        .unwrap()
        .iter()
        .find(|d| d["device"] == "press-1")
        .unwrap_or_else(|| panic!("the device is not restored: {devices:#}"));
    assert_eq!(press["births"], 1, "its story goes on: {press:#}");
    // The hold is still in force, and the node is taken back as after any restart.
    let _node = Node::birth(gateway.mqtt, "plant", "n1", "press-1");
    until("the device is back", 60, || {
        (gateway.json("/api/devices/plant/n1/press-1")["online"] == true).then_some(())
    });
    let (code, shown, _) = gateway.tool(&["write", "plant/n1/press-1", "Cooling/Enable=true"]);
    assert_eq!(code, 1);
    assert!(shown.contains("held"), "{shown}");
    // The audit log began anew, and nobody is accused of having cut it.
    let (code, shown, said) = gateway.tool(&["audit", "verify"]);
    assert_eq!(code, 0, "{shown}{said}");
    until("the log goes on", 60, || {
        let (_, shown, _) = gateway.tool(&["audit", "list"]);
        shown.contains("Cooling/Enable").then_some(())
    });
    gateway.check_identity();
}
