//! Bytes of snapshots: a version, little-endian base-128 numbers, a CRC32C at the end.

use std::sync::Arc;

use crate::value::Value;

/// Layout of everything written here. Another one is refused, and the state begins anew.
const VERSION: u8 = 1;

/// Why a snapshot could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Corrupt {
    /// Written in another layout.
    #[error("snapshot version {found}, this is version 1")]
    Version {
        /// The version found.
        found: u8,
    },
    /// The checksum at its end is not that of its bytes.
    #[error("snapshot checksum does not match")]
    Checksum,
    /// It ends before it is complete, or a number in it is too long.
    #[error("snapshot ends early")]
    Short,
    /// A value that nothing here writes.
    #[error("snapshot holds a wrong {what}")]
    Wrong {
        /// What is wrong.
        what: &'static str,
    },
}

/// Writes a snapshot.
#[derive(Debug)]
pub(crate) struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    pub(crate) fn new() -> Self {
        Self {
            bytes: vec![VERSION],
        }
    }

    /// The bytes, with their checksum.
    pub(crate) fn finish(mut self) -> Vec<u8> {
        let sum = crc32c::crc32c(&self.bytes);
        self.bytes.extend_from_slice(&sum.to_le_bytes());
        self.bytes
    }

    pub(crate) fn byte(&mut self, v: u8) {
        self.bytes.push(v);
    }

    pub(crate) fn number(&mut self, v: u64) {
        put(&mut self.bytes, v);
    }

    pub(crate) fn signed(&mut self, v: i64) {
        put(&mut self.bytes, zigzag(v));
    }

    pub(crate) fn length(&mut self, v: usize) {
        self.number(v as u64);
    }

    pub(crate) fn double(&mut self, v: f64) {
        self.bytes.extend_from_slice(&v.to_bits().to_le_bytes());
    }

    pub(crate) fn flags(&mut self, flags: &[bool]) {
        let mut byte = 0;
        for flag in flags.iter().rev() {
            byte = byte << 1 | u8::from(*flag);
        }
        self.byte(byte);
    }

    pub(crate) fn text(&mut self, v: &str) {
        self.length(v.len());
        self.bytes.extend_from_slice(v.as_bytes());
    }

    pub(crate) fn option<T>(&mut self, v: Option<T>, write: impl FnOnce(&mut Self, T)) {
        self.byte(u8::from(v.is_some()));
        if let Some(v) = v {
            write(self, v);
        }
    }

    pub(crate) fn value(&mut self, v: &Value) {
        match v {
            Value::Null => self.byte(0),
            Value::Bool(v) => {
                self.byte(1);
                self.byte(u8::from(*v));
            }
            Value::Int(v) => {
                self.byte(2);
                self.signed(*v);
            }
            Value::UInt(v) => {
                self.byte(3);
                self.number(*v);
            }
            Value::Double(v) => {
                self.byte(4);
                self.double(*v);
            }
            Value::String(v) => {
                self.byte(5);
                self.text(v);
            }
            Value::Other => self.byte(6),
        }
    }

    /// Bytes of a part that tells its own length.
    pub(crate) fn part(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        let mut part = Vec::new();
        write(&mut part);
        self.length(part.len());
        self.bytes.extend_from_slice(&part);
    }

    /// What was written, without version and checksum; for a part inside another snapshot.
    pub(crate) fn bare(self) -> Vec<u8> {
        self.bytes.get(1..).unwrap_or_default().to_vec()
    }
}

/// Reads a snapshot.
#[derive(Debug)]
pub(crate) struct Reader<'b> {
    bytes: &'b [u8],
}

impl<'b> Reader<'b> {
    /// Checks version and checksum.
    pub(crate) fn open(bytes: &'b [u8]) -> Result<Self, Corrupt> {
        let found = *bytes.first().ok_or(Corrupt::Short)?;
        if found != VERSION {
            return Err(Corrupt::Version { found });
        }
        let (body, sum) = bytes.split_last_chunk::<4>().ok_or(Corrupt::Short)?;
        if crc32c::crc32c(body) != u32::from_le_bytes(*sum) {
            return Err(Corrupt::Checksum);
        }
        let bytes = body.get(1..).ok_or(Corrupt::Short)?;
        Ok(Self { bytes })
    }

    /// Reads a part without version and checksum.
    pub(crate) fn bare(bytes: &'b [u8]) -> Self {
        Self { bytes }
    }

