//! Protobuf wire format, read in place and written straight into a buffer.
//!
//! The sessions read every message through this instead of a generated decoder: metrics come out borrowed, so
//! that a number costs no allocation, and every count and depth is checked before memory is taken for it.
//! `tests/it/differential.rs` holds it against the generated code of [`crate::proto`].

/// Wire type of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wire {
    Varint,
    Fixed64,
    Bytes,
    Fixed32,
}

/// What is wrong with the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// The bytes end inside a field.
    #[error("bytes end inside a field")]
    Truncated,
    /// A varint is longer than ten bytes.
    #[error("varint is longer than ten bytes")]
    Varint,
    /// A tag has field number 0, or a wire type that proto2 messages of the norm never use.
    #[error("bad field tag {0}")]
    Tag(u64),
    /// A known field has the wrong wire type.
    #[error("field {0} has the wrong wire type")]
    Type(u32),
    /// A text field is not UTF-8.
    #[error("field {0} is not UTF-8")]
    Utf8(u32),
}

/// Cursor over a message.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    pub(crate) fn remaining(&self) -> usize {
        self.rest.len()
    }

    /// The next field's number and wire type; `None` at the end.
    #[inline]
    pub(crate) fn field(&mut self) -> Result<Option<(u32, Wire)>, WireError> {
        match self.key()? {
            Some(key) => split(key).map(Some),
            None => Ok(None),
        }
    }

    /// The next field's tag as it is on the wire, not checked; `None` at the end. [`split`] takes it apart.
    #[inline(always)]
    pub(crate) fn key(&mut self) -> Result<Option<u64>, WireError> {
        match self.rest {
            [] => Ok(None),
            [first, rest @ ..] if *first < 0x80 => {
                self.rest = rest;
                Ok(Some(u64::from(*first)))
            }
            _ => self.varint().map(Some),
        }
    }

    /// Passes over fields that start with the one-byte tag `key` and are shorter than 128 bytes; returns how many.
    #[inline(always)]
    pub(crate) fn skip_short(&mut self, key: u8) -> usize {
        let mut count = 0;
        while let [first, len, rest @ ..] = self.rest
            && *first == key
            && *len < 0x80
            && let Some(behind) = rest.get(usize::from(*len)..)
        {
            self.rest = behind;
            count += 1;
        }
        count
    }

    #[inline(always)]
    pub(crate) fn varint(&mut self) -> Result<u64, WireError> {
        if let [first, rest @ ..] = self.rest
            && *first < 0x80
        {
            self.rest = rest;
            return Ok(u64::from(*first));
        }
        // Eight bytes at once: find the byte that ends the number, then squeeze out the continuation bits.
        if let Some((chunk, _)) = self.rest.split_first_chunk::<8>() {
            let word = u64::from_le_bytes(*chunk);
            let ends = !word & 0x8080_8080_8080_8080;
            if ends != 0 {
                let bits = ends.trailing_zeros() + 1;
                let used = (bits / 8) as usize;
                let word = if bits == 64 {
                    word
                } else {
                    word & ((1u64 << bits) - 1)
                };
                let x = word & 0x7f7f_7f7f_7f7f_7f7f;
                let x = ((x & 0x7f00_7f00_7f00_7f00) >> 1) | (x & 0x007f_007f_007f_007f);
                let x = ((x & 0x3fff_0000_3fff_0000) >> 2) | (x & 0x0000_3fff_0000_3fff);
                let x = ((x & 0x0fff_ffff_0000_0000) >> 4) | (x & 0x0000_0000_0fff_ffff);
                self.rest = self.rest.get(used..).unwrap_or_default();
                return Ok(x);
            }
        }
        self.varint_slow()
    }

    #[cold]
    fn varint_slow(&mut self) -> Result<u64, WireError> {
        let mut value = 0u64;
        for (i, byte) in self.rest.iter().take(10).enumerate() {
            value |= u64::from(byte & 0x7f).wrapping_shl(7 * i as u32);
            if *byte < 0x80 {
                if i == 9 && *byte > 1 {
                    return Err(WireError::Varint);
                }
                self.rest = self.rest.get(i + 1..).unwrap_or_default();
                return Ok(value);
            }
        }
        Err(if self.rest.len() >= 10 {
            WireError::Varint
        } else {
            WireError::Truncated
        })
    }

    #[inline(always)]
    pub(crate) fn fixed32(&mut self) -> Result<[u8; 4], WireError> {
        let (chunk, rest) = self
            .rest
            .split_first_chunk::<4>()
            .ok_or(WireError::Truncated)?;
        self.rest = rest;
        Ok(*chunk)
    }

    #[inline(always)]
    pub(crate) fn fixed64(&mut self) -> Result<[u8; 8], WireError> {
        let (chunk, rest) = self
            .rest
            .split_first_chunk::<8>()
            .ok_or(WireError::Truncated)?;
        self.rest = rest;
        Ok(*chunk)
    }

    #[inline(always)]
    pub(crate) fn bytes(&mut self) -> Result<&'a [u8], WireError> {
        let len = usize::try_from(self.varint()?).map_err(|_| WireError::Truncated)?;
        let (head, rest) = self
            .rest
            .split_at_checked(len)
            .ok_or(WireError::Truncated)?;
        self.rest = rest;
        Ok(head)
    }

    #[inline]
    pub(crate) fn text(&mut self, field: u32) -> Result<&'a str, WireError> {
        std::str::from_utf8(self.bytes()?).map_err(|_| WireError::Utf8(field))
    }

    #[inline]
    pub(crate) fn skip(&mut self, wire: Wire) -> Result<(), WireError> {
        match wire {
            Wire::Varint => self.varint().map(drop),
            Wire::Fixed64 => self.fixed64().map(drop),
            Wire::Fixed32 => self.fixed32().map(drop),
            Wire::Bytes => self.bytes().map(drop),
        }
    }
}

