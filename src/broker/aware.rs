//! Sparkplug Aware: birth certificates are stored and offered by the broker
//! (tck-id-conformance-mqtt-aware-store, -nbirth-mqtt-topic, -dbirth-mqtt-topic and the two -retain ids).

use std::sync::Arc;

/// Where the broker speaks for itself; clients may not publish below it.
pub(crate) const RESERVED: &str = "$sparkplug/";

/// The certificate topic of a birth topic; `None` for any other topic. Only the exact shapes
/// `spBv1.0/<group>/NBIRTH/<node>` and `spBv1.0/<group>/DBIRTH/<node>/<device>` without empty levels count.
pub(crate) fn certificate_topic(topic: &str) -> Option<Arc<str>> {
    let mut levels = topic.split('/');
    let (namespace, group, verb) = (levels.next()?, levels.next()?, levels.next()?);
    let (node, device) = (levels.next()?, levels.next());
    let shape = match verb {
        "NBIRTH" => device.is_none(),
        "DBIRTH" => device.is_some_and(|d| !d.is_empty()),
        _ => false,
    };
    let named = !group.is_empty() && !node.is_empty() && levels.next().is_none();
    (namespace == "spBv1.0" && shape && named)
        .then(|| format!("{RESERVED}certificates/{topic}").into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_births_have_certificates() {
        let check = |topic: &str, expected: bool| {
            assert_eq!(certificate_topic(topic).is_some(), expected, "{topic}")
        };
        check("spBv1.0/g/NBIRTH/n", true);
        check("spBv1.0/g/DBIRTH/n/d", true);
        check("spBv1.0/STATE/NBIRTH/n", true);
        check("spBv1.0/g/NBIRTH/n/d", false);
        check("spBv1.0/g/DBIRTH/n", false);
        check("spBv1.0/g/DBIRTH/n/", false);
        check("spBv1.0//NBIRTH/n", false);
        check("spBv1.0/g/NDATA/n", false);
        check("spbv1.0/g/NBIRTH/n", false);
        check("$sparkplug/certificates/spBv1.0/g/NBIRTH/n", false);
        assert_eq!(
            certificate_topic("spBv1.0/g/DBIRTH/n/d").as_deref(),
            Some("$sparkplug/certificates/spBv1.0/g/DBIRTH/n/d")
        );
    }
}
