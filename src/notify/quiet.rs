//! Quiet hours: a span of the day in the plant's own time.

use jiff::Timestamp;
use jiff::civil::Time;
use jiff::tz::TimeZone;
use rules::Priority;
use serde::{Deserialize, Serialize};

/// Hours in which only urgent alarms are told.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Quiet {
    /// First minute, `"22:00"`.
    #[serde(with = "hours")]
    pub from: Time,
    /// Minute behind the last; earlier than `from` means the next day.
    #[serde(with = "hours")]
    pub to: Time,
    /// Alarms of at least this priority are told all the same.
    #[serde(default = "critical", with = "super::config::priority")]
    pub except: Priority,
    /// IANA name of the zone, such as `"Europe/Berlin"`; default: this machine's.
    #[serde(default, with = "zone", skip_serializing_if = "Option::is_none")]
    pub zone: Option<TimeZone>,
}

fn critical() -> Priority {
    Priority::Critical
}

impl Quiet {
    /// Whether it is quiet at `wall_ms` (ms UTC).
    #[must_use]
    pub fn holds(&self, wall_ms: u64) -> bool {
        let Some(at) = i64::try_from(wall_ms)
            .ok()
            .and_then(|ms| Timestamp::from_millisecond(ms).ok())
        else {
            return false;
        };
        let zone = self.zone.clone().unwrap_or_else(TimeZone::system);
        let at = zone.to_datetime(at).time();
        if self.from <= self.to {
            (self.from..self.to).contains(&at)
        } else {
            at >= self.from || at < self.to
        }
    }
}

mod hours {
    use serde::de::Error as _;
    use serde::{Deserialize, Deserializer, Serializer};

    use super::Time;

    pub(super) fn serialize<S: Serializer>(time: &Time, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&format!("{:02}:{:02}", time.hour(), time.minute()))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Time, D::Error> {
        let text = String::deserialize(from)?;
        let wrong = || {
            D::Error::custom(format!(
                "`{text}` is no time of day; write for example \"22:00\""
            ))
        };
        let (hour, minute) = text.split_once(':').ok_or_else(wrong)?;
        let (hour, minute) = (
            hour.parse().map_err(|_| wrong())?,
            minute.parse().map_err(|_| wrong())?,
        );
        Time::new(hour, minute, 0, 0).map_err(|_| wrong())
    }
}

mod zone {
    use serde::de::Error as _;
    use serde::{Deserialize, Deserializer, Serializer};

    use super::TimeZone;

    pub(super) fn serialize<S: Serializer>(
        zone: &Option<TimeZone>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        let name = zone.as_ref().and_then(TimeZone::iana_name);
        to.serialize_str(name.unwrap_or("UTC"))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<TimeZone>, D::Error> {
        let name = String::deserialize(from)?;
        TimeZone::get(&name)
            .map(Some)
            .map_err(|error| D::Error::custom(format!("time zone `{name}`: {error}; write a name such as \"Europe/Berlin\", and install tzdata")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quiet(from: &str, to: &str, zone: &str) -> Quiet {
        toml::from_str(&format!(
            "from = \"{from}\"\nto = \"{to}\"\nzone = \"{zone}\""
        ))
        .unwrap()
    }

    #[test]
    fn a_night_passes_midnight_and_follows_daylight_saving() {
        let night = quiet("22:00", "06:00", "UTC");
        // 2026-06-01T00:00:00Z
        let midnight = 1_780_272_000_000u64;
        let hour = 3_600_000;
        for (at, holds) in [
            (0, true),
            (5, true),
            (6, false),
            (12, false),
            (21, false),
            (22, true),
            (23, true),
        ] {
            assert_eq!(night.holds(midnight + at * hour), holds, "{at}:00");
        }
        let noon = quiet("12:00", "13:00", "UTC");
        assert!(noon.holds(midnight + 12 * hour) && !noon.holds(midnight + 13 * hour));
        let never = quiet("12:00", "12:00", "UTC");
        assert!(!never.holds(midnight + 12 * hour));
        // Berlin: 21:30 UTC is 23:30 in summer and 22:30 in winter; 20:30 UTC is 22:30 and 21:30.
        let berlin = quiet("22:00", "06:00", "Europe/Berlin");
        let winter = midnight + 200 * 24 * hour;
        let half = hour / 2;
        assert!(berlin.holds(midnight + 20 * hour + half));
        assert!(!berlin.holds(winter + 20 * hour + half));
    }

    #[test]
    fn what_is_no_time_or_zone_is_refused_with_an_example() {
        for (text, part) in [
            ("from = \"25:00\"\nto = \"06:00\"", "no time of day"),
            ("from = \"22\"\nto = \"06:00\"", "22:00"),
            (
                "from = \"22:00\"\nto = \"06:00\"\nzone = \"Mars/Base\"",
                "Europe/Berlin",
            ),
        ] {
            let error = toml::from_str::<Quiet>(text).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }
}
