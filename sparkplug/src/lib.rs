//! Sparkplug B 3.0: topics, payloads and the host and edge sessions, without I/O.
