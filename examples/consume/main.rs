//! Reads a stream to its present end and proves that nothing is missing: `consume URL STREAM`.

use std::collections::HashMap;
use std::process::ExitCode;

use async_nats::jetstream::{self, consumer::pull::OrderedConfig};
use futures_util::StreamExt as _;

#[tokio::main]
async fn main() -> Result<ExitCode, Box<dyn std::error::Error + Send + Sync>> {
    let mut args = std::env::args().skip(1);
    let (Some(url), Some(name)) = (args.next(), args.next()) else {
        return Err("usage: consume URL STREAM".into());
    };
    let context = jetstream::new(async_nats::connect(url).await?);
    let stream = context.get_stream(name).await?;
    let end = stream.cached_info().state.last_sequence;
    let consumer = stream.create_consumer(OrderedConfig::default()).await?;
    let mut messages = consumer.messages().await?;
    // Load your own positions here.
    let mut last: HashMap<(String, bool), u64> = HashMap::new();
    let (mut records, mut breaks, mut lost, mut at) = (0u64, 0u64, 0u64, 0u64);
    while at < end {
        let message = messages.next().await.ok_or("the reading ended")??;
        at = message.info()?.stream_sequence;
        let mut tokens = message.subject.split('.').skip(1);
        let (Some(gateway), Some(kind)) = (tokens.next(), tokens.next()) else {
            continue;
        };
        let number = |name: &str| -> Option<u64> {
            message.headers.as_ref()?.get(name)?.as_str().parse().ok()
        };
        let record = number("Sparkgate-Record").ok_or("not a gateway's message")?;
        let prev = number("Sparkgate-Prev").ok_or("not a gateway's message")?;
        // A gateway has a chain for each of its two streams; a hub holds both.
        let chain = (gateway.to_owned(), matches!(kind, "alarm" | "command"));
        let before = last.get(&chain).copied();
        if before.is_some_and(|before| record <= before) {
            continue; // a further part, or sent again
        }
        records += 1;
        if let Some(before) = before.filter(|before| *before != prev) {
            breaks += 1;
            println!("{gateway}: {before} is followed by {record}, which follows {prev}");
        }
        if kind == "gap" {
            let gap: serde_json::Value = serde_json::from_slice(&message.payload)?;
            let field = |name: &str| gap.get(name).cloned().unwrap_or_default();
            lost += field("count").as_u64().unwrap_or(0);
            println!(
                "{gateway}: lost {} to {}: {}",
                field("from"),
                field("to"),
                field("cause")
            );
        }
        last.insert(chain, record);
    }
    println!("{records} records, {breaks} breaks, {lost} lost at the gateway");
    Ok(ExitCode::from(u8::from(breaks > 0)))
}
