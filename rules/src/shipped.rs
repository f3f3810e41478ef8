//! Packs that are built in.

/// Id and text of each pack that is built in, sorted by id.
#[must_use]
pub fn shipped() -> &'static [(&'static str, &'static str)] {
    &[
        (
            "batch-phases",
            include_str!("../packs/batch-phases/pack.toml"),
        ),
        (
            "model-health",
            include_str!("../packs/model-health/pack.toml"),
        ),
        (
            "press-cooling",
            include_str!("../packs/press-cooling/pack.toml"),
        ),
        (
            "pump-dry-run",
            include_str!("../packs/pump-dry-run/pack.toml"),
        ),
        (
            "stuck-sensor",
            include_str!("../packs/stuck-sensor/pack.toml"),
        ),
        ("tank-level", include_str!("../packs/tank-level/pack.toml")),
        (
            "vibration-trend",
            include_str!("../packs/vibration-trend/pack.toml"),
        ),
    ]
}
