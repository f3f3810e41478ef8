//! SHA-256 and hexadecimal: how hashes and epochs are written everywhere.

use std::fmt::Write as _;

use sha2::{Digest, Sha256};

/// Lower-case hex, two digits a byte.
#[must_use]
pub fn hex(bytes: &[u8]) -> String {
    bytes
        .iter()
        .fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
            // Writing to a string does not fail.
            let _ = write!(text, "{byte:02x}");
            text
        })
}

/// SHA-256 of `bytes`, in hex.
#[must_use]
pub fn sha256(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

#[cfg(test)]
mod tests {
    #[test]
    fn digest_of_nothing_is_the_standards() {
        // FIPS 180-4: the empty message.
        assert_eq!(
            super::sha256(b""),
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
        );
    }
}
