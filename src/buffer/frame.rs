//! Frames, segment headers and trailers: every structure on disk that carries its own checksum.
//!
//! All numbers are little-endian. `docs/buffer-format.md` draws the layouts.

use crate::buffer::record::{Key, Lane, RecordId};

/// First bytes of a frame.
pub(crate) const FRAME_MAGIC: u32 = u32::from_le_bytes(*b"sgF1");
/// Bytes before a frame's payload.
pub(crate) const FRAME_HEADER: usize = 40;
/// Bytes before the first frame of a segment.
pub(crate) const SEGMENT_HEADER: usize = 128;
/// Bytes at the end of a sealed segment.
pub(crate) const TRAILER: usize = 192;
/// Bytes of one entry of the sparse index.
pub(crate) const INDEX_ENTRY: usize = 48;
/// A payload larger than this is damage, not data: the broker's largest packet is far below.
pub(crate) const MAX_PAYLOAD: usize = 256 << 20;
/// Version of the format; a segment of another version is set aside.
pub(crate) const VERSION: u16 = 1;

const HEADER_MAGIC: &[u8; 8] = b"SPARKGJ1";
const TRAILER_MAGIC: &[u8; 8] = b"SPARKGT1";

/// Random 128 bits that tell one journal from another.
pub(crate) type Epoch = [u8; 16];

/// An epoch as in message ids.
pub(crate) fn epoch_hex(epoch: &Epoch) -> String {
    crate::digest::hex(epoch)
}

/// Little-endian fields one after the other.
#[derive(Default)]
struct Fields(Vec<u8>);

impl Fields {
    fn raw(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }
    fn u64(self, value: u64) -> Self {
        self.raw(&value.to_le_bytes())
    }
    /// Pads with zeroes to `len` bytes, the last four of which are the checksum of all before.
    fn sealed(mut self, len: usize) -> Vec<u8> {
        self.0.resize(len.saturating_sub(4), 0);
        let crc = crc32c::crc32c(&self.0);
        self.raw(&crc.to_le_bytes()).0
    }
}

/// Reads little-endian fields; past the end they are 0 (the checksum has been checked before).
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn raw<const N: usize>(&mut self) -> [u8; N] {
        let mut out = [0; N];
        if let Some((head, rest)) = self.0.split_at_checked(N) {
            out.copy_from_slice(head);
            self.0 = rest;
        }
        out
    }
    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.raw())
    }
    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.raw())
    }
}

/// The fields before the checksum, when the checksum fits.
fn checked<'a>(bytes: &'a [u8], magic: &[u8; 8]) -> Option<Reader<'a>> {
    let (body, crc) = bytes.split_at_checked(bytes.len().checked_sub(4)?)?;
    let good = body.starts_with(magic) && crc32c::crc32c(body).to_le_bytes() == *crc;
    good.then(|| Reader(body.get(8..).unwrap_or_default()))
}

fn lane_from(code: u8) -> Option<Lane> {
    match code {
        0 => Some(Lane::Data),
        1 => Some(Lane::Alarms),
        _ => None,
    }
}

/// What each segment says of itself in its first 128 bytes, durable before its first frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) lane: Lane,
    pub(crate) no: u64,
    pub(crate) epoch: Epoch,
    /// Records of this lane ever appended before this segment, those from outside.
    pub(crate) received: u64,
    /// The same for those made here.
    pub(crate) derived: u64,
    /// Last record of the lane before this segment.
    pub(crate) prev: RecordId,
}

impl Header {
    pub(crate) fn encode(&self) -> Vec<u8> {
        Fields::default()
            .raw(HEADER_MAGIC)
            .raw(&VERSION.to_le_bytes())
            .raw(&[self.lane as u8, 0, 0, 0, 0, 0])
            .u64(self.no)
            .raw(&self.epoch)
            .u64(self.received)
            .u64(self.derived)
            .u64(self.prev)
            .sealed(SEGMENT_HEADER)
    }

    /// `None`: not a header of this version, or damaged.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut fields = checked(bytes.get(..SEGMENT_HEADER)?, HEADER_MAGIC)?;
        let version = u16::from_le_bytes(fields.raw());
        let [lane, ..] = fields.raw::<6>();
        if version != VERSION {
            return None;
        }
        Some(Self {
            lane: lane_from(lane)?,
            no: fields.u64(),
            epoch: fields.raw(),
            received: fields.u64(),
            derived: fields.u64(),
            prev: fields.u64(),
        })
    }
}

