//! `sparkgate alarms`: list and operate, by ISA-18.2.

use clap::Subcommand;
use serde_json::{Value, json};

use super::client::{Client, block_on};
use super::online::{encode, list, name_of, short_time};
use super::{Listing, Output, Reach, table};
use crate::config::quantity::Span;

#[derive(Debug, Subcommand)]
pub(super) enum AlarmsVerb {
    /// Alarms that are active or not acknowledged
    List {
        /// One row for all that mean nearly the same (needs a text model)
        #[arg(long)]
        families: bool,
        #[command(flatten)]
        listing: Listing,
    },
    /// One alarm with its values and recent alarms that mean nearly the same
    Show {
        /// Alarm id
        id: String,
        #[command(flatten)]
        listing: Listing,
    },
    /// Acknowledge
    Ack {
        /// Alarm id
        id: String,
        /// A note for the record
        #[arg(long, default_value = "")]
        note: String,
        #[command(flatten)]
        reach: Reach,
    },
    /// Hide for a while
    Shelve {
        /// Alarm id
        id: String,
        /// How long; 0s: once, until the alarm is over
        #[arg(long = "for")]
        period: Span,
        #[command(flatten)]
        reach: Reach,
    },
    /// End shelving
    Unshelve {
        /// Alarm id
        id: String,
        #[command(flatten)]
        reach: Reach,
    },
    /// Suppress by design, until `unsuppress`
    Suppress {
        /// Alarm id
        id: String,
        #[command(flatten)]
        reach: Reach,
    },
    /// End suppression
    Unsuppress {
        /// Alarm id
        id: String,
        #[command(flatten)]
        reach: Reach,
    },
    /// Take out of service, for maintenance
    OutOfService {
        /// Alarm id
        id: String,
        #[command(flatten)]
        reach: Reach,
    },
    /// Put back into service
    InService {
        /// Alarm id
        id: String,
        #[command(flatten)]
        reach: Reach,
    },
    /// Reset a latched alarm
    Reset {
        /// Alarm id
        id: String,
        #[command(flatten)]
        reach: Reach,
    },
}

pub(super) fn alarms(verb: AlarmsVerb) -> anyhow::Result<()> {
    let (id, action, body, reach) = match verb {
        AlarmsVerb::Show { id, listing } => return show_alarm(&id, &listing),
        AlarmsVerb::List {
            families: true,
            listing,
        } => return families(&listing),
        AlarmsVerb::List { listing, .. } => {
            return list(
                &listing,
                "/api/alarms",
                &["ID", "STATE", "PRIORITY", "DEVICE", "SINCE", "MESSAGE"],
                |item| {
                    vec![
                        table::cell(item.get("id")),
                        table::cell(item.get("state")),
                        table::cell(item.get("priority")),
                        name_of(item),
                        short_time(item.get("timestamp")),
                        table::cell(item.get("message")),
                    ]
                },
            );
        }
        AlarmsVerb::Ack { id, note, reach } => (id, "ack", json!({"note": note}), reach),
        AlarmsVerb::Shelve { id, period, reach } => {
            (id, "shelve", json!({"for_ms": period.as_millis()}), reach)
        }
        AlarmsVerb::Unshelve { id, reach } => (id, "unshelve", json!({}), reach),
        AlarmsVerb::Suppress { id, reach } => (id, "suppress", json!({}), reach),
        AlarmsVerb::Unsuppress { id, reach } => (id, "unsuppress", json!({}), reach),
        AlarmsVerb::OutOfService { id, reach } => (id, "out-of-service", json!({}), reach),
        AlarmsVerb::InService { id, reach } => (id, "in-service", json!({}), reach),
        AlarmsVerb::Reset { id, reach } => (id, "reset", json!({}), reach),
    };
    let answer = block_on(
        Client::new(&reach)?.post(&format!("/api/alarms/{}/{action}", encode(&id)), &body),
    )?;
    eprintln!("{id}: {}", table::cell(answer.get("state")));
    Ok(())
}

/// One row a family, the largest first.
fn families(listing: &Listing) -> anyhow::Result<()> {
    let answer = block_on(Client::new(&listing.reach)?.get("/api/alarms"))?;
    let mut families: Vec<(String, Vec<&Value>)> = Vec::new();
    for alarm in answer.as_array().into_iter().flatten() {
        let own = table::cell(alarm.get("id"));
        let name = alarm
            .get("family")
            .and_then(Value::as_str)
            .map_or(own, str::to_owned);
        match families.iter_mut().find(|(known, _)| *known == name) {
            Some((_, members)) => members.push(alarm),
            None => families.push((name, vec![alarm])),
        }
    }
    families.sort_by_key(|(_, members)| std::cmp::Reverse(members.len()));
    if listing.output == Output::Json {
        let all: Vec<Value> = families
            .iter()
            .map(|(name, members)| json!({"family": name, "alarms": members}))
            .collect();
        println!("{:#}", Value::Array(all));
        return Ok(());
    }
    let rows: Vec<Vec<String>> = families
        .iter()
        .map(|(name, members)| {
            let waiting = members.iter().filter(|alarm| {
                let state = alarm.get("state").and_then(Value::as_str);
                state.is_some_and(|state| state.contains("unack"))
            });
            let devices: std::collections::BTreeSet<String> =
                members.iter().map(|alarm| name_of(alarm)).collect();
            vec![
                name.clone(),
                members.len().to_string(),
                waiting.count().to_string(),
                devices.len().to_string(),
                table::cell(members.first().and_then(|alarm| alarm.get("message"))),
            ]
        })
        .collect();
    table::print(&["FAMILY", "ALARMS", "UNACK", "DEVICES", "MESSAGE"], &rows);
    Ok(())
}

fn show_alarm(id: &str, listing: &Listing) -> anyhow::Result<()> {
    let answer = block_on(Client::new(&listing.reach)?.get("/api/alarms"))?;
    let alarms = answer.as_array().into_iter().flatten();
    let mut alarms = alarms.filter(|alarm| alarm.get("id").and_then(Value::as_str) == Some(id));
    let Some(alarm) = alarms.next() else {
        anyhow::bail!("no alarm {id} is active or unacknowledged");
    };
    if listing.output == Output::Json {
        println!("{alarm:#}");
        return Ok(());
    }
    println!("{} {}", name_of(alarm), table::cell(alarm.get("message")));
    for key in ["id", "rule", "version", "state", "priority", "by", "family"] {
        println!("  {key:<10}{}", table::cell(alarm.get(key)));
    }
    println!("  {:<10}{}", "since", short_time(alarm.get("timestamp")));
    for (name, value) in alarm
        .get("values")
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
    {
        println!("  {name} = {value}");
    }
    let near = alarm.get("neighbours").and_then(Value::as_array);
    let rows: Vec<Vec<String>> = near
        .into_iter()
        .flatten()
        .map(|near| {
            vec![
                table::cell(near.get("similarity")),
                table::cell(near.get("id")),
                name_of(near),
                table::cell(near.get("message")),
            ]
        })
        .collect();
    if !rows.is_empty() {
        println!();
        table::print(
            &["SIMILARITY", "ID", "DEVICE", "MEANS NEARLY THE SAME"],
            &rows,
        );
    }
    Ok(())
}
