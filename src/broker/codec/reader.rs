//! A cursor over the body of a packet.

use super::DecodeError;

/// Reads MQTT's primitive types from the front of a slice.
pub(super) struct Reader<'a> {
    rest: &'a [u8],
}

const SHORT: DecodeError = DecodeError::Malformed("packet ends early");

impl<'a> Reader<'a> {
    pub(super) fn new(body: &'a [u8]) -> Self {
        Self { rest: body }
    }

    pub(super) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    pub(super) fn take(&mut self, n: usize) -> Result<&'a [u8], DecodeError> {
        let (head, tail) = self.rest.split_at_checked(n).ok_or(SHORT)?;
        self.rest = tail;
        Ok(head)
    }

    pub(super) fn u8(&mut self) -> Result<u8, DecodeError> {
        let (first, tail) = self.rest.split_first().ok_or(SHORT)?;
        self.rest = tail;
        Ok(*first)
    }

    pub(super) fn u16(&mut self) -> Result<u16, DecodeError> {
        let (head, tail) = self.rest.split_first_chunk::<2>().ok_or(SHORT)?;
        self.rest = tail;
        Ok(u16::from_be_bytes(*head))
    }

    pub(super) fn u32(&mut self) -> Result<u32, DecodeError> {
        let (head, tail) = self.rest.split_first_chunk::<4>().ok_or(SHORT)?;
        self.rest = tail;
        Ok(u32::from_be_bytes(*head))
    }

    /// Variable byte integer (MQTT 5.0 section 1.5.5).
    pub(super) fn varint(&mut self) -> Result<u32, DecodeError> {
        let mut value = 0u32;
        for shift in [0, 7, 14, 21] {
            let byte = self.u8()?;
            value |= u32::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(DecodeError::Malformed("variable byte integer is too long"))
    }

    /// Binary data with its length in two bytes before it.
    pub(super) fn binary(&mut self) -> Result<&'a [u8], DecodeError> {
        let n = self.u16()?;
        self.take(usize::from(n))
    }

    /// UTF-8 encoded string (section 1.5.4): valid, without U+0000.
    pub(super) fn text(&mut self) -> Result<&'a str, DecodeError> {
        let bytes = self.binary()?;
        let text = std::str::from_utf8(bytes)
            .map_err(|_| DecodeError::Malformed("string is not UTF-8"))?;
        if bytes.contains(&0) {
            return Err(DecodeError::Malformed("string holds U+0000"));
        }
        Ok(text)
    }
}