/// What a segment holds. In memory for each segment; on disk as the trailer of a sealed one, so that a
/// start reads 192 bytes of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Summary {
    pub(crate) header: Header,
    /// Records inside, from outside and made here.
    pub(crate) received: u64,
    pub(crate) derived: u64,
    /// Ordinal in the lane after the last record. Larger than the start plus the records inside where
    /// some in the middle are lost.
    pub(crate) ord_end: u64,
    pub(crate) first_id: RecordId,
    pub(crate) last_id: RecordId,
    /// Range of arrival times, ms UTC.
    pub(crate) min_ms: u64,
    pub(crate) max_ms: u64,
    /// Engine time of the newest record.
    pub(crate) engine_ms: u64,
    /// Where the frames end.
    pub(crate) data_end: u64,
}

impl Summary {
    /// A segment with no frame yet.
    pub(crate) fn empty(header: Header) -> Self {
        Self {
            header,
            received: 0,
            derived: 0,
            ord_end: header.received + header.derived,
            first_id: 0,
            last_id: header.prev,
            min_ms: u64::MAX,
            max_ms: 0,
            engine_ms: 0,
            data_end: SEGMENT_HEADER as u64,
        }
    }

    /// Ordinal in the lane of the first record.
    pub(crate) fn ord_start(&self) -> u64 {
        self.header.received + self.header.derived
    }
}

/// One point of the sparse index: the frames from this one up to the next point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct IndexEntry {
    pub(crate) offset: u64,
    pub(crate) first_id: RecordId,
    pub(crate) ord: u64,
    /// Range of arrival times, ms UTC.
    pub(crate) min_ms: u64,
    pub(crate) max_ms: u64,
    /// The keys inside, as a set of their [`key_bit`]s.
    pub(crate) keys: u64,
}

/// One of 64 bits for a key: where it is missing in an index entry, no record of the key is there.
pub(crate) fn key_bit(key: &Key) -> u64 {
    let mut crc = 0;
    for name in [&key.group, &key.node, &key.device] {
        // No name holds this byte: it is not UTF-8.
        let name = name.as_deref().map_or(&b"\xff"[..], str::as_bytes);
        crc = crc32c::crc32c_append(crc32c::crc32c_append(crc, name), b"\xfe");
    }
    1 << (crc % 64)
}

/// Index and trailer as they follow the last frame.
pub(crate) fn encode_footer(summary: &Summary, index: &[IndexEntry]) -> Vec<u8> {
    let entries = index.iter().fold(Fields::default(), |fields, entry| {
        fields
            .u64(entry.offset)
            .u64(entry.first_id)
            .u64(entry.ord)
            .u64(entry.min_ms)
            .u64(entry.max_ms)
            .u64(entry.keys)
    });
    let mut bytes = entries.0;
    let trailer = Fields::default()
        .raw(TRAILER_MAGIC)
        .raw(&VERSION.to_le_bytes())
        .raw(&[summary.header.lane as u8, 0])
        .raw(&crc32c::crc32c(&bytes).to_le_bytes())
        .u64(index.len() as u64)
        .u64(summary.header.no)
        .raw(&summary.header.epoch)
        .u64(summary.header.received)
        .u64(summary.header.derived)
        .u64(summary.header.prev)
        .u64(summary.received)
        .u64(summary.derived)
        .u64(summary.ord_end)
        .u64(summary.first_id)
        .u64(summary.last_id)
        .u64(summary.min_ms)
        .u64(summary.max_ms)
        .u64(summary.engine_ms)
        .u64(summary.data_end)
        .sealed(TRAILER);
    bytes.extend_from_slice(&trailer);
    bytes
}

/// A trailer and how large its index is and with which checksum.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Trailer {
    pub(crate) summary: Summary,
    pub(crate) index_entries: u64,
    pub(crate) index_crc: u32,
}