    pub(crate) fn rest(&self) -> &'b [u8] {
        self.bytes
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    pub(crate) fn take(&mut self, n: usize) -> Result<&'b [u8], Corrupt> {
        let (taken, rest) = self.bytes.split_at_checked(n).ok_or(Corrupt::Short)?;
        self.bytes = rest;
        Ok(taken)
    }

    pub(crate) fn byte(&mut self) -> Result<u8, Corrupt> {
        self.take(1)?.first().copied().ok_or(Corrupt::Short)
    }

    pub(crate) fn number(&mut self) -> Result<u64, Corrupt> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(Corrupt::Short)
    }

    pub(crate) fn signed(&mut self) -> Result<i64, Corrupt> {
        let v = self.number()?;
        Ok((v >> 1).cast_signed() ^ -((v & 1).cast_signed()))
    }

    /// A number of items, each of which takes a byte at least.
    pub(crate) fn length(&mut self) -> Result<usize, Corrupt> {
        let n = usize::try_from(self.number()?).map_err(|_| Corrupt::Short)?;
        if n > self.bytes.len() {
            return Err(Corrupt::Short);
        }
        Ok(n)
    }

    pub(crate) fn double(&mut self) -> Result<f64, Corrupt> {
        let bytes = self.take(8)?.try_into().map_err(|_| Corrupt::Short)?;
        Ok(f64::from_bits(u64::from_le_bytes(bytes)))
    }

    pub(crate) fn flags<const N: usize>(&mut self) -> Result<[bool; N], Corrupt> {
        let byte = self.byte()?;
        let mut flags = [false; N];
        for (n, flag) in flags.iter_mut().enumerate() {
            *flag = byte >> n & 1 == 1;
        }
        Ok(flags)
    }

    pub(crate) fn text(&mut self) -> Result<&'b str, Corrupt> {
        let n = self.length()?;
        std::str::from_utf8(self.take(n)?).map_err(|_| Corrupt::Wrong { what: "text" })
    }

    pub(crate) fn arc(&mut self) -> Result<Arc<str>, Corrupt> {
        self.text().map(Arc::from)
    }

    pub(crate) fn option<T>(
        &mut self,
        read: impl FnOnce(&mut Self) -> Result<T, Corrupt>,
    ) -> Result<Option<T>, Corrupt> {
        match self.byte()? {
            0 => Ok(None),
            1 => read(self).map(Some),
            _ => Err(Corrupt::Wrong { what: "option" }),
        }
    }

    pub(crate) fn value(&mut self) -> Result<Value, Corrupt> {
        Ok(match self.byte()? {
            0 => Value::Null,
            1 => Value::Bool(self.byte()? != 0),
            2 => Value::Int(self.signed()?),
            3 => Value::UInt(self.number()?),
            4 => Value::Double(self.double()?),
            5 => Value::String(self.arc()?),
            6 => Value::Other,
            _ => return Err(Corrupt::Wrong { what: "value" }),
        })
    }

    pub(crate) fn part(&mut self) -> Result<&'b [u8], Corrupt> {
        let n = self.length()?;
        self.take(n)
    }
}

fn zigzag(v: i64) -> u64 {
    ((v << 1) ^ (v >> 63)).cast_unsigned()
}

fn put(to: &mut Vec<u8>, mut v: u64) {
    while v >= 0x80 {
        #[expect(clippy::cast_possible_truncation, reason = "the low seven bits")]
        to.push(v as u8 | 0x80);
        v >>= 7;
    }
    #[expect(clippy::cast_possible_truncation, reason = "below 0x80")]
    to.push(v as u8);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_written_is_read(
            number: u64, signed: i64, bits: u64, flags: [bool; 5], text: String
        ) {
            let double = f64::from_bits(bits);
            let values = [
                Value::Null, Value::Bool(flags[0]), Value::Int(signed), Value::UInt(number),
                Value::Double(double), Value::String(text.as_str().into()), Value::Other,
            ];
            let mut to = Writer::new();
            to.number(number);
            to.signed(signed);
            to.double(double);
            to.flags(&flags);
            to.option(Some(text.as_str()), Writer::text);
            for value in &values {
                to.value(value);
            }
            let bytes = to.finish();
            let mut from = Reader::open(&bytes).unwrap();
            prop_assert_eq!(from.number(), Ok(number));
            prop_assert_eq!(from.signed(), Ok(signed));
            prop_assert_eq!(from.double().unwrap().to_bits(), bits);
            prop_assert_eq!(from.flags(), Ok(flags));
            prop_assert_eq!(from.option(Reader::text), Ok(Some(text.as_str())));
            for value in &values {
                prop_assert_eq!(format!("{:?}", from.value().unwrap()), format!("{value:?}"));
            }
            prop_assert!(from.is_empty());
        }

        #[test]
        fn damage_is_noticed(mut bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            let mut to = Writer::new();
            bytes.iter().for_each(|b| to.byte(*b));
            let mut good = to.finish();
            prop_assert!(Reader::open(&good).is_ok());
            let at = good.len() / 2;
            good[at] ^= 1;
            prop_assert!(Reader::open(&good).is_err());
            bytes.insert(0, 1);
            let _ = Reader::open(&bytes).map(|mut r| r.value());
        }
    }
}
