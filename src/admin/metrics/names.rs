//! What `/metrics` may say: every name with its kind and its help.

/// Every name, whether it is a counter, and what it says.
pub const NAMES: &[(&str, bool, &str)] = &[
    (
        "sparkgate_info",
        false,
        "Always 1; labels say version, gateway and MQTT engine",
    ),
    (
        "sparkgate_start_time_seconds",
        false,
        "When the process started, seconds since 1970",
    ),
    (
        "sparkgate_records_received_total",
        true,
        "Accepted messages that became records",
    ),
    (
        "sparkgate_records_derived_total",
        true,
        "Records made here: alarms, commands, inferences, gaps, schemas",
    ),
    (
        "sparkgate_records_published_total",
        true,
        "Records acknowledged by their stream",
    ),
    (
        "sparkgate_records_filtered_total",
        true,
        "Records that were not to leave",
    ),
    (
        "sparkgate_records_dropped_total",
        true,
        "Records lost, by reason",
    ),
    (
        "sparkgate_records_pending",
        false,
        "Records that wait for their stream",
    ),
    (
        "sparkgate_sparkplug_messages_total",
        true,
        "Sparkplug messages resolved",
    ),
    (
        "sparkgate_sparkplug_metrics_total",
        true,
        "Metrics resolved",
    ),
    (
        "sparkgate_sparkplug_invalid_total",
        true,
        "Messages and metrics refused, by reason",
    ),
    (
        "sparkgate_sparkplug_ignored_total",
        true,
        "Messages without effect, by reason",
    ),
    (
        "sparkgate_sparkplug_rebirth_requests_total",
        true,
        "Rebirth requests, by cause",
    ),
    (
        "sparkgate_sparkplug_nodes",
        false,
        "Edge nodes known, by state",
    ),
    (
        "sparkgate_sparkplug_devices",
        false,
        "Devices known, by state",
    ),
    ("sparkgate_rule_matches_total", true, "Rule matches"),
    (
        "sparkgate_rule_errors_total",
        true,
        "Rule evaluations without a result",
    ),
    ("sparkgate_alarms_active", false, "Alarms that are active"),
    (
        "sparkgate_alarms_unacknowledged",
        false,
        "Alarms that nobody acknowledged",
    ),
    (
        "sparkgate_notifications_total",
        true,
        "Messages about alarms, by receiver and outcome",
    ),
    (
        "sparkgate_notifications_waiting",
        false,
        "Alarms that a receiver was not told yet",
    ),
    (
        "sparkgate_commands_total",
        true,
        "Steps of local writes, by status",
    ),
    (
        "sparkgate_decision_seconds",
        false,
        "Latency from socket read of the cause to socket write of the command, by quantile",
    ),
    (
        "sparkgate_decision_seconds_count",
        true,
        "Decisions measured",
    ),
    ("sparkgate_decision_seconds_sum", false, "Their sum"),
    (
        "sparkgate_decision_stage_seconds_count",
        true,
        "Decisions measured, by stage",
    ),
    (
        "sparkgate_decision_stage_seconds_sum",
        false,
        "Their sum, by stage",
    ),
    (
        "sparkgate_decision_stage_seconds_bucket",
        true,
        "Decisions whose stage took at most `le` seconds; stage `all` is the whole",
    ),
    ("sparkgate_model_runs_total", true, "Answers of a model"),
    (
        "sparkgate_model_skipped_total",
        true,
        "Windows that a model did not take, by reason",
    ),
    (
        "sparkgate_model_latency_seconds",
        false,
        "Latency from request to answer, by quantile",
    ),
    (
        "sparkgate_model_fallback_active",
        false,
        "1 while the lighter model answers",
    ),
    (
        "sparkgate_model_degraded_total",
        true,
        "Times that a model missed its objective and gave way",
    ),
    (
        "sparkgate_model_no_verdict_total",
        true,
        "Windows that came to nothing in a model, by reason",
    ),
    (
        "sparkgate_model_drift_index",
        false,
        "Population stability index of a figure against the manifest's reference; 0.25 is a lot",
    ),
    (
        "sparkgate_model_candidate_compared_total",
        true,
        "Windows that a shadow and the active version both scored",
    ),
    (
        "sparkgate_model_candidate_agreed_total",
        true,
        "Of these, those with one verdict",
    ),
    ("sparkgate_text_embedded_total", true, "Texts embedded"),
    (
        "sparkgate_text_cached_total",
        true,
        "Of these, those whose template was known",
    ),
    (
        "sparkgate_text_failed_total",
        true,
        "Texts that got no vector",
    ),
    (
        "sparkgate_text_skipped_total",
        true,
        "Texts not taken, by reason",
    ),
    (
        "sparkgate_windows_without_verdict_total",
        true,
        "Windows that came to nothing, by reason",
    ),
    (
        "sparkgate_buffer_hot_bytes",
        false,
        "Weight of the records in memory",
    ),
    (
        "sparkgate_buffer_warm_bytes",
        false,
        "Size of the journal's files",
    ),
    (
        "sparkgate_buffer_warm_limit_bytes",
        false,
        "Quota of the journal's files",
    ),
    (
        "sparkgate_buffer_written_bytes_total",
        true,
        "Bytes written to disk by the journal",
    ),
    (
        "sparkgate_buffer_appended_bytes_total",
        true,
        "Bytes of bodies appended to the journal",
    ),
    (
        "sparkgate_buffer_fsyncs_total",
        true,
        "Successful fsyncs of the journal",
    ),
    (
        "sparkgate_buffer_served_records_total",
        true,
        "Records read, by tier",
    ),
    (
        "sparkgate_buffer_cold_objects",
        false,
        "Objects in the cold tier",
    ),
    (
        "sparkgate_buffer_cold_bytes",
        false,
        "Size of the objects in the cold tier",
    ),
    (
        "sparkgate_buffer_cold_waiting_segments",
        false,
        "Sealed segments that are still to be archived",
    ),
    (
        "sparkgate_buffer_cold_missed_records_total",
        true,
        "Delivered records that went before they could be archived",
    ),
    (
        "sparkgate_buffer_cold_healthy",
        false,
        "1 while the cold tier takes what is to be archived",
    ),
    (
        "sparkgate_disk_healthy",
        false,
        "1 while the journal's disk takes what is written",
    ),
    (
        "sparkgate_uplink_up",
        false,
        "1 while a lane's records leave",
    ),
    (
        "sparkgate_uplink_pending_records",
        false,
        "Records of a lane that wait",
    ),
    (
        "sparkgate_uplink_in_flight_records",
        false,
        "Records of a lane that are sent and not acknowledged",
    ),
    (
        "sparkgate_uplink_oldest_pending_seconds",
        false,
        "Age of the oldest record that waits",
    ),
    (
        "sparkgate_uplink_resyncs_total",
        true,
        "Times the stream was inspected to find the place to go on",
    ),
    (
        "sparkgate_uplink_duplicates_total",
        true,
        "Acknowledgements that said duplicate",
    ),
    ("sparkgate_mqtt_connections", false, "Client connections"),
    (
        "sparkgate_mqtt_sessions",
        false,
        "Client sessions, connected or not",
    ),
    (
        "sparkgate_mqtt_retained_messages",
        false,
        "Retained messages",
    ),
    (
        "sparkgate_mqtt_publishes_total",
        true,
        "Publishes accepted from clients",
    ),
    (
        "sparkgate_mqtt_dropped_total",
        true,
        "Messages the broker dropped, by reason",
    ),
    (
        "sparkgate_mqtt_refused_total",
        true,
        "What the broker refused, by reason",
    ),
    (
        "sparkgate_mqtt_connects_total",
        true,
        "Accepted CONNECTs, by MQTT version",
    ),
    (
        "sparkgate_mqtt_disconnects_total",
        true,
        "Ended client connections, by reason",
    ),
    (
        "sparkgate_server_connected",
        false,
        "1 while the connection to another broker stands",
    ),
    (
        "sparkgate_server_connects_total",
        true,
        "Connections to another broker that stood",
    ),
    (
        "sparkgate_server_received_total",
        true,
        "Messages taken from another broker",
    ),
    (
        "sparkgate_server_sent_total",
        true,
        "Messages published on another broker",
    ),
    (
        "sparkgate_server_lost_total",
        true,
        "Messages for another broker that never left: its queue was full, or its connection ended first",
    ),
    (
        "sparkgate_mqtt_certificate_expiry_timestamp_seconds",
        false,
        "When a file of [mqtt.tls] ends: server, client_ca or crl",
    ),
    (
        "sparkgate_log_suppressed_total",
        true,
        "Log lines left out because one place in the program wrote too many",
    ),
    (
        "sparkgate_uplink_certificate_expiry_timestamp_seconds",
        false,
        "When a file of [bridge.tls] ends: client or authority; 0 when it can't be read",
    ),
    (
        "sparkgate_config_last_reload_timestamp_seconds",
        false,
        "When the configuration was last read, seconds since 1970",
    ),
    (
        "sparkgate_config_last_reload_successful",
        false,
        "1 when all of what was read last could be taken",
    ),
    (
        "sparkgate_config_restart_pending_keys",
        false,
        "Keys whose value in the files waits for a restart",
    ),
];
