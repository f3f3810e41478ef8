//! How long the certificates and the revocation list of `[mqtt.tls]` are good for.

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use super::tls::{SEQUENCE, element, fields};
use crate::tls::PemError;

/// A warning is due this long before the end.
const SOON: Duration = Duration::from_secs(30 * 24 * 3600);
/// How often a warning is repeated.
pub(crate) const REPEAT: Duration = Duration::from_secs(24 * 3600);

/// A file of `[mqtt.tls]` that ends some day.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Validity {
    /// `server`, `client_ca` or `crl`.
    pub what: &'static str,
    /// The file.
    pub file: PathBuf,
    /// When it ends: Unix seconds; of several in one file, the first that ends.
    pub ends: i64,
}

impl Validity {
    /// Reads the certificates of a PEM file.
    ///
    /// # Errors
    /// It holds none that can be read.
    pub fn of_file(what: &'static str, file: &std::path::Path) -> Result<Self, PemError> {
        let all = crate::tls::certificates(file, "certificate")?;
        let ends = all.iter().filter_map(|der| certificate_end(der)).min();
        let empty = || PemError::Empty {
            path: file.to_owned(),
            what: "certificate with an end",
        };
        Ok(Self {
            what,
            file: file.to_owned(),
            ends: ends.ok_or_else(empty)?,
        })
    }

    /// Seconds until it ends; negative once it has.
    #[must_use]
    pub fn left(&self, now: SystemTime) -> i64 {
        let now = now
            .duration_since(SystemTime::UNIX_EPOCH)
            .map_or(0, |d| i64::try_from(d.as_secs()).unwrap_or(i64::MAX));
        self.ends.saturating_sub(now)
    }

    /// Says in the log that it has ended or ends soon.
    pub(crate) fn warn(&self, now: SystemTime) {
        let left = self.left(now);
        let (file, what) = (self.file.display(), self.what);
        if left <= 0 {
            tracing::error!(%file, what, ended_h = -left / 3600, "expired; clients may be turned away until it is renewed");
        } else if left < i64::try_from(SOON.as_secs()).unwrap_or(i64::MAX) {
            tracing::warn!(%file, what, days = left / 86_400, "expires soon; put a new one in its place and send SIGHUP");
        }
    }
}

/// End of a certificate's validity (RFC 5280 section 4.1.2.5), Unix seconds.
pub(crate) fn certificate_end(der: &[u8]) -> Option<i64> {
    // Serial number, algorithm, issuer; then the validity.
    let (_, validity, _) = element(fields(der, 3)?).filter(|(tag, ..)| *tag == SEQUENCE)?;
    let (_, _, after) = element(validity)?;
    time(after)
}

/// When a revocation list's successor is due (RFC 5280 section 5.1.2.5), Unix seconds; `None` where it does not say.
pub(crate) fn crl_end(der: &[u8]) -> Option<i64> {
    let (_, outer, _) = element(der).filter(|(tag, ..)| *tag == SEQUENCE)?;
    let (_, mut rest, _) = element(outer)?;
    // Version, algorithm and issuer come before the two times.
    while let Some((tag, _, after)) = element(rest) {
        if matches!(tag, UTC_TIME | GENERALIZED_TIME) {
            return time(after);
        }
        rest = after;
    }
    None
}

const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;

/// The time at the beginning of some DER.
fn time(der: &[u8]) -> Option<i64> {
    let (tag, text, _) = element(der)?;
    let text = std::str::from_utf8(text).ok()?;
    let (year, rest) = match tag {
        // Two digits of the year: 50 to 99 belong to the last century.
        UTC_TIME => {
            let (digits, rest) = text.split_at_checked(2)?;
            let year: i64 = digits.parse().ok()?;
            (if year < 50 { 2000 + year } else { 1900 + year }, rest)
        }
        GENERALIZED_TIME => {
            let (digits, rest) = text.split_at_checked(4)?;
            (digits.parse().ok()?, rest)
        }
        _ => return None,
    };
    let pair = |at: usize| rest.get(at..at + 2)?.parse::<i64>().ok();
    let (month, day) = (pair(0)?, pair(2)?);
    let known = rest.get(10..) == Some("Z") && (1..=12).contains(&month) && (1..=31).contains(&day);
    let seconds = pair(4)? * 3600 + pair(6)? * 60 + pair(8)?;
    known.then(|| days(year, month, day) * 86_400 + seconds)
}

/// Days from 1970-01-01 to a date of the Gregorian calendar. The year is taken to begin in March, so that the leap day
/// is its last.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    year * 365 + year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400) + of_year
        - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_of_time_are_read() {
        let check = |tag: u8, text: &str, expected: Option<i64>| {
            let mut der = vec![tag, u8::try_from(text.len()).unwrap()];
            der.extend_from_slice(text.as_bytes());
            assert_eq!(time(&der), expected, "{text}");
        };
        check(UTC_TIME, "700101000000Z", Some(0));
        check(UTC_TIME, "240229120000Z", Some(1_709_208_000));
        check(UTC_TIME, "491231235959Z", Some(2_524_607_999));
        check(GENERALIZED_TIME, "20500101000000Z", Some(2_524_608_000));
        check(GENERALIZED_TIME, "99991231235959Z", Some(253_402_300_799));
        for bad in [
            "2402291200Z",
            "241301000000Z",
            "240229120000+",
            "é0229120000Z",
            "",
        ] {
            check(UTC_TIME, bad, None);
        }
    }

    #[test]
    fn an_end_is_counted_from_now() {
        let validity = Validity {
            what: "server",
            file: "c.pem".into(),
            ends: 1000,
        };
        let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        assert_eq!(
            (validity.left(at(400)), validity.left(at(1600))),
            (600, -600)
        );
    }
}
