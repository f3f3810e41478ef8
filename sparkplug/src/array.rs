//! Packed arrays, datatypes 22 to 34: little-endian elements in `bytes_value`.
//!
//! BooleanArray is a little-endian u32 count and then bits, most significant first; StringArray ends each
//! element with a zero byte, so an element cannot hold one. Four examples in the text of 3.0.0 are wrong; the
//! vectors in the tests are recomputed.

use std::sync::Arc;

use crate::datatype::DataType;

/// Elements of an array metric, by the type of the array.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs, reason = "each variant is the array type of that name")]
pub enum Array {
    Int8(Vec<i8>),
    Int16(Vec<i16>),
    Int32(Vec<i32>),
    Int64(Vec<i64>),
    UInt8(Vec<u8>),
    UInt16(Vec<u16>),
    UInt32(Vec<u32>),
    UInt64(Vec<u64>),
    Float(Vec<f32>),
    Double(Vec<f64>),
    Boolean(Vec<bool>),
    String(Vec<Arc<str>>),
    DateTime(Vec<u64>),
}

/// Why bytes are no array of a type, or the reverse.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ArrayError {
    /// The datatype is no array type.
    #[error("{0} is no array type")]
    NotAnArray(DataType),
    /// The length is not a multiple of the element's width.
    #[error("{len} bytes are no multiple of {width}")]
    Width {
        /// Bytes received.
        len: usize,
        /// Bytes of one element.
        width: usize,
    },
    /// A BooleanArray has too few bytes for its count.
    #[error("{count} booleans do not fit the {len} bytes that follow")]
    Count {
        /// The count in front.
        count: u32,
        /// Bytes behind it.
        len: usize,
    },
    /// A StringArray does not end with a zero byte.
    #[error("last string of the array is not terminated")]
    Unterminated,
    /// A string of the array is not UTF-8.
    #[error("string {0} of the array is not UTF-8")]
    Utf8(usize),
    /// A string holds a zero byte, which a StringArray cannot carry.
    #[error("string {0} of the array holds a zero byte")]
    Nul(usize),
}

impl Array {
    /// The datatype of the metric that holds it.
    #[must_use]
    pub fn datatype(&self) -> DataType {
        match self {
            Self::Int8(_) => DataType::Int8Array,
            Self::Int16(_) => DataType::Int16Array,
            Self::Int32(_) => DataType::Int32Array,
            Self::Int64(_) => DataType::Int64Array,
            Self::UInt8(_) => DataType::UInt8Array,
            Self::UInt16(_) => DataType::UInt16Array,
            Self::UInt32(_) => DataType::UInt32Array,
            Self::UInt64(_) => DataType::UInt64Array,
            Self::Float(_) => DataType::FloatArray,
            Self::Double(_) => DataType::DoubleArray,
            Self::Boolean(_) => DataType::BooleanArray,
            Self::String(_) => DataType::StringArray,
            Self::DateTime(_) => DataType::DateTimeArray,
        }
    }

