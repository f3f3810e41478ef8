#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| sparkgate::broker::fuzz::mqtt_codec(bytes));
