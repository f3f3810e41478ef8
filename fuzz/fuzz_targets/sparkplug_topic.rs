#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| sparkplug::fuzz::fuzz_topic(bytes));
