//! Distributions in the text format. The recorder knows counters and gauges alone; the samples of a summary or of a
//! histogram are put together here under one `# TYPE`, as the format wants them.

/// Families of several samples, with kind and help.
const FAMILIES: [(&str, &str, &str); 3] = [
    (
        "sparkgate_decision_seconds",
        "summary",
        "Latency from socket read of the cause to socket write of the command",
    ),
    (
        "sparkgate_decision_stage_seconds",
        "histogram",
        "The same by stage; stage all is the whole",
    ),
    (
        "sparkgate_model_latency_seconds",
        "summary",
        "Latency from request to answer of a model",
    ),
];

/// Moves the samples of each family to the end, in the order bucket or quantile, sum, count, under its own heading.
pub(super) fn gather(rendered: &str) -> String {
    let mut out = String::with_capacity(rendered.len());
    let mut samples: [Vec<&str>; FAMILIES.len()] = Default::default();
    for line in rendered.lines() {
        let series = line
            .strip_prefix("# HELP ")
            .or_else(|| line.strip_prefix("# TYPE "))
            .unwrap_or(line);
        let name = series.split([' ', '{']).next().unwrap_or("");
        let family = FAMILIES.iter().position(|(family, ..)| {
            name.strip_prefix(family)
                .is_some_and(|part| ["", "_bucket", "_sum", "_count"].contains(&part))
        });
        match family.and_then(|family| samples.get_mut(family)) {
            Some(samples) if !line.starts_with('#') => samples.push(line),
            Some(_) => {}
            None => {
                out.push_str(line);
                out.push('\n');
            }
        }
    }
    for ((name, kind, help), samples) in FAMILIES.iter().zip(&mut samples) {
        if samples.is_empty() {
            continue;
        }
        out.push_str(&format!("# HELP {name} {help}\n# TYPE {name} {kind}\n"));
        samples.sort_by(|a, b| {
            place(a)
                .partial_cmp(&place(b))
                .unwrap_or(std::cmp::Ordering::Equal)
        });
        for sample in samples {
            out.push_str(sample);
            out.push('\n');
        }
    }
    out
}

/// Where a sample stands in its family: kind, labels but the bound, bound.
fn place(sample: &str) -> (u8, String, f64) {
    let series = sample.rsplit_once(' ').map_or(sample, |(series, _)| series);
    let (name, labels) = series.split_once('{').unwrap_or((series, ""));
    let kind = match name {
        name if name.ends_with("_sum") => 1,
        name if name.ends_with("_count") => 2,
        _ => 0,
    };
    let (rest, bound) = match labels
        .split_once("le=\"")
        .or_else(|| labels.split_once("quantile=\""))
    {
        Some((before, after)) => {
            let (bound, after) = after.split_once('"').unwrap_or((after, ""));
            (format!("{before}{after}"), bound)
        }
        None => (labels.to_owned(), ""),
    };
    let bound = match bound {
        "+Inf" => f64::INFINITY,
        bound => bound.parse().unwrap_or(0.0),
    };
    (kind, rest, bound)
}

#[cfg(test)]
mod tests {
    use super::gather;

    #[test]
    fn samples_of_a_family_stand_together_in_order() {
        let rendered = "\
# HELP sparkgate_decision_stage_seconds_bucket x
# TYPE sparkgate_decision_stage_seconds_bucket counter
sparkgate_decision_stage_seconds_bucket{stage=\"b\",le=\"+Inf\"} 3
sparkgate_decision_stage_seconds_bucket{stage=\"a\",le=\"0.01\"} 2
sparkgate_decision_stage_seconds_bucket{stage=\"b\",le=\"0.002\"} 1
sparkgate_decision_stage_seconds_bucket{stage=\"a\",le=\"0.002\"} 1

# TYPE sparkgate_disk_healthy gauge
sparkgate_disk_healthy 1
# TYPE sparkgate_decision_stage_seconds_count counter
sparkgate_decision_stage_seconds_count{stage=\"a\"} 2
sparkgate_decision_stage_seconds_sum{stage=\"a\"} 0.5
";
        let expected = "
# TYPE sparkgate_disk_healthy gauge
sparkgate_disk_healthy 1
# HELP sparkgate_decision_stage_seconds The same by stage; stage all is the whole
# TYPE sparkgate_decision_stage_seconds histogram
sparkgate_decision_stage_seconds_bucket{stage=\"a\",le=\"0.002\"} 1
sparkgate_decision_stage_seconds_bucket{stage=\"a\",le=\"0.01\"} 2
sparkgate_decision_stage_seconds_bucket{stage=\"b\",le=\"0.002\"} 1
sparkgate_decision_stage_seconds_bucket{stage=\"b\",le=\"+Inf\"} 3
sparkgate_decision_stage_seconds_sum{stage=\"a\"} 0.5
sparkgate_decision_stage_seconds_count{stage=\"a\"} 2
";
        assert_eq!(gather(rendered), expected);
    }
}