/// Field number and wire type of a tag.
pub(crate) fn split(key: u64) -> Result<(u32, Wire), WireError> {
    let wire = match key & 7 {
        0 => Wire::Varint,
        1 => Wire::Fixed64,
        2 => Wire::Bytes,
        5 => Wire::Fixed32,
        _ => return Err(WireError::Tag(key)),
    };
    match u32::try_from(key >> 3) {
        Ok(number) if number != 0 && number < 1 << 29 => Ok((number, wire)),
        _ => Err(WireError::Tag(key)),
    }
}

/// The tag of a field.
pub(crate) const fn tag(field: u32, wire: Wire) -> u64 {
    let wire = match wire {
        Wire::Varint => 0,
        Wire::Fixed64 => 1,
        Wire::Bytes => 2,
        Wire::Fixed32 => 5,
    };
    (field as u64) << 3 | wire
}

/// `Err(WireError::Type)` unless a field has the wire type that the schema gives it.
#[inline]
pub(crate) fn expect(field: u32, wire: Wire, wanted: Wire) -> Result<(), WireError> {
    if wire == wanted {
        Ok(())
    } else {
        Err(WireError::Type(field))
    }
}

/// Bytes of a varint.
#[inline]
pub(crate) fn varint_len(value: u64) -> usize {
    ((64 - (value | 1).leading_zeros() as usize) * 9 + 64) / 64
}

#[inline]
pub(crate) fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push((value as u8) | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

#[inline]
fn put_key(out: &mut Vec<u8>, field: u32, wire: u64) {
    put_varint(out, u64::from(field) << 3 | wire);
}

#[inline]
pub(crate) fn put_u64(out: &mut Vec<u8>, field: u32, value: u64) {
    put_key(out, field, 0);
    put_varint(out, value);
}

#[inline]
pub(crate) fn put_bool(out: &mut Vec<u8>, field: u32, value: bool) {
    put_u64(out, field, u64::from(value));
}

#[inline]
pub(crate) fn put_f32(out: &mut Vec<u8>, field: u32, value: f32) {
    put_key(out, field, 5);
    out.extend_from_slice(&value.to_le_bytes());
}

#[inline]
pub(crate) fn put_f64(out: &mut Vec<u8>, field: u32, value: f64) {
    put_key(out, field, 1);
    out.extend_from_slice(&value.to_le_bytes());
}

#[inline]
pub(crate) fn put_bytes(out: &mut Vec<u8>, field: u32, value: &[u8]) {
    put_key(out, field, 2);
    put_varint(out, value.len() as u64);
    out.extend_from_slice(value);
}

/// Writes a nested message whose length is known only afterwards: the body is written behind one length byte,
/// which grows in place when it does not do.
pub(crate) fn put_message(out: &mut Vec<u8>, field: u32, body: impl FnOnce(&mut Vec<u8>)) {
    put_key(out, field, 2);
    let at = out.len();
    out.push(0);
    body(out);
    let len = out.len() - at - 1;
    if len < 0x80 {
        if let Some(byte) = out.get_mut(at) {
            *byte = len as u8;
        }
        return;
    }
    let extra = varint_len(len as u64) - 1;
    let end = out.len();
    out.resize(end + extra, 0);
    out.copy_within(at + 1..end, at + 1 + extra);
    let mut value = len;
    for (i, byte) in out.iter_mut().skip(at).take(extra + 1).enumerate() {
        *byte = (value as u8 & 0x7f) | if i < extra { 0x80 } else { 0 };
        value >>= 7;
    }
}