    /// Number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Int8(v) => v.len(),
            Self::Int16(v) => v.len(),
            Self::Int32(v) => v.len(),
            Self::Int64(v) => v.len(),
            Self::UInt8(v) => v.len(),
            Self::UInt16(v) => v.len(),
            Self::UInt32(v) => v.len(),
            Self::UInt64(v) | Self::DateTime(v) => v.len(),
            Self::Float(v) => v.len(),
            Self::Double(v) => v.len(),
            Self::Boolean(v) => v.len(),
            Self::String(v) => v.len(),
        }
    }

    /// Whether it has no element.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Unpacks the bytes of an array metric.
    ///
    /// # Errors
    /// [`ArrayError`] when the bytes do not fit the type. Memory taken is bounded by a small multiple of
    /// `bytes`, whatever count they claim.
    pub fn decode(datatype: DataType, bytes: &[u8]) -> Result<Self, ArrayError> {
        Ok(match datatype {
            DataType::Int8Array => Self::Int8(packed(bytes, i8::from_le_bytes)?),
            DataType::Int16Array => Self::Int16(packed(bytes, i16::from_le_bytes)?),
            DataType::Int32Array => Self::Int32(packed(bytes, i32::from_le_bytes)?),
            DataType::Int64Array => Self::Int64(packed(bytes, i64::from_le_bytes)?),
            DataType::UInt8Array => Self::UInt8(bytes.to_vec()),
            DataType::UInt16Array => Self::UInt16(packed(bytes, u16::from_le_bytes)?),
            DataType::UInt32Array => Self::UInt32(packed(bytes, u32::from_le_bytes)?),
            DataType::UInt64Array => Self::UInt64(packed(bytes, u64::from_le_bytes)?),
            DataType::FloatArray => Self::Float(packed(bytes, f32::from_le_bytes)?),
            DataType::DoubleArray => Self::Double(packed(bytes, f64::from_le_bytes)?),
            DataType::DateTimeArray => Self::DateTime(packed(bytes, u64::from_le_bytes)?),
            DataType::BooleanArray => Self::Boolean(booleans(bytes)?),
            DataType::StringArray => Self::String(strings(bytes)?),
            other => return Err(ArrayError::NotAnArray(other)),
        })
    }

    /// Packs the elements.
    ///
    /// # Errors
    /// [`ArrayError::Nul`] for a string that holds a zero byte.
    pub fn encode(&self) -> Result<Vec<u8>, ArrayError> {
        Ok(match self {
            Self::Int8(v) => v.iter().flat_map(|it| it.to_le_bytes()).collect(),
            Self::Int16(v) => v.iter().flat_map(|it| it.to_le_bytes()).collect(),
            Self::Int32(v) => v.iter().flat_map(|it| it.to_le_bytes()).collect(),
            Self::Int64(v) => v.iter().flat_map(|it| it.to_le_bytes()).collect(),
            Self::UInt8(v) => v.clone(),
            Self::UInt16(v) => v.iter().flat_map(|it| it.to_le_bytes()).collect(),
            Self::UInt32(v) => v.iter().flat_map(|it| it.to_le_bytes()).collect(),
            Self::UInt64(v) | Self::DateTime(v) => {
                v.iter().flat_map(|it| it.to_le_bytes()).collect()
            }
            Self::Float(v) => v.iter().flat_map(|it| it.to_le_bytes()).collect(),
            Self::Double(v) => v.iter().flat_map(|it| it.to_le_bytes()).collect(),
            Self::Boolean(v) => {
                let count = u32::try_from(v.len()).unwrap_or(u32::MAX);
                let mut out = count.to_le_bytes().to_vec();
                out.extend(v.chunks(8).map(|bits| {
                    bits.iter()
                        .enumerate()
                        .fold(0u8, |byte, (i, bit)| byte | (u8::from(*bit) << (7 - i)))
                }));
                out
            }
            Self::String(v) => {
                let mut out = Vec::new();
                for (i, text) in v.iter().enumerate() {
                    if text.contains('\0') {
                        return Err(ArrayError::Nul(i));
                    }
                    out.extend_from_slice(text.as_bytes());
                    out.push(0);
                }
                out
            }
        })
    }
}

fn packed<T, const W: usize>(bytes: &[u8], read: fn([u8; W]) -> T) -> Result<Vec<T>, ArrayError> {
    let (chunks, rest) = bytes.as_chunks::<W>();
    if rest.is_empty() {
        Ok(chunks.iter().map(|chunk| read(*chunk)).collect())
    } else {
        Err(ArrayError::Width {
            len: bytes.len(),
            width: W,
        })
    }
}

fn booleans(bytes: &[u8]) -> Result<Vec<bool>, ArrayError> {
    // A few encoders write an empty array as no bytes at all.
    if bytes.is_empty() {
        return Ok(Vec::new());
    }
    let (count, bits) = bytes.split_first_chunk::<4>().ok_or(ArrayError::Width {
        len: bytes.len(),
        width: 4,
    })?;
    let count = u32::from_le_bytes(*count);
    let wanted = usize::try_from(count).unwrap_or(usize::MAX);
    if wanted.div_ceil(8) > bits.len() {
        return Err(ArrayError::Count {
            count,
            len: bits.len(),
        });
    }
    Ok(bits
        .iter()
        .flat_map(|byte| (0..8).map(move |bit| byte & (0x80 >> bit) != 0))
        .take(wanted)
        .collect())
}