impl Trailer {
    /// `None`: the file is not sealed, or its last bytes are damaged. `file_len` must fit.
    pub(crate) fn decode(bytes: &[u8], file_len: u64) -> Option<Self> {
        let mut fields = checked(bytes.get(..TRAILER)?, TRAILER_MAGIC)?;
        let version = u16::from_le_bytes(fields.raw());
        let [lane, _] = fields.raw();
        let index_crc = fields.u32();
        let index_entries = fields.u64();
        let no = fields.u64();
        let header = Header {
            lane: lane_from(lane)?,
            no,
            epoch: fields.raw(),
            received: fields.u64(),
            derived: fields.u64(),
            prev: fields.u64(),
        };
        let summary = Summary {
            header,
            received: fields.u64(),
            derived: fields.u64(),
            ord_end: fields.u64(),
            first_id: fields.u64(),
            last_id: fields.u64(),
            min_ms: fields.u64(),
            max_ms: fields.u64(),
            engine_ms: fields.u64(),
            data_end: fields.u64(),
        };
        let index = index_entries.checked_mul(INDEX_ENTRY as u64)?;
        let whole = summary
            .data_end
            .checked_add(index)?
            .checked_add(TRAILER as u64)?;
        (version == VERSION && whole == file_len).then_some(Self {
            summary,
            index_entries,
            index_crc,
        })
    }
}

/// The index between frames and trailer; `None` where its checksum fails (reads then start at the top).
pub(crate) fn decode_index(bytes: &[u8], crc: u32) -> Option<Vec<IndexEntry>> {
    if crc32c::crc32c(bytes) != crc {
        return None;
    }
    let entry = |bytes: &[u8]| {
        let mut fields = Reader(bytes);
        IndexEntry {
            offset: fields.u64(),
            first_id: fields.u64(),
            ord: fields.u64(),
            min_ms: fields.u64(),
            max_ms: fields.u64(),
            keys: fields.u64(),
        }
    };
    Some(bytes.chunks_exact(INDEX_ENTRY).map(entry).collect())
}

/// The 40 bytes before a payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FrameHeader {
    pub(crate) payload: u32,
    pub(crate) crc: u32,
    pub(crate) count: u32,
    pub(crate) first_id: RecordId,
    pub(crate) last_id: RecordId,
    /// Ordinal in the lane of the first record.
    pub(crate) ord: u64,
}

impl FrameHeader {
    /// Reads the fields; the checksum is checked with [`Self::fits`] once the payload is at hand.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut fields = Reader(bytes.get(..FRAME_HEADER)?);
        if fields.u32() != FRAME_MAGIC {
            return None;
        }
        let (payload, crc, count) = (fields.u32(), fields.u32(), fields.u32());
        let (first_id, last_id, ord) = (fields.u64(), fields.u64(), fields.u64());
        let sane = payload as usize <= MAX_PAYLOAD && count > 0 && first_id <= last_id;
        sane.then_some(Self {
            payload,
            crc,
            count,
            first_id,
            last_id,
            ord,
        })
    }

    /// Bytes of the whole frame.
    pub(crate) fn len(&self) -> usize {
        FRAME_HEADER + self.payload as usize
    }

    /// Whether `frame` (header and payload) is what was written in segment `seed`.
    pub(crate) fn fits(&self, seed: u32, frame: &[u8]) -> bool {
        frame
            .get(12..self.len())
            .is_some_and(|body| crc32c::crc32c_append(seed, body) == self.crc)
    }
}

/// Start value of the checksums of one segment's frames. It keeps a frame that happens to lie inside the
/// body of a record (a journal file sent as `raw`) from passing for one when damage is skipped.
pub(crate) fn frame_seed(epoch: &Epoch, lane: Lane, no: u64) -> u32 {
    let seed = crc32c::crc32c(epoch);
    crc32c::crc32c_append(
        crc32c::crc32c_append(seed, &[lane as u8]),
        &no.to_le_bytes(),
    )
}

/// Makes a frame of `frame`, whose first 40 bytes are free and whose rest is the payload.
pub(crate) fn finish_frame(
    frame: &mut [u8],
    seed: u32,
    count: u32,
    ids: (RecordId, RecordId),
    ord: u64,
) {
    let payload = frame.len().saturating_sub(FRAME_HEADER) as u32;
    let tail = Fields::default()
        .raw(&count.to_le_bytes())
        .u64(ids.0)
        .u64(ids.1)
        .u64(ord)
        .0;
    if let Some(slot) = frame.get_mut(12..FRAME_HEADER) {
        slot.copy_from_slice(&tail);
    }
    let crc = crc32c::crc32c_append(seed, frame.get(12..).unwrap_or_default());
    let head = Fields::default()
        .raw(&FRAME_MAGIC.to_le_bytes())
        .raw(&payload.to_le_bytes())
        .raw(&crc.to_le_bytes())
        .0;
    if let Some(slot) = frame.get_mut(..12) {
        slot.copy_from_slice(&head);
    }
}