fn strings(bytes: &[u8]) -> Result<Vec<Arc<str>>, ArrayError> {
    let Some(body) = bytes.strip_suffix(&[0]) else {
        return if bytes.is_empty() {
            Ok(Vec::new())
        } else {
            Err(ArrayError::Unterminated)
        };
    };
    body.split(|byte| *byte == 0)
        .enumerate()
        .map(|(i, text)| {
            std::str::from_utf8(text)
                .map(Arc::from)
                .map_err(|_| ArrayError::Utf8(i))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(array: Array, bytes: &[u8]) {
        assert_eq!(array.encode().unwrap(), bytes);
        assert_eq!(Array::decode(array.datatype(), bytes), Ok(array));
    }

    /// Recomputed: four of the text's own examples are wrong.
    #[test]
    fn the_examples_of_the_norm() {
        check(Array::Int8(vec![-23, 123]), &[0xe9, 0x7b]);
        check(
            Array::Int16(vec![-30_000, 30_000]),
            &[0xd0, 0x8a, 0x30, 0x75],
        );
        check(Array::UInt8(vec![23, 250]), &[0x17, 0xfa]);
        check(
            Array::Float(vec![1.23, 89.341]),
            &[0xa4, 0x70, 0x9d, 0x3f, 0x98, 0xae, 0xb2, 0x42],
        );
        check(
            Array::Double(vec![12.354_213, 1_022.912_321_3]),
            &[
                0xd7, 0xa2, 0x05, 0x68, 0x5b, 0xb5, 0x28, 0x40, 0x8e, 0x17, 0x1c, 0x6f, 0x4c, 0xf7,
                0x8f, 0x40,
            ],
        );
        check(
            Array::DateTime(vec![1_256_102_875_335, 1_656_107_875_000]),
            &[
                0xc7, 0xd0, 0x90, 0x75, 0x24, 0x01, 0, 0, 0xb8, 0xba, 0xb8, 0x97, 0x81, 0x01, 0, 0,
            ],
        );
        let bits = [0, 0, 1, 1, 0, 1, 0, 0, 1, 1, 0, 1].map(|it| it == 1);
        check(Array::Boolean(bits.to_vec()), &[0x0c, 0, 0, 0, 0x34, 0xd0]);
        check(
            Array::String(vec!["ABC".into(), "hello".into()]),
            b"ABC\0hello\0",
        );
    }

    #[test]
    fn the_unused_bits_of_the_last_byte_do_not_matter() {
        let read = Array::decode(DataType::BooleanArray, &[3, 0, 0, 0, 0b1011_1111]);
        assert_eq!(read, Ok(Array::Boolean(vec![true, false, true])));
    }

    #[test]
    fn malformed_bytes_are_errors() {
        for (datatype, bytes, error) in [
            (
                DataType::Int32Array,
                &[1, 2, 3][..],
                ArrayError::Width { len: 3, width: 4 },
            ),
            (
                DataType::BooleanArray,
                &[1, 0],
                ArrayError::Width { len: 2, width: 4 },
            ),
            (
                DataType::BooleanArray,
                &[0xff, 0xff, 0xff, 0xff, 1],
                ArrayError::Count {
                    count: u32::MAX,
                    len: 1,
                },
            ),
            (DataType::StringArray, b"AB", ArrayError::Unterminated),
            (DataType::StringArray, &[0xff, 0], ArrayError::Utf8(0)),
            (DataType::Int8, &[1], ArrayError::NotAnArray(DataType::Int8)),
        ] {
            assert_eq!(Array::decode(datatype, bytes), Err(error));
        }
        let nul = Array::String(vec!["a".into(), "b\0".into()]);
        assert_eq!(nul.encode(), Err(ArrayError::Nul(1)));
    }

    #[test]
    fn nothing_is_an_empty_array_of_any_type() {
        for datatype in DataType::ALL.into_iter().filter(|it| it.is_array()) {
            let read = Array::decode(datatype, &[]).unwrap();
            assert!(read.is_empty());
            assert_eq!(read.datatype(), datatype);
        }
    }
}
